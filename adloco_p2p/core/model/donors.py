"""The order in which a peer asks those that can serve a state or an average."""

from collections.abc import Collection, Container

from adloco_p2p.core.model.measurers import lot
from adloco_p2p.core.model.scalars import Digest, PeerId


def in_turn(donors: Collection[PeerId], wanted: Digest, me: PeerId, *, first: Container[PeerId]) -> tuple[PeerId, ...]:
    """Return the donors of `wanted` in the order in which this peer asks them: those in `first`, then the others, both by lot.

    Few are asked at a time (`swarm/transfer/chunk_fetcher.py`), and one that is slow keeps its place for minutes. So names on
    probation, which cost nothing, come last; and no id is first for every peer and state, however it was chosen.
    """
    return tuple(sorted(donors, key=lambda peer: (peer not in first, lot(f"{wanted}:{me}", peer))))
