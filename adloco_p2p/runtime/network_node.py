"""The node of a peer on the network: it connects to the others, then runs the same loop as a peer that is alone."""

import asyncio
import contextlib
import os
import random
import shlex
import threading
import time
from collections.abc import AsyncIterator, Collection, Coroutine, Sequence
from pathlib import Path
from typing import Any

from adloco_p2p.config.local_files import check_run_of_others, check_sources, unpinned
from adloco_p2p.config.plugins import installed_version
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.agreement.gossip_agreement import GossipAgreement
from adloco_p2p.core.agreement.membership import Timing
from adloco_p2p.core.model import telemetry
from adloco_p2p.core.model.averages import kept_bytes, results_kept
from adloco_p2p.core.model.course import until
from adloco_p2p.core.model.effects import Stop
from adloco_p2p.core.model.events import Durable, Received, Started, StateServed
from adloco_p2p.core.model.ledger_entry import Evidence, Ticket
from adloco_p2p.core.model.messages import MESSAGE_KINDS, WireMessage
from adloco_p2p.core.model.plan import roster_of
from adloco_p2p.core.model.scalars import InstanceId, PeerId, as_label
from adloco_p2p.core.model.telemetry import Listening, Refused
from adloco_p2p.core.model.words import plural
from adloco_p2p.core.peer.peer import Peer
from adloco_p2p.errors import RemoteProtocolError, StorageError
from adloco_p2p.runtime.adapters.admission import (
    check_invitations,
    first_invitation,
    pass_on_statements,
    ticket_for,
    watch_admission,
)
from adloco_p2p.runtime.adapters.daily_schedule import DAY_BOOK, DailySchedule, DayBook
from adloco_p2p.runtime.adapters.data_senders import note_senders
from adloco_p2p.runtime.adapters.embedding import Embedding
from adloco_p2p.runtime.adapters.first_contribution import ContributionSink
from adloco_p2p.runtime.adapters.metrics_endpoint import node_endpoint
from adloco_p2p.runtime.adapters.network_journal import NetworkJournal, first_incarnation
from adloco_p2p.runtime.adapters.plan_rule import decide_by, genesis_of
from adloco_p2p.runtime.adapters.seat_price import earn_seat
from adloco_p2p.runtime.adapters.shared_inputs import get_shared_inputs, input_servers
from adloco_p2p.runtime.adapters.swarm_ports import (
    PRICES,
    STRANGER_KINDS,
    Members,
    NetworkAveraging,
    NetworkMessenger,
    NetworkStates,
)
from adloco_p2p.runtime.node.background import in_background
from adloco_p2p.runtime.node.event_sink import CountingSink
from adloco_p2p.runtime.node.loop import Node, Ports
from adloco_p2p.runtime.services import LocalPeer, Service, control_server, live_figures, open_local, shown
from adloco_p2p.storage.admission_files import keep_address, read_address
from adloco_p2p.storage.attempt_keys import AttemptKeys
from adloco_p2p.storage.disk import RESTORE, keep_file, reported
from adloco_p2p.storage.journal import Journal
from adloco_p2p.storage.workdir import READY, Workdir
from adloco_p2p.swarm.allreduce.averager import Averager
from adloco_p2p.swarm.allreduce.topology import AveragingLimits, most_waiting
from adloco_p2p.swarm.discovery.gathering import gather
from adloco_p2p.swarm.discovery.join import JoinTarget, check_protocol, choose_run, connect_to_run, find_manifest
from adloco_p2p.swarm.discovery.join_link import check_held_run, format_link, split_initial_peers, wanted_run, with_invitation
from adloco_p2p.swarm.discovery.manifest import SignedManifest
from adloco_p2p.swarm.discovery.peer_maintenance import PeerMaintenance
from adloco_p2p.swarm.discovery.reachability import AdlocoReachability
from adloco_p2p.swarm.discovery.run_records import Discovery
from adloco_p2p.swarm.p2p.addresses import PeerAddress, shareable
from adloco_p2p.swarm.p2p.identity import Identity, is_signed, signature
from adloco_p2p.swarm.p2p.swarm_node import SwarmNode
from adloco_p2p.swarm.transfer.state_transfer import StateFetcher, StateServer
from adloco_p2p.swarm.transport.endpoint import Endpoint
from adloco_p2p.swarm.transport.gossip import GossipWire
from adloco_p2p.swarm.transport.log_limiter import LogLimiter
from adloco_p2p.swarm.transport.rate_limiter import RateLimiter
from adloco_p2p.swarm.transport.traffic import Meter, Traffic
from adloco_p2p.training.device import select_devices

LINKED_ADDRESSES = 6
"""The most addresses in a join link, which is a line that people copy."""


def addresses_of_link(own: Sequence[str], initial_peers: Sequence[PeerAddress], *, me: PeerId) -> tuple[str, ...]:
    """Return at most LINKED_ADDRESSES addresses for a join link.

    Up to half of them are of the initial peers, so that the link leads to the run without this peer, too. Loopback addresses of
    peers without others are kept, for the next start here; addresses of earlier starts of this peer are not.
    """
    others = shareable([str(address) for address in initial_peers if address.peer != me])
    half = LINKED_ADDRESSES // 2
    return tuple(dict.fromkeys([*others[:half], *shareable(own), *others[half:]]))[:LINKED_ADDRESSES]


def addresses_known(workdir: Path) -> Sequence[PeerAddress]:
    """Return the addresses in the link that the directory has from an earlier start, which are used if no initial peers are
    given. Raises ConfigError if the file is damaged."""
    link = read_address(workdir)
    return split_initial_peers([link])[1] if link else ()


async def start_run(embedding: Embedding, run: RunConfig, *, initial_peers: Sequence[str]) -> Stop:
    """Start a run as its first peer, or return to it. `initial_peers` are peers that make it known, such as a bootstrap."""
    _, addresses = split_initial_peers(initial_peers)
    check_sources(run)  # fails before the network is used
    async with _on_the_network(embedding, addresses, phase="starting the p2p daemon") as swarm_node:
        if open_versions := unpinned(run):
            embedding.say(f"others cannot join before these are commit hashes of the hub: {'; '.join(open_versions)}")
        manifest = _own_manifest(embedding, run, swarm_node.identity)
        return await _take_part(embedding, swarm_node, addresses, run, manifest, ticket=None)


async def join_run(embedding: Embedding, target: JoinTarget) -> Stop:
    """Find the run through any of its peers, and take part. Raises ConfigError if the user has to choose among runs."""
    begun = time.monotonic()
    workdir, config, say = embedding.workdir, embedding.config, embedding.say
    linked, addresses = split_initial_peers(target.initial_peers)
    check_invitations(target.initial_peers)
    wanted = wanted_run(linked, target.run)
    held = _holds_ledger(workdir)
    async with _on_the_network(embedding, addresses, phase="looking for the swarm", may_begin_alone=held) as swarm_node:
        if not await swarm_node.peers_connected() and held:
            say("no known peer answers: going on from this directory; the others find this peer at its last address")
        discovery = Discovery(swarm_node.dht, swarm_node.identity, wall_clock=swarm_node.clock)
        workdir.enter("asking for the run")
        manifest = _load_manifest(workdir)
        is_known = manifest is not None
        if manifest is None:
            seconds = target.patience_seconds
            run_digest = await choose_run(discovery, wanted=wanted, seconds=seconds, say=say)
            manifest = await find_manifest(swarm_node, discovery, run_digest, seconds=seconds, say=say)
        run = manifest.verified(manifest.run)
        check_held_run(workdir.path, manifest.run, wanted=wanted)
        check_run_of_others(run, config)
        await check_protocol(swarm_node, manifest.run)
        ticket = ticket_for(workdir.path, run, swarm_node.me, target.initial_peers)  # refuses before gigabytes are fetched
        await get_shared_inputs(swarm_node, discovery, run, embedding, digest=manifest.run)
        found = "taken from this directory" if is_known else f"found in {time.monotonic() - begun:.1f} s"
        say(f"run {run.name} ({manifest.run[:16]}), {found}")
        return await _take_part(embedding, swarm_node, addresses, run, manifest, ticket=ticket)


@contextlib.asynccontextmanager
async def _on_the_network(
    embedding: Embedding, initial_peers: Sequence[PeerAddress], *, phase: str, may_begin_alone: bool = False
) -> AsyncIterator[SwarmNode]:
    """Yield a node that has joined the others. Meanwhile a thread loads the libraries of the model. `phase` is the text that
    the user sees."""
    select_devices(embedding.config)
    embedding.workdir.enter(phase)
    threading.Thread(target=embedding.prepare, name="imports", daemon=True).start()
    swarm_node = await SwarmNode.start(
        workdir=embedding.workdir.path,
        config=embedding.config,
        initial_peers=[str(address) for address in initial_peers],
        may_begin_alone=may_begin_alone,
        say=embedding.say,
    )
    try:
        yield swarm_node
    finally:
        await swarm_node.stop()


def _holds_ledger(workdir: Workdir) -> bool:
    """Return whether the peer was a member of the run, so that it may begin alone after the whole swarm was down."""
    return workdir.manifest_path.exists() and workdir.journal_path.exists() and workdir.journal_path.stat().st_size > 0


def _own_manifest(embedding: Embedding, run: RunConfig, me: Identity) -> SignedManifest:
    """Return the manifest of a run that this peer begins or began. Its author can sign a damaged one again. Raises
    StorageError."""
    workdir = embedding.workdir
    try:
        return _load_manifest(workdir) or SignedManifest.sign(run, me)
    except StorageError as error:
        is_own = run.author == me.peer_id and workdir.run is not None and workdir.run.digest == run.digest
        if error.code != "E405" or not is_own:
            raise
    manifest = SignedManifest.sign(run, me)
    keep_file(workdir.manifest_path, manifest.to_bytes())
    embedding.say(f"{workdir.manifest_path}: damaged, and signed again by this peer, the author of the run")
    return manifest


def _load_manifest(workdir: Workdir) -> SignedManifest | None:
    """Return the manifest in the directory, None if there is none. Raises StorageError if it is not that of the directory's
    run."""
    path = workdir.manifest_path
    with reported(path):
        data = path.read_bytes() if path.exists() else None
    if data is None:
        return None
    with contextlib.suppress(RemoteProtocolError):
        manifest = SignedManifest.from_bytes(data)
        if workdir.run is None or manifest.run == workdir.run.digest:
            return manifest
    raise StorageError(f"{path}: damaged; {RESTORE}", code="E405")


async def _take_part(
    embedding: Embedding,
    swarm_node: SwarmNode,
    initial_peers: Sequence[PeerAddress],
    run: RunConfig,
    manifest: SignedManifest,
    *,
    ticket: Ticket | None,
) -> Stop:
    """Build the local parts of the peer, connect to the others, then run the loop to the end. The join link is printed only
    when the model is built, because the settings may ask for one that cannot be built."""
    workdir, say = embedding.workdir, embedding.say
    workdir.adopt(run)
    addresses = await swarm_node.addresses()
    say(await swarm_node.describe_reachability())
    if addresses:
        say(f"initial peers: {' '.join(addresses)}")
    linked = addresses_of_link(addresses, initial_peers or addresses_known(workdir.path), me=swarm_node.me)
    link = format_link(run.digest, linked) if linked else ""
    if link:
        keep_address(workdir.path, link)
    local = await asyncio.to_thread(open_local, embedding, run)
    try:
        durable = local.durable if local.durable is not None else local.begin()
        workdir.save_manifest(manifest.to_bytes())
        if link:
            embedding.on_link(_say_link(link, embedding, run, swarm_node.identity))
        return await _train(swarm_node, local, durable, manifest, link, ticket=ticket)
    finally:
        local.close()


def _say_link(link: str, embedding: Embedding, run: RunConfig, identity: Identity) -> str:
    """Print the join link for others, and return it. Only here, for the run's author, it has an invitation; events and views
    show it without one."""
    if run.admission.kind != "tickets":
        embedding.say(f"join link: {link}")
        return link
    if identity.peer_id != run.author:
        embedding.say(f"address of the run: {link}")
        return link
    token = first_invitation(embedding.workdir.path, run, identity)
    invited = token.invitation
    whole = with_invitation(link, token.to_text())
    embedding.say(f"join link: {whole}")
    embedding.say(
        f"the link lets in everybody who has it: {invited.seats} seats {until(invited.last_round, run.work)}; to make more"
        f" links, or to end this one: adloco-peer invite --workdir {shlex.quote(str(embedding.workdir.path))}"
    )
    if run.averaging.aggregation == "mean":
        embedding.say(
            "averaging.aggregation is mean: any one of them can ruin the model. A run among people you do not know leaves the"
            " setting out, or begins with --set averaging.aggregation=robust"
        )
    return whole


async def _train(
    swarm_node: SwarmNode,
    local: LocalPeer,
    durable: Durable,
    manifest: SignedManifest,
    link: str,
    *,
    ticket: Ticket | None,
) -> Stop:
    """Connect to the peers of the run, then run the loop to the end."""
    embedding = local.embedding
    embedding.workdir.enter("joining the network")
    discovery = Discovery(
        swarm_node.dht,
        swarm_node.identity,
        wall_clock=swarm_node.clock,
        nickname=embedding.config.nickname,
        version=as_label(installed_version("adloco-peer") or ""),
    )
    seated = roster_of(local.durable.plans[-1]) if local.durable is not None else ()
    connections = await connect_to_run(swarm_node, discovery, local.run.digest, should_retry=False, members=seated)
    contacts = connections.connected
    if not contacts and has_others(local.durable, local.me):
        embedding.say(
            "no other peer answers; they may have ended the run: rounds trained alone from here are not part of it then"
        )
    with contextlib.closing(Journal.open(embedding.workdir.journal_path)) as journal:
        peer = NetworkPeer(swarm_node, local, discovery, manifest, contacts, journal, ticket=ticket)
        return await peer.run(durable, link)


def has_others(durable: Durable | None, me: PeerId) -> bool:
    """Return whether the roster in this peer's checkpoint has other peers."""
    return durable is not None and any(peer != me for peer in roster_of(durable.plans[-1]))


class NetworkPeer:
    """Composes the parts of one peer on the network with the loop."""

    def __init__(
        self,
        swarm_node: SwarmNode,
        local: LocalPeer,
        discovery: Discovery,
        manifest: SignedManifest,
        contacts: Sequence[PeerId],
        journal: Journal,
        *,
        ticket: Ticket | None,
    ) -> None:
        run, config, workdir = local.run, local.embedding.config, local.embedding.workdir
        self._swarm_node = swarm_node
        self._discovery = discovery
        self._local = local
        self._manifest = manifest
        self._journal = NetworkJournal(journal)
        self._agreement = self._new_agreement(contacts, ticket)
        self._members = Members(lambda: self._agreement.ledger.plans)
        self._refusals = LogLimiter()
        founders = roster_of(genesis_of(run))
        self._other_founders = frozenset(founders) - {local.me} if local.me in founders else frozenset()
        """Empty if this peer is no founder."""
        self._has_founder_begun = False
        """Whether another founder has begun: it sends no message before."""
        self._traffic = traffic = Traffic()
        self._rate_limiter = RateLimiter(
            traffic,
            up_bytes_per_second=config.upload_bytes_per_second,
            down_bytes_per_second=config.download_bytes_per_second,
        )
        self._wire = self._new_wire()
        self._averager = Averager(
            self._endpoint(traffic.averaging),
            codec=run.averaging.codec,
            aggregation=run.averaging.aggregation,
            division=run.averaging.division,
            recheck=run.averaging.recheck,
            is_assessed=run.averaging.assess_every > 0,
            limits=self._averaging_limits(workdir.path),
            sign=self._agreement.sign,
            verify=self._agreement.verify,
            on_evidence=self._accuse,
        )
        transfers = self._endpoint(traffic.state)
        self._inputs = input_servers(transfers, run, workdir.path)
        self._server = StateServer(transfers)
        self._server.on_served = self._note_served
        fetcher = StateFetcher(transfers, self._server)
        engine, write = local.engine, local.sink.write
        self._states = NetworkStates(
            self._server, fetcher, num_parameters=engine.num_parameters, dtypes=engine.state_dtypes, write=write
        )
        self._reachability = self._new_reachability()
        self._maintenance = self._new_maintenance()
        self._messenger = NetworkMessenger(self._wire, roster=self._roster, fail=self._fail)
        self._node = self._new_node()

    async def run(self, durable: Durable, link: str) -> Stop:
        """Train from `durable` to the end of the run, or until the user stops it. `link` has no invitation."""
        local, node, embedding = self._local, self._node, self._local.embedding
        for instance in durable.held:
            self._states.offer(instance, durable.round, local.engine.digests(instance)[1], local.engine.state(instance))
        schedule = DailySchedule(
            embedding.config,
            self._rate_limiter,
            book=DayBook(embedding.workdir.path / DAY_BOOK),
            command=lambda command, reason: node.command(command, reason=reason),
            is_paused=lambda: local.view.status.state in ("pausing", "paused"),
        )
        control = control_server(node, local, self._rate_limiter)
        metrics = node_endpoint(embedding.config, local.view)
        services: tuple[Service, ...] = (
            self._averager,
            self._server,
            self._wire,
            self._reachability,
            control,
            metrics,
            *self._inputs,
        )
        async with shown(local, node, services):
            local.sink.write(Listening(join_link=link, may_invite=self._may_invite()))
            with in_background(node, self._connecting()):
                if embedding.should_gather or local.durable is None:
                    await self._gather()
                embedding.workdir.enter(None)
                with in_background(node, [schedule.run(), *self._background()]):
                    try:
                        return await node.run(Started(durable=durable, capacity=local.capacity))
                    finally:
                        await self._messenger.drain()

    def _may_invite(self) -> bool:
        is_signer = self._swarm_node.identity.peer_id in self._agreement.ledger.plans[-1].signers
        return is_signer or self._local.run.admission.kind != "tickets"

    # --- parts -------------------------------------------------------------------------------------------------------

    def _endpoint(self, meter: Meter) -> Endpoint:
        return Endpoint(self._swarm_node.p2p, pace=self._rate_limiter, meter=meter, members=self._members)

    def _new_agreement(self, contacts: Sequence[PeerId], ticket: Ticket | None) -> GossipAgreement:
        run, identity = self._local.run, self._swarm_node.identity
        return GossipAgreement(
            self._local.me,
            genesis=genesis_of(run),
            records=self._journal.records(),
            recall=self._journal.recall,
            contacts=contacts,
            capacity=self._local.capacity,
            decide=decide_by(run.rules),
            sign=lambda payload: signature(identity, payload),
            verify=is_signed,
            draw=random.Random(os.urandom(16)).random,
            timing=Timing(),
            ticket=ticket,
            first_incarnation=first_incarnation(self._local.embedding.workdir.identity_path, began=self._local.embedding.began),
        )

    def _new_reachability(self) -> AdlocoReachability:
        return AdlocoReachability(
            self._swarm_node.p2p,
            run=self._local.run.digest,
            dial=self._swarm_node.dial_from_outside,
            protocol=lambda: self._agreement.ledger.plans[-1].protocol,
        )

    def _new_maintenance(self) -> PeerMaintenance:
        return PeerMaintenance(
            self._swarm_node,
            self._discovery,
            run=self._local.run.digest,
            roster=self._roster,
            members=self._ever_seated,
            write=self._local.sink.write,
        )

    def _averaging_limits(self, folder: Path) -> AveragingLimits:
        run = self._local.run
        return AveragingLimits(
            max_waiting=most_waiting(run.instances.count),
            kept_rounds=results_kept(run.work.rounds_kept),
            kept_bytes=kept_bytes(self._local.engine.num_parameters),
            folder=folder,
        )

    def _new_wire(self) -> GossipWire:
        return GossipWire(
            self._endpoint(self._traffic.gossip),
            run=self._local.run.digest,
            kinds=MESSAGE_KINDS,
            on_message=self._on_message,
            on_refused=self._on_refused,
            manifest=self._manifest.to_proto(),
            stranger_kinds=STRANGER_KINDS,
            prices=PRICES,
            protocol=self._local.run.protocol,
        )

    def _new_node(self) -> Node:
        local = self._local
        size, out_of_reach = local.engine.num_averaged, self._maintenance.out_of_reach
        attempts = AttemptKeys(local.embedding.workdir.attempts_path)
        counted = CountingSink(local.sink, self._traffic.totals)
        return Node(
            peer=Peer(me=local.me, cadence=local.cadence, agreement=self._agreement),
            ports=Ports(
                engine=local.engine,
                checkpoints=local.checkpoints,
                averaging=NetworkAveraging(self._averager, size=size, out_of_reach=out_of_reach, begin=attempts.begin),
                messenger=self._messenger,
                states=self._states,
                journal=self._journal,
                events=ContributionSink(counted, me=local.me, began=local.embedding.began),
                scorer=local.scorer,
            ),
        )

    async def _gather(self) -> None:
        """Wait for the other founders, if there are any and this peer is a founder."""
        if not self._other_founders:
            return
        missing = await gather(
            self._swarm_node,
            self._discovery,
            self._local.run.digest,
            sorted(self._other_founders),
            has_begun=lambda: self._has_founder_begun,
            report=self._report_missing,
        )
        if missing:
            names = ", ".join(missing)
            late = f"the run begins without {names}: not here in time"
            message = "another founder has begun" if self._has_founder_begun else late
            self._local.sink.write(telemetry.Warning(key="founders", message=message, active=False))

    def _report_missing(self, missing: Sequence[PeerId]) -> None:
        names = ", ".join(missing)
        self._local.embedding.workdir.enter(f"{READY}, {plural(len(missing), 'peer')} to come")
        words = f"the run begins when all founders are here; to come: {names}" if missing else "all founders are here"
        self._local.sink.write(telemetry.Warning(key="founders", message=words, active=bool(missing)))

    def _connecting(self) -> list[Coroutine[Any, Any, None]]:
        """Return the background work that other peers depend on before this one begins to train."""
        return [
            self._wire.pump(),
            self._maintenance.announce(name=self._local.run.name, author=self._manifest.author),
            self._maintenance.refresh_connections(),
            self._swarm_node.watch_daemon(remedy="start again, the checkpoint stands"),
        ]

    def _background(self) -> list[Coroutine[Any, Any, None]]:
        """Return the other background work."""
        return [
            *live_figures(self._local, self._rate_limiter),
            self._maintenance.compare_clocks(),
            pass_on_statements(self._local.embedding.workdir.path, self._agreement, self._local.embedding.say),
            watch_admission(self._agreement),
            earn_seat(self._local.embedding.workdir.path, self._agreement, self._local.sink.write),
            note_senders(self._traffic, self._node.post),
        ]

    # --- callbacks ---------------------------------------------------------------------------------------------------

    async def _on_message(self, sender: PeerId, message: WireMessage) -> None:
        self._has_founder_begun = self._has_founder_begun or sender in self._other_founders
        await self._node.deliver(Received(sender=sender, message=message))

    def _on_refused(self, peer: PeerId, reason: str) -> None:
        count = self._refusals.count(peer, reason, time.monotonic())
        if count:
            self._local.sink.write(Refused(peer=peer, reason=reason, count=count))

    def _accuse(self, evidence: Evidence) -> None:
        """Pass the averager's evidence that a peer lied to the ledger, where every peer checks it."""
        refused = self._agreement.state(evidence)
        what = f"{evidence.subject} {evidence.reason}" + (f"; it is not banned for it: {refused}" if refused else "")
        self._local.sink.write(telemetry.Warning(key=f"evidence about {evidence.subject}", message=what, active=True))

    def _note_served(self, instance: InstanceId, number: int, peer: PeerId) -> None:
        self._node.post(StateServed(instance=instance, round=number, peer=peer))

    def _roster(self) -> list[PeerId]:
        return [entry.peer for entry in self._agreement.ledger.plans[-1].roster]

    def _ever_seated(self) -> Collection[PeerId]:
        return self._agreement.ledger.members()

    def _fail(self, error: BaseException) -> None:
        self._node.post(error)
