"""The attempts of one round as this host goes through them: begin one, give it up, lead the next one."""

from adloco_p2p.core.averaging.attempt import RESEND_SECONDS
from adloco_p2p.core.averaging.phases import Phase
from adloco_p2p.core.averaging.round_state import RoundState
from adloco_p2p.core.model import telemetry
from adloco_p2p.core.model.events import Effect, Send
from adloco_p2p.core.model.scalars import PeerId


class AttemptPhase:
    """Between the inner steps and this host's vote. Methods return effects; `now` is in seconds."""

    def __init__(self, at: RoundState) -> None:
        self._at = at

    def begin(self, now: float) -> list[Effect]:
        at = self._at
        average = at.attempts.average()
        effects = at.enter(Phase.AVERAGING, now)
        at.next_deadline = now + RESEND_SECONDS if at.is_hidden else None
        return [*effects, average]

    def query_members(self, now: float) -> list[Effect]:
        """The attempt takes its time. A member that has voted answers with its vote, which this host may have missed."""
        at = self._at
        due = at.attempts.current.next_query_at(now)
        at.next_deadline = due if at.next_deadline is None else min(due, at.next_deadline)  # `lost_at`, by `end_lost`
        start = at.attempts.message()
        return [Send(peer=peer, message=start) for peer in at.attempts.others]

    def end_lost(self, now: float) -> list[Effect]:
        """End the attempt under way if a member is gone, does not contribute or voted for another average."""
        at = self._at
        if at.phase is not Phase.AVERAGING or not (lost := at.attempts.lost_members(at.votes)):
            return []
        if at.hosts.absent.isdisjoint(lost) and self._may_still_succeed(now):
            return []
        at.hosts.suspect(lost)
        reason = "; ".join(f"{peer} {why}" for peer, why in lost.items())
        return self.give_up(reason, tuple(lost), now)

    def _may_still_succeed(self, now: float) -> bool:
        """A member voted otherwise, and may have given all the same what it was to give: two of seven that vote for no average
        as soon as they have one parted the others, of which some had it already. So votes of the attempt have a moment to come;
        where one has, the rest of the attempt has its time."""
        at, attempt = self._at, self._at.attempts.current
        if at.attempts.is_made(at.votes):
            is_overdue = self.is_overdue(now)
            at.next_deadline = attempt.overdue_at
            return not is_overdue
        if attempt.lost_at is None:
            attempt.lost_at = now + RESEND_SECONDS
        at.next_deadline = attempt.lost_at if at.next_deadline is None else min(at.next_deadline, attempt.lost_at)
        return now < attempt.lost_at

    def give_up(
        self,
        reason: str,
        suspects: tuple[PeerId, ...],
        now: float,
        because: PeerId | None = None,
    ) -> list[Effect]:
        """End the attempt under way here, and report that."""
        at = self._at
        number = at.attempts.current.number
        reports = at.end_here(suspects, because)
        return [at.failure_log(number, reason), *at.abandon(), *self.fail(now), *reports]

    def end_miscounted(self, peer: PeerId, now: float) -> list[Effect]:
        """End the attempt under way if it counts other inner steps of this member than that one contributes."""
        at = self._at
        steps = at.own_partial_steps if peer == at.me else at.hosts[peer].partial_steps
        if at.phase is not Phase.AVERAGING or steps is None or not at.attempts.counts_otherwise(peer, steps):
            return []
        is_own, number = peer == at.me, at.attempts.current.number
        reports = at.end_here((), None if is_own else peer, is_partial=is_own)
        log = at.failure_log(number, f"it begins anew, with {steps or 'all planned'} inner steps of {peer}")
        return [log, *at.abandon(), *self.fail(now, is_miscounted=not is_own), *reports]

    def fail(self, now: float, *, is_miscounted: bool = False) -> list[Effect]:
        at = self._at
        effects = at.enter(Phase.RETRYING, now)
        at.next_deadline = now + at.attempts.failed(is_miscounted=is_miscounted)
        return effects

    def lead_next(self, now: float) -> list[Effect]:
        """With all that remain."""
        at = self._at
        at.attempts.begin_next()
        start = at.attempts.message()
        without = tuple(peer for peer in at.contributors if peer not in start.members)
        completes = start.completes is not None
        log = telemetry.AverageRetried(
            round=at.round, instance=at.instance, attempt=start.attempt, without=without, completes=completes
        )
        return [log, *at.send_all(start), *self.begin(now)]

    def ask_for_result(self, now: float) -> list[Effect]:
        """Hosts that hold an average answer with their votes, those that do not contribute with their refusal; the message
        also shows all of them that this one does not contribute."""
        at = self._at
        at.next_deadline = now + RESEND_SECONDS
        return at.report_failure(0, (at.me,) if at.me in at.contributors else (), is_question=True)

    def ask_for_votes(self) -> list[Effect]:
        """Hosts that hold an average answer with their votes, those that wait for this host with their attempt."""
        return self._at.report_failure(0, (), is_question=True)

    def answer(self, receiver: PeerId) -> list[Effect]:
        """The answer to a host that asks whether this one waits for it."""
        at = self._at
        is_awaited = at.phase is Phase.AVERAGING and receiver in at.attempts.current.members
        return [Send(peer=receiver, message=at.attempts.message())] if is_awaited else []

    def wait_for_others(self, now: float) -> None:
        """An attempt without this host runs. Its leader may be cut off, so the wait ends."""
        self._at.next_deadline = now + self._at.assignment.adaptive_timeout.timeout_seconds(expected_seconds=0.0)

    def is_overdue(self, now: float) -> bool:
        """Whether the attempt under way has had its time since a majority, or all other members, have its average: as long
        again as it took until then, for its rest costs less than a repair."""
        at = self._at
        attempt = at.attempts.current
        if attempt.overdue_at is None:
            attempt.overdue_at = now + max(RESEND_SECONDS, now - at.phase_since)
            at.next_deadline = attempt.overdue_at if attempt.lost_at is None else min(attempt.lost_at, attempt.overdue_at)
        return now >= attempt.overdue_at

    def end_overdue(self, now: float) -> list[Effect]:
        """All other members have the average and this host does not get it."""
        at = self._at
        others = at.attempts.others
        if at.phase is not Phase.AVERAGING or not others or any(at.votes.vote_of(peer) is None for peer in others):
            return []
        return self.give_up("the others have ended it", (), now) if self.is_overdue(now) else []
