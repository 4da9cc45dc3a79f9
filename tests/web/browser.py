"""A headless Chromium that loads a page, tells what went wrong in it, and takes pictures of it.

python tests/web/browser.py URL FOLDER     four pictures: desktop and phone, light and dark
"""

import asyncio
import base64
import contextlib
import itertools
import json
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

DESKTOP, PHONE = (1280, 900), (390, 844)
START_SECONDS = 30.0
COMMANDS = ("chromium", "chromium-browser", "google-chrome")
ONCE = "new Promise((done) => {{ const look = () => {} ? done(true) : setTimeout(look, 50); look(); }})"
"""A promise that is kept as soon as the condition holds."""
_TILES = "document.querySelectorAll('#tiles div').length"


@dataclass
class Tab:
    """One page, spoken to by the DevTools protocol."""

    socket: aiohttp.ClientWebSocketResponse
    problems: list[str] = field(default_factory=list)
    """Errors of scripts, requests that failed, and what the content security policy refused."""
    asked: list[str] = field(default_factory=list)
    """URLs that the page requested."""
    numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    async def call(self, method: str, **parameters: object) -> dict[str, Any]:
        number = next(self.numbers)
        await self.socket.send_json({"id": number, "method": method, "params": parameters})
        async with asyncio.timeout(START_SECONDS):
            while True:
                message = json.loads((await self.socket.receive()).data)
                if message.get("id") == number:
                    assert "error" not in message, message
                    return dict(message["result"])
                self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        parameters = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.problems.append(str(parameters["exceptionDetails"].get("exception", parameters)))
            case "Log.entryAdded" if parameters["entry"]["level"] in ("error", "warning"):
                self.problems.append(parameters["entry"]["text"])
            case "Network.requestWillBeSent":
                self.asked.append(parameters["request"]["url"])

    async def evaluate(self, expression: str) -> Any:
        """The value of a script's expression, which may be a promise."""
        reply = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in reply, reply
        return reply["result"].get("value")

    async def open(self, url: str, *, size: tuple[int, int], is_dark: bool, drawn: str = _TILES) -> None:
        """Load the page and wait until it has drawn something: until the expression `drawn` is true."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        width, height = size
        is_phone = width < 600
        await self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=is_phone)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}]
        await self.call("Emulation.setEmulatedMedia", features=scheme)
        await self.call("Page.navigate", url=url)
        await self.evaluate(ONCE.format(f"location.href !== 'about:blank' && {drawn}"))

    async def picture(self, *, is_whole: bool = True) -> bytes:
        """The page as PNG: all of it, however long, or what its window shows."""
        reply = await self.call("Page.captureScreenshot", captureBeyondViewport=is_whole)
        return base64.b64decode(reply["data"])


@contextlib.asynccontextmanager
async def tab() -> AsyncIterator[Tab]:
    """A fresh browser with one empty page; both end with the block."""
    command = next((path for name in COMMANDS if (path := shutil.which(name))), None)
    assert command is not None, f"none of {', '.join(COMMANDS)} is installed (Debian: apt install chromium)"
    with tempfile.TemporaryDirectory() as folder:
        process = await asyncio.create_subprocess_exec(
            command,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--ignore-certificate-errors",  # a test signs its own
            "--remote-debugging-port=0",
            f"--user-data-dir={folder}",
            "about:blank",
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            port = await _port(process)
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json") as reply:
                    pages = [page for page in await reply.json() if page["type"] == "page"]
                async with session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=64 << 20) as socket:
                    yield Tab(socket)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            await asyncio.sleep(0.2)  # its children still write into the folder


async def _port(process: asyncio.subprocess.Process) -> int:
    assert process.stderr is not None
    async with asyncio.timeout(START_SECONDS):
        async for line in process.stderr:
            _, found, rest = line.decode(errors="replace").partition("DevTools listening on ws://127.0.0.1:")
            if found:
                return int(rest.partition("/")[0])
    raise AssertionError("the browser did not start")


async def pictures(url: str) -> tuple[dict[str, bytes], list[str]]:
    """Four pictures by name, and the problems."""
    taken, problems = {}, []
    for (device, size), is_dark in itertools.product((("desktop", DESKTOP), ("phone", PHONE)), (False, True)):
        async with tab() as opened:
            await opened.open(url, size=size, is_dark=is_dark)
            taken[f"{device}-{'dark' if is_dark else 'light'}.png"] = await opened.picture()
            problems += opened.problems
    return taken, problems


if __name__ == "__main__":
    found, wrong = asyncio.run(pictures(sys.argv[1]))
    for name, content in found.items():
        Path(sys.argv[2]).mkdir(parents=True, exist_ok=True)
        (Path(sys.argv[2]) / name).write_bytes(content)
    print("\n".join(wrong) or "no problems")
