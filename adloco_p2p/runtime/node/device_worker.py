"""The device worker: it deals the instances over the machine's devices, hands every training effect to the thread of its
instance's device (`device_thread.py`), and has one more thread that writes checkpoints.

These threads own the engine and the buffers; the event loop owns everything else. An effect on several instances (a merge, the
end of a checkpoint) is a meeting of all devices. Checkpoints are written in order, too, and no device waits for the disk.
"""

import threading
import time
from collections.abc import Callable
from functools import partial

from adloco_p2p.core.model.assessments import AssessContribution
from adloco_p2p.core.model.effects import (
    DeviceEffect,
    DiscardRound,
    EndInner,
    Probe,
    ReleaseState,
    RunInner,
    SaveCheckpoint,
    SnapshotState,
    Transition,
)
from adloco_p2p.core.model.events import Event
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.core.model.telemetry import Log
from adloco_p2p.runtime.node.device_map import DeviceMap
from adloco_p2p.runtime.node.device_thread import MEETING_SECONDS, DeviceThread, Job, Meeting, Shared, gone_after
from adloco_p2p.runtime.node.ports import AveragedVector, CheckpointStore, Engine, StateExchange, Vector


class DeviceWorker:
    """Performs training effects in threads. All methods are called from the event loop; `post` and `progress` are called from
    the worker's threads."""

    def __init__(
        self,
        *,
        engine: Engine,
        checkpoints: CheckpointStore,
        states: StateExchange,
        post: Callable[[Event | BaseException], None],
        progress: Callable[[Log], None],
    ) -> None:
        self._shared = Shared(engine=engine, checkpoints=checkpoints, states=states, post=post, progress=progress)
        names = engine.device_names
        self._map = DeviceMap(len(names))
        self._devices = [DeviceThread(self._shared, name=f"device {name}") for name in names]
        self._writer = threading.Thread(target=self._write, name="disk", daemon=True)

    def start(self) -> None:
        for device in self._devices:
            device.start()
        self._writer.start()

    def submit(self, effect: DeviceEffect) -> None:
        match effect:
            case DiscardRound(instance=instance):
                self._shared.num_discards_asked[instance] += 1
                self._put(instance, effect)
            case RunInner(plan=plan):
                self._shared.early_ends.pop(plan.instance, None)
                for move in self._map.deal(effect.together or (plan.instance,)):
                    self._move(*move)
                if len(self._devices) > 1:
                    self._put(plan.instance, partial(self._shared.engine.place, plan.instance, self._map.team(plan.instance)))
                self._put(plan.instance, effect)
            case Transition(forks=(), merges=(), rewinds=()):  # it needs no work, so any device may perform it
                min(self._devices, key=lambda device: device.num_unfinished).put(effect)
            case SnapshotState(instance=instance, copy=copy) if copy == instance:
                self._put(instance, effect)
            case Transition() | Probe() | SaveCheckpoint() | ReleaseState() | SnapshotState():
                self._meet(effect)
            case _:
                self._put(effect.instance, effect)
        for instance in gone_after(effect):
            self._map.forget(instance)

    def end_inner(self, effect: EndInner) -> None:
        """Let the running inner steps end early; they notice it before their next step."""
        self._shared.early_ends[effect.instance] = effect

    def call(self, instance: InstanceId, job: Callable[[], None]) -> None:
        """Run a job on an instance between effects, in order."""
        self._put(instance, job)

    def pseudo_gradient(self, instance: InstanceId, number: int) -> Vector:
        """Return the scratch buffer that the `RunInner` of this round has filled."""
        return self._shared.pseudo_gradients[instance, number]

    def kept_pseudo_gradient(self, instance: InstanceId, number: int) -> Vector | None:
        """Return the same buffer if this process has filled it and no outer step has been applied; otherwise None."""
        return self._shared.pseudo_gradients.get((instance, number))

    def put_average(self, instance: InstanceId, number: int, averaged: AveragedVector) -> None:
        """Keep the average for a later `ApplyOuter` of this round, if one comes."""
        self._shared.averages[instance, number] = averaged

    def look(self, asked: AssessContribution, before: Vector, contribution: Vector, others: Vector) -> None:
        """Score a contribution in the spare time of the instance's device; see `Engine.assess`. Does nothing if the instance is
        gone."""
        device, engine = self._map.place_of(asked.instance), self._shared.engine
        if device is None:
            return
        self._devices[device].looks.put(asked, lambda: engine.assess(asked, before, contribution, others))
        self._devices[device].put(lambda: None)  # wakes a thread that waits for a job; it looks after this one

    def stop(self, *, timeout_seconds: float) -> bool:
        """End after the queued jobs and the writes that they ask for. Return whether that was done in time."""
        deadline = time.monotonic() + timeout_seconds
        for device in self._devices:
            device.put(None)
        ended = [device.join(max(0.0, deadline - time.monotonic())) for device in self._devices]
        self._writer.join(max(0.0, deadline - time.monotonic()))
        return all(ended) and not self._writer.is_alive()

    def interrupt(self) -> None:
        """End the running inner steps before the next one, and skip queued jobs except those that save."""
        self._shared.is_interrupted.set()

    def abort(self) -> None:
        """End the running inner steps before the next one, and do nothing more."""
        self._shared.is_aborted.set()
        for device in self._devices:
            device.put(None)

    def _put(self, instance: InstanceId, job: Job) -> None:
        device, is_new = self._map.device_of(instance)
        if is_new:
            self._move(instance, None, device)
        self._devices[device].put(job)

    def _move(self, instance: InstanceId, old: int | None, new: int) -> None:
        """Move an instance: the new device's thread takes it over when the old one has done the jobs before."""
        if len(self._devices) == 1:
            return
        if old is None:
            self._devices[new].put(partial(self._shared.engine.place, instance, (new,)))
            return
        has_left = threading.Event()

        def take_over() -> None:
            while not has_left.wait(MEETING_SECONDS) and not self._shared.is_aborted.is_set():
                pass
            self._shared.engine.place(instance, (new,))

        self._devices[old].put(has_left.set)
        self._devices[new].put(take_over)

    def _meet(self, effect: DeviceEffect) -> None:
        meeting = Meeting(effect, len(self._devices))
        for device in self._devices:
            device.put(meeting)

    def _write(self) -> None:
        is_failed, num_running = False, len(self._devices)
        while num_running:
            write = self._shared.writes.get()
            try:
                if write is None:  # a device's thread has ended
                    num_running -= 1
                # After a failure writes are still taken, so that the devices never wait for a full queue.
                elif not (is_failed or self._shared.is_aborted.is_set()):
                    write()
            except BaseException as error:  # the event loop raises it, which ends the process
                is_failed = True
                self._shared.post(error)
            finally:
                del write  # frees its tensors before the device is notified
                self._shared.writes.task_done()
