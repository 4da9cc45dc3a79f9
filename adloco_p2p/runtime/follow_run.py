"""A run looked at from outside: its ledger, followed on the network or read from a directory, becomes the page of a browser.

Nothing here trains, votes, or writes anything that lasts: on the network an onlooker has an identity for as long as it runs.
"""

import asyncio
import contextlib
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.agreement.membership import Timing
from adloco_p2p.core.agreement.observer import Observer
from adloco_p2p.core.ledger.contributions import Contribution, leaderboard
from adloco_p2p.core.ledger.ledger import chain
from adloco_p2p.core.model.events import Send
from adloco_p2p.core.model.ledger_entry import LedgerEntry
from adloco_p2p.core.model.messages import MESSAGE_KINDS, WireMessage
from adloco_p2p.core.model.types import PeerId
from adloco_p2p.errors import ConfigError, SwarmError
from adloco_p2p.runtime.adapters.network_journal import journal_records
from adloco_p2p.runtime.adapters.plan_rule import decide_by, genesis_of, is_signed
from adloco_p2p.storage.event_log import read_events
from adloco_p2p.storage.workdir import read_run
from adloco_p2p.swarm.discovery.join import JoinTarget, choose_run, connect_to_run
from adloco_p2p.swarm.discovery.join_link import split_initial_peers
from adloco_p2p.swarm.discovery.manifest import fetch_manifest
from adloco_p2p.swarm.discovery.run_records import Discovery
from adloco_p2p.swarm.p2p.host import Host
from adloco_p2p.swarm.transport.gossip import GossipWire
from adloco_p2p.views import units
from adloco_p2p.views.ledger_events import Story
from adloco_p2p.views.page import Document, document, plans_of
from adloco_p2p.views.records import Event
from adloco_p2p.views.status import Status, apply, replay
from adloco_p2p.web.server import Address, Page, Server

PERIOD_SECONDS = 1.0
"""Between two looks at what is new."""
REST_SHARE = 10
"""A look at a directory is followed by a rest this many times as long, so that long runs are looked at less often."""
RECONNECT_SECONDS = 30.0
"""How often newly announced peers are looked for."""

Say = Callable[[str], None]
CountParameters = Callable[[RunConfig], int | None]


async def follow_swarm(*, target: JoinTarget, address: Address, count_parameters: CountParameters, say: Say) -> None:
    """Serve the page of a run that others train, until the user stops it. Raises ConfigError and SwarmError."""
    linked, addresses = split_initial_peers(target.initial_peers)
    config = PeerConfig(client_mode=True, use_auto_relay=False)  # nobody needs to reach an onlooker
    initial_peers = [f"{a.transport}/p2p/{a.peer}" for a in addresses]
    with tempfile.TemporaryDirectory(prefix="adloco-dashboard-") as folder:
        async with _served(address, say) as page:
            host = await Host.start(workdir=Path(folder), config=config, initial_peers=initial_peers)
            try:
                discovery = Discovery(host.dht, host.identity)
                digest = await choose_run(discovery, wanted=linked or target.run)
                known = (await connect_to_run(host, discovery, digest, is_patient=False)).connected
                manifest = await fetch_manifest(host.p2p, [*known, *await host.peers_connected()], digest)
                run = manifest.verified(digest)
                say(f"run {units.one_line(run.name)} ({run.digest[:16]})")
                await _follow(page, host, discovery, run, known, count_parameters)
            finally:
                await host.stop()


async def _follow(
    page: Page, host: Host, discovery: Discovery, run: RunConfig, known: Sequence[PeerId], count_parameters: CountParameters
) -> None:
    node = _ObserverNode(host, run, known)
    parameters = asyncio.create_task(asyncio.to_thread(count_parameters, run))
    async with node.listening():
        await _until_stopped(
            node.ask(), node.refresh_connections(discovery), _show_swarm(page, node, run, parameters), _watch_daemon(host)
        )


class _ObserverNode:
    """A follower on the wire."""

    def __init__(self, host: Host, run: RunConfig, contacts: Sequence[PeerId]) -> None:
        self.observer = Observer(
            genesis_of(run), decide=decide_by(run.rules), verify=is_signed, contacts=contacts, timing=Timing()
        )
        self._host = host
        self._run = run
        self._wire = GossipWire(
            host.p2p, run=run.digest, me=host.me, kinds=MESSAGE_KINDS, on_message=self._on_message, on_refused=lambda *_: None
        )
        self._sends: set[asyncio.Task[bool]] = set()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        await self._wire.start()
        pump = asyncio.create_task(self._wire.pump())
        try:
            yield
        finally:
            pump.cancel()
            await self._wire.stop()

    async def ask(self) -> None:
        """The follower's questions, for ever."""
        while True:
            self._send(self.observer.tick(time.monotonic()))
            await asyncio.sleep(PERIOD_SECONDS)

    async def refresh_connections(self, discovery: Discovery) -> None:
        """Who else takes part, for ever."""
        while True:
            await asyncio.sleep(RECONNECT_SECONDS)
            connections = await connect_to_run(self._host, discovery, self._run.digest, is_patient=False)
            self.observer.meet(connections.connected)

    async def _on_message(self, sender: PeerId, message: WireMessage) -> None:
        self._send(self.observer.receive(sender, message, time.monotonic()))

    def _send(self, sends: Sequence[Send]) -> None:
        for send in sends:
            task = asyncio.create_task(self._wire.send(send.peer, send.message))
            self._sends.add(task)
            task.add_done_callback(self._sends.discard)


async def _show_swarm(page: Page, node: _ObserverNode, run: RunConfig, parameters: "asyncio.Task[int | None]") -> None:
    """Draw what is known, whenever it is another thing, for ever."""
    observer, story, shown = node.observer, story_of(run), None

    def drawn(entries: Sequence[LedgerEntry], alive: frozenset[PeerId], known: int | None) -> Document:
        story.follow(entries)
        return document(
            story.status,
            story.lines,
            contributions=leaderboard(story.credited, sequence_length=run.data.sequence_length),
            sequence_length=run.data.sequence_length,
            parameters=known,
            bytes_per_value=run.averaging.bytes_per_value,
            is_alive=alive.__contains__,
            source="Read from the swarm without taking part in it. Every plan was checked against signed reports and votes.",
            own=None,
        )

    while True:
        begun = time.monotonic()
        ledger = observer.ledger
        alive = frozenset(peer for peer in ledger.members() if observer.is_alive(peer, begun))
        known = parameters.result() if parameters.done() else None
        if shown != (ledger.head, alive, known):
            shown = (ledger.head, alive, known)
            page.show(await asyncio.to_thread(drawn, tuple(ledger.entries), alive, known))
        await _rest(begun)


async def _rest(begun: float) -> None:
    await asyncio.sleep(max(PERIOD_SECONDS, REST_SHARE * (time.monotonic() - begun)))


def story_of(run: RunConfig) -> Story:
    """An untold story of the run."""
    started: Mapping[str, object] = {
        "run": run.digest,
        "name": run.name,
        "peer": "",
        "mode": run.mode,
        "rounds": run.work.rounds,
        "samples": run.work.samples,
        "inner_steps": run.work.inner_steps,
        "parameters": 0,
        "device": "",
        "micro_batch_limit": 0,
        "unigram_entropy": None,
        "resumed_round": None,
    }
    return Story(genesis_of(run), started=started, sequence_length=run.data.sequence_length)


# --- a run on this machine -------------------------------------------------------------------------------------------


async def follow_workdir(*, workdir: Path, address: Address, say: Say) -> None:
    """Serve the page of the run in a directory, also while its node works. Raises ConfigError, StorageError, SwarmError."""
    run = read_run(workdir)
    if run is None:
        raise ConfigError(f"--workdir {workdir}: no run lies here", code="E204")
    async with _served(address, say) as page:
        await _until_stopped(_show_workdir(page, workdir, run))


async def _show_workdir(page: Page, workdir: Path, run: RunConfig) -> None:
    """Draw what lies there, whenever it has changed, for ever."""
    files, shown, story = [workdir / "events.jsonl", workdir / "journal.bin"], None, story_of(run)
    while True:
        begun = time.monotonic()
        state = [(path.stat().st_mtime_ns, path.stat().st_size) for path in files if path.exists()]
        if state != shown:
            shown = state
            page.show(await asyncio.to_thread(workdir_document, workdir, run, story))
        await _rest(begun)


def workdir_document(workdir: Path, run: RunConfig, story: Story) -> Document:
    """The swarm as the ledger tells it, and this node as its own events do. Raises StorageError."""
    own_events: list[Event] = list(read_events(workdir / "events.jsonl"))
    own = replay(own_events)
    journal = workdir / "journal.bin"
    entries = chain(journal_records(journal), genesis_of(run)) if journal.exists() else []
    length = run.data.sequence_length
    if entries:
        story.follow(entries)
        contributions = leaderboard(story.credited, sequence_length=length)
        status, plans = story.status, story.lines
        for event in own_events:
            if event["event"] == "round" and (event["round"], event["instance"]) not in story.status.results:
                status = apply(status, event)
        source = (
            "Read from the ledger on this machine, and from what its node says of itself. Rounds without receipts are its own."
        )
    else:
        status, plans, contributions = own, plans_of(own_events), _alone(own)
        source = "Read from the events of one node: this run keeps no ledger, so nothing here is signed."
    return document(
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


def _alone(own: Status) -> list[Contribution]:
    """Without a ledger nothing is signed; what one node says it did."""
    results = own.results.values()
    if not results:
        return []
    return [
        Contribution(
            peer=PeerId(own.peer),
            samples=sum(result.samples for result in results),
            tokens=sum(result.tokens for result in results),
            num_rounds=len({result.round for result in results}),
            last_round=max(result.round for result in results),
        )
    ]


# --- until the user stops it -----------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _served(address: Address, say: Say) -> AsyncIterator[Page]:
    page = Page()
    server = Server(address, page.routes)
    url = await server.start()
    try:
        say(f"dashboard: {url}")
        if not address.is_loopback:
            say("everybody who can reach that address can look at the page; it only shows what the ledger says")
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


async def _watch_daemon(host: Host) -> None:
    await host.wait_until_dead()
    raise SwarmError("the p2p daemon ended; start again", code="E306")
