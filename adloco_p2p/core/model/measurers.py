"""The hosts that measure an outer step: drawn by lot, once all contributors are bound to what the step is made of."""

import hashlib
from collections.abc import Collection, Sequence

from adloco_p2p.core.model.types import Digest, PeerId, RosterEntry

PAIR = 2
"""An evaluator and a confirmer, whose losses count only where they agree."""
PAIRS_AFTER_DISPUTE = 2
"""So many pairs measure the next step after one on which a pair did not agree: one of it may have lied."""


def measurers(state: Digest, workers: Collection[PeerId], roster: Sequence[RosterEntry], *, count: int) -> tuple[PeerId, ...]:
    """Up to `count` of the hosts that had work, of the full members alone where there are any: those of least hash.

    `state` is that after the outer step, which follows from the committed average: contributors are bound before it exists.
    """
    full = [entry.peer for entry in roster if entry.peer in workers and not entry.probation]
    return tuple(sorted(full or workers, key=lambda peer: _lot(state, peer))[:count])


def _lot(state: Digest, peer: PeerId) -> bytes:
    return hashlib.sha256(f"{state}:{peer}".encode()).digest()
