"""Peers without a seat: they get few places and share small budgets, so that free identities cost members nothing."""

from collections.abc import Collection

from adloco_p2p.core.model.scalars import PeerId


def is_stranger(peer: PeerId, *, me: PeerId, members: Collection[PeerId]) -> bool:
    """Whether the peer is a stranger to `me`. A peer without a seat of its own has no roster yet and treats all alike: no peer
    is a stranger to it."""
    return me in members and peer not in members
