"""A peer on the network: meets the others, then runs the same loop as a peer alone."""

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from adloco_p2p.config.local_files import check_run_of_others, unpinned
from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.agreement.gossip_agreement import GossipAgreement
from adloco_p2p.core.agreement.membership import Timing
from adloco_p2p.core.model.events import Received, Started, StateServed, Stop
from adloco_p2p.core.model.messages import MESSAGE_KINDS, WireMessage
from adloco_p2p.core.model.types import PeerId
from adloco_p2p.core.peer.peer import Peer
from adloco_p2p.errors import ConfigError, SwarmError
from adloco_p2p.runtime.adapters import signals
from adloco_p2p.runtime.adapters.daily_schedule import DayBook, Schedule
from adloco_p2p.runtime.adapters.first_contribution import ContributionSink, process_start
from adloco_p2p.runtime.adapters.metrics_endpoint import MetricsEndpoint
from adloco_p2p.runtime.adapters.network_journal import NetworkJournal
from adloco_p2p.runtime.adapters.plan_rule import decide_by, genesis_of, is_signed, signature
from adloco_p2p.runtime.adapters.swarm_ports import (
    PRICES,
    STRANGER_KINDS,
    Members,
    NetworkAveraging,
    NetworkMessenger,
    NetworkStates,
)
from adloco_p2p.runtime.node.event_sink import CountingSink, View
from adloco_p2p.runtime.node.loop import Node, Ports
from adloco_p2p.runtime.services import LocalPeer, control_server, open_local, show_bandwidth
from adloco_p2p.storage.journal import Journal
from adloco_p2p.storage.workdir import Workdir
from adloco_p2p.swarm.allreduce.averager import Averager
from adloco_p2p.swarm.discovery.join import JoinTarget, choose_run, connect_to_run
from adloco_p2p.swarm.discovery.join_link import format_link, split_initial_peers
from adloco_p2p.swarm.discovery.manifest import SignedManifest, fetch_manifest
from adloco_p2p.swarm.discovery.peer_maintenance import Neighbourhood
from adloco_p2p.swarm.discovery.reachability import AdlocoReachability
from adloco_p2p.swarm.discovery.run_records import Discovery
from adloco_p2p.swarm.p2p.addresses import PeerAddress, shareable
from adloco_p2p.swarm.p2p.host import Host
from adloco_p2p.swarm.transfer.state_transfer import StateFetcher, StateServer
from adloco_p2p.swarm.transport.gossip import GossipWire
from adloco_p2p.swarm.transport.log_limiter import Refusals
from adloco_p2p.swarm.transport.rate_limiter import RateLimiter
from adloco_p2p.swarm.transport.traffic import Traffic
from adloco_p2p.training.device import select_device

LINKED_ADDRESSES = 6
"""In a join link: a line that people copy."""


async def start_run(
    *,
    workdir: Workdir,
    run: RunConfig,
    initial_peers: tuple[str, ...],
    config: PeerConfig,
    view: View,
    say: Callable[[str], None],
) -> Stop:
    """Be the first peer of a run, or come back to it. `initial_peers` are others that make it known, such as a bootstrap."""
    _, addresses = split_initial_peers(initial_peers)
    select_device(config)  # a device that is not there is noticed before others are invited
    workdir.enter("starting the p2p daemon")
    host = await Host.start(
        workdir=workdir.path, config=config, initial_peers=[f"{a.transport}/p2p/{a.peer}" for a in addresses]
    )
    async with _ending(host):
        if open_versions := unpinned(run):
            say(f"others cannot join before these are commit hashes of the hub: {'; '.join(open_versions)}")
        manifest = _load_manifest(workdir) or SignedManifest.sign(run, host.identity)
        return await _take_part(host, addresses, workdir=workdir, run=run, manifest=manifest, config=config, view=view, say=say)


async def join_run(*, workdir: Workdir, target: JoinTarget, config: PeerConfig, view: View, say: Callable[[str], None]) -> Stop:
    """Find the run through any of its peers, and take part. Raises ConfigError where the user has to choose."""
    begun = time.monotonic()
    linked, addresses = split_initial_peers(target.initial_peers)
    select_device(config)
    workdir.enter("looking for the swarm")
    say("looking for the swarm")
    host = await Host.start(
        workdir=workdir.path, config=config, initial_peers=[f"{a.transport}/p2p/{a.peer}" for a in addresses]
    )
    async with _ending(host):
        discovery = Discovery(host.dht, host.identity, wall_clock=host.clock)
        workdir.enter("asking for the run")
        say("asking for the run")
        manifest = _load_manifest(workdir)
        if manifest is None:
            run_digest = await choose_run(discovery, wanted=linked or target.run)
            known = await connect_to_run(host, discovery, run_digest, is_patient=False)
            manifest = await fetch_manifest(host.p2p, [*known.connected, *await host.peers_connected()], run_digest)
        run = manifest.verified(manifest.run)
        wanted = linked or target.run
        if wanted is not None and not manifest.run.startswith(wanted):
            raise ConfigError(
                f"--workdir {workdir.path}: holds run {manifest.run[:16]}, not {wanted[:16]}; name another one", code="E203"
            )
        check_run_of_others(run, config)
        say(f"run {run.name} ({manifest.run[:16]}), {time.monotonic() - begun:.1f} s after the start")
        return await _take_part(host, addresses, workdir=workdir, run=run, manifest=manifest, config=config, view=view, say=say)


def _load_manifest(workdir: Workdir) -> SignedManifest | None:
    path = workdir.manifest_path
    return SignedManifest.from_bytes(path.read_bytes()) if path.exists() else None


@contextlib.asynccontextmanager
async def _ending(host: Host):  # type: ignore[no-untyped-def]
    try:
        yield
    finally:
        await host.stop()


async def _take_part(
    host: Host,
    initial_peers: Sequence[PeerAddress],
    *,
    workdir: Workdir,
    run: RunConfig,
    manifest: SignedManifest,
    config: PeerConfig,
    view: View,
    say: Callable[[str], None],
) -> Stop:
    workdir.adopt(run)
    addresses = await host.addresses()
    say(await host.describe_reachability())
    if addresses:
        say(f"initial peers: {' '.join(addresses)}")
    linked = shareable([*addresses, *map(str, initial_peers)])[:LINKED_ADDRESSES]  # so that it leads here without us, too
    link = format_link(run.digest, linked) if linked else ""
    if link:
        say(f"join link: {link}")
    local = await asyncio.to_thread(open_local, workdir=workdir, run=run, peer_config=config, view=view, say=say)
    try:
        workdir.save_manifest(manifest.to_bytes())
        return await _train(host, local, manifest, link)
    finally:
        local.close()


async def _train(host: Host, local: LocalPeer, manifest: SignedManifest, link: str) -> Stop:
    """Plug the network into the loop and run it to the end."""
    run, me = local.run, local.me
    local.workdir.enter("meeting the others")
    discovery = Discovery(host.dht, host.identity, wall_clock=host.clock)
    contacts = (await connect_to_run(host, discovery, run.digest, is_patient=False)).connected
    opened = Journal.open(local.workdir.journal_path)
    journal = NetworkJournal(opened)
    agreement = GossipAgreement(
        me,
        genesis=genesis_of(run),
        records=journal.records(),
        recall=journal.recall,
        contacts=contacts,
        capacity=local.capacity,
        decide=decide_by(run.rules),
        sign=lambda payload: signature(host.identity, payload),
        verify=is_signed,
        draw=random.Random(os.urandom(16)).random,
        timing=Timing(),
    )
    node: Node

    async def on_message(sender: PeerId, message: WireMessage) -> None:
        await node.deliver(Received(sender=sender, message=message))

    refusals = Refusals()

    def on_refused(peer: PeerId, reason: str) -> None:
        count = refusals.count(peer, reason, time.monotonic())
        if count:
            local.sink.write("refused", {"peer": peer, "reason": reason, "count": count})

    members = Members(lambda: agreement.ledger.plans)
    traffic = Traffic()
    wire = GossipWire(
        host.p2p,
        run=run.digest,
        me=me,
        kinds=MESSAGE_KINDS,
        on_message=on_message,
        on_refused=on_refused,
        manifest=manifest.to_proto(),
        meter=traffic.gossip,
        members=members,
        stranger_kinds=STRANGER_KINDS,
        prices=PRICES,
    )
    rate_limiter = RateLimiter(
        traffic,
        up_bytes_per_second=local.peer_config.upload_bytes_per_second,
        down_bytes_per_second=local.peer_config.download_bytes_per_second,
    )
    averager = Averager(host.p2p, codec=run.averaging.codec, pace=rate_limiter, meter=traffic.averaging, members=members)
    server = StateServer(host.p2p, pace=rate_limiter, meter=traffic.state, members=members)
    server.on_served = lambda instance, number: node.post(StateServed(instance=instance, round=number))
    fetcher = StateFetcher(host.p2p, pace=rate_limiter, meter=traffic.state)
    states = NetworkStates(server, fetcher, num_parameters=local.engine.num_parameters)
    reachability = AdlocoReachability(host.p2p, run=run.digest, dial=host.dial_from_outside)

    def roster() -> list[PeerId]:
        return [roster_entry.peer for roster_entry in agreement.ledger.plans[-1].roster]

    def fail(error: BaseException) -> None:
        node.post(error)

    messenger = NetworkMessenger(wire, roster=roster, fail=fail)
    near = Neighbourhood(host, discovery, run=run.digest, roster=roster, write=local.sink.write)
    node = Node(
        peer=Peer(me=me, cadence=local.cadence, agreement=agreement),
        ports=Ports(
            engine=local.engine,
            checkpoints=local.checkpoints,
            averaging=NetworkAveraging(averager, size=local.engine.num_averaged, out_of_reach=near.out_of_reach),
            messenger=messenger,
            states=states,
            journal=journal,
            events=ContributionSink(CountingSink(local.sink, traffic.totals), me=me, began=process_start()),
        ),
    )
    durable = local.durable if local.durable is not None else local.begin()
    for instance in durable.held:
        states.offer(instance, durable.round, local.engine.digests(instance)[1], local.engine.state(instance))

    async def watch_daemon() -> None:
        await host.wait_until_dead()
        raise SwarmError("the p2p daemon ended; start again, the checkpoint stands", code="E306")

    schedule = Schedule(
        local.peer_config,
        rate_limiter,
        book=DayBook(local.workdir.path / "traffic.json"),
        command=lambda command, reason: node.command(command, reason=reason),
        is_paused=lambda: local.view.status.state == "paused",
    )
    control = control_server(node, local, rate_limiter)
    metrics = MetricsEndpoint(local.peer_config, local.view)
    signals.install_for(node, asyncio.get_running_loop(), grace_seconds=local.peer_config.grace_seconds)
    local.view.start()
    try:
        local.sink.write("started", local.started_fields)
        local.sink.write("listening", {"join_link": link})
        node.attach(asyncio.get_running_loop())
        async with contextlib.AsyncExitStack() as services:
            for service in (averager, server, wire, reachability, control, metrics):
                await service.start()
                services.push_async_callback(service.stop)
            local.workdir.enter(None)
            announced = near.announce(name=run.name, author=manifest.author)
            bandwidth = [schedule.run(), show_bandwidth(local, rate_limiter)]
            works = [*bandwidth, wire.pump(), announced, near.refresh_connections(), near.compare_clocks(), watch_daemon()]
            with _in_background(node, works):
                stop = await node.run(Started(durable=durable, capacity=local.capacity))
                await messenger.drain()
        return stop
    finally:
        local.view.stop()
        opened.close()


@contextlib.contextmanager
def _in_background(node: Node, works: Sequence[Coroutine[Any, Any, None]]):  # type: ignore[no-untyped-def]
    """Services beside the loop: what ends one of them ends the node, except troubles of the network, which pass."""

    def reap(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            node.post(error)

    tasks = [asyncio.get_running_loop().create_task(work) for work in works]
    for task in tasks:
        task.add_done_callback(reap)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
