"""The thread of one device, which performs the training effects of its instances in order and posts an event after each.

Nothing is ever performed inside an inner step. If the inner steps of a round begin before the outer step of the last one
(`RunInner.is_ahead`), another thread does that step at the same time, on vectors that they do not touch, and the other effects
that end the last round are performed between two inner steps.
"""

import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import SupportsFloat

from adloco_p2p.core.model.effects import (
    ApplyOuter,
    CarryOver,
    DeviceEffect,
    DiscardRound,
    DropInstance,
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
    Evaluated,
    Event,
    InnerFinished,
    OuterApplied,
    Probed,
    StateKept,
    StepMeasured,
    TransitionApplied,
)
from adloco_p2p.core.model.scalars import Digest, InstanceId
from adloco_p2p.core.model.telemetry import MAX_SAMPLE_TEXT, Log, Progress, SampleText
from adloco_p2p.runtime.node.looks import Looks
from adloco_p2p.runtime.node.ports import AveragedVector, CheckpointStore, Engine, StateExchange, Vector

PROGRESS_SECONDS = 0.5
"""The least time between two progress events."""
WRITES_WAITING = 1
"""Copies of an instance's state that may wait for the disk. The device waits rather than fill the memory with more."""


class Meeting:
    """An effect on the instances of several devices, which the last of their threads to arrive performs."""

    def __init__(self, effect: DeviceEffect, num_threads: int) -> None:
        self.effect = effect
        self._missing = num_threads
        self._lock = threading.Lock()
        self._is_over = threading.Event()

    def arrive(self) -> bool:
        """Note the arrival of a thread, and return whether it is the last one, which performs the effect and calls `end`."""
        with self._lock:
            self._missing -= 1
            return self._missing == 0

    def end(self) -> None:
        self._is_over.set()

    def wait(self, seconds: float) -> bool:
        """Wait for the end, and return whether it has come."""
        return self._is_over.wait(seconds)


Job = DeviceEffect | Meeting | Callable[[], None] | None
MEETING_SECONDS = 1.0
"""The period at which a thread that waits for another one checks whether the node was aborted."""


@dataclass(slots=True, kw_only=True)
class Shared:
    """The state that the device threads of a node share. Each thread uses only the entries of its own instances."""

    engine: Engine
    checkpoints: CheckpointStore
    states: StateExchange
    post: Callable[[Event | BaseException], None]
    """Takes the event at the end of a job, or an exception that ends the node."""
    progress: Callable[[Log], None]
    is_interrupted: threading.Event = field(default_factory=threading.Event)
    is_aborted: threading.Event = field(default_factory=threading.Event)
    num_discards_asked: Counter[InstanceId] = field(default_factory=Counter)
    """The number of `DiscardRound`s that were asked for, by instance; written by the event loop."""
    num_discards_done: Counter[InstanceId] = field(default_factory=Counter)
    """The number of those that are done; written by the thread of the instance."""
    early_ends: dict[InstanceId, EndInner] = field(default_factory=dict)
    """The last `EndInner` of each instance; written by the event loop."""
    pseudo_gradients: dict[tuple[InstanceId, int], Vector] = field(default_factory=dict)
    averages: dict[tuple[InstanceId, int], AveragedVector] = field(default_factory=dict)
    writes: queue.Queue[Callable[[], None] | None] = field(default_factory=lambda: queue.Queue(WRITES_WAITING))

    @property
    def should_stop(self) -> bool:
        return self.is_interrupted.is_set() or self.is_aborted.is_set()

    def is_discarded(self, instance: InstanceId) -> bool:
        """Return whether the instance's inner steps have to end, because a `DiscardRound` waits behind them."""
        return self.num_discards_asked[instance] > self.num_discards_done[instance]

    def take_average(self, effect: ApplyOuter) -> AveragedVector:
        self.pseudo_gradients.pop((effect.instance, effect.round), None)
        averaged = self.averages.pop((effect.instance, effect.round))
        self.drop_averages(effect.instance, before=effect.round)  # averages of rounds that this peer has left behind
        return averaged

    def drop_averages(self, instance: InstanceId, *, before: int | None = None) -> None:
        _drop(self.averages, instance, before)

    def drop_pseudo_gradients(self, instance: InstanceId, *, before: int | None = None) -> None:
        _drop(self.pseudo_gradients, instance, before)


def _drop(vectors: dict[tuple[InstanceId, int], Vector], instance: InstanceId, before: int | None) -> None:
    for key in list(vectors):  # a copy, because other threads add entries meanwhile
        if key[0] == instance and (before is None or key[1] < before):
            vectors.pop(key, None)


class DeviceThread:
    """Performs the jobs of one device, in order."""

    def __init__(self, shared: Shared, *, name: str) -> None:
        self._shared = shared
        self._engine = shared.engine
        self._states = shared.states
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._taken: deque[Job] = deque()
        """Jobs that the thread has taken from the queue and not begun; they come before those in the queue."""
        self._copied: set[InstanceId] = set()
        """Instances copied for a checkpoint since `writes` was last known to be empty."""
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="outer")
        self._outer_step: Future[None] | None = None
        """The outer step that is done beside inner steps; no job but these begins before its end."""
        self.looks = Looks(shared.post)
        self._num_put = self._num_done = 0
        """The event loop writes the first, the thread the second."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def num_unfinished(self) -> int:
        """The number of jobs that wait or are in progress."""
        return self._num_put - self._num_done

    def start(self) -> None:
        self._thread.start()

    def put(self, job: Job) -> None:
        """Queue a job; None ends the thread after the jobs before it."""
        self._num_put += 1
        self._jobs.put(job)

    def join(self, seconds: float) -> bool:
        """Wait for the end of the thread, and return whether it ended in time."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while (job := self._next_job()) is not None and not self._shared.is_aborted.is_set():
                self._await_outer_step()
                if callable(job):
                    job()
                elif isinstance(job, Meeting):
                    self._meet(job)
                else:
                    self._perform_and_post(job)
                self._num_done += 1
            self._await_outer_step()
        except BaseException as error:  # the event loop raises it, which ends the process
            self._shared.post(error)
        finally:
            self._beside.shutdown()
            self._shared.writes.put(None)

    def _next_job(self) -> Job:
        if self._taken:
            return self._taken.popleft()
        while self._jobs.empty() and self.looks.go_on():
            pass
        return self._jobs.get()

    def _meet(self, meeting: Meeting) -> None:
        for instance in gone_after(meeting.effect):
            self.looks.forget(instance)  # each device has its own, and the last thread to arrive performs the effect
        if meeting.arrive():
            self._perform_and_post(meeting.effect)
            meeting.end()
        elif not isinstance(meeting.effect, SaveCheckpoint):  # it only queues a write, so no device waits for the others
            while not meeting.wait(MEETING_SECONDS) and not self._shared.is_aborted.is_set():
                pass

    def _perform_and_post(self, effect: DeviceEffect) -> None:
        if self._shared.is_interrupted.is_set() and not isinstance(effect, DiscardRound | SaveInstance | SaveCheckpoint):
            return
        begun = time.monotonic()
        self._post(self._perform(effect), begun)

    def _post(self, event: Event | None, begun: float) -> None:
        """Post an event; those that end a round get the time that the device took."""
        if isinstance(event, OuterApplied | StepMeasured | Evaluated):
            event = replace(event, seconds=time.monotonic() - begun)
        if event is not None:
            self._shared.post(event)

    def _perform(self, effect: DeviceEffect) -> Event | None:
        match effect:
            case RunInner():
                return self._run_inner(effect)
            case ApplyOuter():
                own = self._shared.pseudo_gradients.get((effect.instance, effect.round)) if effect.keeps_own else None
                return self._apply_outer(effect, self._shared.take_average(effect), own)
            case CarryOver():
                return self._carry_over(effect)
            case Transition():
                return self._transition(effect)
            case DropInstance(instance=instance):
                self._engine.drop(instance)
                self._forget(instance)
                return None
            case DiscardRound(instance=instance):
                self._shared.num_discards_done[instance] += 1
                self._engine.discard(instance)
                return None
            case Probe(round=number, merge=merge):
                return Probed(round=number, verdict=self._engine.probe_merge(merge), epoch=effect.epoch)
            case MeasureStep(instance=instance, round=number):
                before, after = self._engine.measure_step(instance, effect.state, reads=effect.reads)
                return StepMeasured(instance=instance, round=number, before=before, after=after, epoch=effect.epoch)
            case Evaluate():
                return self._evaluate(effect)
            case SnapshotState():
                return self._snapshot_state(effect)
            case ReleaseState(instance=instance):
                self._engine.drop(instance)
                self._states.withdraw(instance)
                return None
            case SaveInstance(instance=instance, round=number):
                self._save_instance(instance, number)
                return None
            case SaveCheckpoint(durable=durable):
                self._shared.writes.put(lambda: self._shared.checkpoints.complete(durable))
                return None

    def _evaluate(self, effect: Evaluate) -> Event:
        instance, number = effect.instance, effect.round
        loss = self._engine.evaluate(instance)
        for prompt, text in self._engine.sample_texts(instance):
            self._shared.progress(SampleText(round=number, instance=instance, prompt=prompt, text=text[:MAX_SAMPLE_TEXT]))
        losses = self._engine.heldout_losses(instance)
        return Evaluated(
            instance=instance,
            round=number,
            heldout_loss=loss,
            heldout_losses=losses,
            state_digest=self._final_state(effect) if effect.is_final else None,
            epoch=effect.epoch,
        )

    def _final_state(self, effect: Evaluate) -> Digest:
        """Offer the final state at the boundary after the last plan; the states at the boundary before are the sources of the
        last plan's merges."""
        _, state_digest = self._engine.digests(effect.instance)
        self._states.offer(effect.instance, effect.round + 1, state_digest, self._engine.state(effect.instance))
        return state_digest

    def _apply_outer(self, effect: ApplyOuter, averaged: AveragedVector, own: Vector | None = None) -> Event:
        """Perform the outer step. `own` is the pseudo-gradient that becomes part of the next one; it contains all residuals."""
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
        """End a void round: its pseudo-gradient becomes part of the next one, so that no work is lost."""
        instance, number = effect.instance, effect.round
        self._shared.drop_averages(instance, before=number + 1)
        self._engine.carry_over(instance, self._shared.pseudo_gradients.pop((instance, number), None), round=number)
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
        """Before an inner step, perform the jobs that end the previous round and are due. Return whether to stop."""
        while not self._shared.should_stop:
            if self._outer_step is not None and not self._outer_step.done():
                return False
            self._await_outer_step()
            while not self._jobs.empty():
                self._taken.append(self._jobs.get())
            job = self._taken[0] if self._taken else None
            asked = job.effect if isinstance(job, Meeting) else job
            if asked is None or callable(asked) or not _ends_round_before(asked, effect):
                return False
            self._taken.popleft()
            self._num_done += 1
            if isinstance(job, Meeting):
                self._meet(job)
            elif isinstance(job, ApplyOuter):
                self._outer_step = self._beside.submit(self._apply_beside, job, self._shared.take_average(job))
            else:
                begun = time.monotonic()
                self._post(self._perform(asked), begun)
        return True

    def _apply_beside(self, effect: ApplyOuter, averaged: AveragedVector) -> None:
        begun = time.monotonic()
        self._post(self._apply_outer(effect, averaged), begun)

    def _await_outer_step(self) -> None:
        if self._outer_step is not None:
            self._outer_step.result()
            self._outer_step = None

    def _save_instance(self, instance: InstanceId, boundary: int) -> None:
        if instance in self._copied:  # the end of a run asks again at once, and memory holds only one copy
            self._await_writes()
        self._copied.add(instance)
        tensors, meta = self._engine.snapshot(instance)
        self._shared.writes.put(lambda: self._shared.checkpoints.save_instance(boundary, instance, tensors, meta))

    def _await_writes(self) -> None:
        self._shared.writes.join()
        self._copied.clear()

    def _forget(self, instance: InstanceId) -> None:
        """Release the buffers of an instance that is not here any more."""
        self._states.retire(instance)
        self.looks.forget(instance)
        self._shared.drop_pseudo_gradients(instance)
        self._shared.drop_averages(instance)

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
                loss=float(loss),  # this waits for the device, so it is done only for shown events
                tokens_per_second=tokens / max(now - started, 1e-9),
            )
            self._shared.progress(progress)

        def should_stop() -> bool:
            if self._shared.is_discarded(instance):
                return True
            has_to_stop = self._between_steps(effect) if effect.is_ahead else self._shared.should_stop
            if not has_to_stop:
                self.looks.go_on_between_steps(effect)
            return has_to_stop

        def is_enough(steps: int) -> bool:
            end = self._shared.early_ends.get(instance)
            return end is not None and end.round == effect.round and steps >= end.least_steps

        result = self._engine.run_inner(effect, should_stop=should_stop, is_enough=is_enough, on_progress=on_progress)
        if result is None or self._shared.is_discarded(instance):
            return None
        self._await_outer_step()  # its residual is part of the pseudo-gradient
        # If the disk is slow, memory does not hold both the copy for a checkpoint and the pseudo-gradient.
        self._await_writes()
        kept = effect.round - 1 if effect.is_ahead else effect.round
        self._shared.drop_pseudo_gradients(instance, before=kept)
        if not result.has_diverged:
            self._shared.pseudo_gradients[instance, effect.round] = self._engine.pseudo_gradient(instance)
        return InnerFinished(instance=instance, round=effect.round, result=result, epoch=effect.epoch)


def _ends_round_before(job: DeviceEffect, running: RunInner) -> bool:
    """Return whether the job belongs to the outer step that `running` did not wait for. Any other job waits its turn, and so do
    all that were put after it."""
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


def gone_after(effect: DeviceEffect) -> list[InstanceId]:
    """Return the instances that are not here any more after the effect."""
    match effect:
        case Transition(merges=merges):
            return [source for merge in merges for source in merge.sources if source != merge.target]
        case DropInstance(instance=instance) | ReleaseState(instance=instance):
            return [instance]
    return []
