"""The event loop of one peer, which feeds events to the core and performs its effects in order. Only it reads the clock.

It has the only handler of unexpected exceptions, which stops the node with the error; the journal and the checkpoints make a
restart safe.
"""

import asyncio
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from adloco_p2p.background import BackgroundTasks
from adloco_p2p.core.model.assessments import AssessContribution, ContributionAssessed, ShowContribution
from adloco_p2p.core.model.averages import Average, CancelAverage, RepairAverage
from adloco_p2p.core.model.commands import Command
from adloco_p2p.core.model.complaints import PartNotShown
from adloco_p2p.core.model.effects import Broadcast, DiscardRound, Effect, EndInner, FetchState, Persist, Send, Stop
from adloco_p2p.core.model.events import (
    AverageDecided,
    AverageFailed,
    Commanded,
    Event,
    Received,
    Started,
    StateFetched,
    Ticked,
)
from adloco_p2p.core.model.events import FetchFailed as FetchFailedEvent
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.core.model.task_scores import ScoreTasks, TasksScored
from adloco_p2p.core.model.telemetry import Log, StoodStill, Stopped
from adloco_p2p.core.peer.lifecycle import Stage
from adloco_p2p.core.peer.peer import Peer
from adloco_p2p.errors import (
    AdlocoError,
    AveragingError,
    ContributionNotShown,
    DeviceError,
    StateTransferFailed,
    StorageError,
    SwarmError,
    TaskScoringFailed,
)
from adloco_p2p.runtime.node.device_worker import DeviceWorker
from adloco_p2p.runtime.node.ports import (
    AveragedVector,
    Averaging,
    CheckpointStore,
    Engine,
    EventSink,
    Journal,
    Messenger,
    StateExchange,
    TaskScorer,
    Vector,
)

STOOD_STILL_SECONDS = 10.0
"""Nothing in the event loop takes so long, so the process was suspended, the machine slept, or its clock was set."""
WORKER_STOP_SECONDS = 600.0
"""The time limit for the device worker, which may still have a checkpoint to write when the core stops."""
UNSAVED = f"the device or the disk did not end its work within {WORKER_STOP_SECONDS:.0f} s; the last whole checkpoint stands"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The ports of one node: everything outside that the loop uses."""

    engine: Engine
    checkpoints: CheckpointStore
    averaging: Averaging
    messenger: Messenger
    states: StateExchange
    journal: Journal
    events: EventSink
    scorer: TaskScorer | None = None
    """The scorer, if this peer reports that it can score the run's tasks."""


class _Inbox:
    """The events that wait for the core: those of this machine, which the core's own requests bound, and one message of a
    remote peer."""

    def __init__(self) -> None:
        self.local: deque[Event | BaseException] = deque()
        self._remote: asyncio.Queue[Received] = asyncio.Queue(1)
        self._arrived = asyncio.Event()

    def put_local(self, event: Event | BaseException) -> None:
        self.local.append(event)
        self._arrived.set()

    async def put_remote(self, event: Received) -> None:
        await self._remote.put(event)
        self._arrived.set()

    async def get(self) -> Event | BaseException:
        while True:
            if self.local:
                return self.local.popleft()
            if not self._remote.empty():
                return self._remote.get_nowait()
            self._arrived.clear()
            await self._arrived.wait()


class Node:
    """One running peer. `run` returns the core's Stop; `post` may be called from any thread after `attach`."""

    def __init__(self, *, peer: Peer, ports: Ports) -> None:
        self.peer = peer
        self._ports = ports
        self._inbox = _Inbox()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._averagings: dict[tuple[InstanceId, int, int], asyncio.Task[None]] = {}
        self._fetches: dict[InstanceId, asyncio.Task[None]] = {}
        self._tasks = BackgroundTasks(self.post)
        self._worker = DeviceWorker(
            engine=ports.engine,
            checkpoints=ports.checkpoints,
            states=ports.states,
            post=self.post,
            progress=lambda event: self._call_soon(ports.events.write, event),
        )

    def post(self, event: Event | BaseException) -> None:
        """Hand an event to the core, or an exception that ends the node."""
        self._call_soon(self._inbox.put_local, event)

    async def deliver(self, event: Received) -> None:
        """Hand over a message of a remote peer, and return when there is room for the next one. Local events come first, so
        that remote peers, however much they send, delay neither the device nor the user."""
        await self._inbox.put_remote(event)

    def command(self, command: Command, *, reason: str = "asked") -> None:
        """Give a command of the user. May be called from any thread after `attach`."""
        self.post(Commanded(command=command, reason=reason))

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Allow `post` from now on; events wait until `run` takes them."""
        self._loop = loop

    async def run(self, started: Started) -> Stop:
        """Run until the core stops. Raises any error that ends the node before. The device threads end before this returns."""
        self.attach(asyncio.get_running_loop())
        self._worker.start()
        event: Event | BaseException = started
        try:
            while True:
                if isinstance(event, BaseException):
                    raise event
                stop = self._perform_all(self.peer.handle(event, time.monotonic()))
                if stop is not None:
                    if stop.is_urgent:
                        self._worker.interrupt()
                    has_ended = await asyncio.to_thread(self._worker.stop, timeout_seconds=WORKER_STOP_SECONDS)
                    self._raise_worker_failure()
                    if not has_ended:
                        raise StorageError(UNSAVED, code="E401")
                    if stop.error:
                        kind = DeviceError if stop.error.startswith(f"E{DeviceError.exit_code}") else SwarmError
                        raise kind(stop.reason, code=stop.error)
                    return stop
                event = await self._next_event()
        except Exception as error:
            with suppress(Exception):  # the first error is the one to report
                self._part(error)
            raise
        finally:
            self._worker.abort()
            self._tasks.cancel()
            await self._tasks.settled()
            await asyncio.to_thread(self._worker.stop, timeout_seconds=WORKER_STOP_SECONDS)

    def _part(self, error: Exception) -> None:
        """Leave as a stopping peer does, as far as a full disk allows, so that the others need not miss this one first."""
        if self.peer.stage is Stage.STOPPED:
            return
        for effect in self.peer.fail(time.monotonic()):
            self._perform(effect)
        with suppress(AdlocoError):
            self._ports.events.write(Stopped(reason=str(error), is_finished=False))

    async def _next_event(self) -> Event | BaseException:
        deadline = self.peer.next_deadline
        if deadline is None:
            return await self._inbox.get()
        begun, seconds = time.time(), max(0.0, deadline - time.monotonic())
        try:
            async with asyncio.timeout(seconds):
                return await self._inbox.get()
        except TimeoutError:
            return Ticked()
        finally:
            self._note_sleep(time.time() - begun - seconds)

    def _note_sleep(self, late_seconds: float) -> None:
        """Tell the user if this process stood still, by the wall clock, because the monotonic one may stop during sleep."""
        if late_seconds > STOOD_STILL_SECONDS:
            self._ports.events.write(StoodStill(seconds=late_seconds))

    def _raise_worker_failure(self) -> None:
        for event in self._inbox.local:
            if isinstance(event, BaseException):
                raise event

    def _call_soon(self, function, *args) -> None:  # type: ignore[no-untyped-def]
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop is closed; another thread may have closed it just now
            self._loop.call_soon_threadsafe(function, *args)

    # --- effects -----------------------------------------------------------------------------------------------------

    def _perform_all(self, effects: list[Effect]) -> Stop | None:
        for effect in effects:
            if isinstance(effect, Stop):
                self._ports.events.write(Stopped(reason=effect.reason, is_finished=effect.is_finished))
                return effect
            self._perform(effect)
        return None

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Log():
                self._ports.events.write(effect)
            case Persist():
                self._ports.journal.append(effect.record)
            case Send():
                self._ports.messenger.send(effect.peer, effect.message)
            case Broadcast():
                self._ports.messenger.broadcast(effect.message)
            case EndInner():
                self._worker.end_inner(effect)
            case Average() | RepairAverage():
                self._ports.states.keep_newest(effect.instance)  # the average needs the memory of older states
                key = (effect.instance, effect.round, effect.attempt)
                self._averagings[key] = self._tasks.begin(self._average(effect))
            case CancelAverage():
                task = self._averagings.pop((effect.instance, effect.round, effect.attempt), None)
                if task is not None:
                    task.cancel()
            case FetchState():
                self._cancel_fetch(effect.instance)
                self._fetches[effect.instance] = self._tasks.begin(self._fetch(effect))
            case AssessContribution():
                before = self._ports.engine.before_step(effect.instance, round=effect.round)
                self._tasks.begin(self._look(effect, before))
            case ShowContribution():
                self._ports.averaging.show_contribution(effect)
            case ScoreTasks():
                self._tasks.begin(self._score_tasks())
            case Stop():
                raise AssertionError("a stop ends the list")
            case _:  # a `DeviceEffect`
                if isinstance(effect, DiscardRound):
                    self._cancel_fetch(effect.instance)
                self._worker.submit(effect)

    def _cancel_fetch(self, instance: InstanceId) -> None:
        """Cancel a fetch, because a state of an earlier boundary must not arrive after that of a later one."""
        task = self._fetches.pop(instance, None)
        if task is not None:
            task.cancel()

    async def _average(self, effect: Average | RepairAverage) -> None:
        try:
            averaged = await self._averaged(effect)
        except AveragingError as error:
            failed = AverageFailed(
                asked=effect,
                reason=str(error),
                suspects=tuple(error.suspects),  # type: ignore[arg-type]
                because=error.because,  # type: ignore[arg-type]
                upload_bytes_per_second=error.upload_bytes_per_second,
                vector_bytes=error.vector_bytes,
            )
            self._inbox.put_local(failed)
            return
        finally:
            key = (effect.instance, effect.round, effect.attempt)
            if self._averagings.get(key) is asyncio.current_task():
                del self._averagings[key]
        self._worker.put_average(effect.instance, effect.round, averaged)
        self._inbox.put_local(averaged.finished)

    async def _averaged(self, effect: Average | RepairAverage) -> AveragedVector:
        match effect:
            case Average():
                vector = self._worker.pseudo_gradient(effect.instance, effect.round)
                return await self._ports.averaging.average(
                    effect,
                    vector,
                    on_decided=partial(self._note_decided, effect),
                    on_not_shown=partial(self._note_not_shown, effect),
                )
            case RepairAverage():
                kept = self._worker.kept_pseudo_gradient(effect.instance, effect.round)
                return await self._ports.averaging.repair(effect, kept)

    def _note_decided(self, effect: Average, decision: Digest) -> None:
        self._inbox.put_local(AverageDecided(asked=effect, decision=decision))

    def _note_not_shown(self, effect: Average, contributor: PeerId, reducer: PeerId) -> None:
        event = PartNotShown(instance=effect.instance, round=effect.round, contributor=contributor, reducer=reducer)
        self._inbox.put_local(event)

    async def _look(self, effect: AssessContribution, before: Vector | None) -> None:
        """Fetch the contribution for the device, which posts the score."""
        try:
            if before is None:
                raise AveragingError("the outer parameters before the step are not here any more")
            contribution, others = await self._ports.averaging.contribution(effect)
        except AveragingError as error:
            score = 0.0 if isinstance(error, ContributionNotShown) else None
            self._inbox.put_local(ContributionAssessed(asked=effect, score=score, reason=str(error)))
        else:
            self._worker.look(effect, before, contribution, others)

    async def _score_tasks(self) -> None:
        assert self._ports.scorer is not None, "this peer does not report that it can"
        try:
            self._inbox.put_local(TasksScored(claim=await self._ports.scorer.score()))
        except TaskScoringFailed as error:
            self._inbox.put_local(TasksScored(claim=None, reason=str(error)))

    async def _fetch(self, effect: FetchState) -> None:
        try:
            outer, momentum = await self._ports.states.fetch(effect)
        except StateTransferFailed as error:
            self._inbox.put_local(FetchFailedEvent(instance=effect.instance, round=effect.round, reason=str(error)))
            return

        def adopt() -> None:
            self._ports.engine.adopt(effect.instance, outer, momentum)
            self._ports.states.offer(effect.instance, effect.round, effect.digest, (outer, momentum))
            self.post(StateFetched(instance=effect.instance, round=effect.round, digest=effect.digest))

        self._worker.call(effect.instance, adopt)
