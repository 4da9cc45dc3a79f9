"""A small read-only HTTP server: no form, no cookie, no upload, nothing that changes anything.

It listens on loopback unless configured otherwise. A browser gets one page, its style and its script from this package and may
load nothing else (Content-Security-Policy); every request that is not exactly one of the routes is refused before it is read.
Another site in the same browser cannot read along: names other than this machine's are refused (DNS rebinding).
"""

import asyncio
import csv
import gzip
import hashlib
import io
import ipaddress
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib import resources

from aiohttp import web

from adloco_p2p.errors import ConfigError, SwarmError

MAX_EVENT_STREAMS = 32
"""The most browsers that are notified at the same time; further ones poll by themselves."""
PERIOD_SECONDS = 2.0
"""The least time between two notifications of a page."""
KEEPALIVE_SECONDS = 15.0
"""How often a quiet event stream sends a sign of life, so that a dead connection is noticed."""
MAX_PLACE_DIGITS = 4
"""The most digits of a run's place in the query."""
STOP_SECONDS = 0.2
"""How long answers under way may take; the streams of events would never end by themselves."""
POINT_FIELDS = ("round", "samples", "seconds", "loss", "heldout", "requested", "effective", "mode")
"""Fields of the points of a curve in the document, in the order of the columns."""
_SECURITY = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' blob:;"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Server": "adloco-peer",
}
_ASSETS = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Document = Mapping[str, object]
PeerDocuments = Callable[[str], Document | None]
"""Peer id -> the peer's document; None where the run never had that peer."""
Readiness = Callable[[], tuple[bool, str]]
"""Returns whether the process does its work, and a line about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where to listen. Port 0: any free one."""

    host: str
    port: int
    public_name: str = ""
    """The name under which a web server in front of this one asks for the page; without it a loopback address serves only this
    machine's own names."""

    @property
    def is_loopback(self) -> bool:
        return ipaddress.ip_address(self.host).is_loopback

    @property
    def is_private(self) -> bool:
        """Whether only this machine is meant to read the pages."""
        return self.is_loopback and not self.public_name


def parse_host(setting: str, host: str) -> str:
    """Return the host if it is an IP address. Raises ConfigError, naming the setting."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        raise ConfigError(
            f"{setting} {host}: an IP address of this machine is accepted, such as 127.0.0.1 (this machine only) or 0.0.0.0"
            " (for all machines that can reach it)",
            code="E200",
        ) from None


class Server:
    """Serves `routes` from `start` to `stop`, in the running event loop."""

    def __init__(self, address: Address, routes: Mapping[str, Handler]) -> None:
        self._address = address
        application = web.Application(middlewares=[self._guard], client_max_size=1)
        application.add_routes([web.get(path, handler) for path, handler in routes.items()])
        self._runner = web.AppRunner(application, access_log=None, max_line_size=2048, max_field_size=4096, max_headers=64)

    async def start(self) -> str:
        """Listen, and return the URL. Raises SwarmError where the address cannot be used."""
        await self._runner.setup()
        host, port = self._address.host, self._address.port
        try:
            await web.TCPSite(self._runner, host, port, shutdown_timeout=STOP_SECONDS).start()
        except OSError as error:
            await self._runner.cleanup()
            raise SwarmError(
                f"cannot listen on {host} port {port}: {os.strerror(error.errno or 0)}; choose another port, or 0 for any",
                code="E307",
            ) from error
        port = self._runner.addresses[0][1]
        return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"

    async def stop(self) -> None:
        await self._runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._address.is_loopback and not _is_loopback_name(request.host) and not self._is_public_name(request.host):
            raise web.HTTPForbidden(
                text="this page is served to this machine only; behind a web server: --public-name NAME\n", headers=_SECURITY
            )
        try:
            response = await handler(request)
        except web.HTTPException as error:
            error.headers.update(_SECURITY)
            raise
        if not response.prepared:
            response.headers.update(_SECURITY)
        return response

    def _is_public_name(self, host: str) -> bool:
        return bool(self._address.public_name) and _name_of(host).lower() == self._address.public_name.lower()


def _name_of(host: str) -> str:
    """Return the name in a Host header, without the port."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() and not host.endswith("]") else host
    return name.removeprefix("[").removesuffix("]")


def _is_loopback_name(host: str) -> bool:
    """Return whether a browser on this machine may ask by this name: `localhost`, or a loopback address, with or without a
    port."""
    name = _name_of(host)
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """The content of a run's page."""

    body: bytes = b"{}"
    peers: PeerDocuments = lambda _: None

    @property
    def tag(self) -> str:
        return _tag(self.body)


class Page:
    """The page of a run, or of several. `show` sets its content; browsers are notified within a period."""

    def __init__(self) -> None:
        self._runs = {0: _Shown()}
        self._tag = self._runs[0].tag
        self._changed = asyncio.Event()
        self._num_streams = 0
        self._one_peer = asyncio.Lock()

    @property
    def routes(self) -> dict[str, Handler]:
        assets = {path: _asset(name, kind) for path, (name, kind) in _ASSETS.items()}
        routes = {"/api/run": self._run, "/api/run.csv": self._table, "/api/peer": self._peer, "/api/events": self._events}
        return {**assets, **routes, **health_routes(self._readiness)}

    def show(self, document: Document, peers: PeerDocuments | None = None, *, place: int = 0) -> None:
        """Replace the document of the run at this place, and those of its peers, which are made when a browser asks for one. An
        unchanged document is not sent again."""
        self._runs[place] = _Shown(body=_json(document), peers=peers or (lambda _: None))
        tag = _tag(b"".join(run.body for run in self._runs.values()))
        if tag != self._tag:
            self._tag = tag
            self._changed.set()
            self._changed = asyncio.Event()

    def _asked(self, request: web.Request) -> _Shown:
        """Return the run at the place `run` of the query; the first one where the query names none, and while no run is found
        yet."""
        place = request.query.get("run", "0")
        run = self._runs.get(int(place)) if place.isdecimal() and len(place) <= MAX_PLACE_DIGITS else None
        if run is None and not self._is_drawn:
            return self._runs[0]
        if run is None:
            raise web.HTTPNotFound(text="the page has no such run\n")
        return run

    @property
    def _is_drawn(self) -> bool:
        return self._runs[0].body != b"{}"

    def _readiness(self) -> tuple[bool, str]:
        return self._is_drawn, "the page shows a run" if self._is_drawn else "the run is not found yet"

    async def _run(self, request: web.Request) -> web.Response:
        """Answer with the present document."""
        run = self._asked(request)
        headers = {"ETag": f'"{run.tag}"'}
        if request.headers.get("If-None-Match") == f'"{run.tag}"':
            return web.Response(status=304, headers=headers)
        body = run.body
        if "gzip" in request.headers.get("Accept-Encoding", "") and len(body) > 1024:
            headers["Content-Encoding"] = "gzip"
            body = await asyncio.to_thread(gzip.compress, body, 5)
        return web.Response(body=body, content_type="application/json", headers=headers)

    async def _peer(self, request: web.Request) -> web.Response:
        """Answer with the document of the peer `id`. One is made at a time, because each needs the whole history of the run."""
        run = self._asked(request)
        async with self._one_peer:
            document = await asyncio.to_thread(run.peers, request.query.get("id", ""))
        if document is None:
            raise web.HTTPNotFound(text="the run has no such peer\n")
        return web.Response(body=_json(document), content_type="application/json")

    async def _table(self, request: web.Request) -> web.Response:
        """Answer with the curves as comma-separated values, one line per round and instance."""
        run = self._asked(request)
        written = io.StringIO()
        rows = csv.DictWriter(written, ["instance", *POINT_FIELDS], extrasaction="ignore", lineterminator="\n")
        rows.writeheader()
        for instance in json.loads(run.body).get("instances", []):
            rows.writerows({"instance": instance["id"], **point} for point in instance["points"])
        headers = {"Content-Disposition": 'attachment; filename="run.csv"'}
        return web.Response(text=written.getvalue(), content_type="text/csv", headers=headers)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Send the tag of the newest document as a server-sent event, whenever it changes."""
        if self._num_streams >= MAX_EVENT_STREAMS:
            raise web.HTTPServiceUnavailable(text="too many pages are open\n", headers={"Retry-After": "30"})
        self._num_streams += 1
        try:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **_SECURITY})
            await response.prepare(request)
            sent_tag = ""
            while True:
                changed = self._changed
                if sent_tag != self._tag:
                    sent_tag = self._tag
                    await response.write(f"event: news\ndata: {sent_tag}\n\n".encode("ascii"))
                    await asyncio.sleep(PERIOD_SECONDS)
                    continue
                try:
                    async with asyncio.timeout(KEEPALIVE_SECONDS):
                        await changed.wait()
                except TimeoutError:
                    await response.write(b": quiet\n\n")
        except ConnectionResetError:
            return response  # the browser closed the connection
        finally:
            self._num_streams -= 1


def health_routes(readiness: Readiness) -> dict[str, Handler]:
    """Return the routes for supervisors: /healthz answers while the event loop runs, /readyz with 200 while the process does
    its work, otherwise with 503."""

    async def alive(request: web.Request) -> web.Response:
        del request
        return web.Response(text="alive\n")

    async def ready(request: web.Request) -> web.Response:
        del request
        is_ready, words = readiness()
        return web.Response(status=200 if is_ready else 503, text=f"{'ready' if is_ready else 'not ready'}: {words}\n")

    return {"/healthz": alive, "/readyz": ready}


def _json(document: Document) -> bytes:
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode("ascii")


def _tag(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:16]


def _asset(name: str, kind: str) -> Handler:
    content = resources.files("adloco_p2p.web").joinpath("static", name).read_bytes()

    async def serve(request: web.Request) -> web.Response:
        del request
        return web.Response(body=content, content_type=kind, charset="utf-8")

    return serve
