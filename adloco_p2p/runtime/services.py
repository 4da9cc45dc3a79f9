"""The common part of the composition roots: the local parts of a peer, with or without a network, and its services.

Nothing here affects decisions about training.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from adloco_p2p.config.fields import flatten_fully
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.control.endpoint import parse_listen
from adloco_p2p.control.server import ControlServer
from adloco_p2p.core.model.events import Durable
from adloco_p2p.core.model.plan import roster_of
from adloco_p2p.core.model.protocol import NEWEST
from adloco_p2p.core.model.roster_entry import Capacity
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.model.telemetry import Started
from adloco_p2p.core.peer.peer import Cadence
from adloco_p2p.data.source import other_embedded_text
from adloco_p2p.runtime.adapters.control_adapter import ControlAdapter
from adloco_p2p.runtime.adapters.embedding import Built, Embedding, LocalEngine
from adloco_p2p.runtime.adapters.event_broadcast import EventBroadcaster
from adloco_p2p.runtime.adapters.machine_use import watch_machine
from adloco_p2p.runtime.adapters.plan_rule import genesis_of
from adloco_p2p.runtime.adapters.task_child import TaskChild, can_score
from adloco_p2p.runtime.adapters.tracking import TrackedSink
from adloco_p2p.runtime.node.event_sink import Sink
from adloco_p2p.runtime.node.loop import Node
from adloco_p2p.storage.checkpoint import CheckpointStore
from adloco_p2p.storage.disk import check_room
from adloco_p2p.storage.event_log import EventLog, read_events
from adloco_p2p.swarm.p2p.identity import Identity
from adloco_p2p.swarm.transport.rate_limiter import RateLimiter
from adloco_p2p.trackers import Tracker, open_tracker
from adloco_p2p.training.device import select_devices
from adloco_p2p.training.gpu_use import gpu_use
from adloco_p2p.views.metrics import measures

CHECKPOINT_BYTES_PER_SECOND = 32e6
"""The mean rate at which checkpoints are written; a laptop's disk endures some hundred terabytes in its life."""


@dataclass(slots=True, kw_only=True)
class LocalPeer:
    """The parts of one peer on its own machine: its engine, its events and its last checkpoint."""

    embedding: Embedding
    me: PeerId
    run: RunConfig
    engine: LocalEngine
    checkpoints: CheckpointStore
    event_log: EventLog
    sink: TrackedSink
    durable: Durable | None
    """The decisions in the last checkpoint; None in a fresh directory."""
    capacity: Capacity
    view: EventBroadcaster
    """The broadcaster that passes events on to the view of the embedding."""
    started: Started
    """The first event of this process."""

    @property
    def cadence(self) -> Cadence:
        return Cadence(
            work=self.run.work,
            evaluation_period=self.run.evaluation.period_rounds,
            checkpoint_period=self.embedding.config.checkpoint_period_rounds,
            checkpoint_seconds=self._checkpoint_seconds(),
            is_delayed=self.run.outer.overlap != "none",
            task_period=self.run.evaluation.tasks.every_rounds if self.run.evaluation.tasks.names else 0,
            vector_bytes=round(self.engine.num_parameters * self.run.averaging.bytes_per_value),
            state_bytes=self.engine.num_parameters * self.run.outer.state_bytes_per_parameter,
        )

    @property
    def scorer(self) -> TaskChild:
        return TaskChild(self.embedding.workdir.path, self.run, self.embedding.config)

    def _checkpoint_seconds(self) -> float:
        if (seconds := self.embedding.config.checkpoint_period_seconds) is not None:
            return seconds
        return self.engine.snapshot_bytes / CHECKPOINT_BYTES_PER_SECOND

    def begin(self) -> Durable:
        """Begin with the genesis plan. The peers of its roster create the fresh instances; others fetch theirs."""
        plan = genesis_of(self.run)
        held = tuple(item.instance for item in plan.instances) if self.me in roster_of(plan) else ()
        self.engine.start(held)
        return Durable(round=0, plans=(plan,), held=held)

    def close(self) -> None:
        self.engine.release()
        self.sink.close()
        self.event_log.close()
        self.embedding.workdir.close()


def open_local(embedding: Embedding, run: RunConfig) -> LocalPeer:
    """Build data, model and storage of one peer, and restore the last checkpoint if there is one.

    Raises ConfigError, StorageError and DeviceError.
    """
    workdir, config = embedding.workdir, embedding.config
    workdir.adopt(run)
    select_devices(config)  # fails for a missing device before the text is read
    me = Identity.load_or_create(workdir.identity_path).peer_id
    store = CheckpointStore.open(workdir.checkpoints_path, run=run.digest, kept=config.checkpoints_kept)
    latest = store.latest()
    event_log = EventLog.open(workdir.events_path)
    broadcaster = EventBroadcaster(embedding.view, events_path=workdir.events_path)
    if warning := other_embedded_text(run.data):
        embedding.say(warning)
    built = embedding.build(run, config, me, workdir)
    engine = built.engine
    num_checkpoints = config.checkpoints_kept + 1  # one more exists while the newest is written
    what = f"the {num_checkpoints} checkpoints of an instance of this run"
    check_room(workdir.checkpoints_path, num_checkpoints * engine.snapshot_bytes, what=what)
    if latest is not None:
        for instance in latest.instances:
            tensors, meta = store.load_instance(latest.round, instance)
            engine.restore(instance, tensors, meta)
        if not latest.durable.is_finished:
            event_log.rewind(latest.round)
        broadcaster.recall(list(read_events(workdir.events_path)))
    return LocalPeer(
        embedding=embedding,
        me=me,
        run=run,
        engine=engine,
        checkpoints=store,
        event_log=event_log,
        sink=_tracked(Sink(log=event_log, view=broadcaster), broadcaster, embedding, me=me, run=run),
        view=broadcaster,
        durable=latest.durable if latest else None,
        capacity=Capacity(
            samples_per_second=0.0,
            micro_batch_limit=engine.micro_batch_limit,
            max_instances=config.max_instances,
            is_reachable=not config.client_mode,
            is_keeper=config.keeper,
            scores_tasks=can_score(run, config),
            newest_protocol=NEWEST,
        ),
        started=_started(me, run, built, is_keeper=config.keeper, resumed_round=latest.round if latest else None),
    )


def _tracked(sink: Sink, broadcaster: EventBroadcaster, embedding: Embedding, *, me: PeerId, run: RunConfig) -> TrackedSink:
    """Return the sink with the trackers that the machine's settings name."""
    opened: dict[str, Callable[[], Tracker]] = {
        tracker: partial(
            open_tracker,
            tracker,
            folder=embedding.workdir.path,
            name=f"{run.name} {me[-8:]}",
            identity=f"{run.digest[:16]}-{me[-12:]}",
            settings=flatten_fully(run),
        )
        for tracker in embedding.config.trackers
    }
    return TrackedSink(sink, opened, measure=lambda: measures(broadcaster.status), inner_steps=run.work.inner_steps)


def _started(me: PeerId, run: RunConfig, built: Built, *, is_keeper: bool, resumed_round: int | None) -> Started:
    """Return the first event of this process."""
    engine = built.engine
    return Started(
        run=run.digest,
        name=run.name,
        peer=me,
        mode=run.mode,
        rounds=run.work.rounds,
        samples=run.work.samples,
        inner_steps=run.work.inner_steps,
        parameters=engine.num_parameters,
        device=", ".join(engine.device_names),
        micro_batch_limit=0 if is_keeper else engine.micro_batch_limit,
        unigram_entropy=built.unigram_entropy,
        resumed_round=resumed_round,
        codec=run.averaging.codec,
        data_sets=tuple(run.readers),
        admission=run.admission.in_words,
    )


BANDWIDTH_SECONDS = 0.5
"""The period at which the views get the rates of traffic."""


def control_server(node: Node, local: LocalPeer, rate_limiter: RateLimiter | None) -> ControlServer:
    """Return the control API of a node, to be started and stopped with it."""
    return ControlServer(
        ControlAdapter(node, local.view, rate_limiter),
        workdir=local.embedding.workdir.path,
        listen=parse_listen(local.embedding.config.control_address),
    )


class Service(Protocol):
    """A server that a node runs beside its loop."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


@asynccontextmanager
async def shown(local: LocalPeer, node: Node, services: Iterable[Service]) -> AsyncIterator[None]:
    """Within the block the view shows events, the user can end the node, and events wait for its loop. `services` start in
    order and stop in reverse order."""
    local.embedding.steer(node, local.embedding.config)
    local.embedding.workdir.on_phase(None)
    local.view.start()
    try:
        local.sink.write(local.started)
        node.attach(asyncio.get_running_loop())
        async with AsyncExitStack() as running:
            for service in services:
                await service.start()
                running.push_async_callback(service.stop)
            yield
    finally:
        local.view.stop()


def live_figures(local: LocalPeer, rate_limiter: RateLimiter | None) -> list[Coroutine[Any, Any, None]]:
    """Return background work that writes the rates of traffic and the load of the machine, until cancelled."""
    works = [watch_machine(local.sink.write, partial(gpu_use, local.engine.devices))]
    return works if rate_limiter is None else [*works, _show_bandwidth(local, rate_limiter)]


async def _show_bandwidth(local: LocalPeer, rate_limiter: RateLimiter) -> None:
    while True:
        await asyncio.sleep(BANDWIDTH_SECONDS)
        local.sink.write(rate_limiter.traffic())
