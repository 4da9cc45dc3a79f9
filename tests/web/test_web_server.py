"""The HTTP server of page and metrics: what it gives, what it refuses, and that the page asks for nothing from elsewhere."""

import asyncio
import contextlib
import json
import re
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from importlib import resources
from pathlib import Path

import aiohttp
import pytest

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.errors import ConfigError, SwarmError
from adloco_p2p.runtime.adapters.event_broadcast import EventBroadcaster
from adloco_p2p.runtime.adapters.metrics_endpoint import MetricsEndpoint, node_endpoint
from adloco_p2p.views.metrics import measures
from adloco_p2p.views.plain import PlainView
from adloco_p2p.web import server
from adloco_p2p.web.exposition import exposition
from adloco_p2p.web.server import Address, Page, Server, parse_host
from tests.e2e.swarm_processes import free_port
from tests.views.synthetic import THIS, events, replay, stamped

LOOPBACK = Address(host="127.0.0.1", port=0)
STATIC = resources.files("adloco_p2p.web").joinpath("static")
SOURCES = {name: STATIC.joinpath(name).read_text("utf-8") for name in ("index.html", "page.css", "page.js", "icon.svg")}


@contextlib.asynccontextmanager
async def serving(page: Page, address: Address = LOOPBACK) -> AsyncIterator[aiohttp.ClientSession]:
    running = Server(address, page.routes)
    url = await running.start()
    try:
        async with aiohttp.ClientSession(url, auto_decompress=False) as session:
            yield session
    finally:
        await running.stop()


def test_every_answer_forbids_what_the_page_does_not_need() -> None:
    async def scenario() -> None:
        async with serving(Page()) as session:
            for path, kind in (
                ("/", "text/html"),
                ("/page.css", "text/css"),
                ("/page.js", "text/javascript"),
                ("/icon.svg", "image/svg+xml"),
                ("/api/run", "application/json"),
                ("/nothing", None),
            ):
                async with session.get(path) as reply:
                    assert reply.status == (200 if kind else 404)
                    assert kind is None or reply.content_type == kind
                    policy = reply.headers["Content-Security-Policy"]
                    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
                    assert reply.headers["X-Content-Type-Options"] == "nosniff"
            async with session.get("/api/events") as reply:
                assert reply.content_type == "text/event-stream" and "Content-Security-Policy" in reply.headers

    asyncio.run(scenario())


def test_the_curves_can_be_had_as_a_table() -> None:
    async def scenario() -> str:
        page = Page()
        async with serving(page) as session:
            async with session.get("/api/run.csv") as reply:
                assert (await reply.text()).count("\n") == 1  # before the first round: the header
            point = dict.fromkeys(server.POINT_FIELDS, None) | {"round": 3, "loss": 2.5, "mode": "single", "more": 1}
            page.show({"instances": [{"id": 7, "points": [point, {**point, "round": 4}]}]})
            async with session.get("/api/run.csv") as reply:
                assert reply.content_type == "text/csv" and "run.csv" in reply.headers["Content-Disposition"]
                assert "Content-Security-Policy" in reply.headers
                return await reply.text()

    lines = asyncio.run(scenario()).splitlines()
    assert lines[0].split(",") == ["instance", *server.POINT_FIELDS]
    assert lines[1:] == ["7,3,,,2.5,,,,single", "7,4,,,2.5,,,,single"]


def test_before_the_first_document_no_run_is_missing() -> None:
    """A page that shows the second run stays with it while the dashboard begins anew."""

    async def scenario() -> None:
        page = Page()
        async with serving(page) as session:
            async with session.get("/api/run?run=1") as reply:
                assert reply.status == 200 and await reply.json() == {}
            page.show({"name": "first"})
            async with session.get("/api/run?run=1") as reply:
                assert reply.status == 404

    asyncio.run(scenario())


def test_several_runs_are_served_by_their_places() -> None:
    async def scenario() -> None:
        page = Page()
        page.show({"name": "first"})
        page.show({"name": "second"}, lambda peer: {"peer": peer} if peer == "x" else None, place=1)
        async with serving(page) as session:
            for query, name in (("", "first"), ("?run=0", "first"), ("?run=1", "second")):
                async with session.get(f"/api/run{query}") as reply:
                    assert await reply.json() == {"name": name}
            for query, status in (("run=1&id=x", 200), ("run=1&id=y", 404), ("run=0&id=x", 404), ("id=x", 404)):
                async with session.get(f"/api/peer?{query}") as reply:
                    assert reply.status == status, query
            for place in ("2", "-1", "x", "1" * 5000, "%C2%B2"):
                for path in ("run", "run.csv", "peer"):
                    async with session.get(f"/api/{path}?run={place[:400]}") as reply:
                        assert reply.status == 404, (path, place)
            async with session.get("/api/events") as events_of_the_page:
                first = await events_of_the_page.content.readuntil(b"\n\n")
                page.show({"name": "second, a round later"}, place=1)
                assert await events_of_the_page.content.readuntil(b"\n\n") != first

    asyncio.run(scenario())


def test_only_reading_is_served_and_only_within_limits() -> None:
    async def scenario() -> None:
        async with serving(Page()) as session:
            for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
                async with session.request(method, "/api/run", data=b"x") as reply:
                    assert reply.status == 405
            async with session.get("/" + "x" * 5000) as reply:
                assert reply.status == 400
            async with session.get("/", headers={"X-Long": "x" * 9000}) as reply:
                assert reply.status == 400
            for path in ("/../pyproject.toml", "/%2e%2e/server.py", "/static/page.js"):
                async with session.get(path) as reply:
                    assert reply.status == 404

    asyncio.run(scenario())


def test_another_site_in_the_browser_cannot_read_along() -> None:
    """DNS rebinding: its name leads to this machine, so the request arrives, but it names that site."""

    async def scenario() -> None:
        async with serving(Page()) as session:
            for name, status in (
                ("evil.example", 403),
                ("evil.example:8080", 403),
                ("127.0.0.1.evil.example", 403),
                ("10.0.0.7:8080", 403),
                ("localhost", 200),
                ("localhost:8080", 200),
                ("127.0.0.1:8080", 200),
                ("[::1]:8080", 200),
                ("[::1]", 200),
            ):
                async with session.get("/api/run", headers={"Host": name}) as reply:
                    assert reply.status == status, name
        everybody = serving(Page(), Address(host="0.0.0.0", port=0))  # the user wants others to see it
        async with everybody as session, session.get("/api/run", headers={"Host": "runs.example"}) as reply:
            assert reply.status == 200

    asyncio.run(scenario())


def test_a_web_server_in_front_may_ask_by_its_public_name() -> None:
    async def scenario() -> None:
        public = Address(host="127.0.0.1", port=0, public_name="Run.example.org")
        async with serving(Page(), public) as session:
            for name, status in (
                ("run.example.org", 200),
                ("run.example.org:443", 200),
                ("localhost", 200),
                ("run.example.org.evil.example", 403),
                ("example.org", 403),
            ):
                async with session.get("/api/run", headers={"Host": name}) as reply:
                    assert reply.status == status, name

    asyncio.run(scenario())


def test_one_peer_is_given_by_its_id() -> None:
    async def scenario() -> None:
        page = Page()
        async with serving(page) as session:
            for shown in (False, True):
                if shown:
                    page.show({"run": 1}, {"p/1 ": {"rounds": [7]}}.get)
                for name, status in (("p/1 ", 200 if shown else 404), ("p2", 404), ("", 404)):
                    async with session.get("/api/peer", params={"id": name}) as reply:
                        assert reply.status == status and "Content-Security-Policy" in reply.headers
                        if status == 200:
                            assert reply.content_type == "application/json" and await reply.json() == {"rounds": [7]}

    asyncio.run(scenario())


def test_what_did_not_change_is_not_sent_again_and_long_documents_are_packed() -> None:
    async def scenario() -> None:
        page = Page()
        page.show({"run": "x" * 5000})
        async with serving(page) as session:
            async with session.get("/api/run", headers={"Accept-Encoding": "identity"}) as reply:
                tag, body = reply.headers["ETag"], await reply.read()
                assert json.loads(body) == {"run": "x" * 5000}
            async with session.get("/api/run", headers={"If-None-Match": tag}) as reply:
                assert reply.status == 304 and await reply.read() == b""
            async with session.get("/api/run", headers={"Accept-Encoding": "gzip"}) as reply:
                assert reply.headers["Content-Encoding"] == "gzip" and len(await reply.read()) < 200
            page.show({"run": 2})
            async with session.get("/api/run", headers={"If-None-Match": tag}) as reply:
                assert reply.status == 200 and await reply.json() == {"run": 2}

    asyncio.run(scenario())


async def next_tag(reply: aiohttp.ClientResponse) -> str:
    async for line in reply.content:
        if line.startswith(b"data: "):
            return line.removeprefix(b"data: ").strip().decode()
    raise AssertionError("the stream ended")


def test_a_page_receives_new_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PERIOD_SECONDS", 0.01)

    async def scenario() -> None:
        page = Page()
        page.show({"round": 1})
        async with serving(page) as session, session.get("/api/events") as stream:
            first = await next_tag(stream)
            page.show({"round": 1})
            page.show({"round": 2})
            assert await next_tag(stream) != first
            async with session.get("/api/run") as reply:
                assert await reply.json() == {"round": 2}

    asyncio.run(scenario())


def test_so_many_open_pages_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_EVENT_STREAMS", 2)

    async def scenario() -> None:
        async with serving(Page()) as session, contextlib.AsyncExitStack() as streams:
            for _ in range(2):
                stream = await streams.enter_async_context(session.get("/api/events"))
                await next_tag(stream)
            async with session.get("/api/events") as reply:
                assert reply.status == 503 and reply.headers["Retry-After"]

    asyncio.run(scenario())


def test_a_port_that_is_taken_and_an_address_that_is_none() -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SwarmError, match="another port, or 0 for any"):
            await Server(Address(host="127.0.0.1", port=taken.getsockname()[1]), {}).start()

    asyncio.run(scenario())
    with pytest.raises(ConfigError, match=r"--host all: .*127\.0\.0\.1"):
        parse_host("--host", "all")


# --- the page itself -------------------------------------------------------------------------------------------------


def test_the_page_asks_for_nothing_from_elsewhere() -> None:
    for name, text in SOURCES.items():
        for url in re.findall(r"https?://[^\s\"'<>)]+", text):
            assert url == "http://www.w3.org/2000/svg", f"{name}: {url}"  # the name of a language, never fetched
        assert "@import" not in text and "url(" not in text, name
    asked = re.findall(r'(?:href|src)="([^"]+)"', SOURCES["index.html"])
    asked += re.findall(r'(?:ask|EventSource)\(["`]([^"`?]+)', SOURCES["page.js"])
    assert {"api/run", "api/peer", "api/events"} <= {*asked}
    assert SOURCES["page.js"].count("fetch(") == 1, "in `ask`, through which all requests go"
    assert not any(url.startswith("/") for url in asked), "below a path of another web server it would leave that path"
    assert {f"/{url}" for url in asked} <= set(Page().routes)


def test_text_from_elsewhere_never_becomes_markup() -> None:
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
        'setTimeout("',
        "srcdoc",
    ):
        assert word not in SOURCES["page.js"], word
    page = SOURCES["index.html"]
    assert not re.search(r"\son\w+=|\sstyle=|<style|javascript:", page)
    assert re.findall(r"<script[^>]*>([^<]*)</script>", page) == [""], "no script inside the page: the policy refuses it"


def test_the_script_and_the_page_fit_together() -> None:
    """Every element that the script looks up is there, and every class that it gives has a rule."""
    ids = set(re.findall(r'id="([\w-]+)"', SOURCES["index.html"]))
    wanted = set(re.findall(r'\bat\("([\w-]+)"\)', SOURCES["page.js"]))
    wanted |= {"loss", "batch", "family", "loss-readout", "batch-readout", "family-readout"}
    assert wanted and wanted <= ids
    labels = re.findall(r'aria-labelledby="([\w-]+)"', SOURCES["index.html"])
    assert labels and set(labels) <= ids
    for number in range(8):
        assert f".s{number} " in SOURCES["page.css"] and f"--i{number}:" in SOURCES["page.css"]
    assert SOURCES["page.css"].count("--i7:") == 2, "light and dark"


def test_every_curve_and_word_stands_out_from_what_is_behind_it() -> None:
    """WCAG AA: 4.5 to 1 for text. The colours of the instances are those of words, too."""
    schemes = [
        dict(re.findall(r"--(\w+): (#\w{6})", block)) for block in re.findall(r":root \{(.*?)\}", SOURCES["page.css"], re.S)
    ]
    assert len(schemes) == 2, "light and dark"
    for scheme in schemes:
        backs = [scheme.pop(name) for name in ("card", "back")]
        for name, ink in scheme.items():
            if name not in ("line", "faint"):
                assert contrast(ink, backs[0]) >= 4.5, f"--{name}: {ink} on {backs[0]}"
        for name in ("ink", "quiet", "accent"):
            assert contrast(scheme[name], backs[1]) >= 4.5, f"--{name} on {backs[1]}"


def contrast(one: str, other: str) -> float:
    dark, light = sorted(map(_luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_the_script_spreads_no_list_into_arguments_of_which_a_browser_takes_only_so_many() -> None:
    assert not re.search(r"Math\.(min|max)\(\.\.\.", SOURCES["page.js"])


def test_before_a_run_is_found_no_empty_card_is_shown() -> None:
    assert '<body class="waiting">' in SOURCES["index.html"]
    assert ".waiting main .card { display: none; }" in SOURCES["page.css"]
    assert 'document.body.classList.remove("waiting")' in SOURCES["page.js"]


def test_what_scrolls_has_a_name_and_every_chart_is_reached_by_the_keyboard() -> None:
    tables = re.findall(r'<div class="scroll"([^>]*)><table', SOURCES["index.html"])
    assert tables and all('role="region" aria-label="' in attributes for attributes in tables)
    assert 'role: "slider", tabindex: 0' in SOURCES["page.js"] and "ArrowLeft" in SOURCES["page.js"]
    assert "outline: none" not in SOURCES["page.css"] and ":focus-visible" in SOURCES["page.css"]


def test_a_stream_that_the_server_refused_is_asked_for_again() -> None:
    """A browser does so by itself only after a stream that broke off."""
    assert "news.readyState !== EventSource.CLOSED" in SOURCES["page.js"]


# --- metrics ---------------------------------------------------------------------------------------------------------


def test_metrics_in_both_text_forms() -> None:
    made = measures(replay(events()))
    plain, kind = exposition(made, "text/plain")
    assert kind.startswith("text/plain")
    lines = plain.decode().splitlines()
    assert "# TYPE adloco_tokens_total counter" in lines and "# TYPE adloco_round gauge" in lines
    assert any(line.startswith('adloco_instance_heldout_loss_nats{model_instance="0"} ') for line in lines)
    opened, kind = exposition(made, "application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text") and opened.endswith(b"# EOF\n")


def test_labels_from_elsewhere_are_escaped() -> None:
    made = events(2)
    made[0] = {**made[0], "name": 'a"} 1\nadloco_evil 7 \\'}
    body, _ = exposition(measures(replay(made)), "text/plain")
    assert not any(line.startswith("adloco_evil") for line in body.decode().splitlines())


READY = {
    "running": "ready: round 3, this peer's last one is 3\n",
    "paused": "not ready: the node is paused\n",
}


def test_the_page_is_ready_when_it_shows_a_run() -> None:
    page = Page()
    assert page._readiness()[0] is False
    page.show({"run": "abc"})
    assert page._readiness()[0] is True


def test_a_node_serves_metrics_at_the_address_of_its_setting(tmp_path: Path) -> None:
    async def scenario() -> None:
        with (tmp_path / "out").open("w") as stream:
            watched = EventBroadcaster(PlainView(stream), events_path=tmp_path / "events.jsonl")
            for event in events(4):
                watched.update(stamped(event))
            off = node_endpoint(PeerConfig(), watched)
            await off.start()
            await off.stop()
            port = free_port()
            endpoint = node_endpoint(PeerConfig(metrics_port=port), watched)
            await endpoint.start()
            try:
                async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics") as reply:
                    assert reply.status == 200 and THIS in await reply.text()
                    async with session.get(f"http://127.0.0.1:{port}/healthz") as alive:
                        assert alive.status == 200
                    for state, code in (("running", 200), ("paused", 503)):
                        watched.status = replace(watched.status, state=state, stopping=None)
                        async with session.get(f"http://127.0.0.1:{port}/readyz") as ready:
                            assert (ready.status, await ready.text()) == (code, READY[state])
            finally:
                await endpoint.stop()

    asyncio.run(scenario())
    with pytest.raises(ConfigError, match="metrics_host"):
        MetricsEndpoint(PeerConfig(metrics_port=1, metrics_host="everywhere"), list, lambda: (True, ""))
