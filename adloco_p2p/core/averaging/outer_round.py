"""One instance, one round, on one host: train, average, commit, apply, evaluate.

The rules that make an outer step safe:

- Only a COMMITTED average is applied. An average is committed when a majority of the round's planned contributors whose votes
  count (`deciding_contributors` in `core/model/electorate.py`) sign a vote for it; each votes once, for an average that it
  took part in making.
- If no average can get a majority any more, the round is VOID: no host takes an outer step. Hosts keep their local parameters,
  and the next pseudo-gradient spans both rounds. A host that can be in no average of a majority casts a void vote.
- A failed attempt is repeated by the hosts that remain, under a new key, so that two sets of members never meet. The living
  contributor with the smallest id, of those whose votes count, leads the retry and names its members. If it stays silent, the
  next one leads.
- A host joins no attempt with a host that failed one in its own sight, under any leader, and reports that; and none whose
  members cannot commit an average. Of two attempts with one number the same one counts everywhere.
- A host that was left out, or whose result was lost, fetches the committed average from a holder. A host that has voted joins
  no attempt; so a host that waits in an attempt queries its members now and then for their votes.
- A pseudo-gradient that is not in the committed average is dropped, never applied as if it were.
- A host with a slow link contributes to every second or fourth average only. In the rounds between it receives the others'
  average, on which it does not vote, and keeps its own pseudo-gradient, which becomes part of the next one.
- A host whose inner steps diverged has nothing to give: it casts a void vote at once, and takes the outer state again.
- A host that began its inner steps so late that a majority waits for it ends them early, and contributes those that are done:
  the attempt under way fails, and the retry counts them. With too few of them, or if it missed the average, it declines.
- Hosts in client mode cannot reach each other; `commit_votes.py` describes how they commit. Reachable hosts lead a retry first.

This file handles the events. `assignment.py` has the inputs of a round, `round_state.py` the state that its parts share,
`phases.py` the table of phases; `attempt_phase.py` handles attempts, `commit_phase.py` votes and repairs. They consult
`host_views.py` for facts about the others, `attempt.py` for the next attempt, and `commit_votes.py` for the committed average.
"""

from adloco_p2p.core.averaging.assignment import Assignment
from adloco_p2p.core.averaging.attempt import MAX_MISSED_ATTEMPTS, TAKEOVER_SECONDS, has_voted_otherwise
from adloco_p2p.core.averaging.attempt_phase import AttemptPhase
from adloco_p2p.core.averaging.commit_phase import CommitPhase
from adloco_p2p.core.averaging.phases import Phase
from adloco_p2p.core.averaging.round_state import RoundState
from adloco_p2p.core.model import telemetry
from adloco_p2p.core.model.course import settings_at
from adloco_p2p.core.model.effects import DiscardRound, Effect, EndInner, Evaluate, MeasureStep, RunInner, Send
from adloco_p2p.core.model.electorate import is_majority
from adloco_p2p.core.model.events import (
    AverageDecided,
    AverageFailed,
    AverageFinished,
    Evaluated,
    InnerResult,
    OuterApplied,
    StepMeasured,
)
from adloco_p2p.core.model.measurers import measurers
from adloco_p2p.core.model.messages import AttemptFailed, AttemptStart, AverageDigest, AveragingMessage
from adloco_p2p.core.model.quorum import PARTIAL_SECONDS, lateness_seconds, words_of_decline, worth_seconds
from adloco_p2p.core.model.report import StepLosses
from adloco_p2p.core.model.report_form import named_by
from adloco_p2p.core.model.scalars import PeerId, within_scalars

MAX_FIRST_ATTEMPTS = 64
ATTEMPTS_PER_SECOND = 16
"""The rate at which attempts of one average may be numbered; honest hosts pause for longer between two."""


class OuterRound(RoundState):
    """The round of one instance on one host. Methods return effects; `now` is in seconds."""

    def __init__(self, assignment: Assignment) -> None:
        super().__init__(assignment)
        self._attempt = AttemptPhase(self)
        self._commit = CommitPhase(self, attempts=self._attempt)
        self._is_evaluated = False
        self._ends_early = False
        """Whether the device was asked to end the inner steps early."""
        self._waited_for: set[PeerId] = set()
        """The leaders for whose attempts without this host it has waited: once for each, however many attempts it starts."""
        self._gave_way_in = -1
        """The failed attempt after which it gave the other leaders their time, because a member named it as the cause."""
        self._began_at: float | None = None

    # --- inner steps -------------------------------------------------------------------------------------------------

    def start(self, now: float, *, progress_end: float, is_ahead: bool = False) -> list[Effect]:
        """Begin the round: a host with a share trains, any other waits for the average. `is_ahead` means that the round before
        is still being averaged."""
        self.is_ahead = is_ahead
        self.phase_since = self._began_at = now
        if self.is_contributor and self.has_voted and not is_ahead:
            return self._commit.go_on(now)
        if not self.is_trainer:
            return [self.phase_log(), *self._attempt.ask_for_result(now)]
        inner = RunInner(
            round=self.round,
            plan=self.instance_plan,
            share=self.share,
            progress_start=self.plan.progress,
            progress_end=progress_end,
            learning_rate_factor=settings_at(self.plan.course, self.round).learning_rate_factor or 1.0,
            is_ahead=is_ahead,
            together=tuple(
                item.instance
                for item in self.plan.instances
                if any(share.peer == self.me and share.batch_samples > 0 for share in item.hosts)
            ),
        )
        asked = self._attempt.ask_for_votes() if self.assignment.may_be_late and self.is_contributor else []
        return [self.phase_log(), inner, *asked]

    def inner_finished(self, result: InnerResult, now: float, *, is_ahead: bool = False) -> list[Effect]:
        """Take the result of the inner steps. `is_ahead` means that the outer step of the round before is still to come, and
        `hand_over` after it."""
        assert self.phase is Phase.TRAINING
        self.result = result
        self.note_queue(result.seconds, now)
        self.seconds[Phase.TRAINING.value] = now - self.phase_since
        self.phase_since = now
        return self.enter(Phase.TRAINED, now) if is_ahead else self.hand_over(now)

    def hand_over(self, now: float) -> list[Effect]:
        """Have the pseudo-gradient averaged, in a retry if a leader has started one already."""
        if self.keeps_own:
            return [*self.enter(Phase.RETRYING, now), *self._attempt.ask_for_result(now), *self._commit.seek(now)]
        if self.result is not None and self.result.has_diverged:
            return self._commit.give_nothing(now)
        self.attempts.begin_pending()
        if self.me not in self.attempts.current.members:
            effects = self.enter(Phase.RETRYING, now)
            self._wait_for(self.attempts.leader_elsewhere, now)
            return [*effects, *self._commit.stand_by(now), *self._commit.seek(now)]
        effects = [*self._attempt.begin(now), *self._commit.stand_by(now)]
        if self._ends_early and self.result is not None and self.attempts.is_partial(self.me, self.result.inner_steps):
            self.hosts[self.me].partial_steps = self.result.inner_steps
        for peer in self.attempts.current.members:
            effects += self._attempt.end_miscounted(peer, now)
        effects += self._attempt.end_lost(now)
        return [*effects, *self._commit.seek(now)]

    # --- attempts and repairs ----------------------------------------------------------------------------------------

    def average_finished(self, event: AverageFinished, now: float) -> list[Effect]:
        """Take the complete average of an attempt or a repair."""
        if not self._is_awaited(event):
            return []
        self.average = event
        attempt = event.asked.attempt
        self.votes.held = (attempt, event.digest, event.contributors)
        if self.is_hidden:  # only the time of this attempt: time lost in failed ones is no measure of the links
            num_bytes = event.bytes_sent + event.bytes_received
            self.assignment.adaptive_timeout.observe(now - self.phase_since, num_bytes=num_bytes)
        if not event.is_repair:
            self.vector_bytes = self.vector_bytes or self.attempts.vector_bytes(event.bytes_sent)
            # a failed attempt measured at most the bytes sent before it was cut off, this one a whole upload
            self.upload_bytes_per_second = event.upload_bytes_per_second or self.upload_bytes_per_second
        elif now > self.phase_since:
            self.download_bytes_per_second = event.bytes_received / (now - self.phase_since)
        if event.is_repair:  # others made this average, so this host does not vote for it
            return self._commit.wait(now)
        return self._commit.vote(now, attempt=attempt, contributors=event.contributors, digest=event.digest)

    def average_decided(self, event: AverageDecided) -> list[Effect]:
        """Note that the attempt under way has all contributions, so that a lost host costs only the parts that it reduces."""
        is_current = self.phase is Phase.AVERAGING and event.asked.attempt == self.attempts.current.number
        if is_current and self.attempts.current.completes is None:
            self.attempts.decided(event.decision)
        return []

    def average_failed(self, event: AverageFailed, now: float) -> list[Effect]:
        """Handle the failure of an attempt or a repair."""
        if not self._is_awaited(event):
            return []
        log = self.failure_log(event.asked.attempt, event.reason)
        if self.phase is Phase.REPAIRING:
            return [log, *self._commit.repair_failed(event, now)]
        if event.upload_bytes_per_second > 0:
            self.upload_bytes_per_second, self.vector_bytes = event.upload_bytes_per_second, event.vector_bytes
        self.is_named = self.is_named or self.me in event.suspects
        suspects = tuple(sorted(peer for peer in event.suspects if peer != self.me))
        if event.because is None:
            self.hosts.saw_failure(suspects)
        else:  # this host did not see the failure itself
            self.hosts.accuse(event.because, event.suspects)
            if event.suspects:
                self.note_failure(event.because, event.suspects, None)
            suspects = ()
        reports = self.end_here(suspects, event.because)
        return [log, *self._attempt.fail(now), *reports, *self._commit.seek(now)]

    def _is_awaited(self, event: AverageFinished | AverageFailed) -> bool:
        """Return whether the event belongs to the attempt or repair under way, not to one that was given up."""
        attempt = event.asked.attempt
        if self.phase is Phase.AVERAGING:
            return attempt == self.attempts.current.number and not event.is_repair
        return self.phase is Phase.REPAIRING and attempt == self.repaired and event.is_repair

    def received(self, sender: PeerId, message: AveragingMessage, now: float) -> list[Effect]:
        """Handle a message from another host of this instance; messages of others are ignored."""
        if sender not in self.hosts or message.attempt > self._highest_attempt(now):
            return []
        match message:
            case AverageDigest():
                return [*self._commit.digest_received(sender, message, now), *self._decline_committed(now)]
            case AttemptFailed():
                return self._failure_received(sender, message, now)
            case AttemptStart():
                return self._start_received(sender, message, now)

    def _highest_attempt(self, now: float) -> int:
        """Return the highest attempt number that counts, more than honest hosts reach in this time. A limit relative to the
        attempt known here could be raised by each message, until no attempt of an honest host was new to all."""
        began_at = now if self._began_at is None else self._began_at
        return MAX_FIRST_ATTEMPTS + int(ATTEMPTS_PER_SECOND * (now - began_at))

    def _failure_received(self, sender: PeerId, message: AttemptFailed, now: float) -> list[Effect]:
        view = self.hosts[sender]
        view.has_declined = view.has_declined or sender in message.suspects
        if self.votes.have_own or self.is_past:
            return [*self._commit.answer(sender), *self._commit.seek(now)]
        attempt = self.attempts.current
        if message.attempt > attempt.number + MAX_MISSED_ATTEMPTS:  # the leader's next start would be out of others' reach
            return []
        view.decision = message.decision
        has_declined = sender in message.suspects
        if message.is_question and not has_declined:  # the sender has no part in the attempt, or begins late
            return self._attempt.answer(sender)
        is_partial = self._contributes_otherwise(sender, message)
        view.failed_attempt = max(view.failed_attempt, message.attempt)
        may_lead = self.phase is Phase.RETRYING and self.is_contributor
        was_leader = may_lead and self.attempts.is_leader
        self.hosts.accuse(sender, message.suspects)
        if may_lead and self.attempts.is_leader and not was_leader:
            self._attempt.lead_soon(now)
        self.is_named = self.is_named or (self.result is not None and self.me in message.suspects)
        if has_declined:  # to decline is no fault, so it counts as no cause of a failure
            return self._attempt.end_lost(now)
        if message.attempt < attempt.number or sender not in attempt.members:
            return []
        self.note_failure(sender, message.suspects, message.because, is_partial=is_partial)
        if self.phase is Phase.TRAINING:
            return self._note_waiting(sender, now)
        if self.phase is not Phase.AVERAGING:
            return []
        if is_partial:
            return self._attempt.end_miscounted(sender, now)
        # the attempt cannot succeed without the sender, so join the retry instead of waiting for the timeout
        return self._attempt.give_up(f"{sender} reported a failure", (), now, because=sender)

    def _contributes_otherwise(self, sender: PeerId, message: AttemptFailed) -> bool:
        """Return whether the sender ended the attempt because it counts other inner steps than the sender contributes. The
        newest statement of the sender counts, because it may have restarted."""
        view, steps = self.hosts[sender], message.partial_steps
        if sender not in self.contributors or message.attempt < view.failed_attempt:
            return False
        view.partial_steps = steps if self.attempts.is_partial(sender, steps) else 0
        return view.partial_steps == steps and self.attempts.counts_otherwise(sender, steps)

    def _start_received(self, sender: PeerId, message: AttemptStart, now: float) -> list[Effect]:
        if self.votes.have_own or self.is_past:
            return self._commit.answer(sender)
        if not self.attempts.is_well_formed(sender, message):
            return []
        is_member, failed_here = self.me in message.members, self.hosts.failed_here(message.members)
        if is_member and (late := self._note_waiting(sender, now) or self._refuse_miscounted(sender, message)):
            return late
        if not self.attempts.is_news(message):
            return []
        if sender in self.hosts.unreliable:
            return self._refuse_unreliable(sender, message)
        if is_member and (objection := self._objection(sender, message, failed_here)):
            return objection
        if sender in failed_here:
            return []
        if self.phase in (Phase.TRAINING, Phase.TRAINED):
            self.attempts.postpone(message, sender)
            return []
        is_running = self.phase is Phase.AVERAGING
        if is_running and not self.attempts.is_called_for(sender, now):
            return []
        if not is_running and self.phase is not Phase.RETRYING:
            return []
        effects = self.abandon()
        if is_running:  # so that the other members count the leader as the cause
            effects += self.end_here((), sender)
        self.attempts.follow(message, sender)
        if is_member and self.is_contributor:
            return [*effects, *self._attempt.begin(now), *self._attempt.end_lost(now)]
        if is_running:
            effects += self.enter(Phase.RETRYING, now)
        self._wait_for(sender, now)
        return [*effects, *self._commit.seek(now)]

    def _wait_for(self, leader: PeerId | None, now: float) -> None:
        if leader is None or leader not in self._waited_for:
            self._waited_for |= {leader} if leader is not None else set()
            self._attempt.wait_for_others(now)

    def _objection(self, sender: PeerId, start: AttemptStart, failed_here: tuple[PeerId, ...]) -> list[Effect]:
        """Return the messages by which this member objects to an attempt; none if it may take part."""
        if failed_here:  # the leader itself failed, lacks the report of the failure, or is not honest
            return self._object(sender, start, failed_here)
        if voters := self._voters_elsewhere(start):  # the leader lacks these votes, or lies
            return [Send(peer=sender, message=self.votes.passed_on(voter)) for voter in voters]
        if start.completes is not None and start.completes != self.attempts.decision:
            return self._object(sender, start, (), because=sender)
        return []

    def _object(
        self, leader: PeerId, start: AttemptStart, suspects: tuple[PeerId, ...], because: PeerId | None = None
    ) -> list[Effect]:
        """Report a failure to all, or from a host that trains to the leader alone: the others take a report as the sign of a
        host that waits (`_note_waiting`), so after one leader's false starts each would count a majority as waiting."""
        reports = self.report_failure(start.attempt, suspects, because)
        return _only_to(leader, reports) if self.phase is Phase.TRAINING else reports

    def _refuse_miscounted(self, sender: PeerId, start: AttemptStart) -> list[Effect]:
        """Refuse an attempt that counts other inner steps than this host contributes: the sender lacks the number, or lies."""
        if dict(start.partial_steps).get(self.me, 0) == self.own_partial_steps:
            return []
        return _only_to(sender, self.report_failure(start.attempt, ()))

    def _refuse_unreliable(self, leader: PeerId, start: AttemptStart) -> list[Effect]:
        """Refuse the attempt of an unreliable leader, once per attempt of this host. The leader may have caused no failure, so
        it should not have to wait for a timeout."""
        view, number = self.hosts[leader], self.attempts.current.number
        if self.me not in start.members or view.refused_in >= number:
            return []
        view.refused_in = number
        return self._object(leader, start, (leader,))

    def _voters_elsewhere(self, start: AttemptStart) -> tuple[PeerId, ...]:
        """Return the members that have voted for another average and will not take part. A member could start attempts with
        them faster than the others make one without it (adversary row `two liars of one mind`, seed 3)."""
        return tuple(peer for peer in start.members if peer != self.me and has_voted_otherwise(peer, self.votes, start))

    # --- declining the round -----------------------------------------------------------------------------------------

    @property
    def _may_decline(self) -> bool:
        """Whether this host contributes, and would lose nothing but inner steps of this round by declining."""
        is_training = self.phase is Phase.TRAINING and self.is_contributor
        return is_training and not (self.is_ahead or self.is_carried or self.votes.have_own)

    def _note_waiting(self, sender: PeerId, now: float) -> list[Effect]:
        """Note that the sender has done its inner steps. If most of those that decide have, and this host began so late that
        they would wait for it, it ends its inner steps early or declines. Since others may be late, too, each host judges by
        those that wait."""
        if not self._may_decline or sender not in self.contributors:
            return []
        self.hosts[sender].is_waiting = True
        present = self.hosts.present
        waiting = {s.peer: s.samples for s in self.instance_plan.hosts if s.peer in present and self.hosts[s.peer].is_waiting}
        deciding, num_deciding = self.deciding.intersection(waiting), len(self.deciding)
        if self.assignment.work.quorum is None or not is_majority(len(deciding), num_deciding):
            return []
        elapsed = now - self.phase_since
        late = lateness_seconds(self.plan, self.me, deciding, num_planned=num_deciding, elapsed_seconds=elapsed)
        steps = int(self.share.inner_steps * elapsed / (elapsed + late)) if late > 0 else self.share.inner_steps
        is_doubtful = self.assignment.was_passed_over
        if late > PARTIAL_SECONDS and self.attempts.is_partial(self.me, steps) and not is_doubtful:
            return self._end_early()
        others = sum(waiting.values())
        worth = worth_seconds(
            self.assignment.work,
            self.plan,
            weight=self.share.samples,
            others=others,
            average_seconds=self.assignment.transfer_seconds,
            is_doubtful=is_doubtful,
        )
        return self._decline(words_of_decline(late, worth, round=self.round), now) if late > worth else []

    def _end_early(self) -> list[Effect]:
        """End the inner steps early and contribute those that are done, because the others wait."""
        if self._ends_early:
            return []
        self._ends_early = True
        return [EndInner(instance=self.instance, round=self.round, least_steps=self.instance_plan.least_steps)]

    def _decline_committed(self, now: float) -> list[Effect]:
        """Decline if a majority voted for an average without this host while it trains: its work of the round is lost."""
        choice = self.votes.tally(()).majority
        if not self._may_decline or choice is None or self.me in choice[2]:
            return []
        return self._decline(f"declined round {self.round}: the others have averaged without this peer", now)

    def _decline(self, reason: str, now: float) -> list[Effect]:
        """Stop the inner steps and take the others' average."""
        self.is_trainer = self.is_contributor = False
        log = self.failure_log(self.attempts.current.number, reason)
        stop = DiscardRound(instance=self.instance)
        phase = self.enter(Phase.RETRYING, now)
        return [log, stop, *phase, *self._attempt.ask_for_result(now), *self._commit.seek(now)]

    # --- the others --------------------------------------------------------------------------------------------------

    def roster_changed(self, now: float) -> list[Effect]:
        """React to a peer that is gone or back (`HostViews.gone`): the attempt may be lost, or a commit possible."""
        return [*self._attempt.end_lost(now), *self._commit.seek(now)]

    def tick(self, now: float) -> list[Effect]:
        """Do what is due once `next_deadline` has passed."""
        if self.next_deadline is None or now < self.next_deadline:
            return []
        self.next_deadline = None
        if self.phase is Phase.COMMITTING:
            return self._commit.resend(now)
        if self.phase is Phase.AVERAGING and (ended := self._attempt.end_lost(now)):
            return [*ended, *self._commit.seek(now)]
        if self.phase is Phase.AVERAGING:
            return self._attempt.query_members(now) if self.attempts.current.overdue_at is None else self._commit.seek(now)
        if self.phase is Phase.RETRYING:
            self.hosts.rest_is_over()
            return [*self._retry(now), *self._commit.seek(now)]
        return []

    def _retry(self, now: float) -> list[Effect]:
        """Lead the next attempt after a pause, or skip a leader that was silent."""
        if not self.is_contributor:
            return self._attempt.ask_for_result(now)
        if self.attempts.leader_elsewhere is not None:  # the result of its attempt has not come
            self.hosts.saw_failure((self.attempts.leader_elsewhere,))
        if not self.attempts.is_leader:
            self.hosts.skip_leader()
            self.next_deadline = now + TAKEOVER_SECONDS
            if not self.attempts.is_leader:
                return []
        if not self.hosts.can_commit(self.hosts.remaining):
            return self._commit.vote_void(now)
        if not self.hosts.may_lead(self.me):  # those that decide are silent, or have an attempt without this host
            self.next_deadline = now + TAKEOVER_SECONDS
            return self._attempt.ask_for_votes()
        if self.hosts.is_left_behind and self._gave_way_in != self.attempts.current.number:
            # others lead one without this host, and would join its attempt instead
            self._gave_way_in, self.next_deadline = self.attempts.current.number, now + TAKEOVER_SECONDS
            return []
        return self._attempt.lead_next(now)

    # --- the outer step ----------------------------------------------------------------------------------------------

    def outer_applied(self, event: OuterApplied, now: float, *, evaluate: bool) -> list[Effect]:
        assert self.phase is Phase.APPLYING
        self.note_queue(event.seconds, now)
        self.applied, self._is_evaluated = event, evaluate
        if self._is_drawn(event):
            reads = self.instance_plan.reads
            measure = MeasureStep(instance=self.instance, round=self.round, state=event.state_digest, reads=reads)
            return [*self.enter(Phase.MEASURING, now), measure]
        return self._evaluate(now)

    def _is_drawn(self, event: OuterApplied) -> bool:
        """Return whether this host is drawn to measure the outer step; it needs the state before the step, too."""
        if self.is_void or event.is_refused or not self.instance_plan.measurers or not self.is_contributor:
            return False
        count = self.instance_plan.measurers
        return self.me in measurers(event.state_digest, self.contributors, self.plan.roster, count=count)

    def step_measured(self, event: StepMeasured, now: float) -> list[Effect]:
        assert self.phase is Phase.MEASURING
        self.note_queue(event.seconds, now)
        self.step = StepLosses(before=within_scalars(event.before), after=within_scalars(event.after))
        return self._evaluate(now)

    def _evaluate(self, now: float) -> list[Effect]:
        if self._is_evaluated:
            return [*self.enter(Phase.EVALUATING, now), Evaluate(instance=self.instance, round=self.round)]
        return self.enter(Phase.DONE, now)

    def evaluated(self, event: Evaluated, now: float) -> list[Effect]:
        assert self.phase is Phase.EVALUATING
        self.note_queue(event.seconds, now)
        self.heldout_loss, self.heldout_losses = event.heldout_loss, event.heldout_losses
        return self.enter(Phase.DONE, now)


def _only_to(peer: PeerId, reports: list[Effect]) -> list[Effect]:
    return [report for report in reports if isinstance(report, Send) and report.peer == peer]


def round_line(outer: OuterRound) -> telemetry.Round:
    """Return the telemetry event of a round of one instance that ended on this peer."""
    report, totals, plan = outer.report(), outer.totals(), outer.instance_plan
    return telemetry.Round(
        round=outer.round,
        instance=outer.instance,
        loss=report.loss,
        heldout_loss=outer.heldout_loss,
        heldout_losses=outer.heldout_losses,
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
        devices=outer.result.devices if outer.result is not None else (),
        seconds={phase: round(seconds, 6) for phase, seconds in outer.seconds.items()},
        bytes_sent=totals.bytes_sent,
        bytes_received=totals.bytes_received,
    )
