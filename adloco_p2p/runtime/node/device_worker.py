"""One thread per device: performs the training effects in order and posts an event at the end of each.

The thread owns the engine and the buffers; the event loop owns everything else. Nothing ever lands inside an inner step. Where
the inner steps of a round began before the outer step of the last one (`RunInner.is_ahead`), another thread does that step
beside them, on vectors that they do not touch, and what else ends the last round lands between two of them.
A second thread writes checkpoints, in order too, so that the device does not wait for the disk.
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import SupportsFloat

from adloco_p2p.core.model.events import (
    ApplyOuter,
    CarryOver,
    DiscardRound,
    DropInstance,
    Evaluate,
    Evaluated,
    Event,
    InnerFinished,
    MeasureStep,
    OuterApplied,
    Probe,
    Probed,
    ReleaseState,
    RunInner,
    SaveCheckpoint,
    SaveInstance,
    SnapshotState,
    StateKept,
    StepMeasured,
    Transition,
    TransitionApplied,
)
from adloco_p2p.core.model.telemetry import MAX_SAMPLE_TEXT, Log, Progress, SampleText
from adloco_p2p.core.model.types import Digest, InstanceId
from adloco_p2p.runtime.node.ports import AveragedVector, CheckpointStore, Engine, StateExchange, Vector

DeviceEffect = (
    RunInner
    | ApplyOuter
    | CarryOver
    | Transition
    | DropInstance
    | DiscardRound
    | Probe
    | MeasureStep
    | Evaluate
    | SnapshotState
    | ReleaseState
    | SaveInstance
    | SaveCheckpoint
)
PROGRESS_SECONDS = 0.5
"""Least time between two progress events."""
WRITES_WAITING = 1
"""Copies of an instance's state that may wait for the disk; the device waits rather than fill the memory with them."""


class DeviceWorker:
    """`submit` from the event loop; `post`, `progress` and `fail` are called from the worker's threads."""

    def __init__(
        self,
        *,
        engine: Engine,
        checkpoints: CheckpointStore,
        states: StateExchange,
        post: Callable[[Event], None],
        progress: Callable[[Log], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._engine = engine
        self._checkpoints = checkpoints
        self._states = states
        self._post = post
        self._progress = progress
        self._fail = fail
        self._jobs: queue.SimpleQueue[DeviceEffect | Callable[[], None] | None] = queue.SimpleQueue()
        self._taken: deque[DeviceEffect | Callable[[], None] | None] = deque()
        """Jobs that the device thread looked at, not begun yet: they come before those in the queue."""
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="outer")
        self._outer_step: Future[None] | None = None
        """Done beside inner steps; nothing but these begins before its end."""
        self._is_interrupted = threading.Event()
        self._is_aborted = threading.Event()
        self._pseudo_gradients: dict[tuple[InstanceId, int], Vector] = {}
        self._averages: dict[tuple[InstanceId, int], AveragedVector] = {}
        self._writes: queue.Queue[Callable[[], None] | None] = queue.Queue(WRITES_WAITING)
        self._threads = [
            threading.Thread(target=self._run, name="device", daemon=True),
            threading.Thread(target=self._write, name="disk", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def submit(self, effect: DeviceEffect) -> None:
        self._jobs.put(effect)

    def call(self, job: Callable[[], None]) -> None:
        """Run a piece of work between effects, in order."""
        self._jobs.put(job)

    def pseudo_gradient(self, instance: InstanceId, number: int) -> Vector:
        """The scratch buffer that the `RunInner` of this round filled."""
        return self._pseudo_gradients[instance, number]

    def kept_pseudo_gradient(self, instance: InstanceId, number: int) -> Vector | None:
        """The same, where this life of the process has filled it and nothing was applied yet."""
        return self._pseudo_gradients.get((instance, number))

    def put_average(self, instance: InstanceId, number: int, averaged: AveragedVector) -> None:
        """The average that a later `ApplyOuter` of this round will apply, if it is ever asked to."""
        self._averages[instance, number] = averaged

    def stop(self, *, timeout_seconds: float) -> bool:
        """End after the jobs that are queued, and the writing that they ask for. True if that was done in time."""
        deadline = time.monotonic() + timeout_seconds
        self._jobs.put(None)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def interrupt(self) -> None:
        """Leave the inner steps under way at the next one, and pass over what is queued, except what is to be saved."""
        self._is_interrupted.set()

    def abort(self) -> None:
        """Leave the inner steps under way at the next one and do nothing more."""
        self._is_aborted.set()
        self._jobs.put(None)

    def _run(self) -> None:
        try:
            while (job := self._next_job()) is not None and not self._is_aborted.is_set():
                self._await_outer_step()
                if callable(job):
                    job()
                elif self._is_interrupted.is_set() and not isinstance(job, DiscardRound | SaveInstance | SaveCheckpoint):
                    continue
                elif (event := self._perform(job)) is not None:
                    self._post(event)
            self._await_outer_step()
        except BaseException as error:  # handed to the event loop, which ends the process
            self._fail(error)
        finally:
            self._beside.shutdown()
            self._writes.put(None)

    def _next_job(self) -> DeviceEffect | Callable[[], None] | None:
        return self._taken.popleft() if self._taken else self._jobs.get()

    def _write(self) -> None:
        is_failed = False
        while (write := self._writes.get()) is not None:
            try:
                # after a failure it goes on taking, so that the device never waits for a queue that nothing empties
                if not (is_failed or self._is_aborted.is_set()):
                    write()
            except BaseException as error:  # handed to the event loop, which ends the process
                is_failed = True
                self._fail(error)
            finally:
                del write  # its tensors go before the device hears that they are written
                self._writes.task_done()

    def _perform(self, effect: DeviceEffect) -> Event | None:
        match effect:
            case RunInner():
                return self._run_inner(effect)
            case ApplyOuter():
                own = self.kept_pseudo_gradient(effect.instance, effect.round) if effect.keeps_own else None
                return self._apply_outer(effect, self._take_average(effect), own)
            case CarryOver():
                return self._carry_over(effect)
            case Transition():
                return self._transition(effect)
            case DropInstance(instance=instance):
                self._engine.drop(instance)
                self._forget(instance)
                return None
            case DiscardRound(instance=instance):
                self._engine.discard(instance)
                return None
            case Probe(round=number, merge=merge):
                return Probed(round=number, verdict=self._engine.probe_merge(merge), epoch=effect.epoch)
            case MeasureStep(instance=instance, round=number):
                before, after = self._engine.measure_step(instance, effect.state)
                return StepMeasured(instance=instance, round=number, before=before, after=after, epoch=effect.epoch)
            case Evaluate(instance=instance, round=number):
                loss = self._engine.evaluate(instance)
                for prompt, text in self._engine.sample_texts(instance):
                    self._progress(SampleText(round=number, instance=instance, prompt=prompt, text=text[:MAX_SAMPLE_TEXT]))
                return Evaluated(instance=instance, round=number, heldout_loss=loss, epoch=effect.epoch)
            case SnapshotState():
                return self._snapshot_state(effect)
            case ReleaseState(instance=instance):
                self._engine.drop(instance)
                self._states.withdraw(instance)
                return None
            case SaveInstance(instance=instance, round=number):
                tensors, meta = self._engine.snapshot(instance)
                self._writes.put(lambda: self._checkpoints.save_instance(number, instance, tensors, meta))
                return None
            case SaveCheckpoint(durable=durable):
                self._writes.put(lambda: self._checkpoints.complete(durable))
                return None

    def _take_average(self, effect: ApplyOuter) -> AveragedVector:
        self._pseudo_gradients.pop((effect.instance, effect.round), None)
        averaged = self._averages.pop((effect.instance, effect.round))
        self._drop_averages(effect.instance, before=effect.round)  # of rounds that this peer left behind
        return averaged

    def _apply_outer(self, effect: ApplyOuter, averaged: AveragedVector, own: Vector | None = None) -> Event:
        """`own`: the pseudo-gradient that becomes part of the next one; it holds all residuals."""
        instance, number = effect.instance, effect.round
        residual = averaged.residual if own is None else own
        is_applied = self._engine.apply_outer(instance, averaged.vector, round=number, residual=residual)
        digest, state_digest = self._engine.digests(instance)
        self._states.offer(instance, number + 1, state_digest, self._engine.state(instance))
        return OuterApplied(
            instance=instance,
            round=number,
            digest=digest,
            state_digest=state_digest,
            is_refused=not is_applied,
            epoch=effect.epoch,
        )

    def _carry_over(self, effect: CarryOver) -> Event:
        """Nothing is lost: what was to be averaged goes into the next pseudo-gradient."""
        instance, number = effect.instance, effect.round
        self._drop_averages(instance, before=number + 1)
        self._engine.carry_over(instance, self._pseudo_gradients.pop((instance, number), None), round=number)
        digest, state_digest = self._engine.digests(instance)
        self._states.offer(instance, number + 1, state_digest, self._engine.state(instance))
        return OuterApplied(instance=instance, round=number, digest=digest, state_digest=state_digest, epoch=effect.epoch)

    def _transition(self, effect: Transition) -> Event:
        missing = tuple(instance for instance, state in effect.rewinds if not self._go_back(instance, state, effect.round))
        self._engine.transition(effect.forks, effect.merges)
        for merge in effect.merges:
            for source in merge.sources:
                if source != merge.target:
                    self._forget(source)
        return TransitionApplied(round=effect.round, missing=missing, epoch=effect.epoch)

    def _go_back(self, instance: InstanceId, state: Digest, boundary: int) -> bool:
        if not self._engine.rewind(instance, state):
            return False
        self._states.offer(instance, boundary, state, self._engine.state(instance))
        return True

    def _snapshot_state(self, effect: SnapshotState) -> Event:
        copy = effect.copy
        if copy != effect.instance:
            outer, momentum = self._engine.state(effect.instance)
            self._engine.adopt(copy, outer, momentum)
        _, state_digest = self._engine.digests(copy)
        self._states.offer(copy, effect.round, state_digest, self._engine.state(copy))
        return StateKept(instance=copy, round=effect.round, digest=state_digest)

    def _between_steps(self, effect: RunInner) -> bool:
        """Before each inner step: end the round before, as far as it has come. Whether to stop."""
        while not self._should_stop():
            if self._outer_step is not None and not self._outer_step.done():
                return False
            self._await_outer_step()
            while not self._jobs.empty():
                self._taken.append(self._jobs.get())
            job = self._taken[0] if self._taken else None
            if job is None or callable(job) or not _ends_round_before(job, effect):
                return False
            self._taken.popleft()
            if isinstance(job, ApplyOuter):
                self._outer_step = self._beside.submit(self._apply_beside, job, self._take_average(job))
            elif (event := self._perform(job)) is not None:
                self._post(event)
        return True

    def _apply_beside(self, effect: ApplyOuter, averaged: AveragedVector) -> None:
        self._post(self._apply_outer(effect, averaged))

    def _await_outer_step(self) -> None:
        if self._outer_step is not None:
            self._outer_step.result()
            self._outer_step = None

    def _should_stop(self) -> bool:
        return self._is_interrupted.is_set() or self._is_aborted.is_set()

    def _forget(self, instance: InstanceId) -> None:
        """The instance is here no longer: let its buffers go."""
        self._states.retire(instance)
        self._pseudo_gradients = {key: vector for key, vector in self._pseudo_gradients.items() if key[0] != instance}
        self._drop_averages(instance)

    def _drop_averages(self, instance: InstanceId, *, before: int | None = None) -> None:
        for key in list(self._averages):  # at once: the event loop puts others in meanwhile
            if key[0] == instance and (before is None or key[1] < before):
                self._averages.pop(key, None)

    def _run_inner(self, effect: RunInner) -> Event | None:
        instance = effect.plan.instance
        last_shown = started = time.monotonic()
        tokens = 0

        def on_progress(step: int, loss: SupportsFloat, step_tokens: int) -> None:
            nonlocal last_shown, tokens
            tokens += step_tokens
            now = time.monotonic()
            if now - last_shown < PROGRESS_SECONDS:
                return
            last_shown = now
            progress = Progress(
                round=effect.round,
                instance=instance,
                step=step,
                num_steps=effect.share.inner_steps,
                loss=float(loss),  # waits for the device, so only where it is shown
                tokens_per_second=tokens / max(now - started, 1e-9),
            )
            self._progress(progress)

        should_stop = partial(self._between_steps, effect) if effect.is_ahead else self._should_stop
        result = self._engine.run_inner(effect, should_stop=should_stop, on_progress=on_progress)
        if result is None:
            return None
        self._await_outer_step()  # its residual is part of the pseudo-gradient
        self._writes.join()  # memory holds what a checkpoint writes, or what is averaged; not both where the disk is slow
        kept = effect.round - 1 if effect.is_ahead else effect.round
        held = {key: vector for key, vector in self._pseudo_gradients.items() if key[0] != instance or key[1] >= kept}
        if not result.has_diverged:
            held[instance, effect.round] = self._engine.pseudo_gradient(instance)
        self._pseudo_gradients = held
        return InnerFinished(instance=instance, round=effect.round, result=result, epoch=effect.epoch)


def _ends_round_before(job: DeviceEffect, running: RunInner) -> bool:
    """Whether the job belongs to the outer step that `running` did not wait for. Whatever else comes, waits its turn, and what
    was asked for after it, too."""
    match job:
        case (
            ApplyOuter(instance=instance, round=number)
            | CarryOver(instance=instance, round=number)
            | MeasureStep(instance=instance, round=number)
            | Evaluate(instance=instance, round=number)
        ):
            return instance == running.plan.instance and number < running.round
        case SaveInstance(instance=instance, round=boundary):
            return instance == running.plan.instance and boundary <= running.round
        case SaveCheckpoint(durable=durable):
            return durable.round <= running.round
    return False
