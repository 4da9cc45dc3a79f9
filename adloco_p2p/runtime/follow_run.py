"""A run looked at from outside: its ledger, followed on the network or read from a directory, becomes the page of a browser.

Nothing here trains, votes, or writes anything that lasts: on the network an observer has an identity for as long as it runs.
"""

import asyncio
import contextlib
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.agreement.membership import Timing
from adloco_p2p.core.agreement.observer import Observer
from adloco_p2p.core.ledger.contributions import leaderboard
from adloco_p2p.core.ledger.ledger import chain
from adloco_p2p.core.model.events import Send
from adloco_p2p.core.model.ledger_entry import LedgerEntry
from adloco_p2p.core.model.messages import MESSAGE_KINDS, WireMessage
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.errors import ConfigError, SwarmError
from adloco_p2p.runtime.adapters.network_journal import journal_records
from adloco_p2p.runtime.adapters.plan_rule import decide_by, genesis_of
from adloco_p2p.runtime.adapters.run_history import contributions_alone, ledger_events_of, with_newest_rounds
from adloco_p2p.runtime.adapters.swarm_ports import NetworkMessenger
from adloco_p2p.storage.event_log import read_events
from adloco_p2p.storage.workdir import read_run
from adloco_p2p.swarm.discovery.join import JoinTarget, choose_run, connect_to_run
from adloco_p2p.swarm.discovery.join_link import split_initial_peers
from adloco_p2p.swarm.discovery.manifest import fetch_manifest
from adloco_p2p.swarm.discovery.run_records import Discovery
from adloco_p2p.swarm.p2p.identity import is_signed
from adloco_p2p.swarm.p2p.swarm_node import SwarmNode
from adloco_p2p.swarm.transport.gossip import GossipWire
from adloco_p2p.views import units
from adloco_p2p.views.ledger_events import LedgerEvents
from adloco_p2p.views.page import Document, document, plans_of
from adloco_p2p.views.peer_page import PeerDocuments, peer_documents
from adloco_p2p.views.status import replay
from adloco_p2p.web.server import Address, Page, Server

PERIOD_SECONDS = 1.0
"""Between two looks at what is new."""
REST_SHARE = 10
"""Reading a directory is followed by a pause this many times as long, so that long runs are looked at less often."""
RECONNECT_SECONDS = 30.0
"""How often newly announced peers are looked for."""

Say = Callable[[str], None]
CountParameters = Callable[[RunConfig], int | None]


async def follow_swarm(*, target: JoinTarget, address: Address, count_parameters: CountParameters, say: Say) -> None:
    """Serve the page of a run that others train, until the user stops it. Raises ConfigError and SwarmError."""
    linked, addresses = split_initial_peers(target.initial_peers)
    config = PeerConfig(client_mode=True, use_auto_relay=False)  # others need not reach an observer
    initial_peers = [f"{a.transport}/p2p/{a.peer}" for a in addresses]
    with tempfile.TemporaryDirectory(prefix="adloco-dashboard-") as folder:
        async with _served(address, say) as page:
            swarm_node = await SwarmNode.start(workdir=Path(folder), config=config, initial_peers=initial_peers)
            try:
                discovery = Discovery(swarm_node.dht, swarm_node.identity)
                digest = await choose_run(discovery, wanted=linked or target.run)
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
        await _until_stopped(
            node.receive(),
            node.ask(),
            node.failure(),
            node.refresh_connections(discovery),
            _show_swarm(page, node, run, parameters),
            _watch_daemon(swarm_node),
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
            swarm_node.p2p,
            run=run.digest,
            me=swarm_node.me,
            kinds=MESSAGE_KINDS,
            on_message=self._on_message,
            on_refused=lambda *_: None,
        )
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
        """Take the messages that arrive, until cancelled. Raises what the observer raises."""
        await self._wire.pump()

    async def failure(self) -> None:
        """Raises what failed while a message was sent, if anything ever does."""
        await self._failed

    async def ask(self) -> None:
        """The observer's questions, until cancelled."""
        while True:
            self._send(self.observer.tick(time.monotonic()))
            await asyncio.sleep(PERIOD_SECONDS)

    async def refresh_connections(self, discovery: Discovery) -> None:
        """Refresh the connections to the peers of the run, until cancelled."""
        while True:
            await asyncio.sleep(RECONNECT_SECONDS)
            connections = await connect_to_run(self._swarm_node, discovery, self._run.digest, should_retry=False)
            self.observer.meet(connections.connected)

    async def _on_message(self, sender: PeerId, message: WireMessage) -> None:
        self._send(self.observer.receive(sender, message, time.monotonic()))

    def _send(self, sends: Sequence[Send]) -> None:
        for send in sends:
            self._messenger.send(send.peer, send.message)

    def _fail(self, error: BaseException) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)


async def _show_swarm(page: Page, node: _ObserverNode, run: RunConfig, parameters: "asyncio.Task[int | None]") -> None:
    """Draw the status whenever it has changed, until cancelled."""
    observer, from_ledger, shown = node.observer, ledger_events_of(run), None

    def drawn(entries: Sequence[LedgerEntry], alive: frozenset[PeerId], known: int | None) -> tuple[Document, PeerDocuments]:
        from_ledger.follow(entries)
        shown = document(
            from_ledger.status,
            from_ledger.lines,
            contributions=leaderboard(from_ledger.credited, sequence_length=run.tokens_per_sample),
            sequence_length=run.tokens_per_sample,
            parameters=known,
            bytes_per_value=run.averaging.bytes_per_value,
            is_alive=alive.__contains__,
            source="Read from the swarm without taking part in it. Every plan was checked against signed reports and votes.",
            own=None,
        )
        return shown, peer_documents(from_ledger.lines, from_ledger.credited, None)

    while True:
        begun = time.monotonic()
        ledger = observer.ledger
        alive = frozenset(peer for peer in ledger.members() if observer.is_alive(peer, begun))
        known = parameters.result() if parameters.done() else None
        if shown != (ledger.head, alive, known):
            shown = (ledger.head, alive, known)
            page.show(*await asyncio.to_thread(drawn, tuple(ledger.entries), alive, known))
        await _rest(begun)


async def _rest(begun: float) -> None:
    await asyncio.sleep(max(PERIOD_SECONDS, REST_SHARE * (time.monotonic() - begun)))


# --- a run on this machine -------------------------------------------------------------------------------------------


async def follow_workdir(*, workdir: Path, address: Address, say: Say) -> None:
    """Serve the page of the run in a directory, also while its node works. Raises ConfigError, StorageError, SwarmError."""
    run = read_run(workdir)
    if run is None:
        raise ConfigError(f"--workdir {workdir}: no run lies here", code="E204")
    async with _served(address, say) as page:
        await _until_stopped(_show_workdir(page, workdir, run))


async def _show_workdir(page: Page, workdir: Path, run: RunConfig) -> None:
    """Draw the run of the directory whenever it has changed, until cancelled."""
    files, shown, from_ledger = [workdir / "events.jsonl", workdir / "journal.bin"], None, ledger_events_of(run)
    while True:
        begun = time.monotonic()
        state = [(path.stat().st_mtime_ns, path.stat().st_size) for path in files if path.exists()]
        if state != shown:
            shown = state
            page.show(*await asyncio.to_thread(workdir_documents, workdir, run, from_ledger))
        await _rest(begun)


def workdir_documents(workdir: Path, run: RunConfig, from_ledger: LedgerEvents) -> tuple[Document, PeerDocuments]:
    """The swarm by its ledger, and this node by its own events. Raises StorageError."""
    own_events = list(read_events(workdir / "events.jsonl"))
    own = replay(own_events)
    journal = workdir / "journal.bin"
    entries = chain(journal_records(journal), genesis_of(run)) if journal.exists() else []
    length = run.tokens_per_sample
    if entries:
        from_ledger.follow(entries)
        contributions = leaderboard(from_ledger.credited, sequence_length=length)
        status, plans = with_newest_rounds(from_ledger.status, own_events), from_ledger.lines
        source = "Read from the ledger on this machine and from its node's events, which alone have the newest rounds."
    else:
        status, plans, contributions = own, plans_of(own_events), contributions_alone(own)
        source = "Read from the events of one node: this run keeps no ledger, so nothing here is signed."
    shown = document(
        status,
        plans,
        contributions=contributions,
        sequence_length=length,
        parameters=own.parameters or None,
        bytes_per_value=run.averaging.bytes_per_value,
        is_alive=None,
        source=source,
        own=own if own.run else None,
    )
    return shown, peer_documents(plans, from_ledger.credited, own if own.run else None)


# --- until the user stops it -----------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _served(address: Address, say: Say) -> AsyncIterator[Page]:
    page = Page()
    server = Server(address, page.routes)
    url = await server.start()
    try:
        say(f"dashboard: {url}")
        if not address.is_loopback:
            say("all machines that can reach that address can open the page; it shows only the ledger")
        yield page
    finally:
        await server.stop()


async def _until_stopped(*works: Coroutine[Any, Any, None]) -> None:
    """Ctrl-C or SIGTERM ends them; so does what one of them raises."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(stopped.wait()), *map(asyncio.create_task, works)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _watch_daemon(swarm_node: SwarmNode) -> None:
    await swarm_node.wait_until_dead()
    raise SwarmError("the p2p daemon ended; start again", code="E306")
