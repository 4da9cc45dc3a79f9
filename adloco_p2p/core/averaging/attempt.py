"""One attempt at an average - its number, members, key and deadlines - and the attempt that follows when it fails."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from adloco_p2p.core.averaging.assignment import Assignment
from adloco_p2p.core.averaging.commit_votes import CommitVotes
from adloco_p2p.core.averaging.host_views import HostViews
from adloco_p2p.core.averaging.reduction_shares import reduction_shares
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.averages import Average, LostShare
from adloco_p2p.core.model.complaints import may_reduce
from adloco_p2p.core.model.messages import AttemptStart, PartialSteps
from adloco_p2p.core.model.quorum import quorum_of
from adloco_p2p.core.model.roster_entry import FULL_STANDING
from adloco_p2p.core.model.scalars import Digest, PeerId

MAX_MISSED_ATTEMPTS = 64
"""A report of a failure counts up to this many attempts after the one that this host has learned of."""
GRACE_SECONDS = 1.0
"""After a failed attempt the leader of the retry waits this long for the reports of the others."""
MISCOUNTED_SECONDS = 0.2
"""The same where a member stated that it contributes fewer inner steps than the attempt counts."""
TAKEOVER_SECONDS = 4.0
"""After this time without a message from it, the leader of the retry is skipped."""
LONGEST_PAUSE_SECONDS = 32.0
"""Pauses between tries that fail grow up to this. A leader may end an attempt that no failure was reported of as often."""
RESEND_SECONDS = 2.0
"""A commit vote is sent again after this time without a commit. Members of an attempt are queried, too, ever less often."""


def pause_seconds(num_failed: int) -> float:
    """Before the next try, longer each time."""
    return float(min(GRACE_SECONDS * 2.0 ** min(num_failed, 10), LONGEST_PAUSE_SECONDS))


@dataclass(slots=True)
class Attempt:
    """One try at an average, which this host takes part in or waits for."""

    number: int
    members: tuple[PeerId, ...]
    completes: Digest | None = None
    """The decision of the attempt that this one completes."""
    partial_steps: PartialSteps = ()
    leader: PeerId | None = None
    """The other host that started it; none for the first attempt of a round."""
    num_queries: int = 0
    """How often this host has queried the members."""
    overdue_at: float | None = None
    """When this host stops waiting for its own result, once a majority, or all other members, have theirs. Seconds."""
    lost_at: float | None = None
    """When this host ends it because a member voted otherwise, unless a vote of the attempt comes. Seconds."""

    def next_query_at(self, now: float) -> float:
        """The members are being queried; when they are due again, in seconds."""
        self.num_queries += 1
        return now + pause_seconds(self.num_queries + 1)


def _started(start: AttemptStart, leader: PeerId) -> Attempt:
    return Attempt(
        number=start.attempt,
        members=start.members,
        completes=start.completes,
        partial_steps=start.partial_steps,
        leader=leader,
    )


def has_voted_otherwise(peer: PeerId, votes: CommitVotes, start: AttemptStart) -> bool:
    """The peer voted, and not in this attempt: it takes part in none any more."""
    vote = votes.vote_of(peer)
    return vote is not None and (vote.attempt != start.attempt or set(vote.contributors) != set(start.members))


def contribution_weights(samples: Mapping[PeerId, int], standings: Mapping[PeerId, int]) -> dict[PeerId, int]:
    """As integers: samples times standing (`core/planning/standing.py`). Where all stand alike, their samples."""
    known = {standings.get(peer, FULL_STANDING) for peer in samples}
    if len(known) <= 1:
        return dict(samples)
    return {peer: number * standings.get(peer, FULL_STANDING) for peer, number in samples.items()}


class Attempts:
    """The attempts of one instance's round, on one host."""

    def __init__(self, assignment: Assignment, hosts: HostViews) -> None:
        self._assignment = assignment
        self._me, self._plan, self._instance = assignment.me, assignment.plan, assignment.instance
        self._instance_plan = assignment.instance_plan
        self._contributors = assignment.contributors
        self._hosts = hosts
        self.current = Attempt(number=0, members=self._contributors)
        """This host takes part in it or, without being a member, waits for it."""
        self.pending: Attempt | None = None
        """The newest attempt that was started while this host trains."""
        self.decision: Digest | None = None
        """Of the attempt that this host can complete."""
        self._num_failed = 0
        """Attempts that failed here since the last one that showed a new suspect."""
        self._num_suspects = 0

    @property
    def others(self) -> list[PeerId]:
        """The other members of the current attempt."""
        return [peer for peer in self.current.members if peer != self._me]

    @property
    def is_leader(self) -> bool:
        """This contributor starts the next attempt."""
        return self._hosts.leader == self._me

    def key(
        self,
        number: int,
        members: Sequence[PeerId],
        completes: Digest | None = None,
        partial_steps: PartialSteps = (),
    ) -> Digest:
        """Two sets of members never meet under one key, nor do two sets of weights."""
        plan, partial = self._assignment.plan_digest, [list(each) for each in partial_steps]
        fields = ["average", plan, self._plan.round, self._instance, number, list(members), completes, partial]
        return canonical.digest(fields)

    def message(self) -> AttemptStart:
        """Starts the current attempt on other hosts, or queries its members."""
        attempt = self.current
        return AttemptStart(
            instance=self._instance,
            round=self._plan.round,
            attempt=attempt.number,
            members=attempt.members,
            completes=attempt.completes,
            partial_steps=attempt.partial_steps,
        )

    def average(self) -> Average:
        """The all-reduce of the current attempt."""
        attempt = self.current
        shares = {share.peer: share for share in self._instance_plan.hosts}
        roster = {entry.peer: entry for entry in self._plan.roster if entry.peer in attempt.members}
        steps = {peer: shares[peer].inner_steps for peer in attempt.members} | dict(attempt.partial_steps)
        weights = contribution_weights(
            {peer: shares[peer].effective_batch * steps[peer] for peer in attempt.members},
            {peer: entry.standing for peer, entry in roster.items()},
        )
        reduced, lost = self._reduction()
        return Average(
            instance=self._instance,
            round=self._plan.round,
            attempt=attempt.number,
            key=self.key(attempt.number, attempt.members, attempt.completes, attempt.partial_steps),
            plan=self._assignment.plan_digest,
            weights=tuple(weights.items()),
            steps=tuple(steps[peer] * shares[peer].averages_every for peer in attempt.members),
            timeout_seconds=self._timeout_seconds(self._uplinks(attempt.members)),
            shares=reduced,
            lost=lost,
            completes=attempt.completes,
            quorum=quorum_of(self._assignment.work, self._plan, self._contributors),
            is_strict=self._plan.round < self._instance_plan.strict_before,
            inspected=self._inspected(),
        )

    def vector_bytes(self, bytes_sent: int) -> int:
        """Of the own vector, from what this host sent in the current attempt: a member that reduces the fraction f sends
        1 + (n - 2) f vectors; see `reduction_shares`. 0 in a retry."""
        members = self.current.members
        if len(members) < 2 or self.current.number:
            return 0
        shares = self.average().shares or (1 / len(members),) * len(members)
        return round(bytes_sent / (1 + (len(members) - 2) * shares[members.index(self._me)]))

    def _reduction(self) -> tuple[tuple[float, ...], tuple[LostShare, ...]]:
        """How much each member of the current attempt reduces, as cut for the first one: so what a reducer has got of its
        shard it need not get again. Where none of those that were to reduce is left the vector is cut anew."""
        members = self.current.members
        if members == self._contributors:
            return self._shares(members), ()
        first = self._shares(self._contributors) or (1.0,) * len(self._contributors)
        kept = tuple(share for peer, share in zip(self._contributors, first, strict=True) if peer in members)
        if not any(kept):
            return self._shares(members), ()
        lost, place = [], 0
        for peer, share in zip(self._contributors, first, strict=True):
            if peer in members:
                place += 1
            else:
                lost.append(LostShare(place, share))
        return kept, tuple(lost)

    def _shares(self, peers: Sequence[PeerId]) -> tuple[float, ...]:
        """How much of the vector each of these reduces if they average it; empty: equally much."""
        seats = {entry.peer: entry for entry in self._plan.roster}
        hosts = {share.peer: share for share in self._instance_plan.hosts}
        reachable = [peer not in seats or seats[peer].capacity.is_reachable for peer in peers]
        served = [peer not in seats or not seats[peer].probation for peer in peers]
        allowed = [may_reduce(suspended_until=hosts[peer].suspended_until, round=self._plan.round) for peer in peers]
        reducers = [all(facts) for facts in zip(reachable, served, allowed, strict=True)]
        return reduction_shares(self._uplinks(peers), reducers if any(reducers) else reachable)

    def _uplinks(self, peers: Sequence[PeerId]) -> list[float]:
        """Bytes per second; 0: unknown."""
        seats = {entry.peer: entry for entry in self._plan.roster}
        return [seats[peer].uplink if peer in seats else 0.0 for peer in peers]

    def _inspected(self) -> tuple[PeerId, ...]:
        named = {complaint.reducer for complaint in self._instance_plan.complaints}
        return tuple(peer for peer in self.current.members if peer in named)

    def _timeout_seconds(self, uplinks: Sequence[float]) -> float:
        expected = self._plan.expected_seconds
        adaptive = self._assignment.adaptive_timeout
        timeout = adaptive.timeout_seconds(expected_seconds=expected)
        if adaptive.waits and expected > 0:
            return min(timeout, adaptive.longest_seconds(expected_seconds=expected, uplinks=uplinks))
        return timeout

    # --- failure and retry -------------------------------------------------------------------------------------------

    def lost_members(self, votes: CommitVotes) -> dict[PeerId, str]:
        """Members with which the current attempt cannot succeed, and the reason in words."""
        reasons = ((peer, self._reason_of_loss(peer, votes)) for peer in self.others)
        return {peer: reason for peer, reason in reasons if reason is not None}

    def is_made(self, votes: CommitVotes) -> bool:
        """Another member has the average of the current attempt, as its vote shows."""
        start = self.message()
        voted = [peer for peer in self.others if votes.vote_of(peer) is not None]
        return any(not has_voted_otherwise(peer, votes, start) for peer in voted)

    def _reason_of_loss(self, peer: PeerId, votes: CommitVotes) -> str | None:
        if peer in self._hosts.gone:
            return "is gone"
        if self._hosts[peer].has_declined:
            return "does not contribute"
        return "voted for another average" if has_voted_otherwise(peer, votes, self.message()) else None

    def failed(self, *, is_miscounted: bool = False) -> float:
        """The current attempt failed here. Returns the seconds until this host acts again: as the leader it waits a moment for
        the reports of the others, otherwise it gives the leader its time. `is_miscounted`: by another member's statement,
        which all get; this host may have more reports than that member."""
        self._hosts[self._me].failed_attempt = self.current.number
        if is_miscounted:
            return MISCOUNTED_SECONDS + (0.0 if self.is_leader else TAKEOVER_SECONDS)
        if len(self._hosts.suspects) > self._num_suspects:  # without the new suspect the next one is another attempt
            self._num_suspects, self._num_failed = len(self._hosts.suspects), 0
        seconds = pause_seconds(self._num_failed) + (0.0 if self.is_leader else TAKEOVER_SECONDS)
        self._num_failed += 1
        return seconds

    def begin_next(self) -> None:
        """Its leader begins the attempt after all that failed, with all that remain."""
        number = max(self.current.number, self._hosts.newest_failure) + 1
        members = self._hosts.remaining
        partial = self._hosts.partial_steps(members)
        self._begin(Attempt(number=number, members=members, completes=self._completed_by(members), partial_steps=partial))

    def follow(self, start: AttemptStart, leader: PeerId) -> None:
        self._begin(_started(start, leader))

    def postpone(self, start: AttemptStart, leader: PeerId) -> None:
        """Until the inner steps end."""
        self.pending = _started(start, leader)

    def begin_pending(self) -> None:
        if self.pending is not None:
            self._begin(self.pending)

    def _begin(self, attempt: Attempt) -> None:
        self.current = attempt
        if attempt.completes is None:
            self.decision = None

    # --- completion --------------------------------------------------------------------------------------------------

    def decided(self, decision: Digest) -> None:
        """The current attempt, which completes none itself, has decided. Only one of all contributors can be completed: the
        parts that an attempt of fewer had dealt anew do not follow from the members that are lost."""
        if self.current.members == self._contributors:
            self.decision = decision

    def _completed_by(self, members: Sequence[PeerId]) -> Digest | None:
        """The decision that a retry of these members completes: all have it, some contributors are lost, and no completion has
        failed since the last new suspect."""
        if self.decision is None or self._num_failed > 1 or tuple(members) == self._contributors:
            return None
        have_it = all(self._hosts[peer].decision == self.decision for peer in members if peer != self._me)
        return self.decision if have_it else None

    # --- starts by others --------------------------------------------------------------------------------------------

    def is_well_formed(self, leader: PeerId, start: AttemptStart) -> bool:
        """The members are contributors in their order, the leader and those with partial steps among them."""
        members = tuple(peer for peer in self._contributors if peer in start.members)
        partial = dict(start.partial_steps)
        in_order = tuple((peer, partial[peer]) for peer in members if peer in partial)
        return members == start.members and leader in members and in_order == start.partial_steps

    def is_news(self, start: AttemptStart) -> bool:
        """Its partial steps are fewer than the planned ones, and it is newer than the attempt of which this host is a member.
        Of two with one number, by leaders without news of each other or by one that sends both, the same one counts
        everywhere: that of more members, then of the first ones, then of the fewer partial steps. Otherwise each would wait
        for the other."""
        if not all(self.is_partial(peer, steps) for peer, steps in start.partial_steps):
            return False
        known = self.current
        if self.pending is not None and self.pending.number > known.number:
            known = self.pending
        if start.attempt != known.number:
            return start.attempt > known.number
        mine = (len(start.members), known.members, known.partial_steps)
        return mine > (len(known.members), start.members, start.partial_steps)

    def is_partial(self, peer: PeerId, steps: int) -> bool:
        """Whether the contributor may take part with so many inner steps instead of the planned ones."""
        share = self._instance_plan.share(peer)
        return share.averages_every == 1 and self._instance_plan.least_steps <= steps < share.inner_steps

    @property
    def leader_elsewhere(self) -> PeerId | None:
        """The host by whose word the others average without this one, which waits for the result."""
        return self.current.leader if self._me not in self.current.members else None

    def counts_otherwise(self, peer: PeerId, steps: int) -> bool:
        """The peer contributes so many inner steps (0: as planned), and is in the current attempt with other ones."""
        return peer in self.current.members and dict(self.current.partial_steps).get(peer, 0) != steps

    def is_worth_waiting(self, start: AttemptStart) -> bool:
        """The members are more than half of those that remain: fewer decide nothing for a host that is not among them."""
        return 2 * len(start.members) > len(self._hosts.remaining)

    def is_called_for(self, leader: PeerId, now: float) -> bool:
        """The current attempt, which runs, is given up for one of this leader: a member has reported a failure, or the report
        may have been lost - but not again and again."""
        if any(self._hosts[peer].failed_attempt == self.current.number for peer in self.current.members):
            return True
        if now - self._hosts[leader].uncalled_start_at < LONGEST_PAUSE_SECONDS:
            return False
        self._hosts[leader].uncalled_start_at = now
        return True
