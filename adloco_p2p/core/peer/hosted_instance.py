"""All that one peer keeps of one instance: its state, the transfer that it waits for, its rounds, and what was saved of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from adloco_p2p.core.averaging.outer_round import OuterRound
from adloco_p2p.core.model.assessments import ContributionAssessed
from adloco_p2p.core.model.complaints import PartNotShown
from adloco_p2p.core.model.messages import AverageDigest
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """A state that this peer asked others for."""

    boundary: int
    began_at: float
    """Time in seconds at which the transfer began."""
    retry_at: float | None = None
    """Time of the next try; None while the transfer is in progress."""
    is_agreed: bool = True
    """A majority of the planned hosts has this state, or a plan names it."""

    @property
    def is_under_way(self) -> bool:
        return self.retry_at is None


@dataclass(slots=True)
class HostedInstance:
    """What a peer keeps of an instance that it hosts or needs for a merge, or of a branch state that it fetches.

    Rounds and boundaries are keys here, never the instance. `keep` prunes all of them.
    """

    boundary: int | None = None
    """Boundary that the state has reached; None if the state is not here."""
    state_digest: Digest | None = None
    """Root of the state at that boundary, or of the stale state; None if it is unknown, as after a fork, a merge or a
    rewind."""
    rounds: dict[int, OuterRound] = field(default_factory=dict)
    """Rounds in progress, and finished ones that are not forgotten yet."""
    declined: set[int] = field(default_factory=set)
    """Rounds in which other hosts do not wait for this one, because it declined."""
    untrained: set[int] = field(default_factory=set)
    """Rounds that others were to train before all of them went; the state here went through them unchanged."""
    early_votes: dict[int, dict[PeerId, AverageDigest]] = field(default_factory=dict)
    """Void votes of a round's contributors that came before the round began here, by round; a host that leaves sends its vote
    only once. They are verified when they count, and a restart forgets them."""
    saved: set[int] = field(default_factory=set)
    """Boundaries at which the state was saved for a checkpoint that is not complete yet."""
    served: set[tuple[int, PeerId]] = field(default_factory=set)
    """(Boundary, peer) pairs: the peer has fetched the state of this boundary from this one."""
    not_shown: PartNotShown | None = None
    """The last contribution not shown since this peer's last report on the instance."""
    assessed: list[ContributionAssessed] = field(default_factory=list)
    """Scores still to be reported, one per report, oldest first."""
    fruitless_rounds: int = 0
    """Diverged rounds in a row; see `divergence.py`."""
    is_left_out: bool = False
    """Whether the last committed average that could have this peer's contribution left it out."""
    passed_over_in: int | None = None
    """The last round whose average the others made without this peer because it held them up; None since it was in one."""
    fetch: Fetch | None = None
    failed_fetches: int = 0
    """Failed transfers in a row since the state is needed."""
    no_donor_since: float | None = None
    """Time since which the state is needed and no other peer is known to have it."""
    awaited_since: float | None = None
    """Time since which the state is needed and no plan has come, moved forward by the time in which transfers ran."""
    given_up_at: int | None = None
    """Boundary whose state is no longer awaited, unless a plan comes."""
    missed_since: float | None = None
    """For a branch state: time since which the next transition needs it and it is not here."""
    decline_at: float | None = None
    """Time until which others may count on this peer in its first round, although its state is still to come."""
    is_late: bool = False
    """The time of `decline_at` has passed, so this peer is to withdraw from the round."""
    is_carried: bool = False
    """The local parameters hold the inner steps of void rounds; the next pseudo-gradient spans them."""
    is_stale: bool = False
    """The device holds a state of an earlier boundary, the last resort if no other peer has any."""
    older_from: int | None = None
    """Boundary since which, whatever votes come, the state may not be that of the run: it is an older one, or was saved as
    doubtful."""
    unproven: set[tuple[InstanceId, int]] = field(default_factory=set)
    """Void rounds that led to the state, as (instance, round): by the votes so far, the others may have committed an average
    that did not arrive here."""
    inherited_at: int | None = None
    """Boundary of a fork or merge that brought doubt from other instances. A plan that names this instance's state there names
    the one from before the fork or merge."""
    is_lost: bool = False
    """No peer has the state. This peer reports without it until plans end the instance or the state is found."""

    @property
    def doubtful_from(self) -> int | None:
        """Boundary since which the state may not be that of the run; None if a majority agreed on every step to it."""
        since = [number + 1 for _, number in self.unproven] + ([self.older_from] if self.older_from is not None else [])
        return min(since, default=None)

    def arrive(self, boundary: int, *, is_agreed: bool = True, state_digest: Digest | None = None) -> None:
        """Note the arrival of a whole state of this boundary. It carries over no inner steps, and doubts about earlier
        boundaries no longer count."""
        self.boundary, self.state_digest, self.is_stale, self.is_carried = boundary, state_digest, False, False
        self.older_from, self.unproven, self.inherited_at = None if is_agreed else boundary, set(), None

    def descend(self, boundary: int, sources: Sequence["HostedInstance"]) -> None:
        """Note that at this boundary the state was made from those of other instances, or from its own."""
        older = [source.older_from for source in sources if source.older_from is not None]
        unproven = {void for source in sources for void in source.unproven}
        is_inherited = any(source is not self and source.doubtful_from is not None for source in sources)
        inherited_at = boundary if is_inherited else self.inherited_at
        self.arrive(boundary)
        self.older_from, self.unproven, self.inherited_at = min(older, default=None), unproven, inherited_at

    def doubt(self, boundary: int) -> None:
        """Doubt the state from this boundary on, if it is not doubted from an earlier one."""
        self.older_from = boundary if self.older_from is None else min(boundary, self.older_from)

    def confirm(self, boundary: int) -> None:
        """Note that a plan names this peer's state at the boundary, from before any fork or merge there."""
        if self.inherited_at is not None and boundary <= self.inherited_at:
            return
        if self.older_from is not None and self.older_from <= boundary:
            self.older_from = None
        self.unproven = {(instance, number) for instance, number in self.unproven if number >= boundary}

    def give_up(self) -> None:
        """Prepare for a fast-forward: the state here is of an earlier boundary, and no transfer in progress is wanted. The root
        of the state is kept, unless a transfer may be about to replace the state: it may be the one that is wanted after
        all."""
        if self.fetch is not None and self.fetch.is_under_way:
            self.state_digest = None
        self.is_stale = self.is_stale or self.boundary is not None
        self.boundary = self.fetch = self.no_donor_since = self.decline_at = None
        self.awaited_since = self.given_up_at = None
        self.failed_fetches = 0

    def keep(self, rounds: range) -> None:
        """Forget all other rounds, and all boundaries not adjacent to these rounds: boundary n lies before round n."""
        boundaries = range(rounds.start, rounds.stop + 1)
        if self.inherited_at is not None and self.inherited_at not in boundaries:
            self.inherited_at = None
        if lasting := [number + 1 for _, number in self.unproven if number not in rounds]:  # no further vote can resolve them
            self.doubt(min(lasting))
        self.unproven = {(instance, number) for instance, number in self.unproven if number in rounds}
        self.rounds = {number: outer for number, outer in self.rounds.items() if number in rounds}
        self.early_votes = {number: votes for number, votes in self.early_votes.items() if number in rounds}
        self.assessed = [event for event in self.assessed if event.round in rounds]
        self.declined = {number for number in self.declined if number in rounds}
        self.untrained = {number for number in self.untrained if number in rounds}
        self.saved = {boundary for boundary in self.saved if boundary in boundaries}
        self.served = {(boundary, peer) for boundary, peer in self.served if boundary in boundaries}
