"""The way from this host's vote to a committed average or a void round: the votes of the others, and the average to fetch."""

from dataclasses import replace

from adloco_p2p.core.averaging.attempt import RESEND_SECONDS, pause_seconds
from adloco_p2p.core.averaging.attempt_phase import AttemptPhase
from adloco_p2p.core.averaging.commit_votes import Choice, CommitTally
from adloco_p2p.core.averaging.phases import Phase
from adloco_p2p.core.averaging.round_state import RoundState
from adloco_p2p.core.model import telemetry
from adloco_p2p.core.model.averages import RepairAverage
from adloco_p2p.core.model.effects import ApplyOuter, CarryOver, Effect, Send
from adloco_p2p.core.model.events import AverageFailed
from adloco_p2p.core.model.messages import AverageDigest
from adloco_p2p.core.model.scalars import Digest, PeerId

REPAIR_SECONDS = 60.0
"""The shortest timeout of a repair, for links that are not known better."""
COMMIT_TIMEOUTS = 3
"""The number of attempt timeouts for which a host that has voted waits; then the round is void for it."""
LATE_TIMEOUTS = 2 * COMMIT_TIMEOUTS
"""The number of attempt timeouts for which a host without a part in the round waits, because the others may still be training.
In the last round no plan would end its wait for a member that is alive and never votes."""

LOST_SECONDS = 2 * RESEND_SECONDS
"""The time after which a committed average that no host offers is lost: this host has asked all others meanwhile."""
MAX_REPAIRS = 5
"""The number of failed repairs after which a committed average is given up: its holders cannot be reached, or lie."""


class CommitPhase:
    """The part of a round after this host's vote. Methods return effects; `now` is in seconds."""

    def __init__(self, state: RoundState, *, attempts: AttemptPhase) -> None:
        self._state = state
        self._attempts = attempts
        self._num_repairs_failed = 0
        self._lost_since: float | None = None
        """Since when no known host holds the committed average, in seconds."""

    def give_nothing(self, now: float) -> list[Effect]:
        """Go on without a pseudo-gradient: the others average without this host, which takes their average if there is one."""
        return self.wait(now) if self._state.votes.have_own else self.vote_void(now)  # a vote from before a restart stands

    def vote(self, now: float, *, attempt: int, contributors: tuple[PeerId, ...], digest: Digest) -> list[Effect]:
        state = self._state
        made = AverageDigest(
            instance=state.instance, round=state.round, attempt=attempt, contributors=contributors, digest=digest
        )
        return [*self._enter(now), *self._cast(made), *self.seek(now)]

    def vote_void(self, now: float) -> list[Effect]:
        """Cast a void vote: this host can be in no average of a majority."""
        return [*self._enter(now), *self._cast_void(), *self.seek(now)]

    def wait(self, now: float) -> list[Effect]:
        """Wait for the votes of the others, after this host's own vote or with an average that they made."""
        return [*self._enter(now), *self.seek(now)]

    def _enter(self, now: float) -> list[Effect]:
        effects = self._state.enter(Phase.COMMITTING, now)
        self._state.next_deadline = now + RESEND_SECONDS
        return effects

    def _cast(self, vote: AverageDigest) -> list[Effect]:
        """Cast this host's one vote of the round, persisted before it is sent."""
        return [*self._state.votes.cast(vote), *self._state.send_all(self._state.votes.own)]

    def _cast_void(self) -> list[Effect]:
        return self._cast(AverageDigest.void(self._state.instance, self._state.round))

    def resend(self, now: float) -> list[Effect]:
        """Send this host's vote again, because there is no commit yet, and allow all donors to be asked again."""
        state = self._state
        state.hosts.rest_is_over()
        state.next_deadline = now + RESEND_SECONDS
        again = state.send_all(state.votes.own) if state.votes.have_own else []
        return [*again, *self.seek(now)]

    def digest_received(self, sender: PeerId, message: AverageDigest, now: float) -> list[Effect]:
        state = self._state
        distinct = set(message.contributors)
        if len(distinct) < len(message.contributors) or not distinct.issubset(state.contributors):
            return []
        effects: list[Effect] = [self._equivocation_log(peer) for peer in state.votes.received(sender, message)]
        for voter in state.votes.voters:
            state.hosts[voter].has_voted = True
        if message.is_answer and message.is_void and not message.signature:  # the sender only followed the void round
            state.hosts[sender].has_declined = True
        if not state.is_contributor and state.next_deadline is not None:
            # the attempt for which it waits is over, and votes may have been lost
            state.next_deadline = min(state.next_deadline, now + RESEND_SECONDS)
        effects += [*self.stand_by(now), *self._attempts.end_lost(now), *self.seek(now), *self._relay_vote(sender)]
        if state.is_past and not message.is_answer:
            effects += self.answer(sender)  # the sender may have missed this host's vote, which is no longer sent again
        return effects

    def stand_by(self, now: float) -> list[Effect]:
        """Make no other average if this host voted before a restart, as its journal or the others prove."""
        state = self._state
        if not state.votes.have_own or not state.is_contributor or state.phase not in (Phase.AVERAGING, Phase.RETRYING):
            return []
        return [*state.abandon(), *self._enter(now)]

    def go_on(self, now: float) -> list[Effect]:
        """Begin a round in which this host voted before a restart, without inner steps, which would be wasted."""
        self._state.phase = Phase.RETRYING
        return [*self.stand_by(now), *self.resend(now)]

    def answer(self, receiver: PeerId) -> list[Effect]:
        state = self._state
        answer = state.votes.answer(state.votes.held if state.is_past and not state.is_void else None)
        if answer is None:  # in a void round that it only followed this host casts no vote, for which others may wait
            answer = replace(AverageDigest.void(state.instance, state.round), is_answer=True)
        return [Send(peer=receiver, message=answer)]

    def _relay_vote(self, voter: PeerId) -> list[Effect]:
        others = self._state.votes.to_relay(voter)
        return [
            effect for share in self._state.instance_plan.hosts if share.peer in others for effect in self.answer(share.peer)
        ]

    def seek(self, now: float) -> list[Effect]:
        """Apply this host's average if a majority voted for it, fetch the committed one if it is another, and end the round
        without an outer step if no average can get a majority."""
        state = self._state
        if state.phase not in (Phase.AVERAGING, Phase.RETRYING, Phase.COMMITTING):
            return []
        absent = state.hosts.absent
        tally = state.votes.tally(absent if state.is_contributor else {*absent, state.me})
        choice = tally.majority
        if choice is None and self._is_void_for_sure(tally, now):
            return self._carry_over(now)
        if choice is None:
            return self._attempts.end_overdue(now)
        if state.phase is Phase.COMMITTING and choice == state.votes.held:
            return self._apply(now)
        if self._num_repairs_failed >= MAX_REPAIRS:
            return self._carry_over(now)
        if state.phase is Phase.AVERAGING and choice[0] == state.attempts.current.number and not self._attempts.is_overdue(now):
            return []
        if self._is_lost(choice, now):
            return self._carry_over(now)
        resting = state.hosts.resting_donors
        donors = tuple(peer for peer in state.votes.donors(choice) if peer not in resting)
        if donors:
            return self._repair(choice, donors, now)
        if state.next_deadline is None or self._lost_since is None:  # otherwise the others are asked first
            state.next_deadline = now + max(RESEND_SECONDS, pause_seconds(self._num_repairs_failed))
        return []

    def _is_lost(self, choice: Choice, now: float) -> bool:
        """Return whether no host has held the committed average for a while: all were killed before they passed it on."""
        if not self._state.votes.is_lost(choice, self._state.hosts.absent):
            self._lost_since = None
        elif self._lost_since is None:
            self._lost_since = now
        return self._lost_since is not None and now >= self._lost_since + LOST_SECONDS

    def _is_void_for_sure(self, tally: CommitTally, now: float) -> bool:
        """Return whether no average can get a majority by the votes received here, or this host has waited for votes long
        enough. A host that only receives also waits for the answers of all living hosts, which may hold more votes, unless no
        missing vote of a host that has not declined can change the result."""
        state = self._state
        timeout = state.assignment.adaptive_timeout.timeout_seconds(expected_seconds=state.plan.expected_seconds)
        if not state.is_contributor:
            is_certain = state.votes.tally({state.me, *state.hosts.declined}).is_hopeless
            is_certain = is_certain or (bool(tally.votes) and not tally.num_open and tally.is_hopeless)
            return is_certain or now - state.phase_since >= LATE_TIMEOUTS * timeout
        is_over = state.phase is Phase.COMMITTING and now - state.phase_since >= COMMIT_TIMEOUTS * timeout
        return tally.is_hopeless or is_over

    def _apply(self, now: float) -> list[Effect]:
        state = self._state
        state.next_deadline = None
        return [
            *state.enter(Phase.APPLYING, now),
            ApplyOuter(instance=state.instance, round=state.round, keeps_own=state.keeps_own and not state.has_diverged),
        ]

    def _carry_over(self, now: float) -> list[Effect]:
        """End the round as void. A contributor that has not voted casts a void vote."""
        state = self._state
        effects: list[Effect] = list(state.abandon())
        state.is_void, state.next_deadline = True, None
        if state.is_contributor and not state.votes.have_own:
            effects += self._cast_void()
        log = telemetry.RoundVoid(round=state.round, instance=state.instance, voters=state.votes.voters)
        return [*effects, log, *state.enter(Phase.APPLYING, now), CarryOver(instance=state.instance, round=state.round)]

    def _repair(self, choice: Choice, donors: tuple[PeerId, ...], now: float) -> list[Effect]:
        state = self._state
        attempt, digest, contributors = choice
        effects = [*state.abandon(), *state.enter(Phase.REPAIRING, now)]
        state.next_deadline = None
        state.repaired = attempt
        repair = RepairAverage(
            instance=state.instance,
            round=state.round,
            attempt=attempt,
            key=state.attempts.key(attempt, contributors),
            digest=digest,
            contributors=contributors,
            from_peers=donors,
            timeout_seconds=max(REPAIR_SECONDS, state.assignment.adaptive_timeout.timeout_seconds(expected_seconds=0.0)),
        )
        return [*effects, repair]

    def repair_failed(self, event: AverageFailed, now: float) -> list[Effect]:
        state = self._state
        state.hosts.repair_failed(event.suspects)
        effects = state.enter(Phase.COMMITTING if state.votes.have_own else Phase.RETRYING, now)
        state.next_deadline = now + pause_seconds(self._num_repairs_failed)
        self._num_repairs_failed += 1
        return effects

    def _equivocation_log(self, peer: PeerId) -> telemetry.Warning:
        about = f"instance {self._state.instance} in round {self._state.round}"
        message = f"{peer} signed two votes about one average of {about}; none counts"
        return telemetry.Warning(key=f"votes of {peer}", message=message, active=True)
