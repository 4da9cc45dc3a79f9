"""The reports of this peer on each round: its instances, its capacity, and its verdict on a possible merge."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from adloco_p2p.core.averaging.outer_round import OuterRound
from adloco_p2p.core.model import telemetry
from adloco_p2p.core.model.assessments import ContributionAssessed
from adloco_p2p.core.model.complaints import PartNotShown
from adloco_p2p.core.model.effects import Effect, Probe
from adloco_p2p.core.model.events import InnerFinished, InnerResult, Probed
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.report import InstanceReport, Report
from adloco_p2p.core.model.report_form import assessment_of, complaint_of, fitted
from adloco_p2p.core.model.roster_entry import Capacity
from adloco_p2p.core.model.scalars import InstanceId, within_scalars
from adloco_p2p.core.model.task_scores import TasksScored
from adloco_p2p.core.peer.state import PeerState
from adloco_p2p.core.peer.task_scoring import TaskScoring


class Reporting:
    """Makes the reports. Call `report_rounds` whenever something happened; `submit` hands a report to the agreement."""

    def __init__(self, state: PeerState, *, submit: Callable[[Report, float], list[Effect]], task_period: int) -> None:
        """For `task_period` see `Cadence`."""
        self.capacity: Capacity | None = None
        """Capacity as measured in the last rounds."""
        self._device_limit: int | None = None
        """Samples per pass that each device held in the last round."""
        self._state = state
        self._book = state.book
        self._branches = state.branches
        self._submit = submit
        self._task_scoring = TaskScoring(state.me, period_rounds=task_period)

    @property
    def is_leaving(self) -> bool:
        """The reports announce that this peer leaves."""
        return self.capacity is not None and self.capacity.is_leaving

    @property
    def is_probing(self) -> bool:
        return any(number not in self._state.verdicts for number in self._state.probing)

    def measured(self, event: Probed | TasksScored | PartNotShown | ContributionAssessed) -> list[Effect]:
        """Keep a result for the next report."""
        if isinstance(event, PartNotShown):
            self._state.instance(event.instance).not_shown = event
            return []
        if isinstance(event, ContributionAssessed):
            if event.score is not None:
                self._state.instance(event.instance).assessed.append(event)
            return [telemetry.LookedAt(peer=event.asked.subject, **telemetry.shared(event, telemetry.LookedAt))]
        if isinstance(event, TasksScored):
            return self._task_scoring.scored(event)
        self._state.verdicts[event.round] = event.verdict
        return [telemetry.Probe(round=event.round, **telemetry.shared(event.verdict, telemetry.Probe))]

    def trained(self, event: InnerFinished) -> list[Effect]:
        """Adopt the micro-batch limit that the device returned; a lower one means that it ran out of memory."""
        limit = event.result.micro_batch_limit
        assert self.capacity is not None
        if limit >= (self._device_limit or self.capacity.micro_batch_limit):
            return []
        self._device_limit = limit
        together = min(self.capacity.micro_batch_limit, pass_samples(event.result))
        self.capacity = replace(self.capacity, micro_batch_limit=together)
        return [telemetry.OutOfMemory(instance=event.instance, round=event.round, micro_batch_limit=limit)]

    def offer(self, *, is_leaving: bool) -> Capacity:
        """Announce from the next report on whether this peer leaves, so that plans no longer count on it."""
        assert self.capacity is not None
        self.capacity = replace(self.capacity, is_leaving=is_leaving)
        return self.capacity

    def remember(self, report: Report) -> None:
        """Remember this peer's own report from before its start."""
        self._state.own_reports[report.round] = report
        if report.verdict is not None:
            self._state.verdicts[report.round] = report.verdict

    def report_rounds(self, now: float) -> list[Effect]:
        """Report each round once all hosted instances that had to train it, and the probe if there is one, have ended it."""
        effects: list[Effect] = []
        numbers = {*self._idle()}.union(*((*item.rounds, *item.untrained) for item in self._state.instances.values()))
        for number in sorted(numbers - self._state.own_reports.keys()):
            plan = self._book.plans[number]
            hosted = self._state.ending(plan)
            outers = [self._state.round_of(number, instance) for instance in hosted if not self._is_untrained(number, instance)]
            done = [outer for outer in outers if outer is not None and outer.is_done]
            if len(done) < len(outers):
                continue
            if hosted and self._state.measures(plan) and number not in self._state.verdicts:
                assert plan.probe is not None
                is_ready = all(self._state.is_at(source, number + 1) for source in plan.probe.sources)
                if is_ready and number not in self._state.probing:
                    self._state.probing[number] = None
                    effects += self._state.stamped([Probe(round=number, merge=plan.probe)])
                continue
            effects += self._report(plan, done, now)
        return effects

    def _idle(self) -> list[int]:
        """Return the rounds up to the present, since the last report, that this peer goes through as a member without any
        instance. It reports these to show that it is alive: a plan may have no other report to wait for."""
        first = max((*self._state.own_reports, self._state.skipped)) + 1
        plans = [self._book.get(number) for number in {*range(first, self._state.opened), self._state.opened}]
        members = [plan for plan in plans if plan is not None and not plan.is_last and self._book.is_on_roster(plan)]
        return [plan.round for plan in members if not self._state.ending(plan)]

    def _report(self, plan: RoundPlan, done: Sequence[OuterRound], now: float) -> list[Effect]:
        results = [outer.result for outer in done if outer.result is not None]
        seconds = busiest_seconds(results)
        assert self.capacity is not None
        if results and seconds > 0:
            speed = sum(result.samples for result in results) / seconds
            limit = min(pass_samples(result) for result in results)
            self._device_limit = min(result.micro_batch_limit for result in results)
            self.capacity = replace(self.capacity, samples_per_second=within_scalars(speed), micro_batch_limit=limit)
        uplink = max((outer.upload_bytes_per_second for outer in done), default=0.0)
        if uplink > 0:
            self.capacity = replace(self.capacity, upload_bytes_per_second=within_scalars(uplink))
        downlink = max((outer.download_bytes_per_second for outer in done), default=0.0)
        if downlink > 0:
            self.capacity = replace(self.capacity, download_bytes_per_second=within_scalars(downlink))
        self.capacity = self._task_scoring.capacity(self.capacity)
        made = Report(
            peer=self._state.me,
            round=plan.round,
            plan=self._book.digests[plan.round],
            capacity=self.capacity,
            instances=(*(self._with_findings(outer.report(), plan) for outer in done), *self._kept(plan, done)),
            verdict=self._state.verdicts.get(plan.round),
            branches=self._branches.claims(),
            proof=self._branches.proof(self._state.me),
            tasks=self._task_scoring.take(),
        )
        self._branches.claimed(made.branches)
        report = fitted(made, num_members=len(plan.roster))
        self._state.own_reports[plan.round] = report
        self._book.note_states(report)
        return [*self._task_scoring.ended(plan), *self._submit(report, now)]

    def _with_findings(self, report: InstanceReport, plan: RoundPlan) -> InstanceReport:
        """Return the report with what this host found out about finished averages since its last report on the instance."""
        hosted, item = self._state.instance(report.instance), plan.instance(report.instance)
        event, hosted.not_shown = hosted.not_shown, None
        if event is not None and event.round <= plan.round:
            report = replace(report, complaint=complaint_of(event, item))
        if hosted.assessed and hosted.assessed[0].round < plan.round:
            report = replace(report, assessment=assessment_of(hosted.assessed.pop(0), item))
        return report

    def _kept(self, plan: RoundPlan, done: Sequence[OuterRound]) -> list[InstanceReport]:
        """Return reports on states after the round that this peer has without having ended the round: either no host trained it
        and they went through unchanged, or they came from others. If the hosts that ended the round are gone, these reports
        alone show who has the states."""
        ended = {outer.instance for outer in done}
        held = {i: self._state.known(i) for i in self._book.mine(plan) if i not in ended}
        return [
            InstanceReport.without_work(instance, state_digest=item.state_digest)
            for instance, item in held.items()
            if item.boundary == plan.round + 1 and item.state_digest is not None
        ]

    def _is_untrained(self, number: int, instance: InstanceId) -> bool:
        return number in self._state.known(instance).untrained


def pass_samples(result: InnerResult) -> int:
    """Return the samples per pass that all devices of the instance hold together."""
    return result.micro_batch_limit * max(1, len(result.devices))


def busiest_seconds(results: Sequence[InnerResult]) -> float:
    """Return the time for which the busiest device trained. Devices that work in parallel add up in the peer's speed. If their
    loads or speeds are unequal, the slowest determines the speed that the plan splits by requests."""
    busy: dict[str, float] = {}
    for result in results:
        for device in result.devices or ("",):
            busy[device] = busy.get(device, 0.0) + result.seconds
    return max(busy.values(), default=0.0)
