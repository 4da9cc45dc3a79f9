"""A peer on the network: meets the others, then runs the same loop as a peer alone."""

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from adloco_p2p.config.peer import PeerConfig
from adloco_p2p.config.run import RunConfig
from adloco_p2p.core.events import Received, Started, Stop
from adloco_p2p.core.gossip_agreement import GossipAgreement
from adloco_p2p.core.membership import Timing
from adloco_p2p.core.peer import Peer
from adloco_p2p.core.types import Digest, PeerId
from adloco_p2p.errors import ConfigError, SwarmError
from adloco_p2p.runtime import signals
from adloco_p2p.runtime.agreement import decide_by, genesis_of, is_signed, signature
from adloco_p2p.runtime.compose import LocalPeer, open_local
from adloco_p2p.runtime.loop import Node, Ports
from adloco_p2p.runtime.network import (
    KINDS,
    NetworkAveraging,
    NetworkJournal,
    NetworkMessenger,
    NetworkStates,
    journal_records,
)
from adloco_p2p.runtime.sink import View
from adloco_p2p.storage.journal import Journal
from adloco_p2p.storage.workdir import Workdir
from adloco_p2p.swarm.averaging import Averager
from adloco_p2p.swarm.discovery import Discovery, RunRecord, SignedManifest
from adloco_p2p.swarm.gossip_wire import GossipWire, fetch_manifest
from adloco_p2p.swarm.host import Host
from adloco_p2p.swarm.link import format_link, split_initial_peers
from adloco_p2p.swarm.state_transfer import StateFetcher, StateServer

ANNOUNCE_SECONDS = 40.0
"""A third of a record's lifetime."""
ACQUAINT_SECONDS = 10.0
"""How often newly announced peers are looked for; at first more often, while those who came at the same time announce
themselves."""
DISCOVERY_SECONDS = 30.0
"""How long a joiner looks for a run before it gives up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """How a peer gets to its run."""

    initial_peers: tuple[str, ...]
    """Addresses and join links; none for the first peer of a run."""
    run: str | None
    """Digest, or the beginning of one, where the DHT holds several runs."""


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
    host = await Host.start(
        workdir=workdir.path, config=config, initial_peers=[f"{a.transport}/p2p/{a.peer}" for a in addresses]
    )
    async with _ending(host):
        manifest = _load_manifest(workdir) or SignedManifest.sign(run, host.identity)
        return await _take_part(host, workdir=workdir, run=run, manifest=manifest, config=config, view=view, say=say)


async def join_run(*, workdir: Workdir, meeting: Meeting, config: PeerConfig, view: View, say: Callable[[str], None]) -> Stop:
    """Find the run through any of its peers, and take part. Raises ConfigError where the user has to choose."""
    begun = time.monotonic()
    linked, addresses = split_initial_peers(meeting.initial_peers)
    say("looking for the swarm")
    host = await Host.start(
        workdir=workdir.path, config=config, initial_peers=[f"{a.transport}/p2p/{a.peer}" for a in addresses]
    )
    async with _ending(host):
        discovery = Discovery(host.dht, host.identity)
        manifest = _load_manifest(workdir)
        if manifest is None:
            run_digest = await _choose_run(discovery, wanted=linked or meeting.run)
            known = await _acquaint(host, discovery, run_digest)
            manifest = await fetch_manifest(host.p2p, [*known, *await host.peers_connected()], run_digest)
        run = manifest.verified(manifest.run)
        wanted = linked or meeting.run
        if wanted is not None and not manifest.run.startswith(wanted):
            raise ConfigError(f"--workdir {workdir.path}: holds run {manifest.run[:16]}, not {wanted[:16]}; name another one")
        say(f"run {run.name} ({manifest.run[:16]}), {time.monotonic() - begun:.1f} s after the start")
        return await _take_part(host, workdir=workdir, run=run, manifest=manifest, config=config, view=view, say=say)


async def _choose_run(discovery: Discovery, *, wanted: str | None) -> Digest:
    """The run to join. A digest of full length needs no directory. Raises ConfigError and SwarmError."""
    if wanted is not None and len(wanted) == 64:
        return Digest(wanted)
    deadline = time.monotonic() + DISCOVERY_SECONDS
    while True:
        records = [r for r in await discovery.list_runs() if wanted is None or r.run.startswith(wanted)]
        if len(records) == 1:
            return records[0].run
        if len(records) > 1:
            raise ConfigError("several runs are known here; choose one with --run ID:", *map(_describe, records))
        if time.monotonic() > deadline:
            named = f"no run {wanted}" if wanted is not None else "no run"
            raise SwarmError(f"{named} is announced by the peers that were reached; is its first peer up?")
        await asyncio.sleep(1.0)


def _describe(record: RunRecord) -> str:
    return f"  --run {record.run[:16]}   {record.name}, {record.num_peers} peers, by {record.author}"


async def _acquaint(host: Host, discovery: Discovery, run: Digest) -> tuple[PeerId, ...]:
    """Connect to the announced peers of the run and remember their addresses; returns who is connected."""
    records = await discovery.find_peers(run)
    connected = set(await host.peers_connected())
    addresses = [address for record in records for address in record.addresses]
    new = [address for record in records if record.peer not in connected for address in record.addresses]
    reached = await host.connect(new) if new else ()
    host.remember(addresses)
    announced = {record.peer for record in records}
    return tuple(sorted((connected | set(reached)) & announced))


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
    *,
    workdir: Workdir,
    run: RunConfig,
    manifest: SignedManifest,
    config: PeerConfig,
    view: View,
    say: Callable[[str], None],
) -> Stop:
    workdir.adopt(run)
    workdir.save_manifest(manifest.to_bytes())
    addresses = await host.addresses()
    say(await host.describe_reachability())
    if addresses:
        say(f"initial peers: {' '.join(addresses)}")
        say(f"join link: {format_link(run.digest, addresses)}")
    local = await asyncio.to_thread(open_local, workdir=workdir, run=run, peer_config=config, view=view, say=say)
    try:
        return await _train(host, local, manifest)
    finally:
        local.close()


async def _train(host: Host, local: LocalPeer, manifest: SignedManifest) -> Stop:
    """Plug the network into the loop and run it to the end."""
    run, me = local.run, local.me
    discovery = Discovery(host.dht, host.identity)
    contacts = await _acquaint(host, discovery, run.digest)
    journal = Journal.open(local.workdir.journal_path)
    agreement = GossipAgreement(
        me,
        genesis=genesis_of(run),
        records=journal_records(journal.path),
        contacts=contacts,
        capacity=local.capacity,
        decide=decide_by(run.rules),
        sign=lambda payload: signature(host.identity, payload),
        verify=is_signed,
        draw=random.Random(os.urandom(16)).random,
        timing=Timing(),
    )
    node: Node

    async def on_message(sender: PeerId, message: object) -> None:
        node.post(Received(sender=sender, message=message))

    def on_refused(peer: PeerId, reason: str) -> None:
        local.sink.write("refused", {"peer": peer, "reason": reason})

    wire = GossipWire(
        host.p2p, run=run.digest, me=me, kinds=KINDS, on_message=on_message, on_refused=on_refused, manifest=manifest
    )
    averager = Averager(host.p2p, codec=run.averaging.codec)
    server = StateServer(host.p2p, run=run.digest, upload_bytes_per_second=local.peer_config.upload_bytes_per_second)
    states = NetworkStates(server, StateFetcher(host.p2p, run=run.digest), num_parameters=local.engine.num_parameters)
    messenger = NetworkMessenger(wire, roster=lambda: [s.peer for s in agreement.ledger.plans[-1].roster])
    node = Node(
        peer=Peer(me=me, cadence=local.cadence, agreement=agreement),
        ports=Ports(
            engine=local.engine,
            checkpoints=local.checkpoints,
            averaging=NetworkAveraging(averager, num_parameters=local.engine.num_parameters),
            messenger=messenger,
            states=states,
            journal=NetworkJournal(journal),
            events=local.sink,
        ),
    )
    durable = local.durable if local.durable is not None else local.begin()
    for instance in durable.held:
        states.offer(instance, durable.round, local.engine.digests(instance)[1], local.engine.state(instance))

    async def announce() -> None:
        while True:
            await discovery.announce_peer(run.digest, await host.addresses())
            roster = agreement.ledger.plans[-1].roster
            await discovery.announce_run(run.digest, name=run.name, author=manifest.author, num_peers=len(roster))
            await asyncio.sleep(ANNOUNCE_SECONDS)

    async def acquaint() -> None:
        pause = ACQUAINT_SECONDS / 8
        while True:
            await asyncio.sleep(pause)
            await _acquaint(host, discovery, run.digest)
            pause = min(2 * pause, ACQUAINT_SECONDS)

    async def watch_daemon() -> None:
        await host.wait_until_dead()
        raise SwarmError("the p2p daemon ended; start again, the checkpoint stands")

    signals.install(asyncio.get_running_loop(), node.command_stop)
    local.view.start()
    try:
        local.sink.write("started", local.started_fields)
        node.attach(asyncio.get_running_loop())
        async with contextlib.AsyncExitStack() as services:
            for service in (averager, server, wire):
                await service.start()
                services.push_async_callback(service.stop)
            with _in_background(node, [wire.pump(), announce(), acquaint(), watch_daemon()]):
                stop = await node.run(Started(durable=durable, capacity=local.capacity))
                await messenger.drain()
        return stop
    finally:
        local.view.stop()
        journal.close()


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
