"""Which members count at some time. Every message asks, and few of them change the answer."""

from dataclasses import dataclass

from adloco_p2p.core.model.scalars import PeerId

CLOSE_SECONDS = 1e-6
"""So shortly before an end the members are looked at again: a sum of two instants is not exact."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Living:
    """Holds from `since` to `until`, unless the beat of a member rises that is no longer `responsive`, or one leaves. Instants
    are seconds of the peer's own clock."""

    there: tuple[PeerId, ...]
    """Members whose leases run, sorted."""
    responsive: frozenset[PeerId]
    """Those of them that are no suspects."""
    since: float
    until: float
    """When the first of them is a suspect, or gone, if its beat does not rise."""

    def holds(self, now: float) -> bool:
        return self.since <= now < self.until - CLOSE_SECONDS
