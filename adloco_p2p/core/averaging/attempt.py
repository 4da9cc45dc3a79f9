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
"""The number of attempts beyond the newest one known here up to which a report of a failure counts."""
GRACE_SECONDS = 1.0
"""The time for which the leader of a retry waits for the reports of the others."""
STATED_SECONDS = 0.2
"""The time for which the leader waits if a member declined, or stated that it contributes other inner steps than the attempt
counts."""
TAKEOVER_SECONDS = 4.0
"""The time without a start after which the leader of the retry is skipped."""
LONGEST_PAUSE_SECONDS = 32.0
"""The longest pause between failed tries, and the shortest between two attempts that one leader ends without a reported
failure."""
RESEND_SECONDS = 2.0
"""The time without a commit after which a commit vote is sent again. Members of an attempt are queried ever less often."""


def pause_seconds(num_failed: int) -> float:
    """Return the pause before the next try, longer each time."""
    return float(min(GRACE_SECONDS * 2.0 ** min(num_failed, 10), LONGEST_PAUSE_SECONDS))


@dataclass(slots=True)
class Attempt:
    """One try at an average, in which this host takes part or for which it waits. Instants are in seconds."""

    number: int
    members: tuple[PeerId, ...]
    completes: Digest | None = None
    """The decision that this attempt completes, if any."""
    partial_steps: PartialSteps = ()
    leader: PeerId | None = None
    """The other host that started the attempt; None for the first attempt of a round and for this host's own."""
    num_queries: int = 0
    """The number of times that this host has queried the members."""
    overdue_at: float | None = None
    """When this host stops waiting for its own result, once a majority, or all other members, have theirs."""
    lost_at: float | None = None
    """When this host ends the attempt because a member voted otherwise, unless a vote of the attempt comes."""

    def next_query_at(self, now: float) -> float:
        """Count a query of the members, and return when the next one is due."""
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
    """Return whether the peer has voted, but not in this attempt, so that it takes part in no further one."""
    vote = votes.vote_of(peer)
    return vote is not None and (vote.attempt != start.attempt or set(vote.contributors) != set(start.members))


def contribution_weights(samples: Mapping[PeerId, int], standings: Mapping[PeerId, int]) -> dict[PeerId, int]:
    """Return integer weights: samples times standing (`core/planning/standing.py`), or samples if all standings are equal."""
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
        """The attempt in which this host takes part or, if it is no member, for which it waits."""
        self.pending: Attempt | None = None
        """The newest attempt that was started while this host trains."""
        self.decision: Digest | None = None
        """The decision of the attempt that this host can complete."""
        self._num_failed = 0
        """The number of attempts that failed here since the last one that showed a new suspect."""
        self._num_suspects = 0

    @property
    def others(self) -> list[PeerId]:
        """The other members of the current attempt."""
        return [peer for peer in self.current.members if peer != self._me]

    @property
    def is_leader(self) -> bool:
        """Whether this host starts the next attempt."""
        return self._hosts.leader == self._me

    def key(
        self,
        number: int,
        members: Sequence[PeerId],
        completes: Digest | None = None,
        partial_steps: PartialSteps = (),
    ) -> Digest:
        """Return the key of an attempt, under which two sets of members, or of weights, never meet."""
        plan, partial = self._assignment.plan_digest, [list(each) for each in partial_steps]
        fields = ["average", plan, self._plan.round, self._instance, number, list(members), completes, partial]
        return canonical.digest(fields)

    def message(self) -> AttemptStart:
        """Return the message that starts the current attempt on other hosts, or queries its members."""
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
        """Return the effect that runs the all-reduce of the current attempt."""
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
            timeout_seconds=self._timeout_seconds(self._assignment.uplinks(attempt.members)),
            shares=reduced,
            lost=lost,
            completes=attempt.completes,
            quorum=quorum_of(
                self._assignment.work,
                self._plan,
                self._contributors,
                average_seconds=self._assignment.transfer_seconds,
                known=self._named_here(),
            ),
            is_strict=self._plan.round < self._instance_plan.strict_before,
            inspected=self._inspected(),
        )

    def vector_bytes(self, bytes_sent: int) -> int:
        """Return the size of this host's vector from the bytes that it sent in the current attempt: a member that reduces the
        fraction f sends 1 + (n - 2) f vectors; see `reduction_shares`. 0 in a retry, or without other members."""
        members = self.current.members
        if len(members) < 2 or self.current.number:
            return 0
        shares = self.average().shares or (1 / len(members),) * len(members)
        return round(bytes_sent / (1 + (len(members) - 2) * shares[members.index(self._me)]))

    def _reduction(self) -> tuple[tuple[float, ...], tuple[LostShare, ...]]:
        """Return the share that each member of the current attempt reduces, and the lost shares. Shares stay those of the first
        attempt, so that a reducer need not get again what it has of its own. If no reducer is left, the vector is cut anew."""
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
        """Return the share of the vector that each peer reduces if these peers average it; empty means equal shares."""
        seats = {entry.peer: entry for entry in self._plan.roster}
        hosts = {share.peer: share for share in self._instance_plan.hosts}
        reachable = [peer not in seats or seats[peer].capacity.is_reachable for peer in peers]
        served = [peer not in seats or not seats[peer].probation for peer in peers]
        allowed = [may_reduce(suspended_until=hosts[peer].suspended_until, round=self._plan.round) for peer in peers]
        reducers = [all(facts) for facts in zip(reachable, served, allowed, strict=True)]
        return reduction_shares(self._assignment.uplinks(peers), reducers if any(reducers) else reachable)

    def _named_here(self) -> frozenset[PeerId]:
        return self._assignment.failed_attempts.named_by(self._me, self._plan.round, self._instance)

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
        """Return the members with which the current attempt cannot succeed, each with the reason in words."""
        reasons = ((peer, self._reason_of_loss(peer, votes)) for peer in self.others)
        return {peer: reason for peer, reason in reasons if reason is not None}

    def is_made(self, votes: CommitVotes) -> bool:
        """Return whether the vote of another member shows that it has the average of the current attempt."""
        start = self.message()
        voted = [peer for peer in self.others if votes.vote_of(peer) is not None]
        return any(not has_voted_otherwise(peer, votes, start) for peer in voted)

    def _reason_of_loss(self, peer: PeerId, votes: CommitVotes) -> str | None:
        if peer in self._hosts.gone:
            return "is gone"
        if self._hosts[peer].has_declined:
            return "does not contribute"
        return "voted for another average" if has_voted_otherwise(peer, votes, self.message()) else None

    def failed(self, *, is_stated: bool = False) -> float:
        """Note that the current attempt failed here, and return the seconds until this host acts again: as the leader it waits
        a moment for the reports of the others, otherwise it gives the leader its time. `is_stated` means that it failed by a
        statement of another member about itself, which all hosts get: it declined, or contributes other inner steps."""
        self._hosts[self._me].failed_attempt = self.current.number
        if is_stated:
            return STATED_SECONDS + (0.0 if self.is_leader else TAKEOVER_SECONDS)
        if len(self._hosts.suspects) > self._num_suspects:  # without the new suspect the next attempt may succeed
            self._num_suspects, self._num_failed = len(self._hosts.suspects), 0
        seconds = pause_seconds(self._num_failed) + (0.0 if self.is_leader else TAKEOVER_SECONDS)
        self._num_failed += 1
        return seconds

    def begin_next(self) -> None:
        """Begin, as the leader, the attempt after all that failed, with all hosts that remain."""
        number = max(self.current.number, self._hosts.newest_failure) + 1
        members = self._hosts.remaining
        partial = self._hosts.partial_steps(members)
        self._begin(Attempt(number=number, members=members, completes=self._completed_by(members), partial_steps=partial))

    def follow(self, start: AttemptStart, leader: PeerId) -> None:
        self._begin(_started(start, leader))

    def postpone(self, start: AttemptStart, leader: PeerId) -> None:
        """Keep a started attempt until the inner steps end."""
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
        """Note that the current attempt has decided. Only an attempt of all contributors can be completed: an attempt of fewer
        has dealt parts anew, which do not follow from the lost members."""
        if self.current.members == self._contributors:
            self.decision = decision

    def _completed_by(self, members: Sequence[PeerId]) -> Digest | None:
        """Return the decision that a retry of these members completes, if all have it, some contributors are lost, and no
        completion has failed since the last new suspect."""
        if self.decision is None or self._num_failed > 1 or tuple(members) == self._contributors:
            return None
        have_it = all(self._hosts[peer].decision == self.decision for peer in members if peer != self._me)
        return self.decision if have_it else None

    # --- starts by others --------------------------------------------------------------------------------------------

    def is_well_formed(self, leader: PeerId, start: AttemptStart) -> bool:
        """Return whether the leader may lead, and the members are contributors in order, include it and all members with
        partial steps, and can commit an average. A leader could otherwise make each host spend its one vote on an average of
        two."""
        members = tuple(peer for peer in self._contributors if peer in start.members)
        partial = dict(start.partial_steps)
        in_order = tuple((peer, partial[peer]) for peer in members if peer in partial)
        is_in_order = members == start.members and leader in members and in_order == start.partial_steps
        return is_in_order and self._hosts.may_lead(leader) and self._hosts.can_commit(members)

    def is_news(self, start: AttemptStart) -> bool:
        """Return whether the partial steps are valid and the attempt is newer than the one known here. Of two attempts with one
        number, from leaders that do not know of each other or from one that sends both, the same one must count everywhere:
        that with more members, then with the first members, then with the fewer partial steps. Otherwise each would wait for
        the other."""
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
        """Return whether the contributor may take part with so many inner steps, fewer than planned."""
        share = self._instance_plan.share(peer)
        return share.averages_every == 1 and self._instance_plan.least_steps <= steps < share.inner_steps

    @property
    def leader_elsewhere(self) -> PeerId | None:
        """The leader of an attempt without this host, which waits for its result; None if there is none."""
        return self.current.leader if self._me not in self.current.members else None

    def counts_otherwise(self, peer: PeerId, steps: int) -> bool:
        """Return whether the current attempt counts other inner steps of the member than it contributes (0: as planned)."""
        return peer in self.current.members and dict(self.current.partial_steps).get(peer, 0) != steps

    def is_called_for(self, leader: PeerId, now: float) -> bool:
        """Return whether the running attempt is given up for one of this leader: a member has reported a failure, or its report
        may have been lost, which counts only once per LONGEST_PAUSE_SECONDS."""
        if any(self._hosts[peer].failed_attempt == self.current.number for peer in self.current.members):
            return True
        if now - self._hosts[leader].uncalled_start_at < LONGEST_PAUSE_SECONDS:
            return False
        self._hosts[leader].uncalled_start_at = now
        return True
