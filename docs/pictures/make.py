"""The two pictures of the README, from a run on this machine; the second one needs Chromium.

adloco-peer swarm --peers 3 --workdir runs/first
PYTHONPATH=. python docs/pictures/make.py runs/first/peer-0

The live view as it was when half of the rounds were over, and the page at the end. Both show what the run recorded.
"""

import argparse
import asyncio
import contextlib
import io
import re
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI

from adloco_p2p.core.model.telemetry import Round
from adloco_p2p.runtime.follow_run import LocalRun
from adloco_p2p.storage.event_log import read_events
from adloco_p2p.views.screen import Around, render
from adloco_p2p.views.status_fold import replay
from adloco_p2p.web.server import Address, Page, Server
from tests.web.browser import tab

HERE = Path(__file__).parent
COLUMNS, LINES = 100, 30
PAGE_SIZE = (1440, 900)
MAX_BYTES = 200_000


def live_view(workdir: Path) -> str:
    """SVG of the terminal when half of the node's rounds were over."""
    events = list(read_events(workdir / "events.jsonl"))
    ends = [place for place, stamped in enumerate(events) if isinstance(stamped.event, Round)]
    console = Console(
        record=True, width=COLUMNS, height=LINES, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(render(replay(events[: ends[len(ends) // 2] + 1]), COLUMNS, LINES, Around()))
    without_fonts = re.sub(
        r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL
    )  # they would come from the network
    return console.export_svg(title="adloco-peer", theme=MONOKAI, code_format=without_fonts)


async def page(workdir: Path) -> bytes:
    """PNG of the run's page in a light browser of 1440 pixels."""
    run = LocalRun.open(workdir)
    shown = Page()
    server = Server(Address(host="127.0.0.1", port=0), shown.routes)
    url = await server.start()
    assert await asyncio.to_thread(run.has_news)
    shown.show(run.document, run.peers)
    async with contextlib.AsyncExitStack() as services:
        services.push_async_callback(server.stop)
        opened = await services.enter_async_context(tab())
        await opened.open(url, size=PAGE_SIZE, is_dark=False)
        assert not opened.problems, opened.problems
        return await opened.picture(is_whole=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workdir", type=Path, help="of a peer, such as runs/first/peer-0")
    workdir = parser.parse_args().workdir
    for name, content in (("live.svg", live_view(workdir).encode()), ("page.png", asyncio.run(page(workdir)))):
        assert len(content) <= MAX_BYTES, f"{name}: {len(content)} bytes"
        (HERE / name).write_bytes(content)


if __name__ == "__main__":
    main()
