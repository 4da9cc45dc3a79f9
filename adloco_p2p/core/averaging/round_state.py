"""The state of one instance's round on one host, which the parts of an `OuterRound` share: questions, but no decisions."""

from collections.abc import Collection

from adloco_p2p.core.averaging.assignment import Assignment
from adloco_p2p.core.averaging.attempt import Attempts
from adloco_p2p.core.averaging.commit_votes import CommitVotes
from adloco_p2p.core.averaging.failed_attempts import TOLERATED, Ended
from adloco_p2p.core.averaging.host_views import HostViews
from adloco_p2p.core.averaging.phases import STEPS, WAITING, Phase
from adloco_p2p.core.model import telemetry
from adloco_p2p.core.model.averages import CancelAverage
from adloco_p2p.core.model.effects import Effect, Send
from adloco_p2p.core.model.events import AverageFinished, InnerResult, OuterApplied, Totals
from adloco_p2p.core.model.messages import AttemptFailed, AveragingMessage
from adloco_p2p.core.model.report import InstanceReport, StepLosses
from adloco_p2p.core.model.report_form import bits_of
from adloco_p2p.core.model.scalars import PeerId, within_scalars

LAST_VOTES_SECONDS = 2.0
"""The time for which the last vote of a gone host is still awaited, which shows whether it made an average."""


class RoundState:
    """The state of one instance's round on one host. Instants are seconds of the peer's own clock."""

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.me = assignment.me
        self.plan = assignment.plan
        self.round = assignment.plan.round
        self.instance = assignment.instance
        self.instance_plan = assignment.instance_plan
        self.share = assignment.share
        self.contributors, self.deciding = assignment.contributors, assignment.deciding
        assert self.contributors, "a plan gives every live instance work"
        self.is_trainer = self.share.samples > 0 and not assignment.is_late
        self.is_contributor = self.is_trainer and self.share.contributes(self.round)
        """Whether this host trains for the average of this round, which other hosts only receive."""
        self.phase = Phase.TRAINING if self.is_trainer else Phase.RETRYING
        self.phase_since = 0.0
        self.result: InnerResult | None = None
        self.average: AverageFinished | None = None
        self.applied: OuterApplied | None = None
        self.step: StepLosses | None = None
        """The losses before and after the outer step, if this host was drawn to measure them."""
        self.heldout_loss: float | None = None
        self.heldout_losses: tuple[float, ...] = ()
        self.is_void = False
        """Whether no average got a majority, so that there is no outer step."""
        self.is_carried = assignment.is_carried
        self.is_ahead = False
        """Whether its inner steps began before the outer step of the round before."""
        self.is_looked_at = False
        """Whether, once it is done, the look at a contribution to its average, if there is one, was begun."""
        self.seconds: dict[str, float] = {}
        """The duration of each phase."""
        self.next_deadline: float | None = None
        """When `tick` is due."""
        self.vector_bytes = 0
        """The size of the own pseudo-gradient on the wire; 0 if the uplink was not measured."""
        self.upload_bytes_per_second = 0.0
        """The uplink as measured in an attempt; 0 if it was not."""
        self.download_bytes_per_second = 0.0
        """The downlink as measured in a repair; 0 if there was none."""
        self.is_named = False
        """Whether a member ended an attempt because of this host, which had done its inner steps."""
        self.given_up_at: float | None = None
        """When this host stops waiting for an average of hosts that are gone; None while it does not only wait for such."""
        self.repaired = 0
        """The attempt whose average is being fetched, or was fetched last."""
        self.votes = CommitVotes(
            me=self.me,
            plan_digest=assignment.plan_digest,
            hosts=assignment.hosts,
            contributors=self.contributors,
            deciding=self.deciding,
            clients=assignment.clients,
            voter=assignment.voter,
        )
        self.hosts = HostViews(assignment)
        self.attempts = Attempts(assignment, self.hosts)

    # --- questions ---------------------------------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        return self.phase is Phase.DONE

    @property
    def has_voted(self) -> bool:
        return self.votes.have_own

    @property
    def is_waiting(self) -> bool:
        """Whether nothing happens here unless others do something."""
        return self.phase in (Phase.AVERAGING, Phase.RETRYING, Phase.COMMITTING, Phase.REPAIRING)

    @property
    def is_past(self) -> bool:
        return self.phase in (Phase.APPLYING, Phase.MEASURING, Phase.EVALUATING, Phase.DONE)

    @property
    def is_hidden(self) -> bool:
        """Whether others are averaging with this host, so that the device has nothing to do for this round."""
        return self.phase is Phase.AVERAGING and len(self.attempts.current.members) > 1

    @property
    def is_deserted(self) -> bool:
        """Whether this host only waits for the average that others make without it."""
        return not self.is_contributor and self.is_waiting

    def is_given_up(self, now: float, *, is_deserted: bool) -> bool:
        """Return whether the hosts that were to make the average have been gone for long enough."""
        if not is_deserted:
            self.given_up_at = None
        elif self.given_up_at is None:
            self.given_up_at = now + LAST_VOTES_SECONDS
        return self.given_up_at is not None and now >= self.given_up_at

    @property
    def is_applying(self) -> bool:
        """Whether the device takes the outer step, or measures after it: the state is on its way to the next boundary."""
        return self.phase in (Phase.APPLYING, Phase.MEASURING, Phase.EVALUATING)

    @property
    def own_partial_steps(self) -> int:
        """The inner steps that this host contributes if they are fewer than planned, else 0."""
        return self.hosts[self.me].partial_steps or 0

    @property
    def has_diverged(self) -> bool:
        """Whether this host had no finite pseudo-gradient, or its outer step with the average was refused."""
        is_own = self.result is not None and self.result.has_diverged
        return is_own or (self.applied is not None and self.applied.is_refused)

    @property
    def keeps_own(self) -> bool:
        """Whether this host trained for a later average than that of this round, so that its pseudo-gradient waits."""
        return self.is_trainer and not self.is_contributor

    @property
    def is_carrying(self) -> bool:
        """Whether, once the round is done, inner steps of this host wait for the next average. A host that was restarted in a
        void round has none."""
        has_steps = self.result is not None or self.is_carried
        return has_steps and (self.is_void or self.keeps_own) and not self.has_diverged

    @property
    def is_agreed(self) -> bool:
        """Whether no host can have ended the round with another state: an average was committed, or none can be, whatever the
        missing votes are."""
        return not self.is_void or self.votes.tally(()).is_hopeless

    @property
    def is_averaged(self) -> bool:
        """Whether this host's own pseudo-gradient is in the committed average."""
        return self.me in self.averaged_hosts

    @property
    def is_passed_over(self) -> bool:
        """Whether the others made the average without this host, because an attempt failed at it."""
        return self.is_named and self.average is not None and not self.is_void and self.me not in self.average.contributors

    @property
    def is_left_out(self) -> bool:
        """Whether the aggregation rule left this host's pseudo-gradient out of the committed average."""
        return self.average is not None and not self.is_void and self.me in self.average.left_out

    @property
    def averaged_hosts(self) -> tuple[PeerId, ...]:
        """The hosts whose pseudo-gradients are in this host's average."""
        if self.average is None:
            return ()
        return tuple(peer for peer in self.average.contributors if peer not in self.average.left_out)

    # --- when it is done ---------------------------------------------------------------------------------------------

    def report(self) -> InstanceReport:
        """Return this host's report on the round, once it is done. Work that is not in the average does not count."""
        assert self.is_done and self.applied is not None
        counts = (self.is_averaged or self.is_void or self.keeps_own) and not self.has_diverged
        result = self.result if counts else None
        present = self._present if self.is_void else self.averaged_hosts
        left_out = self.average.left_out if self.average is not None and not self.is_void else ()
        hosts = self.instance_plan.peers
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
            heldout_losses=tuple(map(within_scalars, self.heldout_losses)),
            contributors=bits_of(present, hosts),
            left_out=bits_of(left_out, hosts),
            is_void=self.is_void,
            has_diverged=self.has_diverged,
            step=self.step,
            pseudo_gradient=self.average.statistics if self.average is not None and has_statistics else None,
            half_batch=result.half_batch if result else None,
            digest=self.applied.digest,
            state_digest=self.applied.state_digest,
            vector_bytes=self.vector_bytes,
        )

    @property
    def _present(self) -> tuple[PeerId, ...]:
        """The hosts that were present in a void round. A late host was not, although the plan has it as a contributor."""
        return tuple(peer for peer in self.hosts.present if peer != self.me or self.is_contributor)

    def totals(self) -> Totals:
        """Return the round's addition to the peer's totals, once it is done."""
        report, average = self.report(), self.average
        return Totals(
            samples=report.samples,
            tokens=report.tokens,
            bytes_sent=average.bytes_sent if average is not None else 0,
            bytes_received=average.bytes_received if average is not None else 0,
        )

    # --- what is done ------------------------------------------------------------------------------------------------

    def enter(self, phase: Phase, now: float) -> list[Effect]:
        assert phase in STEPS[self.phase], f"{self.phase} -> {phase}"
        self.seconds[self.phase.value] = self.seconds.get(self.phase.value, 0.0) + now - self.phase_since
        self.phase, self.phase_since = phase, now
        return [self.phase_log()]

    def note_queue(self, seconds: float | None, now: float) -> None:
        """Count the time of the phase before the last `seconds` as waiting: the device needed only these for the phase, and was
        busy with another instance or round before."""
        if seconds is not None:
            begun = max(self.phase_since, now - seconds)
            self.seconds[WAITING] = self.seconds.get(WAITING, 0.0) + begun - self.phase_since
            self.phase_since = begun

    def abandon(self) -> list[Effect]:
        """Stop the attempt or the repair under way, if any: for another one, for a result of others, or because the swarm is
        rounds ahead."""
        if self.phase not in (Phase.AVERAGING, Phase.REPAIRING):
            return []
        attempt = self.attempts.current.number if self.phase is Phase.AVERAGING else self.repaired
        return [CancelAverage(instance=self.instance, round=self.round, attempt=attempt)]

    def send_all(self, message: AveragingMessage) -> list[Effect]:
        return [Send(peer=peer, message=message) for peer in self.instance_plan.peers if peer != self.me]

    def note_failure(
        self, member: PeerId, suspects: Collection[PeerId], because: PeerId | None, *, is_partial: bool = False
    ) -> None:
        """Note the report of a member, or of this host, that the current attempt is over. The report may be about a later
        attempt whose start did not come here; then it ends this one. A majority of those that decide always stays
        reliable."""
        ended = Ended(
            suspects=frozenset(suspects).intersection(self.attempts.current.members) - {member},
            because=because if because in self.contributors else None,
            is_partial=is_partial,
        )
        self.assignment.failed_attempts.note(self.round, self.instance, self.attempts.current.number, member, ended)
        attempts, others = self.assignment.failed_attempts, frozenset(self.contributors) - self.deciding
        unreliable: list[PeerId] = []
        for peer in attempts.repeated(self.round, self.instance, others):
            if self.hosts.are_minority([*unreliable, peer]):
                unreliable.append(peer)
        self.hosts.unreliable = tuple(unreliable)
        self.hosts.have_others_failed = attempts.num_lost_to(others, self.round, self.instance) > TOLERATED

    def end_here(self, suspects: tuple[PeerId, ...], because: PeerId | None, *, is_partial: bool = False) -> list[Effect]:
        """End the current attempt for this host, and return its report of that."""
        self.note_failure(self.me, suspects, because, is_partial=is_partial)
        return self.report_failure(self.attempts.current.number, suspects, because)

    def report_failure(
        self,
        attempt: int,
        suspects: tuple[PeerId, ...],
        because: PeerId | None = None,
        *,
        is_question: bool = False,
    ) -> list[Effect]:
        failed = AttemptFailed(
            instance=self.instance,
            round=self.round,
            attempt=attempt,
            suspects=suspects,
            because=because,
            is_question=is_question,
            decision=self.attempts.decision,
            partial_steps=self.own_partial_steps,
        )
        return self.send_all(failed)

    def failure_log(self, attempt: int, reason: str) -> telemetry.AverageFailed:
        return telemetry.AverageFailed(round=self.round, instance=self.instance, attempt=attempt, reason=reason)

    def phase_log(self) -> telemetry.Phase:
        return telemetry.Phase(round=self.round, instance=self.instance, phase=self.phase.value)
