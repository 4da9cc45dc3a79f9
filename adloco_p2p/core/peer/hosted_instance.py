"""What one peer has of one instance: how far its state has come, and the transfer of a state that it waits for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """A state that this peer asked others for."""

    boundary: int
    retry_at: float | None = None
    """None while under way."""

    @property
    def is_under_way(self) -> bool:
        return self.retry_at is None


@dataclass(slots=True)
class HostedInstance:
    """Of an instance that this peer hosts or needs for a merge, or of a branch state that it fetches."""

    boundary: int | None = None
    """That the state has reached; None where it is not here."""
    fetch: Fetch | None = None
    failed_fetches: int = 0
    """Transfers running that failed since the state is needed."""
    no_donor_since: float | None = None
    """The state is needed since then, and no other peer is known to have it."""
    is_carried: bool = False
    """Its local parameters hold the inner steps of rounds that were void; the next pseudo-gradient spans them."""
    is_stale: bool = False
    """The device holds a state of an earlier boundary: the last resort where no other peer has any."""
    is_lost: bool = False
    """No peer has the state: this one reports without it, until plans end the instance or the state is found."""

    def give_up(self) -> None:
        """Before a fast-forward: what is here is of an earlier boundary, and no transfer under way is wanted."""
        self.is_stale = self.is_stale or self.boundary is not None
        self.boundary = self.fetch = self.no_donor_since = None
        self.failed_fetches = 0
