"""One instance, one round, on one host: train, average, commit, apply, evaluate.

The rules that make an outer step safe:

- Only a COMMITTED average is applied. An average is committed when a majority of the round's living contributors
  name the same digest; each names one digest, that of the first complete average it holds.
- An attempt that fails is repeated with the survivors under a new key, so that two sets of members never meet. The
  living contributor with the smallest id says who takes part; if it is silent, the next one does.
- Nobody takes part with one who spoiled an attempt in his own sight, whoever leads, but says so. Of two attempts with one
  number the same one counts everywhere.
- A host that was left out, or whose result was lost, fetches the committed average from one that holds it. Who has voted
  takes part in nothing more; so a host that waits in an attempt asks its members now and then whether they have.
- A pseudo-gradient that was not averaged with the others is dropped, never applied as if it had been.
- Hosts in client mode cannot reach each other; `commit_votes.py` describes how they commit. Reachable hosts lead a retry first.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from enum import StrEnum

from adloco_p2p.core.averaging.adaptive_timeout import AdaptiveTimeout
from adloco_p2p.core.averaging.commit_votes import Choice, CommitTally, CommitVotes, choice_of
from adloco_p2p.core.averaging.reduction_shares import reduction_shares
from adloco_p2p.core.averaging.retry_members import RetryMembers
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.events import (
    ApplyOuter,
    Average,
    AverageFailed,
    AverageFinished,
    CancelAverage,
    Effect,
    Evaluate,
    Evaluated,
    InnerFinished,
    InnerResult,
    OuterApplied,
    RepairAverage,
    RunInner,
    Send,
    Totals,
)
from adloco_p2p.core.model.messages import AttemptFailed, AttemptStart, AverageDigest, AveragingMessage
from adloco_p2p.core.model.report_form import bits_of, named_by
from adloco_p2p.core.model.telemetry import Log
from adloco_p2p.core.model.types import (
    MAX_BALLOT_JUMP,
    Digest,
    HostShare,
    InstanceId,
    InstanceReport,
    PeerId,
    RoundPlan,
    within_scalars,
)

GRACE_SECONDS = 1.0
"""After a failed attempt, so long the leader of the retry listens for what the others saw."""
TAKEOVER_SECONDS = 4.0
"""After so long without a word from it, the leader of the retry is passed over."""
LONGEST_PAUSE_SECONDS = 32.0
"""What fails again and again is tried less and less often, down to this."""
RESEND_SECONDS = 2.0
"""A digest that did not lead to a commit is said again after so long; the members of an attempt are asked, ever less often."""
REPAIR_SECONDS = 60.0
"""Timeout of fetching a committed average while nothing was learned about the links."""


class Phase(StrEnum):
    """Where a round of one instance stands. The table below names every step from one phase to another."""

    TRAINING = "training"
    TRAINED = "trained"
    """Only with delayed updates: the outer step of the round before is still to come."""
    AVERAGING = "averaging"
    RETRYING = "retrying"
    COMMITTING = "committing"
    REPAIRING = "repairing"
    APPLYING = "applying"
    EVALUATING = "evaluating"
    DONE = "done"


STEPS: dict[Phase, frozenset[Phase]] = {
    Phase.TRAINING: frozenset({Phase.TRAINED, Phase.AVERAGING, Phase.RETRYING, Phase.REPAIRING}),
    Phase.TRAINED: frozenset({Phase.AVERAGING, Phase.RETRYING, Phase.REPAIRING}),
    Phase.AVERAGING: frozenset({Phase.AVERAGING, Phase.COMMITTING, Phase.RETRYING, Phase.REPAIRING}),
    Phase.RETRYING: frozenset({Phase.AVERAGING, Phase.REPAIRING}),
    Phase.COMMITTING: frozenset({Phase.APPLYING, Phase.REPAIRING}),
    Phase.REPAIRING: frozenset({Phase.COMMITTING, Phase.RETRYING}),
    Phase.APPLYING: frozenset({Phase.EVALUATING, Phase.DONE}),
    Phase.EVALUATING: frozenset({Phase.DONE}),
    Phase.DONE: frozenset(),
}


class OuterRound:
    """State of one instance's round. Methods return effects; `phase` says where it stands."""

    def __init__(
        self,
        *,
        me: PeerId,
        plan: RoundPlan,
        plan_digest: Digest,
        instance: InstanceId,
        adaptive_timeout: AdaptiveTimeout,
        is_late: bool = False,
    ) -> None:
        """`is_late`: the others have ended this round already; only its average is wanted."""
        self.me = me
        self.round = plan.round
        self.instance = instance
        self.instance_plan = plan.instance(instance)
        self.share: HostShare = next(share for share in self.instance_plan.hosts if share.peer == me)
        self.contributors: tuple[PeerId, ...] = tuple(s.peer for s in self.instance_plan.hosts if s.samples > 0)
        assert self.contributors, "a plan gives every live instance work"
        self.is_contributor = self.share.samples > 0 and not is_late
        """This host trains; another only receives."""
        self.phase = Phase.TRAINING if self.is_contributor else Phase.RETRYING
        self.result: InnerResult | None = None
        self.average: AverageFinished | None = None
        self.applied: OuterApplied | None = None
        self.heldout_loss: float | None = None
        self.is_ahead = False
        """Its inner steps began before the outer step of the round before."""
        self.seconds: dict[str, float] = {}
        self.next_deadline: float | None = None
        self._plan = plan
        self._plan_digest = plan_digest
        self._clients = frozenset(roster_entry.peer for roster_entry in plan.roster if not roster_entry.capacity.is_reachable)
        self._adaptive_timeout = adaptive_timeout
        self._attempt = 0
        self._num_failed = 0
        """Attempts that failed here since the last one that showed whom to leave out."""
        self._num_suspected = 0
        self._members: tuple[PeerId, ...] = self.contributors
        self._votes = CommitVotes(me=me, contributors=self.contributors, clients=self._clients)
        self._retry_members = RetryMembers(me=me, contributors=self.contributors, clients=self._clients)
        self._failed: dict[PeerId, int] = {}
        self._pending: AttemptStart | None = None
        self._phase_since = 0.0
        self._unfounded: dict[PeerId, float] = {}
        """When each host last ended an attempt of which nobody had said that it failed."""
        self._failed_donors_this_pass: dict[PeerId, None] = {}
        """Asked in vain, and again after a pause."""
        self._failed_donors: dict[PeerId, None] = {}
        """Asked in vain at any time: without a majority their votes are no reason to wait."""
        self._num_repairs_failed = 0
        self._repaired = 0
        """The attempt whose average is being fetched, or was last."""
        self._num_asked = 0
        """How often the members of the attempt under way were asked."""
        self._overdue_at: float | None = None
        """When ours is not worth waiting for any more: a majority of all, or all others, have the average under way."""
        self._declined: dict[PeerId, None] = {}
        """Contributors that said that they do not take part: nobody waits for their votes."""

    # --- what the peer calls -----------------------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        return self.phase is Phase.DONE

    @property
    def is_waiting(self) -> bool:
        """Nothing happens here unless others do something."""
        return self.phase in (Phase.AVERAGING, Phase.RETRYING, Phase.COMMITTING, Phase.REPAIRING)

    @property
    def is_hidden(self) -> bool:
        """Others are averaging with this host, so that the device has nothing to do for this round."""
        return self.phase is Phase.AVERAGING and len(self._members) > 1

    @property
    def is_deserted(self) -> bool:
        """This host only waits for what others make without it."""
        return not self.is_contributor and self.is_waiting

    @property
    def device_end(self) -> type | None:
        """The event that will end what the device does for this round now."""
        return {Phase.TRAINING: InnerFinished, Phase.APPLYING: OuterApplied, Phase.EVALUATING: Evaluated}.get(self.phase)

    @property
    def is_averaged(self) -> bool:
        """This host's own pseudo-gradient is in the committed average."""
        return self.average is not None and self.me in self.average.contributors

    def start(self, now: float, *, progress_end: float, is_ahead: bool = False) -> list[Effect]:
        """Begin: a contributor trains, a host without a share waits for the others' average. `is_ahead`: the round before is
        still being averaged."""
        self.is_ahead = is_ahead
        self._phase_since = now
        if not self.is_contributor:
            return [self._phase_log(), *self._ask_for_result(now)]
        inner = RunInner(
            round=self.round,
            plan=self.instance_plan,
            share=self.share,
            progress_start=self._plan.progress,
            progress_end=progress_end,
            is_ahead=is_ahead,
        )
        return [self._phase_log(), inner]

    def inner_finished(
        self, result: InnerResult, now: float, gone: Collection[PeerId], *, is_ahead: bool = False
    ) -> list[Effect]:
        """`is_ahead`: the outer step of the round before is still to come, and `hand_over` after it."""
        assert self.phase is Phase.TRAINING
        self.result = result
        # instances share the device: what was not computing was waiting for the others
        self.seconds["waiting"] = max(0.0, now - self._phase_since - result.seconds)
        self.seconds[Phase.TRAINING.value] = min(result.seconds, now - self._phase_since)
        self._phase_since = now
        return self._enter(Phase.TRAINED, now) if is_ahead else self.hand_over(now, gone)

    def hand_over(self, now: float, gone: Collection[PeerId]) -> list[Effect]:
        """Have the pseudo-gradient averaged, as the leader of a retry says if there was one already."""
        if self._pending is not None and self.me not in self._pending.members:
            effects = self._enter(Phase.RETRYING, now)
            self.next_deadline = now + self._adaptive_timeout.timeout_seconds(
                expected_seconds=0.0
            )  # who left us out may be cut off
            return [*effects, *self._seek_commit(now, gone)]
        if self._pending is not None:
            self._attempt, self._members = self._pending.attempt, self._pending.members
        return [*self._begin_attempt(now), *self.roster_changed(now, gone)]

    def average_finished(self, event: AverageFinished, now: float, gone: Collection[PeerId]) -> list[Effect]:
        """An attempt, or a repair, gave a complete average."""
        if not self._is_awaited(event):
            return []
        self.average = event
        if self.phase is Phase.AVERAGING and len(self._members) > 1:
            num_bytes = event.bytes_sent + event.bytes_received
            self._adaptive_timeout.observe(
                now - self._phase_since, num_bytes=num_bytes
            )  # of this attempt: failures teach nothing
        vote = AverageDigest(
            instance=self.instance,
            round=self.round,
            attempt=event.attempt,
            contributors=event.contributors,
            digest=event.digest,
        )
        self._votes.cast(vote)
        effects = self._enter(Phase.COMMITTING, now)
        self.next_deadline = now + RESEND_SECONDS
        return [*effects, *self._tell(self._votes.own), *self._seek_commit(now, gone)]

    def average_failed(self, event: AverageFailed, now: float, gone: Collection[PeerId]) -> list[Effect]:
        """An attempt, or a repair, gave nothing."""
        if not self._is_awaited(event):
            return []
        log = self._failure_log(event.attempt, event.reason)
        if self.phase is Phase.REPAIRING:
            self._failed_donors_this_pass.update(dict.fromkeys(event.suspects))
            self._failed_donors.update(dict.fromkeys(event.suspects))
            self._num_repairs_failed += 1
            effects = self._enter(Phase.RETRYING, now)
            self.next_deadline = now + _pause_seconds(self._num_repairs_failed - 1)
            return [log, *effects]
        suspects = tuple(sorted(peer for peer in event.suspects if peer != self.me))
        self._retry_members.blame_locally(suspects)
        effects = self._fail_attempt(now, gone)
        return [log, *effects, *self._tell_failure(event.attempt, suspects), *self._seek_commit(now, gone)]

    def _is_awaited(self, event: AverageFinished | AverageFailed) -> bool:
        """Not the end of what was given up meanwhile."""
        if self.phase is Phase.AVERAGING:
            return event.attempt == self._attempt and not event.is_repair
        return self.phase is Phase.REPAIRING and event.attempt == self._repaired and event.is_repair

    def received(self, sender: PeerId, message: AveragingMessage, now: float, gone: Collection[PeerId]) -> list[Effect]:
        """A message from another host of this instance; others are ignored."""
        if sender not in self.contributors and not any(share.peer == sender for share in self.instance_plan.hosts):
            return []
        if message.attempt > self._attempt + MAX_BALLOT_JUMP:
            return []
        match message:
            case AverageDigest():
                return self._digest_received(sender, message, now, gone)
            case AttemptFailed():
                return self._failure_received(sender, message, now, gone)
            case AttemptStart():
                return self._start_received(sender, message, now, gone)

    def roster_changed(self, now: float, gone: Collection[PeerId]) -> list[Effect]:
        """Somebody died or returned: an attempt may have become vain, a commit possible."""
        return [*self._give_up_if_vain(now, gone), *self._seek_commit(now, gone)]

    def tick(self, now: float, gone: Collection[PeerId]) -> list[Effect]:
        """`next_deadline` has passed."""
        if self.next_deadline is None or now < self.next_deadline:
            return []
        self.next_deadline = None
        if self.phase is Phase.COMMITTING:
            self._failed_donors_this_pass.clear()
            self.next_deadline = now + RESEND_SECONDS
            return [*self._tell(self._votes.own), *self._seek_commit(now, gone)]
        if self.phase is Phase.AVERAGING:
            return self._ask_members(now) if self._overdue_at is None else self._seek_commit(now, gone)
        if self.phase is Phase.RETRYING:
            self._failed_donors_this_pass.clear()
            return [*self._retry(now, gone), *self._seek_commit(now, gone)]
        return []

    def outer_applied(self, event: OuterApplied, now: float, *, evaluate: bool) -> list[Effect]:
        assert self.phase is Phase.APPLYING
        self.applied = event
        if evaluate:
            return [*self._enter(Phase.EVALUATING, now), Evaluate(instance=self.instance, round=self.round)]
        return self._enter(Phase.DONE, now)

    def evaluated(self, heldout_loss: float, now: float) -> list[Effect]:
        assert self.phase is Phase.EVALUATING
        self.heldout_loss = heldout_loss
        return self._enter(Phase.DONE, now)

    def report(self) -> InstanceReport:
        """What this host says of the round, once it is done. Work that did not enter the average does not count."""
        assert self.is_done and self.applied is not None and self.average is not None
        result = self.result if self.is_averaged else None
        return InstanceReport(
            instance=self.instance,
            samples=result.samples if result else 0,
            tokens=result.tokens if result else 0,
            inner_steps=result.inner_steps if result else 0,
            batch_samples=result.batch_samples if result else 0,
            accumulation_steps=result.accumulation_steps if result else 0,
            train_seconds=result.seconds if result else 0.0,
            loss=within_scalars(result.loss) if result else None,
            heldout_loss=self.heldout_loss,
            contributors=bits_of(self.average.contributors, [share.peer for share in self.instance_plan.hosts]),
            pseudo_gradient=self.average.statistics if result else None,
            half_batch=result.half_batch if result else None,
            digest=self.applied.digest,
            state_digest=self.applied.state_digest,
        )

    def totals(self) -> Totals:
        """What the round adds to the peer's totals, once it is done."""
        report = self.report()
        assert self.average is not None
        return Totals(
            samples=report.samples,
            tokens=report.tokens,
            bytes_sent=self.average.bytes_sent,
            bytes_received=self.average.bytes_received,
        )

    # --- attempts ----------------------------------------------------------------------------------------------------

    def _key(self, attempt: int, members: Sequence[PeerId]) -> Digest:
        return canonical.digest(["average", self._plan_digest, self.round, self.instance, attempt, list(members)])

    def _begin_attempt(self, now: float) -> list[Effect]:
        expected = self._plan.expected_seconds
        timeout = self._adaptive_timeout.timeout_seconds(expected_seconds=expected)
        samples = {share.peer: share.samples for share in self.instance_plan.hosts}
        uplinks = {roster_entry.peer: roster_entry.capacity.upload_bytes_per_second for roster_entry in self._plan.roster}
        if self._adaptive_timeout.waits and expected > 0:
            measured = [uplinks.get(peer, 0.0) for peer in self._members]
            timeout = min(timeout, self._adaptive_timeout.longest_seconds(expected_seconds=expected, uplinks=measured))
        average = Average(
            instance=self.instance,
            round=self.round,
            attempt=self._attempt,
            key=self._key(self._attempt, self._members),
            weights=tuple((peer, samples[peer]) for peer in self._members),
            timeout_seconds=timeout,
            shares=reduction_shares(
                [uplinks.get(peer, 0.0) for peer in self._members], [peer not in self._clients for peer in self._members]
            ),
        )
        effects = self._enter(Phase.AVERAGING, now)
        self._num_asked, self._overdue_at = 0, None
        self.next_deadline = now + RESEND_SECONDS if len(self._members) > 1 else None
        return [*effects, average]

    def _ask_members(self, now: float) -> list[Effect]:
        """The attempt takes its time. Who has voted says so; it may have done so while this host was away."""
        self._num_asked += 1
        self.next_deadline = now + _pause_seconds(self._num_asked + 1)
        start = AttemptStart(instance=self.instance, round=self.round, attempt=self._attempt, members=self._members)
        return [Send(peer=peer, message=start) for peer in self._members if peer != self.me]

    def _give_up_if_vain(self, now: float, gone: Collection[PeerId]) -> list[Effect]:
        """The attempt under way cannot succeed with a member that is gone, does not take part, or has voted for another one."""
        if self.phase is not Phase.AVERAGING:
            return []
        others = [peer for peer in self._members if peer != self.me]
        lost = tuple(p for p in others if p in gone or p in self._declined or self._has_voted_otherwise(p))
        if not lost:
            return []
        self._retry_members.suspect(lost)
        whys = [
            f"{peer} {'is gone' if peer in gone else 'takes no part' if peer in self._declined else 'has another average'}"
            for peer in lost
        ]
        return self._give_up("; ".join(whys), lost, now, gone)

    def _give_up(self, reason: str, suspects: tuple[PeerId, ...], now: float, gone: Collection[PeerId]) -> list[Effect]:
        """End the attempt under way here, and say so."""
        effects = [self._failure_log(self._attempt, reason), *self.abandon(), *self._fail_attempt(now, gone)]
        return [*effects, *self._tell_failure(self._attempt, suspects)]

    def _has_voted_otherwise(self, peer: PeerId) -> bool:
        vote = self._votes.direct_vote_of(peer)
        return vote is not None and (vote.attempt != self._attempt or set(vote.contributors) != set(self._members))

    def _fail_attempt(self, now: float, gone: Collection[PeerId]) -> list[Effect]:
        self._failed[self.me] = self._attempt
        effects = self._enter(Phase.RETRYING, now)
        num_suspects = len(self._retry_members.suspects)
        if num_suspects > self._num_suspected:  # it showed whom to leave out: the next one is another attempt
            self._num_suspected, self._num_failed = num_suspects, 0
        self.next_deadline = now + self._wait_seconds(gone)
        self._num_failed += 1
        return effects

    def _wait_seconds(self, gone: Collection[PeerId]) -> float:
        """After a failed attempt: the leader listens for a moment, the others give the leader its time."""
        return _pause_seconds(self._num_failed) + (0.0 if self._leads(gone) else TAKEOVER_SECONDS)

    def _leads(self, gone: Collection[PeerId]) -> bool:
        return self.is_contributor and self._retry_members.leader(gone) == self.me

    def _retry(self, now: float, gone: Collection[PeerId]) -> list[Effect]:
        """The wait after a failure is over: lead the next attempt, or stop waiting for who should have."""
        if not self.is_contributor:
            return self._ask_for_result(now)
        survivors = self._retry_members.left(gone)
        if not self._leads(gone):
            self._retry_members.skip_leader(self._retry_members.leader(gone))
            self.next_deadline = now + TAKEOVER_SECONDS
            if not self._leads(gone):
                return []
        start = AttemptStart(
            instance=self.instance,
            round=self.round,
            attempt=max([self._attempt, *self._failed.values()]) + 1,
            members=survivors,
        )
        missed_averages = [peer for peer in self.contributors if peer not in survivors]
        log = Log(
            name="average_retried",
            fields={"round": self.round, "instance": self.instance, "attempt": start.attempt, "without": missed_averages},
        )
        self._attempt, self._members = start.attempt, start.members
        return [log, *self._tell(start), *self._begin_attempt(now)]

    def _ask_for_result(self, now: float) -> list[Effect]:
        """Whoever holds an average answers with its digest; whoever still counts on this host learns not to."""
        self.next_deadline = now + RESEND_SECONDS
        suspects = tuple(peer for peer in self.contributors if peer == self.me)
        return self._tell_failure(0, suspects)

    def abandon(self) -> list[Effect]:
        """Stop the attempt or the repair under way, if there is one: for another one, for a result of others, or because the
        swarm is rounds ahead."""
        if self.phase not in (Phase.AVERAGING, Phase.REPAIRING):
            return []
        attempt = self._attempt if self.phase is Phase.AVERAGING else self._repaired
        return [CancelAverage(instance=self.instance, round=self.round, attempt=attempt)]

    def _failure_received(self, sender: PeerId, message: AttemptFailed, now: float, gone: Collection[PeerId]) -> list[Effect]:
        if sender in message.suspects:
            self._declined[sender] = None
        if self._votes.have_own:
            return [*self._answer(sender), *self._seek_commit(now, gone)]
        self._failed[sender] = max(message.attempt, self._failed.get(sender, 0))
        self._retry_members.accused_by(sender, message.suspects, gone)
        if self.phase is Phase.AVERAGING and message.attempt >= self._attempt and sender in self._members:
            # The attempt cannot succeed any more without the sender: join the retry instead of waiting for the timeout.
            return self._give_up(f"{sender} says that it has failed", (), now, gone)
        return []

    def _start_received(self, sender: PeerId, message: AttemptStart, now: float, gone: Collection[PeerId]) -> list[Effect]:
        if self._votes.have_own:
            return self._answer(sender)
        members = tuple(p for p in self.contributors if p in message.members)
        if members != message.members or sender not in members or not self._is_newer(message):
            return []
        locally_blamed = tuple(peer for peer in members if peer in self._retry_members.locally_blamed)
        if (
            locally_blamed and self.me in members
        ):  # who leads it is one of them, has not seen what was seen here, or is not honest
            return self._tell_failure(message.attempt, locally_blamed)
        if sender in locally_blamed:
            return []
        if self.me not in members and 2 * len(members) <= len(self._retry_members.left(gone)):
            return []  # so few settle nothing: not worth waiting for
        if self.phase in (Phase.TRAINING, Phase.TRAINED):
            self._pending = message
            return []
        if self.phase not in (Phase.AVERAGING, Phase.RETRYING) or not self._is_founded(sender, now):
            return []
        effects = self.abandon()
        self._attempt, self._members = message.attempt, members
        if self.me in members and self.is_contributor:
            return [*effects, *self._begin_attempt(now), *self._give_up_if_vain(now, gone)]
        if self.phase is Phase.AVERAGING:
            effects += self._enter(Phase.RETRYING, now)
        self.next_deadline = now + self._adaptive_timeout.timeout_seconds(expected_seconds=0.0)
        return [*effects, *self._seek_commit(now, gone)]

    def _is_founded(self, leader: PeerId, now: float) -> bool:
        """Whether the attempt under way is to be given up for one of this leader. The news that it failed may have been lost,
        but not again and again."""
        has_failed = any(self._failed.get(peer, -1) >= self._attempt for peer in self._members)
        if self.phase is not Phase.AVERAGING or has_failed:
            return True
        if now - self._unfounded.get(leader, -LONGEST_PAUSE_SECONDS) < LONGEST_PAUSE_SECONDS:
            return False
        self._unfounded[leader] = now
        return True

    def _is_newer(self, start: AttemptStart) -> bool:
        """Than what this host takes part in. Of two attempts with one number, by leaders that did not know of each other, the
        same one counts everywhere: that of more members, then of the first ones. Otherwise each would wait for the other."""
        own = self._pending if self._pending is not None and self._pending.attempt > self._attempt else None
        attempt, members = (own.attempt, own.members) if own else (self._attempt, self._members)
        if start.attempt != attempt:
            return start.attempt > attempt
        return (len(start.members), members) > (len(members), start.members)

    # --- commit ------------------------------------------------------------------------------------------------------

    def _digest_received(self, sender: PeerId, message: AverageDigest, now: float, gone: Collection[PeerId]) -> list[Effect]:
        accused_by = set(message.contributors)
        if not accused_by or len(accused_by) < len(message.contributors) or not accused_by.issubset(self.contributors):
            return []
        self._votes.received(sender, message)
        effects = [*self._give_up_if_vain(now, gone), *self._seek_commit(now, gone), *self._relay_vote(sender)]
        is_past = self.phase in (Phase.APPLYING, Phase.EVALUATING, Phase.DONE)
        if is_past and not message.is_answer:
            effects += self._answer(sender)  # it may have missed our vote, and we will not say it again by ourselves
        return effects

    def _answer(self, receiver: PeerId) -> list[Effect]:
        return [Send(peer=receiver, message=replace(self._votes.own, is_answer=True))] if self._votes.have_own else []

    def _relay_vote(self, voter: PeerId) -> list[Effect]:
        others = self._votes.to_relay(voter)
        return [effect for share in self.instance_plan.hosts if share.peer in others for effect in self._answer(share.peer)]

    def _seek_commit(self, now: float, gone: Collection[PeerId]) -> list[Effect]:
        """Apply my average if a majority holds it; fetch the one that a majority holds, or that will win, if mine differs."""
        if self.phase not in (Phase.AVERAGING, Phase.RETRYING, Phase.COMMITTING):
            return []
        tally = self._votes.tally({*gone, *self._declined})
        chosen = self._choose(tally, gone)
        if chosen is None:
            return []
        if self.phase is Phase.COMMITTING and chosen == choice_of(self._votes.own):
            if chosen != tally.majority and now - self._phase_since < self._tie_seconds:
                return []
            effects = self._enter(Phase.APPLYING, now)
            self.next_deadline = None
            return [*effects, ApplyOuter(instance=self.instance, round=self.round)]
        if self.phase is Phase.AVERAGING and chosen[0] == self._attempt:
            # The others serve us until we have it too; what is nearly here costs less than all of it once more.
            if self._overdue_at is None:
                self._overdue_at = self.next_deadline = now + max(RESEND_SECONDS, now - self._phase_since)
            if now < self._overdue_at:
                return []
        told = [
            peer for peer in tally.holders(chosen) if self._votes.direct_vote_of(peer)
        ]  # others could not give it to this host
        holders = tuple(peer for peer in told if peer != self.me and peer not in self._failed_donors_this_pass)
        if not holders:  # they are asked again when the pause is over
            self.next_deadline = now + max(RESEND_SECONDS, _pause_seconds(self._num_repairs_failed))
            return []
        return self._repair(tally.votes[holders[0]], holders, now)

    def _choose(self, tally: CommitTally, gone: Collection[PeerId]) -> Choice | None:
        """The average to have: the majority's, or the one of most hosts where waiting would give no majority."""
        if not tally.votes or tally.majority is not None:
            return tally.majority
        if self.phase is Phase.COMMITTING:  # everybody holds something and nothing has a majority
            return tally.ranking[0] if tally.is_complete else None
        if self.is_hidden and all(peer in tally.votes for peer in self._members if peer != self.me):
            return tally.ranking[0]  # only ours is missing
        if self.phase is not Phase.RETRYING:
            return None
        # Somebody holds a result while I have none: it is cheaper to take that one than to average again, unless few had a
        # part in it, few hold it, and there are others to average with. Who could not give it once only says so.
        is_alone = self._retry_members.left(gone) == (self.me,)
        worthwhile = (choice for choice in tally.ranking if is_alone or tally.is_of_half(choice))
        return next((c for c in worthwhile if any(p not in self._failed_donors for p in tally.holders(c))), None)

    def _repair(self, vote: AverageDigest, holders: tuple[PeerId, ...], now: float) -> list[Effect]:
        effects = [*self.abandon(), *self._enter(Phase.REPAIRING, now)]
        self.next_deadline = None
        self._repaired = vote.attempt
        repair = RepairAverage(
            instance=self.instance,
            round=self.round,
            attempt=vote.attempt,
            key=self._key(vote.attempt, vote.contributors),
            digest=vote.digest,
            contributors=vote.contributors,
            from_peers=holders,
            timeout_seconds=max(REPAIR_SECONDS, self._adaptive_timeout.timeout_seconds(expected_seconds=0.0)),
        )
        return [*effects, repair]

    @property
    def _tie_seconds(self) -> float:
        """After so long in a tie those that hold the other average have applied it, on the other side of a partition, and will
        not change. Both are applied then; plans name the state that counts."""
        return self._adaptive_timeout.timeout_seconds(expected_seconds=0.0)

    # --- small things ------------------------------------------------------------------------------------------------

    def _tell(self, message: AveragingMessage) -> list[Effect]:
        return [Send(peer=share.peer, message=message) for share in self.instance_plan.hosts if share.peer != self.me]

    def _tell_failure(self, attempt: int, suspects: tuple[PeerId, ...]) -> list[Effect]:
        return self._tell(AttemptFailed(instance=self.instance, round=self.round, attempt=attempt, suspects=suspects))

    def _enter(self, phase: Phase, now: float) -> list[Effect]:
        assert phase in STEPS[self.phase], f"{self.phase} -> {phase}"
        self.seconds[self.phase.value] = self.seconds.get(self.phase.value, 0.0) + now - self._phase_since
        self.phase, self._phase_since = phase, now
        return [self._phase_log()]

    def _failure_log(self, attempt: int, reason: str) -> Log:
        fields = {"round": self.round, "instance": self.instance, "attempt": attempt, "reason": reason}
        return Log(name="average_failed", fields=fields)

    def _phase_log(self) -> Log:
        return Log(name="phase", fields={"round": self.round, "instance": self.instance, "phase": self.phase.value})


def _pause_seconds(num_failed: int) -> float:
    """Before the next try, longer each time."""
    return float(min(GRACE_SECONDS * 2.0 ** min(num_failed, 10), LONGEST_PAUSE_SECONDS))


def round_line(outer: OuterRound) -> Log:
    """One instance ended a round on this peer."""
    report, totals, plan = outer.report(), outer.totals(), outer.instance_plan
    hosts = named_by(report.contributors, plan)
    fields: dict[str, object] = {
        "round": outer.round,
        "instance": outer.instance,
        "loss": report.loss,
        "heldout_loss": outer.heldout_loss,
        "requested_batch": plan.requested_batch,
        "effective_batch": plan.effective_batch,
        "accumulation_steps": report.accumulation_steps,
        "mode": plan.mode,
        "reason": plan.reason,
        "samples": report.samples,
        "tokens": report.tokens,
        "hosts": list(hosts),
        "is_ahead": outer.is_ahead,
        "digest": report.digest,
        "seconds": {phase: round(seconds, 6) for phase, seconds in outer.seconds.items()},
        "bytes_sent": totals.bytes_sent,
        "bytes_received": totals.bytes_received,
    }
    return Log(name="round", fields=fields)
