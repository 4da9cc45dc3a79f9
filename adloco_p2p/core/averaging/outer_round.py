"""One instance, one round, on one host: train, average, commit, apply, evaluate.

The rules that make an outer step safe:

- Only a COMMITTED average is applied. An average is committed when a majority of the round's planned contributors sign a vote
  for it; each votes once, for an average that it took part in making.
- Where no average can get a majority any more, the round is VOID: there is no outer step for anybody. Hosts keep their local
  parameters, and the next pseudo-gradient spans both rounds. A host that can be in no average of a majority casts a void vote.
- An attempt that fails is repeated by the hosts that remain, under a new key, so that two sets of members never meet. The
  living contributor with the smallest id leads the retry: it names the members. If it stays silent, the next one leads.
- A host joins no attempt with a host that failed one in its own sight, whoever leads, and reports that. Of two attempts
  with one number the same one counts everywhere.
- A host that was left out, or whose result was lost, fetches the committed average from one that holds it. A host that has
  voted joins no attempt; so a host that waits in an attempt queries its members now and then for their votes.
- A pseudo-gradient that is not in the committed average is dropped, never applied as if it had been.
- A host whose inner steps diverged has nothing to give: it casts a void vote at once, and takes the outer state again.
- Hosts in client mode cannot reach each other; `commit_votes.py` describes how they commit. Reachable hosts lead a retry first.

This file holds the phases and sends the messages. It asks `host_views.py` what is known about the others, `attempt.py` which
attempt comes next, `commit_votes.py` which average to have.
"""

from collections.abc import Collection
from dataclasses import replace
from enum import StrEnum

from adloco_p2p.core.averaging.adaptive_timeout import AdaptiveTimeout
from adloco_p2p.core.averaging.attempt import RESEND_SECONDS, TAKEOVER_SECONDS, Attempts, pause_seconds
from adloco_p2p.core.averaging.commit_votes import Choice, CommitTally, CommitVotes, Voter
from adloco_p2p.core.averaging.host_views import HostViews
from adloco_p2p.core.model import telemetry
from adloco_p2p.core.model.course import settings_at
from adloco_p2p.core.model.electorate import is_majority
from adloco_p2p.core.model.events import (
    ApplyOuter,
    AverageFailed,
    AverageFinished,
    CancelAverage,
    CarryOver,
    Effect,
    Evaluate,
    Evaluated,
    InnerFinished,
    InnerResult,
    MeasureStep,
    OuterApplied,
    RepairAverage,
    RunInner,
    Send,
    StepMeasured,
    Totals,
)
from adloco_p2p.core.model.measurers import measurers
from adloco_p2p.core.model.messages import NO_AVERAGE, AttemptFailed, AttemptStart, AverageDigest, AveragingMessage
from adloco_p2p.core.model.report_form import bits_of, named_by
from adloco_p2p.core.model.types import (
    MAX_BALLOT_JUMP,
    Digest,
    HostShare,
    InstanceId,
    InstanceReport,
    PeerId,
    RoundPlan,
    StepLosses,
    within_scalars,
)

REPAIR_SECONDS = 60.0
"""Shortest timeout of a repair, while the links are not known better."""
COMMIT_TIMEOUTS = 3
"""A host that has voted waits as long as so many attempts of the others may take; then the round is void for it."""

MAX_REPAIRS = 5
"""A committed average that so many tries did not bring is lost: all hosts that held it were killed before they had applied it.
A vote outlives the process that cast it, the average does not."""


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
    MEASURING = "measuring"
    """Only on the hosts that are drawn to."""
    EVALUATING = "evaluating"
    DONE = "done"


STEPS: dict[Phase, frozenset[Phase]] = {
    Phase.TRAINING: frozenset({Phase.TRAINED, Phase.AVERAGING, Phase.RETRYING, Phase.COMMITTING, Phase.REPAIRING}),
    Phase.TRAINED: frozenset({Phase.AVERAGING, Phase.RETRYING, Phase.COMMITTING, Phase.REPAIRING}),
    Phase.AVERAGING: frozenset({Phase.AVERAGING, Phase.COMMITTING, Phase.RETRYING, Phase.REPAIRING, Phase.APPLYING}),
    Phase.RETRYING: frozenset({Phase.AVERAGING, Phase.COMMITTING, Phase.REPAIRING, Phase.APPLYING}),
    Phase.COMMITTING: frozenset({Phase.APPLYING, Phase.REPAIRING}),
    Phase.REPAIRING: frozenset({Phase.COMMITTING, Phase.RETRYING}),
    Phase.APPLYING: frozenset({Phase.MEASURING, Phase.EVALUATING, Phase.DONE}),
    Phase.MEASURING: frozenset({Phase.EVALUATING, Phase.DONE}),
    Phase.EVALUATING: frozenset({Phase.DONE}),
    Phase.DONE: frozenset(),
}
DEVICE_ENDS = {
    Phase.TRAINING: InnerFinished,
    Phase.APPLYING: OuterApplied,
    Phase.MEASURING: StepMeasured,
    Phase.EVALUATING: Evaluated,
}
"""Events that end the device's work for a phase."""


class OuterRound:
    """State of one instance's round. Methods return effects; `phase` is where it stands. `now` is in seconds; `gone` are the
    peers that the membership counts as gone at the moment."""

    def __init__(
        self,
        *,
        me: PeerId,
        plan: RoundPlan,
        plan_digest: Digest,
        instance: InstanceId,
        adaptive_timeout: AdaptiveTimeout,
        voter: Voter,
        is_late: bool = False,
        is_carried: bool = False,
    ) -> None:
        """`is_late`: the others have ended this round already; only its average is wanted. `is_carried`: the rounds before it
        were void, and its pseudo-gradient spans them."""
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
        self.step: StepLosses | None = None
        """Where this host was drawn to measure it."""
        self._is_evaluated = False
        self.heldout_loss: float | None = None
        self.is_void = False
        """No average got a majority: there is no outer step."""
        self.is_carried = is_carried
        self.is_ahead = False
        """Its inner steps began before the outer step of the round before."""
        self.seconds: dict[str, float] = {}
        """By phase."""
        self.next_deadline: float | None = None
        """When `tick` is due, in seconds."""
        self._plan = plan
        self._adaptive_timeout = adaptive_timeout
        self._phase_since = 0.0
        clients = frozenset(entry.peer for entry in plan.roster if not entry.capacity.is_reachable)
        hosts = [share.peer for share in self.instance_plan.hosts]
        if hosts == [me]:  # no vote of it counts for others: after a restart it makes its average again
            voter = replace(voter, kept=None, keep=lambda _vote: ())
        self._votes = CommitVotes(me=me, plan_digest=plan_digest, contributors=self.contributors, clients=clients, voter=voter)
        self._hosts = HostViews(me=me, hosts=hosts, contributors=self.contributors, clients=clients)
        self._attempts = Attempts(
            me=me,
            plan=plan,
            plan_digest=plan_digest,
            instance=instance,
            contributors=self.contributors,
            hosts=self._hosts,
            adaptive_timeout=adaptive_timeout,
        )
        self._num_repairs_failed = 0
        self._repaired = 0
        """The attempt whose average is being fetched, or was last."""

    # --- called by the peer -------------------------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        return self.phase is Phase.DONE

    @property
    def has_voted(self) -> bool:
        return self._votes.have_own

    @property
    def is_waiting(self) -> bool:
        """Nothing happens here unless others do something."""
        return self.phase in (Phase.AVERAGING, Phase.RETRYING, Phase.COMMITTING, Phase.REPAIRING)

    @property
    def is_hidden(self) -> bool:
        """Others are averaging with this host, so that the device has nothing to do for this round."""
        return self.phase is Phase.AVERAGING and len(self._attempts.current.members) > 1

    @property
    def is_deserted(self) -> bool:
        """This host only waits for the average that others make without it."""
        return not self.is_contributor and self.is_waiting

    @property
    def device_end(self) -> type | None:
        """The event that ends the device's work for this round, if it has any now."""
        return DEVICE_ENDS.get(self.phase)

    @property
    def has_diverged(self) -> bool:
        """The round led nowhere: this host had no finite pseudo-gradient, or the outer step with the average was refused."""
        is_own = self.result is not None and self.result.has_diverged
        return is_own or (self.applied is not None and self.applied.is_refused)

    @property
    def is_averaged(self) -> bool:
        """This host's own pseudo-gradient is in the committed average."""
        return self.me in self._averaged_hosts

    @property
    def _averaged_hosts(self) -> tuple[PeerId, ...]:
        """Hosts whose pseudo-gradients are in this host's average."""
        if self.average is None:
            return ()
        return tuple(peer for peer in self.average.contributors if peer not in self.average.left_out)

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
            learning_rate_factor=settings_at(self._plan.course, self.round).learning_rate_factor or 1.0,
            is_ahead=is_ahead,
        )
        return [self._phase_log(), inner]

    def inner_finished(
        self, result: InnerResult, now: float, gone: Collection[PeerId], *, is_ahead: bool = False
    ) -> list[Effect]:
        """`is_ahead`: the outer step of the round before is still to come, and `hand_over` after it."""
        assert self.phase is Phase.TRAINING
        self.result = result
        # instances share the device: the time without computing was spent waiting for the others
        self.seconds["waiting"] = max(0.0, now - self._phase_since - result.seconds)
        self.seconds[Phase.TRAINING.value] = min(result.seconds, now - self._phase_since)
        self._phase_since = now
        return self._enter(Phase.TRAINED, now) if is_ahead else self.hand_over(now, gone)

    def hand_over(self, now: float, gone: Collection[PeerId]) -> list[Effect]:
        """Have the pseudo-gradient averaged; in a retry, if its leader has started one already."""
        self._hosts.gone = gone
        if self.result is not None and self.result.has_diverged:
            return self._give_nothing(now)
        pending = self._attempts.pending
        if pending is not None and self.me not in pending.members:
            effects = self._enter(Phase.RETRYING, now)
            self._wait_for_others(now)
            return [*effects, *self._stand_by_vote(now), *self._seek_commit(now)]
        if pending is not None:
            self._attempts.follow(pending)
        begun = self._begin_attempt(now)
        return [*begun, *self._stand_by_vote(now), *self._end_lost_attempt(now), *self._seek_commit(now)]

    def _give_nothing(self, now: float) -> list[Effect]:
        """There is no pseudo-gradient. The others make the average without this host, and it takes theirs, if there is one."""
        if not self._votes.have_own:
            return self._vote(now, attempt=0, contributors=(), digest=NO_AVERAGE)
        effects = self._enter(Phase.COMMITTING, now)  # it voted before it was restarted
        self.next_deadline = now + RESEND_SECONDS
        return [*effects, *self._seek_commit(now)]

    def average_finished(self, event: AverageFinished, now: float, gone: Collection[PeerId]) -> list[Effect]:
        """An attempt, or a repair, gave a complete average."""
        self._hosts.gone = gone
        if not self._is_awaited(event):
            return []
        self.average = event
        if self.is_hidden:  # the time of this attempt alone: time lost in failed ones is no measure of the links
            num_bytes = event.bytes_sent + event.bytes_received
            self._adaptive_timeout.observe(now - self._phase_since, num_bytes=num_bytes)
        if event.is_repair:  # others made it: this host has seen nothing that it could vote for
            effects = self._enter(Phase.COMMITTING, now)
            self.next_deadline = now + RESEND_SECONDS
            return [*effects, *self._seek_commit(now)]
        return self._vote(now, attempt=event.attempt, contributors=event.contributors, digest=event.digest)

    def _vote(self, now: float, *, attempt: int, contributors: tuple[PeerId, ...], digest: Digest) -> list[Effect]:
        cast = self._cast(attempt=attempt, contributors=contributors, digest=digest)
        effects = self._enter(Phase.COMMITTING, now)
        self.next_deadline = now + RESEND_SECONDS
        return [*effects, *cast, *self._seek_commit(now)]

    def _cast(self, *, attempt: int, contributors: tuple[PeerId, ...], digest: Digest) -> list[Effect]:
        """This host's one vote of the round, written down before it is sent."""
        vote = AverageDigest(
            instance=self.instance, round=self.round, attempt=attempt, contributors=contributors, digest=digest
        )
        return [*self._votes.cast(vote), *self._send_all(self._votes.own)]

    def average_failed(self, event: AverageFailed, now: float, gone: Collection[PeerId]) -> list[Effect]:
        """An attempt, or a repair, gave nothing."""
        self._hosts.gone = gone
        if not self._is_awaited(event):
            return []
        log = self._failure_log(event.attempt, event.reason)
        if self.phase is Phase.REPAIRING:
            self._hosts.repair_failed(event.suspects)
            effects = self._enter(Phase.COMMITTING if self._votes.have_own else Phase.RETRYING, now)
            self.next_deadline = now + pause_seconds(self._num_repairs_failed)
            self._num_repairs_failed += 1
            return [log, *effects]
        suspects = tuple(sorted(peer for peer in event.suspects if peer != self.me))
        self._hosts.saw_failure(suspects)
        effects = self._fail_attempt(now)
        return [log, *effects, *self._report_failure(event.attempt, suspects), *self._seek_commit(now)]

    def _is_awaited(self, event: AverageFinished | AverageFailed) -> bool:
        """Not the end of an attempt or a repair that was given up."""
        if self.phase is Phase.AVERAGING:
            return event.attempt == self._attempts.current.number and not event.is_repair
        return self.phase is Phase.REPAIRING and event.attempt == self._repaired and event.is_repair

    def received(self, sender: PeerId, message: AveragingMessage, now: float, gone: Collection[PeerId]) -> list[Effect]:
        """A message from another host of this instance; others are ignored."""
        self._hosts.gone = gone
        if sender not in self._hosts or message.attempt > self._attempts.current.number + MAX_BALLOT_JUMP:
            return []
        match message:
            case AverageDigest():
                return self._digest_received(sender, message, now)
            case AttemptFailed():
                return self._failure_received(sender, message, now)
            case AttemptStart():
                return self._start_received(sender, message, now)

    def roster_changed(self, now: float, gone: Collection[PeerId]) -> list[Effect]:
        """A peer died or returned: the attempt may be lost, a commit possible."""
        self._hosts.gone = gone
        return [*self._end_lost_attempt(now), *self._seek_commit(now)]

    def tick(self, now: float, gone: Collection[PeerId]) -> list[Effect]:
        """`next_deadline` has passed."""
        self._hosts.gone = gone
        if self.next_deadline is None or now < self.next_deadline:
            return []
        self.next_deadline = None
        if self.phase is Phase.COMMITTING:
            self._hosts.rest_is_over()
            self.next_deadline = now + RESEND_SECONDS
            again = self._send_all(self._votes.own) if self._votes.have_own else []
            return [*again, *self._seek_commit(now)]
        if self.phase is Phase.AVERAGING:
            return self._query_members(now) if self._attempts.current.overdue_at is None else self._seek_commit(now)
        if self.phase is Phase.RETRYING:
            self._hosts.rest_is_over()
            return [*self._retry(now), *self._seek_commit(now)]
        return []

    def outer_applied(self, event: OuterApplied, now: float, *, evaluate: bool) -> list[Effect]:
        assert self.phase is Phase.APPLYING
        self.applied, self._is_evaluated = event, evaluate
        if self._is_drawn(event):
            measure = MeasureStep(instance=self.instance, round=self.round, state=event.state_digest)
            return [*self._enter(Phase.MEASURING, now), measure]
        return self._evaluate(now)

    def _is_drawn(self, event: OuterApplied) -> bool:
        """This host measures the step: it has the state before, too."""
        if self.is_void or event.is_refused or not self.instance_plan.measurers or not self.is_contributor:
            return False
        count = self.instance_plan.measurers
        return self.me in measurers(event.state_digest, self.contributors, self._plan.roster, count=count)

    def step_measured(self, event: StepMeasured, now: float) -> list[Effect]:
        assert self.phase is Phase.MEASURING
        self.step = StepLosses(before=within_scalars(event.before), after=within_scalars(event.after))
        return self._evaluate(now)

    def _evaluate(self, now: float) -> list[Effect]:
        if self._is_evaluated:
            return [*self._enter(Phase.EVALUATING, now), Evaluate(instance=self.instance, round=self.round)]
        return self._enter(Phase.DONE, now)

    def evaluated(self, heldout_loss: float | None, now: float) -> list[Effect]:
        assert self.phase is Phase.EVALUATING
        self.heldout_loss = heldout_loss
        return self._enter(Phase.DONE, now)

    def report(self) -> InstanceReport:
        """This host's statement about the round, once it is done. Work that is not in the average does not count."""
        assert self.is_done and self.applied is not None
        counts = (self.is_averaged or self.is_void) and not self.has_diverged
        result = self.result if counts else None
        present = self._present if self.is_void else self._averaged_hosts
        has_statistics = self.is_averaged and not (self.is_void or self.is_carried or self.has_diverged)
        return InstanceReport(
            instance=self.instance,
            samples=result.samples if result else 0,
            tokens=result.tokens if result else 0,
            inner_steps=result.inner_steps if result else 0,
            batch_samples=result.batch_samples if result else 0,
            accumulation_steps=result.accumulation_steps if result else 0,
            train_seconds=result.seconds if result else 0.0,
            loss=within_scalars(result.loss) if result else None,
            heldout_loss=within_scalars(self.heldout_loss) if self.heldout_loss is not None else None,
            contributors=bits_of(present, [share.peer for share in self.instance_plan.hosts]),
            is_void=self.is_void,
            has_diverged=self.has_diverged,
            step=self.step,
            pseudo_gradient=self.average.statistics if self.average is not None and has_statistics else None,
            half_batch=result.half_batch if result else None,
            digest=self.applied.digest,
            state_digest=self.applied.state_digest,
        )

    @property
    def _present(self) -> tuple[PeerId, ...]:
        """Of a void round: the hosts that were there. A late one was not, whatever it thinks of itself."""
        return tuple(peer for peer in self._hosts.present if peer != self.me or self.is_contributor)

    def totals(self) -> Totals:
        """The round's addition to the peer's totals, once it is done."""
        report, average = self.report(), self.average
        return Totals(
            samples=report.samples,
            tokens=report.tokens,
            bytes_sent=average.bytes_sent if average is not None else 0,
            bytes_received=average.bytes_received if average is not None else 0,
        )

    # --- attempts ----------------------------------------------------------------------------------------------------

    def _begin_attempt(self, now: float) -> list[Effect]:
        average = self._attempts.average()
        effects = self._enter(Phase.AVERAGING, now)
        self.next_deadline = now + RESEND_SECONDS if self.is_hidden else None
        return [*effects, average]

    def _query_members(self, now: float) -> list[Effect]:
        """The attempt takes its time. A member that has voted answers with its vote, which this host may have missed."""
        self.next_deadline = self._attempts.current.next_query_at(now)
        start = self._attempts.message()
        return [Send(peer=peer, message=start) for peer in self._attempts.others]

    def _end_lost_attempt(self, now: float) -> list[Effect]:
        """End the attempt under way if a member is gone, does not contribute or voted for another average."""
        if self.phase is not Phase.AVERAGING or not (lost := self._attempts.lost_members(self._votes)):
            return []
        self._hosts.suspect(lost)
        reason = "; ".join(f"{peer} {why}" for peer, why in lost.items())
        return self._give_up(reason, tuple(lost), now)

    def _give_up(self, reason: str, suspects: tuple[PeerId, ...], now: float) -> list[Effect]:
        """End the attempt under way here, and report that."""
        number = self._attempts.current.number
        effects = [self._failure_log(number, reason), *self.abandon(), *self._fail_attempt(now)]
        return [*effects, *self._report_failure(number, suspects)]

    def _fail_attempt(self, now: float) -> list[Effect]:
        effects = self._enter(Phase.RETRYING, now)
        self.next_deadline = now + self._attempts.failed()
        return effects

    def _retry(self, now: float) -> list[Effect]:
        """The pause after a failure is over: lead the next attempt, or skip a leader that was silent."""
        if not self.is_contributor:
            return self._ask_for_result(now)
        if not self._attempts.is_leader:
            self._hosts.skip_leader()
            self.next_deadline = now + TAKEOVER_SECONDS
            if not self._attempts.is_leader:
                return []
        if not is_majority(len(self._hosts.remaining), len(self.contributors)):
            return self._vote(now, attempt=0, contributors=(), digest=NO_AVERAGE)
        self._attempts.begin_next()
        start = self._attempts.message()
        without = tuple(peer for peer in self.contributors if peer not in start.members)
        log = telemetry.AverageRetried(round=self.round, instance=self.instance, attempt=start.attempt, without=without)
        return [log, *self._send_all(start), *self._begin_attempt(now)]

    def _ask_for_result(self, now: float) -> list[Effect]:
        """Hosts that hold an average answer with their votes; the others learn that this one does not contribute."""
        self.next_deadline = now + RESEND_SECONDS
        return self._report_failure(0, tuple(peer for peer in self.contributors if peer == self.me))

    def abandon(self) -> list[Effect]:
        """Stop the attempt or the repair under way, if there is one: for another one, for a result of others, or because the
        swarm is rounds ahead."""
        if self.phase not in (Phase.AVERAGING, Phase.REPAIRING):
            return []
        attempt = self._attempts.current.number if self.phase is Phase.AVERAGING else self._repaired
        return [CancelAverage(instance=self.instance, round=self.round, attempt=attempt)]

    def _failure_received(self, sender: PeerId, message: AttemptFailed, now: float) -> list[Effect]:
        view = self._hosts[sender]
        view.has_declined = view.has_declined or sender in message.suspects
        if self._votes.have_own or self._is_past:
            return [*self._answer(sender), *self._seek_commit(now)]
        view.failed_attempt = max(view.failed_attempt, message.attempt)
        self._hosts.accuse(sender, message.suspects)
        attempt = self._attempts.current
        if self.phase is Phase.AVERAGING and message.attempt >= attempt.number and sender in attempt.members:
            # without the sender the attempt cannot succeed: join the retry instead of waiting for the timeout
            return self._give_up(f"{sender} reported a failure", (), now)
        return []

    def _start_received(self, sender: PeerId, message: AttemptStart, now: float) -> list[Effect]:
        if self._votes.have_own or self._is_past:
            return self._answer(sender)
        if not self._attempts.is_news(sender, message):
            return []
        is_member, failed_here = self.me in message.members, self._hosts.failed_here(message.members)
        if is_member and failed_here:  # the leader is one of them, did not see what this host saw, or is not honest
            return self._report_failure(message.attempt, failed_here)
        if sender in failed_here or not (is_member or self._attempts.is_worth_waiting(message)):
            return []
        if self.phase in (Phase.TRAINING, Phase.TRAINED):
            self._attempts.pending = message
            return []
        is_running = self.phase is Phase.AVERAGING
        if is_running and not self._attempts.is_called_for(sender, now):
            return []
        if not is_running and self.phase is not Phase.RETRYING:
            return []
        effects = self.abandon()
        self._attempts.follow(message)
        if is_member and self.is_contributor:
            return [*effects, *self._begin_attempt(now), *self._end_lost_attempt(now)]
        if is_running:
            effects += self._enter(Phase.RETRYING, now)
        self._wait_for_others(now)
        return [*effects, *self._seek_commit(now)]

    def _wait_for_others(self, now: float) -> None:
        """An attempt without this host runs. Its leader may be cut off, so the wait ends."""
        self.next_deadline = now + self._adaptive_timeout.timeout_seconds(expected_seconds=0.0)

    # --- commit ------------------------------------------------------------------------------------------------------

    def _digest_received(self, sender: PeerId, message: AverageDigest, now: float) -> list[Effect]:
        distinct = set(message.contributors)
        if len(distinct) < len(message.contributors) or not distinct.issubset(self.contributors):
            return []
        effects: list[Effect] = [self._equivocation_log(peer) for peer in self._votes.received(sender, message)]
        for voter in self._votes.voters:
            self._hosts[voter].has_voted = True
        if message.is_answer and message.is_void and not message.signature:  # its own word: it only followed the void round
            self._hosts[sender].has_declined = True
        effects += [*self._stand_by_vote(now), *self._end_lost_attempt(now), *self._seek_commit(now), *self._relay_vote(sender)]
        if self._is_past and not message.is_answer:
            effects += self._answer(sender)  # it may have missed this host's vote, which is not sent again by itself
        return effects

    def _stand_by_vote(self, now: float) -> list[Effect]:
        """This host voted before it was restarted, as its journal or others prove: it makes no other average."""
        if not self._votes.have_own or not self.is_contributor or self.phase not in (Phase.AVERAGING, Phase.RETRYING):
            return []
        effects = [*self.abandon(), *self._enter(Phase.COMMITTING, now)]
        self.next_deadline = now + RESEND_SECONDS
        return effects

    @property
    def _is_past(self) -> bool:
        return self.phase in (Phase.APPLYING, Phase.MEASURING, Phase.EVALUATING, Phase.DONE)

    def _answer(self, receiver: PeerId) -> list[Effect]:
        answer = self._votes.answer(self._held if self._is_past and not self.is_void else None)
        if answer is None:  # a void round that this host only followed: it will not vote, which others may wait for
            answer = AverageDigest(
                instance=self.instance, round=self.round, attempt=0, contributors=(), digest=NO_AVERAGE, is_answer=True
            )
        return [Send(peer=receiver, message=answer)]

    def _relay_vote(self, voter: PeerId) -> list[Effect]:
        others = self._votes.to_relay(voter)
        return [effect for share in self.instance_plan.hosts if share.peer in others for effect in self._answer(share.peer)]

    def _seek_commit(self, now: float) -> list[Effect]:
        """Apply this host's average if a majority voted for it; fetch the one to have if it is another; end the round without
        an outer step where no average can get a majority."""
        if self.phase not in (Phase.AVERAGING, Phase.RETRYING, Phase.COMMITTING):
            return []
        absent = self._hosts.absent
        tally = self._votes.tally(absent if self.is_contributor else {*absent, self.me})
        choice = tally.majority
        if choice is None and self._is_void_for_sure(tally, now):
            return self._carry_over(now)
        if choice is None:
            return self._end_overdue_attempt(now)
        if self._num_repairs_failed >= MAX_REPAIRS:
            return self._carry_over(now)
        if self.phase is Phase.COMMITTING and self.average is not None and choice == self._held:
            return self._apply(now)
        if self.phase is Phase.AVERAGING and choice[0] == self._attempts.current.number and not self._is_overdue(now):
            return []
        resting = self._hosts.resting_donors
        donors = tuple(peer for peer in self._votes.donors(choice) if peer not in resting)
        if donors:
            return self._repair(choice, donors, now)
        self.next_deadline = now + max(RESEND_SECONDS, pause_seconds(self._num_repairs_failed))
        return []

    def _is_overdue(self, now: float) -> bool:
        """Whether the attempt under way has had its time since a majority, or all other members, have its average: as long
        again as it took until then, for its rest costs less than a repair."""
        attempt = self._attempts.current
        if attempt.overdue_at is None:
            attempt.overdue_at = self.next_deadline = now + max(RESEND_SECONDS, now - self._phase_since)
        return now >= attempt.overdue_at

    def _end_overdue_attempt(self, now: float) -> list[Effect]:
        """All other members have the average and this host does not get it."""
        others = self._attempts.others
        if self.phase is not Phase.AVERAGING or not others or any(self._votes.vote_of(peer) is None for peer in others):
            return []
        return self._give_up("the others have ended it", (), now) if self._is_overdue(now) else []

    @property
    def _held(self) -> Choice | None:
        """The average that lies here."""
        held = self.average
        return (held.attempt, held.digest, held.contributors) if held is not None else None

    def _is_void_for_sure(self, tally: CommitTally, now: float) -> bool:
        """No average can get a majority, as far as this host knows; or it has waited for the others' votes long enough. A host
        that only receives hears all that live first: they may know more."""
        if not self.is_contributor:
            return bool(tally.votes) and not tally.num_open and tally.is_hopeless
        timeout = self._adaptive_timeout.timeout_seconds(expected_seconds=self._plan.expected_seconds)
        is_over = self.phase is Phase.COMMITTING and now - self._phase_since >= COMMIT_TIMEOUTS * timeout
        return tally.is_hopeless or is_over

    def _apply(self, now: float) -> list[Effect]:
        self.next_deadline = None
        return [*self._enter(Phase.APPLYING, now), ApplyOuter(instance=self.instance, round=self.round)]

    def _carry_over(self, now: float) -> list[Effect]:
        """The round is void. A host that has not voted says so, for those that will ask."""
        effects: list[Effect] = list(self.abandon())
        self.is_void, self.next_deadline = True, None
        if self.is_contributor and not self._votes.have_own:
            effects += self._cast(attempt=0, contributors=(), digest=NO_AVERAGE)
        log = telemetry.RoundVoid(round=self.round, instance=self.instance, voters=self._votes.voters)
        return [*effects, log, *self._enter(Phase.APPLYING, now), CarryOver(instance=self.instance, round=self.round)]

    def _repair(self, choice: Choice, donors: tuple[PeerId, ...], now: float) -> list[Effect]:
        attempt, digest, contributors = choice
        effects = [*self.abandon(), *self._enter(Phase.REPAIRING, now)]
        self.next_deadline = None
        self._repaired = attempt
        repair = RepairAverage(
            instance=self.instance,
            round=self.round,
            attempt=attempt,
            key=self._attempts.key(attempt, contributors),
            digest=digest,
            contributors=contributors,
            from_peers=donors,
            timeout_seconds=max(REPAIR_SECONDS, self._adaptive_timeout.timeout_seconds(expected_seconds=0.0)),
        )
        return [*effects, repair]

    # --- small things ------------------------------------------------------------------------------------------------

    def _send_all(self, message: AveragingMessage) -> list[Effect]:
        return [Send(peer=share.peer, message=message) for share in self.instance_plan.hosts if share.peer != self.me]

    def _report_failure(self, attempt: int, suspects: tuple[PeerId, ...]) -> list[Effect]:
        return self._send_all(AttemptFailed(instance=self.instance, round=self.round, attempt=attempt, suspects=suspects))

    def _enter(self, phase: Phase, now: float) -> list[Effect]:
        assert phase in STEPS[self.phase], f"{self.phase} -> {phase}"
        self.seconds[self.phase.value] = self.seconds.get(self.phase.value, 0.0) + now - self._phase_since
        self.phase, self._phase_since = phase, now
        return [self._phase_log()]

    def _equivocation_log(self, peer: PeerId) -> telemetry.Warning:
        message = f"{peer} signed two votes about one average of instance {self.instance} in round {self.round}; none counts"
        return telemetry.Warning(key=f"votes of {peer}", message=message, active=True)

    def _failure_log(self, attempt: int, reason: str) -> telemetry.AverageFailed:
        return telemetry.AverageFailed(round=self.round, instance=self.instance, attempt=attempt, reason=reason)

    def _phase_log(self) -> telemetry.Phase:
        return telemetry.Phase(round=self.round, instance=self.instance, phase=self.phase.value)


def round_line(outer: OuterRound) -> telemetry.Round:
    """One instance ended a round on this peer."""
    report, totals, plan = outer.report(), outer.totals(), outer.instance_plan
    return telemetry.Round(
        round=outer.round,
        instance=outer.instance,
        loss=report.loss,
        heldout_loss=outer.heldout_loss,
        requested_batch=plan.requested_batch,
        effective_batch=plan.effective_batch,
        accumulation_steps=report.accumulation_steps,
        mode=plan.mode,
        reason=plan.reason,
        samples=report.samples,
        tokens=report.tokens,
        hosts=named_by(report.contributors, plan),
        is_ahead=outer.is_ahead,
        is_void=outer.is_void,
        digest=report.digest,
        seconds={phase: round(seconds, 6) for phase, seconds in outer.seconds.items()},
        bytes_sent=totals.bytes_sent,
        bytes_received=totals.bytes_received,
    )
