"""One instance as one peer keeps it: its state, the transfer that it waits for, its rounds, and what was saved of it."""

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
    """Seconds."""
    retry_at: float | None = None
    """None while under way."""
    is_agreed: bool = True
    """A majority of the planned hosts has this state, or a plan names it."""

    @property
    def is_under_way(self) -> bool:
        return self.retry_at is None


@dataclass(slots=True)
class HostedInstance:
    """Of an instance that this peer hosts or needs for a merge, or of a branch state that it fetches.

    Rounds and boundaries are keys here, never the instance. `keep` prunes all of them.
    """

    boundary: int | None = None
    """That the state has reached; None where it is not here."""
    state_digest: Digest | None = None
    """Root of the state at that boundary, or of the stale one; None where it is not known here: after a fork, a merge or a way
    back in time."""
    rounds: dict[int, OuterRound] = field(default_factory=dict)
    """Under way, or done and not forgotten yet."""
    declined: set[int] = field(default_factory=set)
    """Rounds in which other hosts do not wait for this one: it asked them not to."""
    untrained: set[int] = field(default_factory=set)
    """Rounds that others were to train, and all of them are gone: the state here went through them as it was."""
    early_votes: dict[int, dict[PeerId, AverageDigest]] = field(default_factory=dict)
    """Round -> void votes of its contributors that came before it began here: one that has left sends its vote once. They are
    verified when they count, and a restart forgets them."""
    saved: set[int] = field(default_factory=set)
    """Boundaries at which it was saved, for a checkpoint that is not complete yet."""
    served: set[tuple[int, PeerId]] = field(default_factory=set)
    """Boundaries whose state others have fetched from this peer, with the other one."""
    not_shown: PartNotShown | None = None
    """The last one since this peer's last report on the instance."""
    assessed: list[ContributionAssessed] = field(default_factory=list)
    """What it has to report, one with each report, oldest first."""
    fruitless_rounds: int = 0
    """Rounds in a row that led nowhere; see `divergence.py`."""
    fetch: Fetch | None = None
    failed_fetches: int = 0
    """Transfers running that failed since the state is needed."""
    no_donor_since: float | None = None
    """The state is needed since then, and no other peer is known to have it."""
    awaited_since: float | None = None
    """The state is needed since then, and no plan came. Time in which a transfer was under way is not counted."""
    given_up_at: int | None = None
    """The state of this boundary is awaited no longer, unless a plan comes."""
    missed_since: float | None = None
    """Of a branch state: the next transition needs it since then, and it is not here."""
    decline_at: float | None = None
    """Until then others may count on this peer in its first round, although its state is still to come."""
    is_late: bool = False
    """That instant has passed: this peer is to withdraw from the round."""
    is_carried: bool = False
    """Its local parameters hold the inner steps of rounds that were void; the next pseudo-gradient spans them."""
    is_stale: bool = False
    """The device holds a state of an earlier boundary: the last resort where no other peer has any."""
    older_from: int | None = None
    """Since this boundary the state may not be that of the run, whatever votes come: it is an older one, or was on disk so."""
    unproven: set[tuple[InstanceId, int]] = field(default_factory=set)
    """Void rounds that led to the state, with their instances: the others may have committed an average that did not come here,
    by the votes that came so far."""
    inherited_at: int | None = None
    """The boundary at which doubt came from other instances. A plan that names the state of this one there names that before
    the fork or merge."""
    is_lost: bool = False
    """No peer has the state: this one reports without it, until plans end the instance or the state is found."""

    @property
    def doubtful_from(self) -> int | None:
        """Since this boundary the state may not be that of the run. None where a majority agreed on every step to it."""
        since = [number + 1 for _, number in self.unproven] + ([self.older_from] if self.older_from is not None else [])
        return min(since, default=None)

    def arrive(self, boundary: int, *, is_agreed: bool = True, state_digest: Digest | None = None) -> None:
        """A whole state of this boundary is here: no inner steps are carried over, and none of an earlier boundary matters."""
        self.boundary, self.state_digest, self.is_stale, self.is_carried = boundary, state_digest, False, False
        self.older_from, self.unproven, self.inherited_at = None if is_agreed else boundary, set(), None

    def descend(self, boundary: int, sources: Sequence["HostedInstance"]) -> None:
        """At this boundary its state was made of those of other instances, or of its own."""
        older = [source.older_from for source in sources if source.older_from is not None]
        unproven = {void for source in sources for void in source.unproven}
        is_inherited = any(source is not self and source.doubtful_from is not None for source in sources)
        inherited_at = boundary if is_inherited else self.inherited_at
        self.arrive(boundary)
        self.older_from, self.unproven, self.inherited_at = min(older, default=None), unproven, inherited_at

    def doubt(self, boundary: int) -> None:
        """From this boundary on, if not from an earlier one."""
        self.older_from = boundary if self.older_from is None else min(boundary, self.older_from)

    def confirm(self, boundary: int) -> None:
        """A plan names the state that this peer had at the boundary, before any fork or merge there."""
        if self.inherited_at is not None and boundary <= self.inherited_at:
            return
        if self.older_from is not None and self.older_from <= boundary:
            self.older_from = None
        self.unproven = {(instance, number) for instance, number in self.unproven if number >= boundary}

    def give_up(self) -> None:
        """Before a fast-forward: what is here is of an earlier boundary, and no transfer under way is wanted. The root of the
        state stays, unless a transfer may be about to replace it: it may be the one that is wanted after all."""
        if self.fetch is not None and self.fetch.is_under_way:
            self.state_digest = None
        self.is_stale = self.is_stale or self.boundary is not None
        self.boundary = self.fetch = self.no_donor_since = self.decline_at = None
        self.awaited_since = self.given_up_at = None
        self.failed_fetches = 0

    def keep(self, rounds: range) -> None:
        """Forget all other rounds, and the boundaries that are not between them: boundary n lies before round n."""
        boundaries = range(rounds.start, rounds.stop + 1)
        if self.inherited_at is not None and self.inherited_at not in boundaries:
            self.inherited_at = None
        if lasting := [number + 1 for _, number in self.unproven if number not in rounds]:  # no vote comes any more
            self.doubt(min(lasting))
        self.unproven = {(instance, number) for instance, number in self.unproven if number in rounds}
        self.rounds = {number: outer for number, outer in self.rounds.items() if number in rounds}
        self.early_votes = {number: votes for number, votes in self.early_votes.items() if number in rounds}
        self.assessed = [event for event in self.assessed if event.round in rounds]
        self.declined = {number for number in self.declined if number in rounds}
        self.untrained = {number for number in self.untrained if number in rounds}
        self.saved = {boundary for boundary in self.saved if boundary in boundaries}
        self.served = {(boundary, peer) for boundary, peer in self.served if boundary in boundaries}
