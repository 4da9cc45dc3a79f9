"""The page of a run of others, which an observer follows on the network.

An observer trains nothing, does not vote, and leaves no files; it has an identity only for as long as it runs.
"""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.agreement.membership import Timing
from adloco_p2p.core.agreement.observer import Observer
from adloco_p2p.core.ledger.contributions import leaderboard
from adloco_p2p.core.model.effects import Send
from adloco_p2p.core.model.ledger_entry import LedgerEntry
from adloco_p2p.core.model.messages import MESSAGE_KINDS, WireMessage
from adloco_p2p.core.model.protocol import unfollowed
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.model.telemetry import PeerCard
from adloco_p2p.errors import DaemonSilent, ProtocolOutgrown
from adloco_p2p.runtime.adapters.plan_rule import decide_by, genesis_of
from adloco_p2p.runtime.adapters.run_history import ledger_events_of
from adloco_p2p.runtime.adapters.swarm_ports import NetworkMessenger
from adloco_p2p.runtime.follow_run import PERIOD_SECONDS, Say, rest, served, until_stopped
from adloco_p2p.swarm.discovery.join import JoinTarget, choose_run, connect_to_run
from adloco_p2p.swarm.discovery.join_link import split_initial_peers, wanted_run
from adloco_p2p.swarm.discovery.manifest import fetch_manifest
from adloco_p2p.swarm.discovery.peer_cards import PeerCards
from adloco_p2p.swarm.discovery.run_records import Discovery
from adloco_p2p.swarm.p2p.identity import is_signed
from adloco_p2p.swarm.p2p.swarm_node import SwarmNode
from adloco_p2p.swarm.transport.endpoint import Endpoint
from adloco_p2p.swarm.transport.gossip import GossipWire
from adloco_p2p.views import units
from adloco_p2p.views.page import Document, ShownRun, document
from adloco_p2p.views.peer_page import PeerDocuments, peer_documents
from adloco_p2p.web.server import Address, Page

RECONNECT_SECONDS = 30.0
"""The time between two searches for newly announced peers."""

CountParameters = Callable[[RunConfig], int | None]


async def follow_swarm(*, target: JoinTarget, address: Address, count_parameters: CountParameters, say: Say) -> None:
    """Serve the page of a run that others train, until the user stops it. Raises ConfigError and SwarmError."""
    linked, addresses = split_initial_peers(target.initial_peers)
    wanted = wanted_run(linked, target.run)
    config = PeerConfig(client_mode=True, use_auto_relay=False)  # no peer needs to reach an observer
    initial_peers = [str(known) for known in addresses]
    with tempfile.TemporaryDirectory(prefix="adloco-dashboard-") as folder:
        async with served(address, say) as page:
            swarm_node = await SwarmNode.start(workdir=Path(folder), config=config, initial_peers=initial_peers, say=say)
            try:
                discovery = Discovery(swarm_node.dht, swarm_node.identity)
                digest = await choose_run(discovery, wanted=wanted, say=say)
                known = (await connect_to_run(swarm_node, discovery, digest, should_retry=False)).connected
                manifest = await fetch_manifest(swarm_node.p2p, [*known, *await swarm_node.peers_connected()], digest)
                run = manifest.verified(digest)
                say(f"run {units.one_line(run.name)} ({run.digest[:16]})")
                await _follow(page, swarm_node, discovery, run, known, count_parameters)
            finally:
                await swarm_node.stop()


async def _follow(
    page: Page,
    swarm_node: SwarmNode,
    discovery: Discovery,
    run: RunConfig,
    known: Sequence[PeerId],
    count_parameters: CountParameters,
) -> None:
    node = _ObserverNode(swarm_node, run, known)
    parameters = asyncio.create_task(asyncio.to_thread(count_parameters, run))
    async with node.listening():
        await until_stopped(
            node.receive(),
            node.ask(),
            node.failure(),
            node.refresh_connections(discovery),
            _show_swarm(page, node, run, parameters),
            swarm_node.watch_daemon(),
        )


class _ObserverNode:
    """An observer on the network."""

    def __init__(self, swarm_node: SwarmNode, run: RunConfig, contacts: Sequence[PeerId]) -> None:
        self.observer = Observer(
            genesis_of(run), decide=decide_by(run.rules), verify=is_signed, contacts=contacts, timing=Timing()
        )
        self._swarm_node = swarm_node
        self._run = run
        self._wire = GossipWire(
            Endpoint(swarm_node.p2p),
            run=run.digest,
            kinds=MESSAGE_KINDS,
            on_message=self._on_message,
            on_refused=lambda *_: None,
            protocol=run.protocol,
        )
        self.cards: dict[str, PeerCard] = {}
        """The members' cards, by peer."""
        self._cards = PeerCards(swarm_node.p2p, lambda card: self.cards.update({card.peer: card}))
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._messenger = NetworkMessenger(self._wire, roster=tuple, fail=self._fail)

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        await self._wire.start()
        try:
            yield
        finally:
            await self._wire.stop()

    async def receive(self) -> None:
        """Pass arriving messages to the observer, until cancelled. Raises as the observer does."""
        await self._wire.pump()

    async def failure(self) -> None:
        """Wait for a failure while sending a message, and raise it."""
        await self._failed

    async def ask(self) -> None:
        """Send the observer's questions, until cancelled. Raises ProtocolOutgrown."""
        while True:
            self._send(self.observer.tick(time.monotonic()))
            if outgrown := unfollowed(self.observer.ledger.plans[-1].protocol):
                raise ProtocolOutgrown(outgrown)
            await asyncio.sleep(PERIOD_SECONDS)

    async def refresh_connections(self, discovery: Discovery) -> None:
        """Refresh the connections to the peers of the run, until cancelled."""
        pause = RECONNECT_SECONDS / 16  # short at first, because the page shows the names of the peers
        while True:
            await asyncio.sleep(pause)
            pause = min(2 * pause, RECONNECT_SECONDS)
            members = self.observer.ledger.members()
            try:
                connections = await connect_to_run(
                    self._swarm_node, discovery, self._run.digest, should_retry=False, members=members
                )
            except DaemonSilent:
                continue
            self.observer.meet(connections.connected)
            await self._cards.look([each for each in connections.records if each.peer in members], connections.connected)

    async def _on_message(self, sender: PeerId, message: WireMessage) -> None:
        self._send(self.observer.receive(sender, message, time.monotonic()))

    def _send(self, sends: Sequence[Send]) -> None:
        for send in sends:
            self._messenger.send(send.peer, send.message)

    def _fail(self, error: BaseException) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)


async def _show_swarm(page: Page, node: _ObserverNode, run: RunConfig, parameters: "asyncio.Task[int | None]") -> None:
    """Draw the page whenever its content has changed, until cancelled."""
    observer, from_ledger, shown = node.observer, ledger_events_of(run), None

    def drawn(
        entries: Sequence[LedgerEntry], alive: frozenset[PeerId], known: int | None, cards: Mapping[str, PeerCard]
    ) -> tuple[Document, PeerDocuments]:
        from_ledger.follow(entries)
        shown = ShownRun(
            status=from_ledger.status,
            plans=from_ledger.lines,
            contributions=leaderboard(from_ledger.credited, sequence_length=run.tokens_per_sample),
            sequence_length=run.tokens_per_sample,
            parameters=known,
            bytes_per_value=run.averaging.bytes_per_value,
            is_signed=True,
            is_alive=alive.__contains__,
            source="Read from the swarm without taking part in it. Every plan was checked against signed reports and votes.",
            cards=cards,
        )
        return document(shown), peer_documents(from_ledger.lines, from_ledger.credited, None)

    while True:
        begun = time.monotonic()
        ledger = observer.ledger
        alive = frozenset(peer for peer in ledger.members() if observer.is_alive(peer, begun))
        known = parameters.result() if parameters.done() else None
        cards = dict(node.cards)
        if shown != (ledger.head, alive, known, cards):
            shown = (ledger.head, alive, known, cards)
            page.show(*await asyncio.to_thread(drawn, tuple(ledger.entries), alive, known, cards))
        await rest(begun)
