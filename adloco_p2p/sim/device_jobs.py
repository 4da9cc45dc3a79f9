"""The jobs on the device of one process of a simulated machine, in the order in which its peer asked for them."""

from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING

from adloco_p2p.core.model.effects import (
    ApplyOuter,
    CarryOver,
    DeviceJob,
    DiscardRound,
    DropInstance,
    Effect,
    EndInner,
    Evaluate,
    MeasureStep,
    Probe,
    ReleaseState,
    RunInner,
    SaveCheckpoint,
    SaveInstance,
    SnapshotState,
    Transition,
)
from adloco_p2p.core.model.events import (
    DeviceEnd,
    Evaluated,
    Event,
    InnerFinished,
    OuterApplied,
    Probed,
    StateKept,
    StepMeasured,
    TransitionApplied,
)
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.core.model.task_scores import ScoreTasks, TasksScored
from adloco_p2p.sim.checkers import Violation
from adloco_p2p.sim.process import Process
from adloco_p2p.sim.synthetic_reports import TASK_SECONDS, task_claim

if TYPE_CHECKING:
    from adloco_p2p.sim.machine import Machine


@dataclass(slots=True)
class _InnerSteps:
    """The inner steps of one instance's round. Instants are seconds."""

    begin: float
    seconds: float
    num_steps: int
    is_stopped: bool = False
    vector: object | None = None
    """The pseudo-gradient, once the steps have begun."""

    def end_of_step(self, now: float) -> float:
        """Return when the step under way at `now` ends; their begin if they have not begun."""
        if now <= self.begin:
            return self.begin
        step = self.seconds / self.num_steps
        return max(now, self.begin + ceil((now - self.begin) / step) * step)

    def first(self, num_steps: int) -> "_InnerSteps":
        """Return only the first `num_steps` of the steps."""
        return replace(self, seconds=self.seconds * num_steps / self.num_steps, num_steps=num_steps)


class DeviceJobs:
    """The jobs of one process, whose ends come back as its events. An outer step may run between inner steps that did not wait
    for it."""

    def __init__(self, machine: "Machine", process: Process) -> None:
        self._machine = machine
        self._process = process
        self._around = machine.around
        self._peer = machine.peer
        self._epoch = 0
        """The epoch of the last job."""
        self._is_ahead = False
        """Whether the device does inner steps that did not wait for the last outer step, and no other job waits."""
        self._inner: dict[InstanceId, _InnerSteps] = {}
        """The last inner steps of each instance."""
        self._asked: dict[InstanceId, RunInner] = {}
        """The effects that asked for the last inner steps of each instance."""

    def begin(self, effect: Effect) -> None:
        process, now = self._process, self._around.queue.now
        if isinstance(effect, DeviceJob):
            if effect.epoch < self._epoch:
                raise Violation(f"{self._peer} asks its device for a job of an epoch that is over: {effect}")
            self._epoch = effect.epoch
        if not isinstance(effect, ApplyOuter | CarryOver | MeasureStep | Evaluate | SaveInstance | SaveCheckpoint):
            self._is_ahead = False
        if isinstance(effect, RunInner):
            seconds = process.device.inner_seconds(effect)
            begin = max(process.device_free_at, now)
            self._is_ahead = effect.is_ahead
            process.device_free_at = begin + seconds
            inner = self._inner[effect.plan.instance] = _InnerSteps(begin, seconds, effect.share.inner_steps)
            self._asked[effect.plan.instance] = effect
            self._around.queue.at(begin, self._begin_inner, effect, inner)
            return
        if isinstance(effect, EndInner):
            self._end_inner(effect)
            return
        if isinstance(effect, DiscardRound):
            self._stop_inner(effect.instance)
        is_between = self._is_ahead and now < process.device_free_at
        begin = now if is_between else max(process.device_free_at, now)
        seconds = process.device.short_job_seconds
        process.device_free_at = (process.device_free_at if is_between else begin) + seconds
        self._around.queue.at(begin + seconds, self._finish, effect)

    def score(self, effect: ScoreTasks) -> None:
        """Score tasks beside all other jobs, as a child process would."""
        self._around.queue.after(TASK_SECONDS, self._finish, effect)

    # --- inner steps -------------------------------------------------------------------------------------------------

    def _stop_inner(self, instance: InstanceId) -> None:
        """Stop the inner steps after the present one. Other jobs in the queue keep their times."""
        now, process, inner = self._around.queue.now, self._process, self._inner.pop(instance, None)
        if inner is None or now >= inner.begin + inner.seconds:
            return
        inner.is_stopped = True
        if process.device_free_at == inner.begin + inner.seconds:
            process.device_free_at = inner.end_of_step(now)

    def _end_inner(self, effect: EndInner) -> None:
        """End the inner steps early, after the present one; steps that have not begun are not changed."""
        now, inner, asked = self._around.queue.now, self._inner.get(effect.instance), self._asked.get(effect.instance)
        if inner is None or inner.vector is None or asked is None or asked.round != effect.round:
            return
        num_steps = max(effect.least_steps, ceil((now - inner.begin) / (inner.seconds / inner.num_steps)))
        if num_steps >= inner.num_steps:
            return
        done = self._inner[effect.instance] = inner.first(num_steps)
        inner.is_stopped = True
        if self._process.device_free_at == inner.begin + inner.seconds:
            self._process.device_free_at = done.begin + done.seconds
        self._around.queue.at(max(now, done.begin + done.seconds), self._finish_inner, asked, inner.vector, done)

    def _begin_inner(self, effect: RunInner, inner: _InnerSteps) -> None:
        if self._process.has_crashed or inner.is_stopped:
            return
        instance, number = effect.plan.instance, effect.round
        if self._process.device.state(instance) is None:
            raise Violation(f"{self._peer} trains instance {instance} in round {number} and has no state of it")
        inner.vector = self._process.device.pseudo_gradient(effect)
        self._around.queue.after(inner.seconds, self._finish_inner, effect, inner.vector, inner)

    def _finish_inner(self, effect: RunInner, vector: object, inner: _InnerSteps) -> None:
        process = self._process
        if process.has_crashed or inner.is_stopped:
            return
        if self._machine.waits_for_thaw(self._finish_inner, effect, vector, inner):
            return
        instance, kept = effect.plan.instance, effect.round - 1 if effect.is_ahead else effect.round
        process.contributions = {
            key: held for key, held in process.contributions.items() if key[0] != instance or key[1] >= kept
        }
        process.contributions[instance, effect.round] = vector
        process.trained[instance, effect.round] = effect.share.effective_batch * inner.num_steps
        result = process.device.inner_result(effect, inner.seconds, inner.num_steps)
        self._machine.feed(InnerFinished(instance=instance, round=effect.round, result=result, epoch=effect.epoch), process)

    # --- short jobs --------------------------------------------------------------------------------------------------

    def _finish(self, effect: Effect) -> None:
        process = self._process
        if process.has_crashed or self._machine.waits_for_thaw(self._finish, effect):
            return
        if process.stop is not None and process.stop.is_urgent and not isinstance(effect, SaveInstance | SaveCheckpoint):
            return
        event = self._done(effect)
        if isinstance(event, DeviceEnd) and isinstance(effect, DeviceJob):
            event = replace(event, epoch=effect.epoch)
        if event is not None:
            self._machine.feed(event, process)

    def _done(self, effect: Effect) -> Event | None:
        process, device = self._process, self._process.device
        match effect:
            case ApplyOuter():
                return self._apply_outer(effect)
            case CarryOver():
                return self._carry_over(effect)
            case MeasureStep(instance=instance, round=number):
                before, after = device.measure_step(effect)
                return StepMeasured(instance=instance, round=number, before=before, after=after)
            case Transition(forks=forks, merges=merges, rewinds=rewinds):
                missing = tuple(instance for instance, state in rewinds if not device.rewind(instance, state))
                for instance in sorted({instance for instance, _ in rewinds} - {*missing}):
                    process.offer(instance, effect.round)
                device.transition(forks, merges)
                for merge in merges:
                    for source in merge.sources:
                        if source != merge.target:
                            process.forget(source)
                return TransitionApplied(round=effect.round, missing=missing)
            case Probe(round=number, merge=merge):
                return Probed(round=number, verdict=device.probe(merge))
            case ScoreTasks():
                return TasksScored(claim=task_claim(self._machine.disk.durable))
            case Evaluate(instance=instance, round=number):
                state = process.offer(instance, number + 1) if effect.is_final else None
                return Evaluated(instance=instance, round=number, heldout_loss=device.heldout_loss(effect), state_digest=state)
            case DropInstance(instance=instance):
                device.drop(instance)
                process.forget(instance)
            case DiscardRound(instance=instance):
                device.discard(instance)
            case SaveInstance() | SaveCheckpoint():
                self._save(effect)
            case _:
                return self._on_snapshot(effect)
        return None

    def _apply_outer(self, effect: ApplyOuter) -> Event:
        process, instance, number = self._process, effect.instance, effect.round
        average = process.buffers.take(instance, number)
        process.contributions.pop((instance, number), None)
        if average is None:
            raise Violation(f"{self._peer} applies the average of instance {instance} in round {number} and has none")
        self._around.checkers.applied(self._peer, instance, number, process.device.average_digest(average))
        is_applied = process.device.apply_outer(effect, average)
        if effect.keeps_own:
            process.carried.add((instance, number))
        digest, state_digest = process.device.digests(instance)
        process.offer(instance, number + 1)
        refused = not is_applied
        return OuterApplied(instance=instance, round=number, digest=digest, state_digest=state_digest, is_refused=refused)

    def _carry_over(self, effect: CarryOver) -> Event:
        process, instance, number = self._process, effect.instance, effect.round
        process.buffers.forget(instance, before=number + 1)
        process.contributions.pop((instance, number), None)
        process.device.carry_over(effect)
        process.carried.add((instance, number))
        self._around.checkers.carried_over(self._peer)
        digest, state_digest = process.device.digests(instance)
        process.offer(instance, number + 1)
        return OuterApplied(instance=instance, round=number, digest=digest, state_digest=state_digest)

    def _on_snapshot(self, effect: Effect) -> Event | None:
        process, device = self._process, self._process.device
        match effect:
            case SnapshotState(instance=instance, copy=copy, round=number):
                state = device.state(instance)
                if state is None:
                    raise Violation(f"{self._peer} copies instance {instance}, which it has not")
                device.adopt(copy, state)
                digest = process.offer(copy, number)
                return StateKept(instance=copy, round=number, digest=digest)
            case ReleaseState(instance=instance):
                device.drop(instance)
                process.offers.pop(instance, None)
                return None
        raise AssertionError(effect)

    def _save(self, effect: SaveInstance | SaveCheckpoint) -> None:
        disk, process = self._machine.disk, self._process
        if isinstance(effect, SaveInstance):
            state = process.device.state(effect.instance)
            if state is None:
                raise Violation(f"{self._peer} saves instance {effect.instance}, which it has not")
            disk.states[effect.round, effect.instance] = state
            return
        durable = effect.durable
        missing = [instance for instance in durable.held if (durable.round, instance) not in disk.states]
        if missing:
            raise Violation(f"{self._peer} completes the checkpoint of round {durable.round} without instances {missing}")
        disk.complete(durable)
        if process.is_alive and self._machine.is_struck():
            self._machine.crash("at a persistence point, after a checkpoint")
