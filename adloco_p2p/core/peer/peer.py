"""One peer as a function: `Peer.handle(event, now)` returns effects. It composes the state machines of all hosted instances.

The contract:
- `handle` never blocks, never raises for anything that a remote peer does, and is the only way in which state changes.
- Effects are performed in order; see `effects.py`.
- `next_deadline` is an instant or None; the loop feeds `Ticked` when it has passed.
- The same state, event and `now` give the same effects.

How rounds follow each other. plan(r) is known before round r begins, because it was agreed while round r - 1 computed. The
boundary before round r OPENS once plan(r) is there. If it forks, merges or needs foreign state, or if a probe of round r - 1 is
due, all hosted instances must have ended round r - 1 first. Otherwise each instance goes on by itself: while one is still being
averaged, the next one computes. A single instance may run ahead of itself if updates are delayed: the inner steps of round r
begin while round r - 1 is averaged; its outer step is done beside them, and then round r is handed over.

How a peer that was away comes back. A known plan(r + 2) means that round r is over. A peer that is a little behind takes the
averages of such rounds from the others without training. A peer that is far behind, makes no progress, or has another state
than the others agree on, fast-forwards to the present and fetches the state.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite

from adloco_p2p.core.averaging.adaptive_timeout import AdaptiveTimeout, slow_transfer_seconds
from adloco_p2p.core.averaging.assignment import Assignment
from adloco_p2p.core.averaging.commit_votes import Voter
from adloco_p2p.core.averaging.failed_attempts import FailedAttempts
from adloco_p2p.core.averaging.outer_round import OuterRound, round_line
from adloco_p2p.core.averaging.phases import Phase
from adloco_p2p.core.model.assessments import ContributionAssessed
from adloco_p2p.core.model.complaints import PartNotShown
from adloco_p2p.core.model.course import work_at
from adloco_p2p.core.model.effects import DiscardRound, Effect
from adloco_p2p.core.model.events import (
    AverageDecided,
    AverageFailed,
    AverageFinished,
    Commanded,
    DataReceived,
    DeviceEnd,
    Evaluated,
    Event,
    FetchFailed,
    InnerFinished,
    OuterApplied,
    PeerBack,
    PeerGone,
    Probed,
    Received,
    ReportHeard,
    RoundEvent,
    Started,
    StateFetched,
    StateKept,
    StateServed,
    StepMeasured,
    Ticked,
    TransitionApplied,
)
from adloco_p2p.core.model.ledger_entry import Reorg
from adloco_p2p.core.model.messages import AttemptFailed, AttemptStart, AverageDigest, RunComplete
from adloco_p2p.core.model.outcomes import Decided, Outcome
from adloco_p2p.core.model.plan_telemetry import heldout_lines, ruled_lines, task_lines
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.rules import WorkRules
from adloco_p2p.core.model.run_progress import progress_after
from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.core.model.task_scores import TasksScored
from adloco_p2p.core.model.telemetry import Left, Returned
from adloco_p2p.core.peer.agreement_port import Agreement
from adloco_p2p.core.peer.assessing import looks_due
from adloco_p2p.core.peer.boundary import Boundary
from adloco_p2p.core.peer.catch_up import CatchingUp
from adloco_p2p.core.peer.divergence import note_left_out, note_round, reason_to_stop
from adloco_p2p.core.peer.fetching import Fetching
from adloco_p2p.core.peer.finishing import Finishing
from adloco_p2p.core.peer.lifecycle import Lifecycle, Stage
from adloco_p2p.core.peer.reporting import Reporting
from adloco_p2p.core.peer.saving import Checkpoints
from adloco_p2p.core.peer.state import PeerState

PASSED_OVER_ROUNDS = 4
"""The rounds after an average that the others made without this peer in which it declines sooner if it begins late. Then it is
tried anew, because its link may have recovered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cadence:
    """How rounds follow each other, how often a peer evaluates (equal in the swarm) and how often it saves (its own choice)."""

    work: WorkRules
    """The rules that determine when the run ends."""
    evaluation_period: int
    """Rounds from one evaluation to the next; 0 for one at the end only."""
    checkpoint_period: int
    checkpoint_seconds: float = 0.0
    """Least time between two checkpoints."""
    is_delayed: bool = False
    """Outer updates may come one round late."""
    task_period: int = 0
    """Rounds from one scoring of the run's tasks to the next; 0 for none."""
    vector_bytes: int = 0
    """Size of a pseudo-gradient on the wire; see `AdaptiveTimeout`."""
    state_bytes: int = 0
    """Size of an instance's state as a joiner fetches it; peers that have it wait correspondingly longer for one that fetches
    it."""

    def evaluates(self, round: int) -> bool:
        return self.evaluation_period > 0 and (round + 1) % self.evaluation_period == 0

    def saves(self, boundary: int) -> bool:
        return boundary % self.checkpoint_period == 0 or boundary == self.work.rounds


class Peer:
    """All decisions of one volunteer's process about training. Consensus and membership are behind `agreement`."""

    def __init__(self, *, me: PeerId, cadence: Cadence, agreement: Agreement) -> None:
        self.me = me
        self.cadence = cadence
        self._has_news = True
        """The event of the present call may have made something possible."""
        self._next_wait: float | None = None
        """Next time at which something becomes possible without an event."""
        self._agreement = agreement
        self._state = PeerState(me, is_delayed=cadence.is_delayed, rounds_kept=cadence.work.rounds_kept)
        self._book = self._state.book
        self._branches = self._state.branches
        self._checkpoints = Checkpoints(self._state, is_on_schedule=cadence.saves, least_seconds=cadence.checkpoint_seconds)
        self._adaptive_timeout = AdaptiveTimeout(vector_bytes=cadence.vector_bytes)
        self._failed_attempts = FailedAttempts()
        self._fetching = Fetching(self._state, kept_vote=agreement.kept_vote)
        self._reporting = Reporting(self._state, submit=self._submit, task_period=cadence.task_period)
        self._boundary = Boundary(self._state, fetching=self._fetching)
        self._catching_up = CatchingUp(
            self._state,
            fetching=self._fetching,
            checkpoints=self._checkpoints,
            adaptive_timeout=self._adaptive_timeout,
        )
        transfer_seconds = slow_transfer_seconds(cadence.state_bytes)
        self._finishing = Finishing(
            self._state,
            agreement=agreement,
            fetching=self._fetching,
            catching_up=self._catching_up,
            checkpoints=self._checkpoints,
            transfer_seconds=transfer_seconds,
        )
        self._lifecycle = Lifecycle(
            self._state,
            agreement=agreement,
            fetching=self._fetching,
            reporting=self._reporting,
            catching_up=self._catching_up,
            checkpoints=self._checkpoints,
            finishing=self._finishing,
            outcomes=self._outcomes,
            transfer_seconds=transfer_seconds,
        )

    @property
    def stage(self) -> Stage:
        return self._lifecycle.stage

    @property
    def next_deadline(self) -> float | None:
        deadlines = [outer.next_deadline for outer in self._state.rounds]
        deadlines += [self._agreement.next_deadline, self._next_wait]
        return min([instant for instant in deadlines if instant is not None], default=None)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Handle one event, the only entry. After an event that changes something, begin everything that has become
        possible."""
        if self._lifecycle.is_stopped:
            return []
        self._has_news = True
        effects = self._take(event, now)
        if not self._has_news:
            return effects
        while not self._lifecycle.is_stopped:
            more = self._advance(now)
            effects += more
            if not more:
                break
        self._agreement.note_work(self._state.working())
        parts = (self._fetching, self._boundary, self._catching_up, self._lifecycle, self._finishing)
        waits = [part.next_deadline for part in parts]
        waits += [at for outer in self._state.rounds if (at := outer.given_up_at) is not None and at > now]
        self._next_wait = min([instant for instant in waits if instant is not None], default=None)
        return effects

    def fail(self, now: float) -> list[Effect]:
        """Return the message with which this peer leaves when the process ends by an error of its own; called instead of
        `handle`."""
        return self._lifecycle.fail(now)

    # --- one event ---------------------------------------------------------------------------------------------------

    def _take(self, event: Event, now: float) -> list[Effect]:
        if isinstance(event, DeviceEnd) and self._state.is_outdated(event):
            return []
        match event:
            case Started():
                return self._start(event, now)
            case Received():
                return self._receive(event, now)
            case Ticked():
                return self._tick(now)
            case TransitionApplied():
                return self._boundary.applied(event)
            case Probed() | TasksScored() | PartNotShown() | ContributionAssessed():
                return self._reporting.measured(event)
            case StateFetched():
                return self._fetching.fetched(event, now)
            case StateKept():
                self._branches.kept(event)
                return []
            case FetchFailed():
                return self._fetching.failed(event, now)
            case Commanded():
                return self._lifecycle.commanded(event, now)
            case StateServed():
                self._lifecycle.served(event)
                return []
            case ReportHeard():
                self._book.note_states(event.report)
                return []
            case DataReceived():
                self._agreement.note_data(event.peers, now)
                return []
            case PeerGone() | PeerBack():
                return self._roster_changed(event, now)
            case _:  # a `RoundEvent`
                shortages = self._reporting.trained(event) if isinstance(event, InnerFinished) else []
                return [*shortages, *self._step(event, now)]

    def _start(self, event: Started, now: float) -> list[Effect]:
        durable = event.durable
        assert durable.plans, "a peer starts from a plan"
        self._reporting.capacity = event.capacity
        self._state.opened = self._state.skipped = durable.round - 1
        self._checkpoints.start(durable, now)
        for instance in durable.held:
            self._state.instance(instance).arrive(
                durable.round,
                is_agreed=instance not in durable.doubtful,
                state_digest=durable.reported_state(self.me, instance),
            )
        for plan in durable.plans:
            self._state.learn(plan)
        for report in durable.reports:
            if report.peer == self.me:
                self._reporting.remember(report)
            self._book.note_states(report)
        known = [plan for plan in durable.plans if plan.round >= durable.round]
        effects: list[Effect] = [line for plan in known for line in self._state.plan_lines(plan)]
        outcomes = self._agreement.start(durable.plans, durable.reports, now)
        for plan in durable.plans:
            if plan.merges:  # a plan of the checkpoint is not decided again
                self._book.name_ended(plan, self._agreement.reports_of(self._book.digests[plan.round]))
        effects += self._outcomes(outcomes, now)
        return effects + self._lifecycle.outgrow(now, is_starting=True)

    def _receive(self, event: Received, now: float) -> list[Effect]:
        message = event.message
        if isinstance(message, (AverageDigest, AttemptFailed, AttemptStart)):
            outer = self._state.round_of(message.round, message.instance)
            if outer is None:
                self._state.keep_early(event.sender, message)
                return self._fetching.decline(event.sender, message)
            effects = self._state.stamped(outer.received(event.sender, message, now))
            is_proof = isinstance(message, AverageDigest) and outer.is_done and outer.is_agreed
            has_ended_doubt = is_proof and self._state.prove(outer.instance, outer.round)
            self._has_news = bool(effects) or has_ended_doubt  # a step to another phase is logged
            return effects
        if isinstance(message, RunComplete):
            return self._finishing.received(event.sender, message)
        outcomes = self._agreement.receive(event.sender, message, now)
        self._has_news = _have_news(outcomes)
        return self._outcomes(outcomes, now)

    def _tick(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for outer in self._state.rounds:
            effects += self._state.stamped(outer.tick(now))
        self._fetching.tick(now)
        effects += self._finishing.tick(now)
        outcomes = self._agreement.tick(now)
        is_due = self._next_wait is not None and self._next_wait <= now
        self._has_news = is_due or bool(effects) or _have_news(outcomes)
        return effects + self._outcomes(outcomes, now)

    def _step(self, event: RoundEvent, now: float) -> list[Effect]:
        outer = self._state.round_of(event.round, event.instance)
        if outer is None:
            plan = self._book.get(event.round)
            if isinstance(event, Evaluated) and plan is not None and plan.is_last:
                self._state.final = event
            return []
        was_done = outer.is_done
        match event:
            case InnerFinished() if outer.phase is not Phase.TRAINING:
                return []  # of a round that this peer has declined
            case InnerFinished():
                is_ahead = self._state.held.get(event.instance, event.round) < event.round
                effects = outer.inner_finished(event.result, now, is_ahead=is_ahead)
            case AverageDecided():
                effects = outer.average_decided(event)
            case AverageFinished():
                effects = outer.average_finished(event, now)
            case AverageFailed():
                effects = outer.average_failed(event, now)
            case OuterApplied():
                effects = outer.outer_applied(event, now, evaluate=self._evaluates(outer))
            case StepMeasured():
                effects = outer.step_measured(event, now)
            case Evaluated():
                effects = outer.evaluated(event, now)
        effects = self._state.stamped(effects)
        if outer.is_done and not was_done:
            effects += self._round_done(outer, now)
        return effects

    def _roster_changed(self, event: PeerGone | PeerBack, now: float) -> list[Effect]:
        if isinstance(event, PeerGone):
            self._state.gone[event.peer] = None
            effects: list[Effect] = [Left(peer=event.peer)]
        else:
            self._state.gone.pop(event.peer, None)
            effects = [Returned(peer=event.peer)]
        for outer in self._state.rounds:
            effects += self._state.stamped(outer.roster_changed(now))
        return effects

    def _submit(self, report: Report, now: float) -> list[Effect]:
        self._state.forget_before(report.round - self._state.rounds_kept)
        return self._outcomes(self._agreement.submit(report, now), now)

    def _outcomes(self, outcomes: Sequence[Outcome], now: float) -> list[Effect]:
        effects: list[Effect] = []
        for outcome in outcomes:
            match outcome:
                case Decided(plan=plan, reports=reports, decrees=decrees):
                    effects += ruled_lines(decrees, plan.round)
                    self._state.learn(plan)
                    self._book.name_ended(plan, reports)
                    if self._lifecycle.is_paused:
                        self._state.forget_before(plan.round - self._state.rounds_kept)
                    for report in reports:
                        self._book.note_states(report)
                    effects += task_lines(reports)
                    effects += self._state.plan_lines(plan)
                    effects += self._lifecycle.protocol_lines(plan)
                    effects += self._catching_up.check_own_state(plan)
                case Reorg():
                    effects += [*self._catching_up.rewrite(outcome), *self._lifecycle.reopen()]
                case PeerGone() | PeerBack():
                    effects += self._roster_changed(outcome, now)
                case ReportHeard(report=report):
                    self._book.note_states(report)
                    effects += heldout_lines(report)
                case _:
                    effects.append(outcome)
        return effects

    # --- what has become possible ------------------------------------------------------------------------------------

    def _advance(self, now: float) -> list[Effect]:
        if self._lifecycle.is_paused:
            return []
        if self._lifecycle.is_waiting:
            return self._lifecycle.wait(now)
        effects = [*self._lifecycle.outgrow(now), *self._lifecycle.make_room()]
        if self._lifecycle.is_stopped:
            return effects
        effects += [*self._catching_up.catch_up(now, is_donor=self._lifecycle.is_donor), *self._go_on_alone(now)]
        effects += looks_due(self._state)
        effects += self._reporting.report_rounds(now)
        if reason := reason_to_stop(self._state.instances):
            return [*effects, *self._lifecycle.give_up(reason, now)]
        effects += [*self._checkpoints.complete_due(now), *self._lifecycle.finish(now)]
        if self._lifecycle.is_waiting or self._lifecycle.is_stopped:
            return effects
        effects += self._fetching.fetch_missing(now)  # first, because what is on its way takes part in the boundary
        effects += self._fetching.fetch_branches(now)
        effects += self._boundary.open(self._lifecycle.last_round, now)
        effects += self._start_rounds(now)
        return effects or self._lifecycle.end(now)

    def _go_on_alone(self, now: float) -> list[Effect]:
        """Continue without hosts that were to send an average and are all gone: train the round after all or, if the plan gives
        this peer no work, keep the state as it is. Their last votes get some time to arrive first."""
        effects: list[Effect] = []
        for outer in self._state.rounds:
            is_deserted = self._state.is_deserted(outer)
            is_too_late = outer.share.contributes(outer.round) and self._finishing.have_others_ended()
            if outer.is_given_up(now, is_deserted=is_deserted) and not is_too_late:
                hosted = self._state.instance(outer.instance)
                effects += outer.abandon()
                del hosted.rounds[outer.round]
                hosted.declined.discard(outer.round)
                if not outer.share.contributes(outer.round):
                    effects += [DiscardRound(instance=outer.instance)] if outer.keeps_own else []
                    hosted.untrained.add(outer.round)
                    hosted.doubt(outer.round + 1)
                    effects += self._arrive(outer.instance, outer.round + 1, now)
        return effects

    def _start_rounds(self, now: float) -> list[Effect]:
        """Let every hosted instance go on from its boundary, as far as boundaries are open."""
        effects: list[Effect] = []
        for instance, number in sorted(self._state.held.items()):
            effects += self._start_round(instance, number, now)
            if number + 1 in self._state.instance(instance).declined:
                continue  # it only receives that round, of which nothing can come before the outer step of this one
            if self._state.runs_ahead(instance, number + 1):
                effects += self._start_round(instance, number + 1, now, is_ahead=True)
        return effects

    def _start_round(self, instance: InstanceId, number: int, now: float, *, is_ahead: bool = False) -> list[Effect]:
        hosted, plan = self._state.instance(instance), self._book.get(number)
        if plan is None or plan.is_last or number > self._state.opened or instance not in self._book.mine(plan):
            return []
        if number in hosted.rounds:
            return []
        is_over = self._book.newest.round >= number + 2 or number in hosted.declined
        digest, before = self._book.digests[plan.round], hosted.rounds.get(number - 1)
        passed_over_in = hosted.passed_over_in
        was_passed_over = passed_over_in is not None and number <= passed_over_in + PASSED_OVER_ROUNDS
        assignment = Assignment(
            me=self.me,
            plan=plan,
            plan_digest=digest,
            instance=instance,
            adaptive_timeout=self._adaptive_timeout,
            failed_attempts=self._failed_attempts,
            voter=Voter(
                sign=self._agreement.sign,
                verify=self._agreement.verify,
                keep=partial(self._agreement.keep_vote, digest),
                kept=self._agreement.kept_vote(digest, instance),
            ),
            work=self.cadence.work,
            is_carried=hosted.is_carried,
            was_passed_over=was_passed_over,
            may_be_late=number > 0 and (before is None or not before.is_contributor or was_passed_over),
            is_late=is_over and self._book.has_company(plan, instance, self._state.gone),
        )
        outer = OuterRound(assignment)
        hosted.rounds[number] = outer
        progress_end = progress_after(plan, work_at(self.cadence.work, plan.course, number))
        effects = outer.start(now, progress_end=progress_end, is_ahead=is_ahead)
        outer.hosts.gone = self._state.gone
        for peer, vote in hosted.early_votes.get(number, {}).items():
            effects += outer.received(peer, vote, now)
        return self._state.stamped(effects)

    def _round_done(self, outer: OuterRound, now: float) -> list[Effect]:
        """End the round of one instance: count it, log it, and let a round that ran ahead go on."""
        self._checkpoints.count(outer)
        if outer.heldout_loss is not None and not isfinite(outer.heldout_loss):
            self._checkpoints.rule_out(outer.round + 1)
        hosted = self._state.instance(outer.instance)
        hosted.state_digest = outer.applied.state_digest if outer.applied is not None else None
        if not outer.is_agreed:
            hosted.unproven.add((outer.instance, outer.round))
        warnings = [*note_round(hosted, outer), *note_left_out(hosted, outer)]
        effects = [round_line(outer), *warnings, *self._arrive(outer.instance, outer.round + 1, now)]
        hosted.is_carried = outer.is_carrying
        if outer.is_averaged or outer.is_passed_over:
            hosted.passed_over_in = None if outer.is_averaged else outer.round
        following = hosted.rounds.get(outer.round + 1)
        if following is not None:
            following.is_carried = hosted.is_carried
        if following is not None and following.phase is Phase.TRAINED:
            effects += self._state.stamped(following.hand_over(now))
        return effects

    def _arrive(self, instance: InstanceId, boundary: int, now: float) -> list[Effect]:
        """Note that the instance has reached the boundary, and save it if that is due."""
        self._state.instance(instance).boundary = boundary
        if self._checkpoints.is_due(boundary, now) or self._lifecycle.is_ending:
            return [self._checkpoints.save(instance, boundary)]
        return []

    # --- small things ------------------------------------------------------------------------------------------------

    def _evaluates(self, outer: OuterRound) -> bool:
        """Return whether this peer evaluates the instance. Its hosts take turns, because they all hold the same parameters."""
        contributors = outer.contributors
        return self.cadence.evaluates(outer.round) and contributors[outer.round % len(contributors)] == self.me


def _have_news(outcomes: Sequence[Outcome]) -> bool:
    """Return whether an outcome of the agreement may make another step possible; most outcomes are messages to send."""
    return any(isinstance(outcome, Decided | Reorg | PeerGone | PeerBack | ReportHeard) for outcome in outcomes)
