"""Whether this peer trains, ends, pauses or stops, as the user asks. `finishing.py` handles the end of the run.

`STEPS` names every step from one stage to another. A peer that ends begins no round after `last_round`; if it alone hosts an
instance, it then waits until others have fetched the state. A peer with the finished model waits for the others; if another
history wins meanwhile, its model is not that of the run, and the peer goes on.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from enum import StrEnum

from adloco_p2p.core.model import telemetry
from adloco_p2p.core.model.effects import Effect, Send, Stop
from adloco_p2p.core.model.events import Commanded, StateServed
from adloco_p2p.core.model.messages import AverageDigest
from adloco_p2p.core.model.outcomes import Outcome
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.protocol import CANNOT_FOLLOW, UPGRADE_REMEDY, unfollowed
from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.core.peer.agreement_port import Agreement
from adloco_p2p.core.peer.catch_up import CatchingUp
from adloco_p2p.core.peer.fetching import Fetching
from adloco_p2p.core.peer.finishing import Finishing
from adloco_p2p.core.peer.plan_book import PlanBook
from adloco_p2p.core.peer.reporting import Reporting
from adloco_p2p.core.peer.saving import Checkpoints
from adloco_p2p.core.peer.state import PeerState

HANDOVER_SECONDS = 600.0
"""Longest time that a peer that ends waits for others to fetch the state that no other peer has."""

NEWCOMER_SECONDS = 300.0
"""How long a newcomer waits for a member that lets it in, if all are gone and no peer of the run gives a sign of life; a paused
peer may come back in that time."""
NOBODY_THERE = "E315"
"""Error code: no peer of the run is left that could let this one in, or this one is cut off."""

OUTGROWN = "E316"
"""Error code: the run follows a newer protocol than this version."""
LAST_CHECKPOINT = "stopped; the last checkpoint stands"


class Stage(StrEnum):
    """Stage of one process of a peer, from its start to its stop."""

    TRAINING = "training"
    PAUSING = "pausing"
    """No round begins after the last one; then the peer pauses."""
    DRAINING = "draining"
    """No round begins after the last one; then the peer stops."""
    HANDING_OVER = "handing over"
    """The last round is done; others fetch the state that only this peer has, and then it stops."""
    HANDING_OVER_TO_PAUSE = "handing over to pause"
    """The last round is done; others fetch the state that only this peer has, and then it pauses."""
    PAUSED = "paused"
    """The peer has left the roster and trains nothing, but follows the plans and can come back."""
    WAITING = "waiting"
    """The run is complete here; the peer stays until the others have the model."""
    STOPPED = "stopped"


STEPS: dict[Stage, frozenset[Stage]] = {
    Stage.TRAINING: frozenset({Stage.PAUSING, Stage.DRAINING, Stage.WAITING, Stage.STOPPED}),
    Stage.PAUSING: frozenset(
        {Stage.TRAINING, Stage.DRAINING, Stage.HANDING_OVER_TO_PAUSE, Stage.PAUSED, Stage.WAITING, Stage.STOPPED}
    ),
    Stage.DRAINING: frozenset({Stage.HANDING_OVER, Stage.WAITING, Stage.STOPPED}),
    Stage.HANDING_OVER: frozenset({Stage.WAITING, Stage.STOPPED}),
    Stage.HANDING_OVER_TO_PAUSE: frozenset({Stage.TRAINING, Stage.HANDING_OVER, Stage.PAUSED, Stage.WAITING, Stage.STOPPED}),
    Stage.PAUSED: frozenset({Stage.TRAINING, Stage.STOPPED}),
    Stage.WAITING: frozenset(
        {Stage.TRAINING, Stage.PAUSING, Stage.DRAINING, Stage.HANDING_OVER, Stage.HANDING_OVER_TO_PAUSE, Stage.STOPPED}
    ),
    Stage.STOPPED: frozenset(),
}
HANDOVERS = {Stage.DRAINING: Stage.HANDING_OVER, Stage.PAUSING: Stage.HANDING_OVER_TO_PAUSE}
"""What follows the last round of a peer that alone hosts an instance."""


class Lifecycle:
    """Steps from stage to stage. Call `commanded` when the user asks, and `finish`, `wait` and `end` whenever something
    happened."""

    def __init__(
        self,
        state: PeerState,
        *,
        agreement: Agreement,
        fetching: Fetching,
        reporting: Reporting,
        catching_up: CatchingUp,
        checkpoints: Checkpoints,
        finishing: Finishing,
        outcomes: Callable[[Sequence[Outcome], float], list[Effect]],
        transfer_seconds: float,
    ) -> None:
        """`outcomes` processes what the agreement returns; `transfer_seconds` is the time that a state may take over a slow
        link."""
        self.stage = Stage.TRAINING
        self.last_round: int | None = None
        """The last round that this peer begins; None if there is no such limit."""
        self._state = state
        self._book = state.book
        self._agreement = agreement
        self._fetching = fetching
        self._reporting = reporting
        self._catching_up = catching_up
        self._checkpoints = checkpoints
        self._finishing = finishing
        self._outcomes = outcomes
        self._handover_seconds = HANDOVER_SECONDS + transfer_seconds
        self._before_waiting = self.stage
        self._alone: tuple[int, float] | None = None
        """For a newcomer without a living member: its newest round, and the time since which no member lives."""
        self._warned = ""
        """The last warning about a protocol that this version cannot follow, in words."""
        self._handover_until = 0.0
        """Time until which successors may fetch what only this peer has, during a handover."""

    @property
    def next_deadline(self) -> float | None:
        if self._alone is not None:
            return self._alone_until(self._alone[1])
        return self._handover_until if self.is_donor else None

    @property
    def is_paused(self) -> bool:
        return self.stage is Stage.PAUSED

    @property
    def is_waiting(self) -> bool:
        return self.stage is Stage.WAITING

    @property
    def is_stopped(self) -> bool:
        return self.stage is Stage.STOPPED

    @property
    def is_donor(self) -> bool:
        """Others are fetching what only this peer has."""
        return self.stage in HANDOVERS.values()

    @property
    def is_ending(self) -> bool:
        """This peer ends: no round begins after `last_round`."""
        return self.last_round is not None

    def _enter(self, stage: Stage) -> None:
        assert stage in STEPS[self.stage], (self.stage, stage)
        self.stage = stage
        self._alone = None  # a paused peer may wait without limit

    # --- what happens ------------------------------------------------------------------------------------------------

    def served(self, event: StateServed) -> None:
        self._state.instance(event.instance).served.add((event.round, event.peer))

    # --- what the user asks ------------------------------------------------------------------------------------------

    def commanded(self, event: Commanded, now: float) -> list[Effect]:
        match event.command:
            case "pause":
                return self._pause_after_round(event)
            case "drain":
                return self._drain(event, now)
            case "resume":
                return self._resume(now)
            case "leave":
                return self._leave_at_once(event, now)
            case "checkpoint":
                self._checkpoints.request()
                return []

    def _pause_after_round(self, event: Commanded) -> list[Effect]:
        if self.stage is not Stage.TRAINING:
            return []
        self._enter(Stage.PAUSING)
        return [telemetry.Pausing(reason=self._end_after_round(event))]

    def _drain(self, event: Commanded, now: float) -> list[Effect]:
        if self.stage is Stage.WAITING:
            return self._follow(self._finishing.leave(now), now)
        if self.stage is Stage.PAUSED:
            return self._stop(Stop(reason="left while paused", is_finished=False), now)
        if self.stage in (Stage.DRAINING, Stage.HANDING_OVER):
            return []
        self._enter(Stage.HANDING_OVER if self.is_donor else Stage.DRAINING)
        return [telemetry.Stopping(reason=self._end_after_round(event))]

    def _end_after_round(self, event: Commanded) -> str:
        """Fix the last round, and say why and after which round this peer ends."""
        if self.last_round is None:
            self.last_round = self._begun
        self.make_room()
        return f"{event.reason}; ends after round {self.last_round}"

    @property
    def _begun(self) -> int:
        """The last round that this peer has begun, or that begins once the transition before it is applied."""
        opening = self._state.opening
        return self._state.opened if opening is None else opening

    def make_room(self) -> list[Effect]:
        """Announce, from the next report on, that this peer ends, so that plans no longer count on it; it ends once others can
        take over. A peer alone has no other to make room for, until a plan has one that joined, or one comes back."""
        opened, gone = self._state.opened, self._state.gone
        if self.last_round is None or self._reporting.is_leaving or not self._book.has_others(self._book.newest, gone):
            return []
        if self._outgrown_by(self._book.newest):
            return []  # that plan makes the others take over
        self._reporting.offer(is_leaving=True)
        handed_over_after = last_before_handover(self._book, opened, self._state.own_reports, gone)
        if handed_over_after <= self.last_round:
            return []
        self.last_round = handed_over_after
        reason = f"others take over what only this peer has; ends after round {self.last_round}"
        return [telemetry.Pausing(reason=reason) if self.stage is Stage.PAUSING else telemetry.Stopping(reason=reason)]

    def _outgrown_by(self, plan: RoundPlan) -> str:
        """Say why this version cannot follow the plan; empty if it can."""
        capacity = self._reporting.capacity
        return unfollowed(plan.protocol, newest=capacity.newest_protocol) if capacity is not None else ""

    def protocol_lines(self, plan: RoundPlan) -> list[Effect]:
        """Return a warning if this version cannot follow the plan or the coming protocol that it names, and its end once it
        can."""
        message, coming = self._outgrown_by(plan), plan.upgrade_round
        if coming is not None and self._outgrown_by(replace(plan, protocol=plan.protocol + 1)):
            message = (
                f"from round {coming} on the run follows protocol {plan.protocol + 1}, which the installed version cannot:"
                f" {UPGRADE_REMEDY}"
            )
        if message == self._warned:
            return []
        self._warned = message
        return [
            telemetry.Warning(key=CANNOT_FOLLOW, message=message or "the run stays with its protocol", active=bool(message))
        ]

    def outgrow(self, now: float, *, is_starting: bool = False) -> list[Effect]:
        """End if this version cannot follow the newest plan, which is known to be that of the run. A peer that takes part ends
        the round before and pauses, so that others can fetch what only it has and the user sees why. A peer that is starting,
        or has nothing to hand over, stops."""
        newest = self._book.newest
        reason = self._outgrown_by(newest)
        if not reason:
            return []
        if is_starting or not self._state.held:
            return self._stop(Stop(reason=reason, is_finished=False, error=OUTGROWN), now)
        is_near = self._begun >= newest.round - 2
        last_round = newest.round - 1 if is_near else self._begun
        if self.last_round is None or self.last_round > last_round:
            self.last_round = last_round
        if self.stage is not Stage.TRAINING:
            return []
        self._enter(Stage.PAUSING)
        return [telemetry.Pausing(reason=f"{reason}; ends after round {self.last_round}")]

    def _resume(self, now: float) -> list[Effect]:
        """Take part again: at once if the plans still count on this peer, otherwise as a joiner."""
        if self.stage not in (Stage.PAUSING, Stage.HANDING_OVER_TO_PAUSE, Stage.PAUSED) or self._outgrown_by(self._book.newest):
            return []
        was_paused, ended = self.is_paused, self._handover_ended()
        self._enter(Stage.TRAINING)
        self.last_round = None
        for item in self._state.instances.values():
            item.served.clear()
        self._checkpoints.withdraw_request()
        capacity = self._reporting.offer(is_leaving=False)
        log = telemetry.Resumed(round=self._state.opened + 1)
        if not was_paused:
            return [*ended, log]
        self._catching_up.restart_wait()
        self._fetching.restart_wait()
        return [log, *self._outcomes(self._agreement.rejoin(capacity, now), now)]

    def _leave_at_once(self, event: Commanded, now: float) -> list[Effect]:
        """Abandon the work in progress, save what is complete at a boundary, and stop."""
        if self.stage is Stage.WAITING:
            return self._follow(self._finishing.leave(now), now)
        effects: list[Effect] = [telemetry.Stopping(reason=f"{event.reason}; leaves at once")]
        plan = self._book.get(self._state.opened)
        # The device may hold a merged or half applied state, which belongs to no boundary from which a restart could begin.
        is_between = self._state.opening is not None or plan is None or bool(plan.merges)
        is_between = is_between or any(outer.is_applying for outer in self._state.rounds)
        effects += self._state.abandon_rounds()
        for boundary in range(self._state.opened + 1, min([self._state.opened, *self._state.held.values()]) - 1, -1):
            if not is_between and boundary - 1 in self._state.own_reports and self._checkpoints.newest < boundary:
                effects += self._checkpoints.save_present(boundary, now)
        return effects + self._stop(Stop(reason="left at once", is_finished=False, is_urgent=True), now)

    def give_up(self, reason: str, now: float) -> list[Effect]:
        return self._follow(self._finishing.give_up(reason), now)

    # --- what has become possible ------------------------------------------------------------------------------------

    def end(self, now: float) -> list[Effect]:
        """Pause or stop if that was asked for and nothing is in progress; also stop if the others have ended the run or are
        gone."""
        if self._is_left_alone(now):
            reason = f"no peer of the run gave a sign of life for {NEWCOMER_SECONDS:.0f} s"
            return self._stop(Stop(reason=reason, is_finished=False, error=NOBODY_THERE), now)
        if self._is_busy(now):
            return []
        if not self.is_ending and (passed := self._finishing.pass_over_the_rest()):
            return passed
        if missed := self._finishing.missed():
            return self._stop(missed, now)
        if not self.is_ending or self._has_rounds_left():
            return []
        if self._waits_for_successors(now):
            return [] if self.is_donor else self._hand_over(now)
        boundary = self._state.opened + 1
        effects: list[Effect] = []
        if self._state.opened in self._state.own_reports and self._checkpoints.newest < boundary:
            effects = self._checkpoints.save_present(boundary, now)
        if self.stage in (Stage.PAUSING, Stage.HANDING_OVER_TO_PAUSE):
            return effects + self._pause(now)
        is_saved = self._checkpoints.newest == boundary
        reason = f"stopped before round {boundary}" if is_saved else LAST_CHECKPOINT
        return effects + self._stop(Stop(reason=reason, is_finished=False), now)

    def _is_left_alone(self, now: float) -> bool:
        """Return whether this is a newcomer without a seat or a state that has been left alone for too long: all members of its
        newest plan are gone, no newer plan has come, and no peer of the run has given a sign of life."""
        newest = self._book.newest
        if self._state.held or self._book.is_on_roster(newest) or self._book.has_others(newest, self._state.gone):
            self._alone = None
        elif self._alone is None or self._alone[0] != newest.round:
            self._alone = newest.round, now
        return self._alone is not None and now >= self._alone_until(self._alone[1])

    def _alone_until(self, since: float) -> float:
        return max(since, self._agreement.last_contact) + NEWCOMER_SECONDS

    def _is_busy(self, now: float) -> bool:
        """Return whether work is in progress. A given-up round counts for a while, because the last votes of hosts that are
        gone may still bring its average."""
        is_in_round = any(
            not (outer.is_done or (outer.given_up_at is not None and outer.given_up_at <= now)) for outer in self._state.rounds
        )
        return self._state.opening is not None or is_in_round or self._reporting.is_probing

    def _has_rounds_left(self) -> bool:
        """Return whether others take over only after a later round, whose plan may be still to come if this peer is ahead of
        them."""
        is_early = self.last_round is not None and self._state.opened < self.last_round
        return is_early and self._book.has_others(self._book.newest, self._state.gone)

    def _waits_for_successors(self, now: float) -> bool:
        is_over = self.is_donor and now >= self._handover_until
        return not is_over and self._has_unserved_successors()

    def _has_unserved_successors(self) -> bool:
        """Return whether, after the last round, others are to host what only this peer has and have not fetched it yet."""
        opened, gone = self._state.opened, self._state.gone
        plan, boundary = self._book.get(opened), opened + 1
        if plan is None or self.last_round != opened or not self._book.has_others(self._book.newest, gone):
            return False
        here = [instance for instance in self._book.mine(plan) if instance in self._state.held]
        lacking = [instance for instance in here if not self._is_held(instance, opened)]
        is_undecided = boundary not in self._book.plans and bool(lacking)
        return is_undecided or any(self._is_unserved(instance, boundary) for instance in lacking)

    def _is_unserved(self, instance: InstanceId, boundary: int) -> bool:
        return bool(self._book.heirs(instance, boundary, self._state.gone)) and not self._is_held(instance, boundary)

    def _is_held(self, instance: InstanceId, number: int) -> bool:
        """Return whether more than half of the other hosts that train the instance by the plan of this round have its newest
        state or make it themselves, or most keepers have it. The statement of a minority, true or not, does not release this
        peer."""
        opened, gone = self._state.opened, self._state.gone
        served = {peer for boundary, peer in self._state.known(instance).served if boundary > opened}
        is_kept = self._book.is_kept(instance, opened, gone, served=served)
        # A peer that cannot follow the run does not get the plan with the reports of its last round, but the others go on.
        is_going = not self._outgrown_by(self._book.newest)
        return is_kept or self._book.is_held(instance, number, gone, after=opened, served=served, is_going=is_going)

    def _hand_over(self, now: float) -> list[Effect]:
        self._enter(HANDOVERS[self.stage])
        self._handover_until = now + self._handover_seconds
        message = f"others fetch what only this peer has; it goes in {self._handover_seconds:.0f} s at the latest"
        return [telemetry.Warning(key="handover", message=message, active=True)]

    def _handover_ended(self) -> list[Effect]:
        """Return the end of the warning about a handover, if one is under way."""
        return [telemetry.Warning(key="handover", message="the handover has ended", active=False)] if self.is_donor else []

    def _pause(self, now: float) -> list[Effect]:
        """Leave the roster, so that the others do not wait for this peer, and stay in the process."""
        ended = self._handover_ended()
        self._enter(Stage.PAUSED)
        log = telemetry.Paused(round=self._state.opened + 1)
        return [*ended, *self._withdraw(), *self._outcomes(self._agreement.leave(now), now), log]

    def _stop(self, stop: Stop, now: float) -> list[Effect]:
        ended = self._handover_ended()
        self._enter(Stage.STOPPED)
        return [*ended, *self._withdraw(), *self._outcomes(self._agreement.leave(now), now), stop]

    def _withdraw(self) -> list[Effect]:
        """Cast void votes on averages of known rounds for which the remaining hosts could not know otherwise whether one was
        committed. For other rounds cast none: this peer may come back and train the round, which it cannot after a vote."""
        effects: list[Effect] = []
        for number, plan in sorted(self._book.plans.items()):
            for instance in self._book.mine(plan):
                if self._state.is_doubtful_without(plan, instance):
                    effects += self._vote_void(instance, number)
        return effects

    def _vote_void(self, instance: InstanceId, number: int) -> list[Effect]:
        digest = self._book.digests[number]
        if self._agreement.kept_vote(digest, instance) is not None:
            return []
        void = AverageDigest.void(instance, number)
        vote = replace(void, signature=self._agreement.sign(void.payload(digest, self._state.me)))
        others = self._book.successors(instance, number, self._state.gone)
        return [*self._agreement.keep_vote(digest, vote), *(Send(peer=peer, message=vote) for peer in others)]

    def fail(self, now: float) -> list[Effect]:
        """Leave because the process ends by an error of its own. Work in progress ends, and the others no longer wait for
        it."""
        if self.is_stopped:
            return []
        # It withdraws from no average, because a vote is written before it is sent, and the error may be a full disk.
        self._enter(Stage.STOPPED)
        return self._outcomes(self._agreement.leave(now), now)

    # --- the end of the run ------------------------------------------------------------------------------------------

    def finish(self, now: float) -> list[Effect]:
        return self._follow(self._finishing.finish(now), now)

    def wait(self, now: float) -> list[Effect]:
        return self._follow(self._finishing.wait(now), now)

    def reopen(self) -> list[Effect]:
        """Continue after another history has won: the run was complete only in the history that lost."""
        self._finishing.reopen()
        if not self.is_waiting:
            return []
        self._enter(self._before_waiting)
        return [telemetry.Resumed(round=self._state.opened + 1)]

    def _follow(self, effects: list[Effect], now: float) -> list[Effect]:
        """Enter the stage that the end of the run asks for: waiting for the others, the stage before that, or stopped."""
        if self._finishing.has_finished and not self.is_waiting:
            self._before_waiting = self.stage
            self._enter(Stage.WAITING)
        elif self.is_waiting and not self._finishing.has_finished:
            self._enter(self._before_waiting)
        last = effects[-1] if effects else None
        return [*effects[:-1], *self._stop(last, now)] if isinstance(last, Stop) else effects


def last_before_handover(book: PlanBook, opened: int, reported: Collection[int], gone: Collection[PeerId]) -> int:
    """Return the round after which others take over what only this peer hosts: its next report announces that it leaves, and
    the second plan after that is made from this report. Return `opened` if there is nothing to hand over, or no other peer that
    trains: keepers alone agree on no plan, and get the state once the round is over. `reported` are the rounds that this peer
    has reported."""
    plan = book.get(opened)
    mine = book.mine(plan) if plan is not None else []
    is_sole = any(not book.is_held(instance, opened, gone, after=opened) for instance in mine)
    if not is_sole or not book.has_heirs(book.newest, gone):
        return opened
    return max(reported, default=opened - 1) + 2
