"""The page of runs in directories of this machine, also while their nodes work. It needs no network, and imports no libraries
of training.
"""

import asyncio
import contextlib
import shlex
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.ledger.contributions import leaderboard
from adloco_p2p.errors import ConfigError
from adloco_p2p.runtime.adapters.run_history import contributions_alone, ledger_events_of, ledger_of, with_newest_rounds
from adloco_p2p.storage.admission_files import read_address
from adloco_p2p.storage.event_log import read_events
from adloco_p2p.storage.workdir import EVENTS, JOURNAL, read_run
from adloco_p2p.views.comparison import ComparedRun
from adloco_p2p.views.page import Document, ShownRun, document, plans_of, side_by_side
from adloco_p2p.views.peer_page import PeerDocuments, peer_documents
from adloco_p2p.views.status_fold import replay
from adloco_p2p.web.server import Address, Page, Server

PERIOD_SECONDS = 1.0
"""The least time between two looks for changes."""
REST_SHARE = 10
"""Reading is followed by a pause this many times as long, so that long runs are read less often."""

Say = Callable[[str], None]


async def follow_workdirs(runs: Sequence[tuple[str, Path]], *, address: Address, say: Say) -> None:
    """Serve the pages of runs in directories, also while their nodes work. `runs` are labels and directories; the page of each
    run compares it with the others. Raises ConfigError, StorageError, SwarmError."""
    local = [LocalRun.open(workdir, label=label, is_private=address.is_private) for label, workdir in runs]
    async with served(address, say) as page:
        await until_stopped(_show(page, local))


async def _show(page: Page, runs: "Sequence[LocalRun]") -> None:
    """Draw the runs whenever one of them has changed, until cancelled."""
    while True:
        begun = time.monotonic()
        if any([await asyncio.to_thread(run.has_news) for run in runs]):
            rows = side_by_side([run.compared for run in runs]) if len(runs) > 1 else []
            for place, run in enumerate(runs):
                page.show({**run.document, "compared": rows}, run.peers, place=place)
        await rest(begun)


class LocalRun:
    """A run in a directory, read again when its files have changed."""

    document: Document
    peers: PeerDocuments
    compared: ComparedRun

    def __init__(self, workdir: Path, run: RunConfig, *, label: str, is_private: bool) -> None:
        """With `is_private` only this machine can open the page, which then may show the path of the directory."""
        self._workdir = workdir
        self._run = run
        self._label = label
        self._from_ledger = ledger_events_of(run)
        self._state: list[tuple[int, int]] | None = None
        shown = shlex.quote(str(workdir)) if is_private else "my-peer"
        self._export = f"adloco-peer export --workdir {shown} --output model"

    @classmethod
    def open(cls, workdir: Path, *, label: str = "", is_private: bool = True) -> "LocalRun":
        """Open the run in a directory. Raises ConfigError if there is none, and StorageError."""
        run = read_run(workdir)
        if run is None:
            raise ConfigError(f"{workdir}: holds no run", code="E204")
        return cls(workdir, run, label=label, is_private=is_private)

    def has_news(self) -> bool:
        """Read the directory again if a file has changed, and return whether one has. Raises StorageError."""
        files = [self._workdir / EVENTS, self._workdir / JOURNAL]
        state = [(path.stat().st_mtime_ns, path.stat().st_size) for path in files if path.exists()]
        if state == self._state:
            return False
        self._state = state
        self._read()
        return True

    def _read(self) -> None:
        """Read the swarm's history from the ledger, and this node's from its own events."""
        run, from_ledger = self._run, self._from_ledger
        own_events = list(read_events(self._workdir / EVENTS))
        own = replace(replay(own_events), join_link=read_address(self._workdir))
        entries = ledger_of(self._workdir, run)
        length = run.tokens_per_sample
        if entries:
            from_ledger.follow(entries)
            contributions = leaderboard(from_ledger.credited, sequence_length=length)
            status, plans = with_newest_rounds(from_ledger.status, own_events), from_ledger.lines
            source = "Read from the ledger on this machine and from its node's events, which alone have the newest rounds."
        else:
            status, plans, contributions = own, plans_of(own_events), contributions_alone(own)
            source = "Read from the events of one node: this run keeps no ledger, so nothing here is signed."
        node = own if own.run else None
        self.compared = ComparedRun(label=self._label, seed=run.seed, own=own, of_all=status)
        self.peers = peer_documents(plans, from_ledger.credited, node)
        shown = ShownRun(
            status=status,
            plans=plans,
            contributions=contributions,
            credited=from_ledger.credited,
            is_signed=bool(entries),
            sequence_length=length,
            parameters=own.parameters or None,
            bytes_per_value=run.averaging.bytes_per_value,
            source=source,
            own=node,
            export=self._export,
        )
        self.document = document(shown)


# --- until the user stops it -----------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def served(address: Address, say: Say) -> AsyncIterator[Page]:
    page = Page()
    server = Server(address, page.routes)
    url = await server.start()
    try:
        say(f"dashboard: {url}")
        if not address.is_loopback:
            say("all machines that can reach that address can open the page; nothing can be changed by it")
        yield page
    finally:
        await server.stop()


async def until_stopped(*works: Coroutine[Any, Any, None]) -> None:
    """Run coroutines until Ctrl-C, SIGTERM, or the end of one of them. Raises as they do."""
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


async def rest(begun: float) -> None:
    await asyncio.sleep(max(PERIOD_SECONDS, REST_SHARE * (time.monotonic() - begun)))
