"""How this host goes through the attempts of one round: it begins one, gives it up, leads the next one."""

from adloco_p2p.core.averaging.attempt import GRACE_SECONDS, RESEND_SECONDS
from adloco_p2p.core.averaging.phases import Phase
from adloco_p2p.core.averaging.round_state import RoundState
from adloco_p2p.core.model import telemetry
from adloco_p2p.core.model.effects import Effect, Send
from adloco_p2p.core.model.scalars import PeerId


class AttemptPhase:
    """The part of a round between the inner steps and this host's vote. Methods return effects; `now` is in seconds."""

    def __init__(self, state: RoundState) -> None:
        self._state = state

    def begin(self, now: float) -> list[Effect]:
        state = self._state
        average = state.attempts.average()
        effects = state.enter(Phase.AVERAGING, now)
        state.next_deadline = now + RESEND_SECONDS if state.is_hidden else None
        told = [effect for peer in state.attempts.others if state.hosts[peer].asks for effect in self.answer(peer)]
        return [*effects, average, *told]

    def query_members(self, now: float) -> list[Effect]:
        """Query the members of an attempt that is still running: one that has voted answers with its vote, which this host may
        have missed."""
        state = self._state
        due = state.attempts.current.next_query_at(now)
        state.next_deadline = due if state.next_deadline is None else min(due, state.next_deadline)  # perhaps set by `end_lost`
        start = state.attempts.message()
        return [Send(peer=peer, message=start) for peer in state.attempts.others]

    def end_lost(self, now: float) -> list[Effect]:
        """End the attempt under way if a member is gone, does not contribute or voted for another average."""
        state = self._state
        if state.phase is not Phase.AVERAGING or not (lost := state.attempts.lost_members(state.votes)):
            return []
        if state.hosts.absent.isdisjoint(lost) and self._may_still_succeed(now):
            return []
        state.hosts.suspect(lost)
        reason = "; ".join(f"{peer} {why}" for peer, why in lost.items())
        is_stated = state.hosts.declined.issuperset(lost) and state.attempts.decision is None  # to complete it takes reports
        return self.give_up(reason, tuple(lost), now, is_stated=is_stated)

    def _may_still_succeed(self, now: float) -> bool:
        """Return whether the attempt may still succeed although a member voted otherwise, because that member may have sent its
        parts: two of seven that voted void as soon as they had the average split the others, some of which had it already. So
        votes of the attempt get a moment to arrive; once one has, the rest of the attempt gets its time."""
        state, attempt = self._state, self._state.attempts.current
        if state.attempts.is_made(state.votes):
            is_overdue = self.is_overdue(now)
            state.next_deadline = attempt.overdue_at
            return not is_overdue
        if attempt.lost_at is None:
            attempt.lost_at = now + RESEND_SECONDS
        state.next_deadline = attempt.lost_at if state.next_deadline is None else min(state.next_deadline, attempt.lost_at)
        return now < attempt.lost_at

    def give_up(
        self,
        reason: str,
        suspects: tuple[PeerId, ...],
        now: float,
        because: PeerId | None = None,
        is_stated: bool = False,
    ) -> list[Effect]:
        """End the attempt under way for this host, and report that. For `is_stated` see `Attempts.failed`."""
        state = self._state
        number = state.attempts.current.number
        reports = state.end_here(suspects, because)
        return [state.failure_log(number, reason), *state.abandon(), *self.fail(now, is_stated=is_stated), *reports]

    def end_miscounted(self, peer: PeerId, now: float) -> list[Effect]:
        """End the attempt under way if it counts other inner steps of this member than the member contributes."""
        state = self._state
        steps = state.own_partial_steps if peer == state.me else state.hosts[peer].partial_steps
        if state.phase is not Phase.AVERAGING or steps is None or not state.attempts.counts_otherwise(peer, steps):
            return []
        is_own, number = peer == state.me, state.attempts.current.number
        reports = state.end_here((), None if is_own else peer, is_partial=is_own)
        did = f"{peer} did {steps or 'all planned'} inner steps, and this attempt counted on another number"
        log = state.failure_log(number, f"{did}; the next one counts them right")
        return [log, *state.abandon(), *self.fail(now, is_stated=not is_own), *reports]

    def fail(self, now: float, *, is_stated: bool = False) -> list[Effect]:
        state = self._state
        effects = state.enter(Phase.RETRYING, now)
        state.next_deadline = now + state.attempts.failed(is_stated=is_stated)
        return effects

    def lead_soon(self, now: float) -> None:
        """Lead the retry once the reports of the others had a moment to come: a report named the host that was to lead it."""
        state = self._state
        if state.next_deadline is not None and state.attempts.leader_elsewhere is None:
            state.next_deadline = min(state.next_deadline, now + GRACE_SECONDS)

    def lead_next(self, now: float) -> list[Effect]:
        """Start the next attempt, with all hosts that remain."""
        state = self._state
        state.attempts.begin_next()
        start = state.attempts.message()
        without = tuple(peer for peer in state.contributors if peer not in start.members)
        completes = start.completes is not None
        log = telemetry.AverageRetried(
            round=state.round, instance=state.instance, attempt=start.attempt, without=without, completes=completes
        )
        return [log, *state.send_all(start), *self.begin(now)]

    def ask_for_result(self, now: float) -> list[Effect]:
        """Ask all hosts for the average: holders of one answer with their votes, hosts that do not contribute with a refusal.
        The message also tells them that this host does not contribute."""
        state = self._state
        state.next_deadline = now + RESEND_SECONDS
        return state.report_failure(0, (state.me,) if state.me in state.contributors else (), is_question=True)

    def ask_for_votes(self) -> list[Effect]:
        """Ask all hosts for votes: holders of an average answer with them, hosts that wait for this one with their attempt."""
        return self._state.report_failure(0, (), is_question=True)

    def answer(self, receiver: PeerId) -> list[Effect]:
        """Answer a host that asks whether this one waits for it: now, and when an attempt with it begins here."""
        state = self._state
        state.hosts[receiver].asks = True
        is_awaited = state.phase is Phase.AVERAGING and receiver in state.attempts.current.members
        return [Send(peer=receiver, message=state.attempts.message())] if is_awaited else []

    def wait_for_others(self, now: float) -> None:
        """Wait for an attempt without this host, with a limit, because its leader may be cut off."""
        self._state.next_deadline = now + self._state.assignment.adaptive_timeout.timeout_seconds(expected_seconds=0.0)

    def is_overdue(self, now: float) -> bool:
        """Return whether the attempt under way has had its time since a majority, or all other members, have its average: as
        long again as it took until then, because the rest of it costs less than a repair."""
        state = self._state
        attempt = state.attempts.current
        if attempt.overdue_at is None:
            attempt.overdue_at = now + max(RESEND_SECONDS, now - state.phase_since)
            state.next_deadline = attempt.overdue_at if attempt.lost_at is None else min(attempt.lost_at, attempt.overdue_at)
        return now >= attempt.overdue_at

    def end_overdue(self, now: float) -> list[Effect]:
        """End the attempt under way if all other members have voted and this host still lacks the average."""
        state = self._state
        others = state.attempts.others
        if state.phase is not Phase.AVERAGING or not others or any(state.votes.vote_of(peer) is None for peer in others):
            return []
        return self.give_up("the others have ended it", (), now) if self.is_overdue(now) else []
