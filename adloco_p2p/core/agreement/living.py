"""The members that count, cached with the time for which that holds: every message asks, and few change the answer."""

from dataclasses import dataclass

from adloco_p2p.core.model.scalars import PeerId

CLOSE_SECONDS = 1e-6
"""The margin before `until` from which the members are looked at again, because a sum of two instants is not exact."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Living:
    """The living members, valid from `since` to `until`, unless the beat of an unresponsive member rises, or a member leaves.
    Instants are seconds of the peer's own clock."""

    there: tuple[PeerId, ...]
    """Members whose leases run, sorted."""
    responsive: frozenset[PeerId]
    """The members of `there` that are no suspects."""
    since: float
    until: float
    """When the first member becomes a suspect, or is gone, unless its beat rises."""

    def holds(self, now: float) -> bool:
        return self.since <= now < self.until - CLOSE_SECONDS
