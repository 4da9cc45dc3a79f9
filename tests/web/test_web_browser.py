"""The page in a real browser. Needs Chromium, so it is run by name: python -m pytest -m heavy tests/web/test_web_browser.py"""

import asyncio
import contextlib
import datetime
import ipaddress
import itertools
import json
import ssl
import string
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from yarl import URL

from adloco_p2p.core.ledger.contributions import Contribution
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.views.comparison import ComparedRun
from adloco_p2p.views.page import document, plans_of, side_by_side, text
from adloco_p2p.views.peer_page import peer_documents
from adloco_p2p.views.run_report import draw_report
from adloco_p2p.web.server import Address, Page, Server
from tests.views.synthetic import OTHERS, THIS, Made, events, replay, shown_run, stamped
from tests.web.browser import DESKTOP, ONCE, PHONE, Tab, tab

pytestmark = pytest.mark.heavy
EVIL = "<img src=x onerror=window.pwned=1><script>window.pwned=1</script>'\"&amp;</td>"


def shown(made: list[Made], *, is_own: bool = True) -> dict[str, Any]:
    rows = [
        Contribution(peer=PeerId(name), samples=samples, tokens=128 * samples, num_rounds=9, last_round=11)
        for name, samples in zip((OTHERS[0], THIS, OTHERS[1]), (5000, 3000, 40), strict=True)
    ]
    shown = shown_run(
        replay(made),
        plans_of([*map(stamped, made)]),
        contributions=rows,
        is_signed=True,
        parameters=1_245_184,
        is_alive=lambda name: name != OTHERS[1],
        source="made up for a test",
        own=replay(made) if is_own else None,
    )
    return document(shown)


def certificate(folder: Path) -> ssl.SSLContext:
    """Of a server at 127.0.0.1, signed by itself."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "run.example.org")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(issuer_name=name, subject_name=name, public_key=key.public_key(), serial_number=1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, (encoding, form) = folder / "server.pem", (Encoding.PEM, PrivateFormat.PKCS8)
    pem.write_bytes(key.private_bytes(encoding, form, NoEncryption()) + made.public_bytes(encoding))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pem)
    return context


@contextlib.asynccontextmanager
async def behind_tls(url: str, path: str) -> AsyncIterator[str]:
    """A web server with TLS that shows the page of `url` below a path, as in front of a public run; its own URL. It passes the
    address of the page as the name that is asked for, as nginx does."""

    async def forward(request: web.Request) -> web.StreamResponse:
        asked = URL(url).join(URL(request.raw_path.removeprefix(path).lstrip("/"), encoded=True))
        async with aiohttp.ClientSession() as session, session.get(asked) as reply:
            given = web.StreamResponse(status=reply.status, headers={"Content-Type": reply.headers["Content-Type"]})
            await given.prepare(request)
            async for chunk in reply.content.iter_any():
                await given.write(chunk)
            return given

    application = web.Application()
    application.add_routes([web.get(f"{path}/{{rest:.*}}", forward)])
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        with tempfile.TemporaryDirectory() as folder:
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=certificate(Path(folder))).start()
        yield f"https://127.0.0.1:{runner.addresses[0][1]}{path}/"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def serving(first: dict[str, Any]) -> AsyncIterator[tuple[Page, str]]:
    page = Page()
    made = events()
    page.show(first, peer_documents(plans_of([*map(stamped, made)]), [], replay(made)))
    running = Server(Address(host="127.0.0.1", port=0), page.routes)
    try:
        yield page, await running.start()
    finally:
        await running.stop()


@pytest.mark.parametrize(("size", "is_dark"), itertools.product((DESKTOP, PHONE), (False, True)))
def test_it_draws_without_a_complaint_and_fits(size: tuple[int, int], is_dark: bool, tmp_path: Path) -> None:
    async def scenario() -> bytes:
        async with serving(shown(events())) as (_, url), tab() as opened:
            await opened.open(url, size=size, is_dark=is_dark)
            assert await opened.evaluate("document.querySelectorAll('#loss path.curve').length") >= 4
            assert await opened.evaluate("document.querySelectorAll('#family line.life').length") == 3
            assert await opened.evaluate("document.querySelectorAll('#peers tbody tr').length") >= 4
            widths = "[document.documentElement.scrollWidth, window.innerWidth]"
            needed, there = await opened.evaluate(widths)
            assert needed <= there, "the page is wider than the screen"
            ink, back = await opened.evaluate(
                "['color', 'backgroundColor'].map((name) => getComputedStyle(document.body)[name])"
            )
            assert (sum(map(int, _numbers(ink))) > sum(map(int, _numbers(back)))) == is_dark
            for button in ("#log", "#smooth", "[data-axis=tokens]", "[data-axis=seconds]", "[data-axis=samples]"):
                await opened.evaluate(f"document.querySelector('{button}').click()")
                assert await opened.evaluate("document.querySelectorAll('#loss path.curve').length") >= 4
                assert await opened.evaluate(f"document.querySelector('{button}').ariaPressed") == "true"
            picture = await opened.picture()
            assert opened.problems == []
            assert opened.asked and all(asked.startswith(url) for asked in opened.asked), opened.asked
            return picture

    (tmp_path / "page.png").write_bytes(asyncio.run(scenario()))


def _numbers(colour: str) -> list[str]:
    return "".join(character if character in string.digits else " " for character in colour).split()[:3]


SAVED = """(async () => {
  let saved = null;
  const address = URL.createObjectURL;
  URL.createObjectURL = (file) => { if (file.type === "image/png") saved = file; return address.call(URL, file); };
  HTMLAnchorElement.prototype.click = () => {};
  await savePicture();
  const picture = await createImageBitmap(saved);
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [picture.width, picture.height];
  const pen = canvas.getContext("2d");
  pen.drawImage(picture, 0, 0);
  const pixels = new Uint32Array(pen.getImageData(0, 0, picture.width, picture.height).data.buffer);
  return [picture.width / document.querySelector("#loss svg").clientWidth, new Set(pixels).size];
})()"""


def test_the_loss_can_be_had_as_a_picture_and_the_node_shows_how_much_it_computed() -> None:
    async def scenario() -> None:
        async with serving(shown(events())) as (_, url), tab() as opened:
            await opened.open(url, size=DESKTOP, is_dark=True)
            scale, num_colours = await opened.evaluate(SAVED)
            assert scale == 2 and num_colours > 20  # curves and letters, not an empty ground
            assert await opened.evaluate("document.querySelectorAll('#computing path.curve').length") == 1
            assert "computing" in await opened.evaluate("document.getElementById('computing-readout').textContent")
            assert opened.problems == []
        async with serving(shown(events(), is_own=False)) as (_, url), tab() as opened:
            await opened.open(url, size=PHONE, is_dark=False)
            assert await opened.evaluate("document.getElementById('computing').clientHeight") == 0
            assert opened.problems == []

    asyncio.run(scenario())


async def drag(opened: Tab, start: float, end: float) -> None:
    """The mouse across the chart of the losses, between two parts of its width."""
    box = "document.querySelector('#loss svg').getBoundingClientRect()"
    left, top, width, height = await opened.evaluate(f"(({{x, y, width, height}}) => [x, y, width, height])({box})")
    for kind, part in (("mousePressed", start), ("mouseMoved", end), ("mouseReleased", end)):
        where: dict[str, object] = {"x": left + part * width, "y": top + height / 2}
        await opened.call("Input.dispatchMouseEvent", type=kind, button="left", buttons=1, clickCount=1, **where)


RANGE = "new URLSearchParams(location.hash.slice(1)).get('range')"
CURVE = "document.querySelector('#loss path.curve').getAttribute('d').split('L').length"


def test_a_drag_zooms_into_the_losses_and_the_address_keeps_the_range() -> None:
    async def scenario() -> None:
        async with serving(shown(events())) as (_, url), tab() as opened:
            await opened.open(url, size=DESKTOP, is_dark=False)
            whole = await opened.evaluate(CURVE)
            await drag(opened, 0.1, 0.102)
            assert await opened.evaluate(RANGE) is None, "a click is no drag"
            await drag(opened, 0.6, 0.2)
            start, end = map(float, (await opened.evaluate(RANGE)).split())
            assert start < end and 1 < await opened.evaluate(CURVE) < whole
            assert not await opened.evaluate("document.getElementById('whole').hidden")
            address = await opened.evaluate("location.href")
            async with tab() as friend:
                await friend.open(address, size=PHONE, is_dark=True)
                assert await friend.evaluate(CURVE) < whole
            await opened.evaluate("document.getElementById('whole').click()")
            assert await opened.evaluate(CURVE) == whole and await opened.evaluate(RANGE) is None
            assert opened.problems == []

    asyncio.run(scenario())


TICKS = """[...document.querySelectorAll('#loss text.axis[text-anchor=middle]')]
  .map((tick) => tick.textContent).filter(Boolean).map(Number)"""


def test_a_range_after_the_end_of_an_instance_leaves_that_instance_out() -> None:
    """Instance 1 is merged after a part of the run, and has no point in the range."""

    async def scenario() -> None:
        async with serving(shown(events())) as (_, url), tab() as opened:
            await opened.open(f"{url}#range=18+21", size=DESKTOP, is_dark=False)
            ticks = await opened.evaluate(TICKS)
            assert len(ticks) > 1 and min(ticks) >= 18 and max(ticks) <= 21
            assert await opened.evaluate("document.querySelectorAll('#loss path.curve.s1').length") == 0
            await opened.evaluate("zoom([20.2, 20.4])")
            assert 0 in await opened.evaluate(TICKS), "a range without two places shows the whole"
            assert await opened.evaluate("document.querySelectorAll('#loss path.curve.s1').length") > 0
            assert opened.problems == []

    asyncio.run(scenario())


async def mouse(opened: Tab, kind: str, *, button: str, buttons: int, at: float = 0.5) -> None:
    """One event of the mouse, at this part of the width of the chart of the losses."""
    box = "document.querySelector('#loss svg').getBoundingClientRect()"
    x, y = await opened.evaluate(f"(({{x, y, width, height}}) => [x + width * {at}, y + height / 2])({box})")
    await opened.call("Input.dispatchMouseEvent", type=kind, button=button, buttons=buttons, clickCount=1, x=x, y=y)


def test_another_button_begins_no_drag_and_a_lost_mouse_ends_one() -> None:
    async def scenario() -> None:
        async with serving(shown(events())) as (_, url), tab() as opened:
            await opened.open(url, size=DESKTOP, is_dark=False)
            await mouse(opened, "mousePressed", button="middle", buttons=4)
            assert not await opened.evaluate("view.isDragging")
            await mouse(opened, "mouseReleased", button="middle", buttons=0)
            await mouse(opened, "mousePressed", button="left", buttons=1)
            assert await opened.evaluate("view.isDragging")
            await mouse(opened, "mouseMoved", button="left", buttons=1, at=0.55)  # from here on the chart has the pointer
            captured = "document.querySelector('#loss svg').releasePointerCapture(1)"  # as a menu does that takes the mouse
            await opened.evaluate(captured)
            await mouse(opened, "mouseMoved", button="left", buttons=1, at=0.6)
            assert not await opened.evaluate("view.isDragging")
            assert opened.problems == []

    asyncio.run(scenario())


HELD_ANSWER = """(() => {
  const ask = window.fetch;
  const held = (reply) => new Promise((give) => { window.give = () => give(reply); });
  window.fetch = (path) => path === "api/run?run=0" ? ask(path).then(held) : ask(path);
  window.late = refresh();
})()"""


def test_a_late_answer_of_one_run_is_not_drawn_as_another() -> None:
    async def scenario() -> None:
        async with serving(shown(events())) as (page, url), tab() as opened:
            page.show(shown(events(8)), place=1)
            await opened.open(url, size=DESKTOP, is_dark=False)
            await opened.evaluate(HELD_ANSWER)
            await opened.evaluate("location.hash = 'run=1'")
            await opened.evaluate(ONCE.format("view.run.run.rounds === 8"))
            await opened.evaluate(ONCE.format("window.give"))
            await opened.evaluate("(give(), late)")
            assert await opened.evaluate("view.run.run.rounds") == 8
            assert opened.problems == []

    asyncio.run(scenario())


def test_an_address_of_a_run_that_is_gone_shows_the_first_one() -> None:
    async def scenario() -> None:
        async with serving(shown(events())) as (_, url), tab() as opened:
            await opened.open(f"{url}#run=7&axis=tokens", size=DESKTOP, is_dark=False)
            assert await opened.evaluate("location.hash") == "#axis=tokens"
            assert await opened.evaluate("view.run.run.rounds") == 24
            assert not await opened.evaluate("document.getElementById('state').classList.contains('lost')")

    asyncio.run(scenario())


def test_runs_side_by_side_and_a_click_shows_another_one() -> None:
    runs = {"adloco": replay(events()), EVIL: replay(events(8))}
    rows = side_by_side([ComparedRun(label=label, seed=7, own=status, of_all=status) for label, status in runs.items()])

    async def scenario() -> None:
        async with serving(shown(events()) | {"compared": rows}) as (page, url), tab() as opened:
            page.show(shown(events(8)) | {"compared": rows}, place=1)
            await opened.open(url, size=PHONE, is_dark=False)
            assert await opened.evaluate("document.querySelectorAll('#compared path.curve').length") == len(rows)
            assert await opened.evaluate("window.pwned === undefined && document.images.length === 0")
            links = "[...document.querySelectorAll('#compared-runs a')]"
            assert await opened.evaluate(f"{links}.map((link) => link.textContent)") == ["adloco", text(EVIL)]
            before = await opened.evaluate("document.getElementById('state').textContent")
            await opened.evaluate(f"{links}[1].click()")
            other = f"document.getElementById('state').textContent !== {json.dumps(before)}"
            look = f"const look = () => {other} ? done(true) : setTimeout(look, 50); look();"
            await opened.evaluate(f"new Promise((done) => {{ {look} }})")
            assert await opened.evaluate(f"{links}.map((link) => link.ariaCurrent)") == [None, "page"]
            assert await opened.evaluate("document.getElementById('as-csv').getAttribute('href')") == "api/run.csv?run=1"
            needed, there = await opened.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
            assert needed <= there, "the page is wider than the screen"
            assert opened.problems == []

    asyncio.run(scenario())


def test_text_of_other_peers_stays_text() -> None:
    made = [{**event, "reason": EVIL} if event["event"] in ("plan", "merge") else event for event in events()]
    made = [{**event, "peer": EVIL[:64]} if event["event"] == "joined" else event for event in made]
    made[0] = {**made[0], "name": EVIL, "device": EVIL}

    async def scenario() -> None:
        async with serving(shown(made)) as (_, url), tab() as opened:
            await opened.open(url, size=DESKTOP, is_dark=False)
            await opened.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
            assert await opened.evaluate("window.pwned === undefined && document.images.length === 0")
            assert await opened.evaluate("document.getElementById('name').textContent") == EVIL
            assert opened.problems == []

    asyncio.run(scenario())


def test_news_reach_an_open_page_and_what_was_opened_stays_open() -> None:
    async def scenario() -> None:
        async with serving(shown(events(8))) as (page, url), tab() as opened:
            await opened.open(url, size=DESKTOP, is_dark=False)
            await opened.evaluate("document.querySelector('#ledger details').open = true")
            page.show(shown(events(12)))
            grown = "document.querySelectorAll('#loss-readout')[0].textContent.startsWith('round 11:')"
            await opened.evaluate(
                f"new Promise((done) => {{ const look = () => {grown} ? done(true) : setTimeout(look, 50); look(); }})"
            )
            assert await opened.evaluate("document.querySelectorAll('#ledger details[open]').length") == 1
            assert opened.problems == []

    asyncio.run(scenario())


def test_a_page_behind_tls_and_below_a_path_is_whole_and_gets_the_news() -> None:
    async def scenario() -> None:
        async with serving(shown(events(8))) as (page, direct), behind_tls(direct, "/run") as url, tab() as opened:
            await opened.open(url, size=DESKTOP, is_dark=False)
            assert await opened.evaluate("[location.protocol, isSecureContext]") == ["https:", True]
            page.show(shown(events(12)))
            grown = "document.querySelectorAll('#loss-readout')[0].textContent.startsWith('round 11:')"
            await opened.evaluate(ONCE.format(grown))
            saved = (
                "[...document.querySelectorAll('a[download]')].map((link) => fetch(link.href).then((reply) => reply.status))"
            )
            assert set(await opened.evaluate(f"Promise.all({saved})")) == {200}
            assert opened.problems == []
            assert opened.asked and all(asked.startswith(url) for asked in opened.asked), opened.asked

    asyncio.run(scenario())


def test_the_report_is_one_file_that_a_browser_shows_without_asking_for_anything(tmp_path: Path) -> None:
    (page,) = draw_report(map(stamped, events()), tmp_path, as_html=True)

    async def scenario() -> None:
        async with tab() as opened:
            for size in (DESKTOP, PHONE):
                opened.asked.clear()
                await opened.open(page.as_uri(), size=size, is_dark=True, drawn="document.readyState === 'complete'")
                assert await opened.evaluate("document.querySelectorAll('figure svg').length") >= 5
                drawn = "[...document.querySelectorAll('figure svg')].every((svg) => svg.getBoundingClientRect().height > 100)"
                assert await opened.evaluate(drawn)
                needed, there = await opened.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
                assert needed <= there, "the report is wider than the screen"
                assert opened.problems == [] and opened.asked == [page.as_uri()]

    asyncio.run(scenario())


def test_the_page_shows_that_no_round_has_been_reported_yet() -> None:
    async def scenario() -> None:
        async with serving(shown(events(3)[:5], is_own=False)) as (_, url), tab() as opened:
            await opened.open(url, size=PHONE, is_dark=False)
            assert "no round has been reported yet" in await opened.evaluate("document.getElementById('loss').textContent")
            assert await opened.evaluate("document.getElementById('own-card').hidden")
            assert opened.problems == []

    asyncio.run(scenario())


def test_the_address_holds_what_the_reader_chose_also_below_a_path() -> None:
    """Axis, log, smooth, peer and opened plans survive a reload, and a friend who opens the address sees the same."""

    async def scenario() -> None:
        async with serving(shown(events())) as (_, direct), behind_tls(direct, "/run/a") as url:
            async with tab() as opened:
                await opened.open(url, size=DESKTOP, is_dark=False)
                await opened.evaluate("document.querySelector('#ledger details').open = true")
                for button in ("#log", "#smooth", "[data-axis=tokens]"):
                    await opened.evaluate(f"document.querySelector('{button}').click()")
                await opened.evaluate(f"document.querySelector('a[data-peer=\"{THIS}\"]').click()")
                await opened.evaluate(ONCE.format("document.querySelectorAll('#peer-loss path.curve').length"))
                await opened.evaluate(ONCE.format("location.hash.includes('plans=')"))
                sent = await opened.evaluate("location.href")
                assert opened.problems == []
                assert opened.asked and all(asked.startswith(url) for asked in opened.asked), opened.asked
            async with tab() as friend:
                await friend.open(sent, size=PHONE, is_dark=True)
                await friend.evaluate(ONCE.format("document.querySelectorAll('#peer-loss path.curve').length"))
                for button in ("#log", "#smooth", "[data-axis=tokens]"):
                    assert await friend.evaluate(f"document.querySelector('{button}').ariaPressed") == "true"
                assert await friend.evaluate("document.getElementById('peer-id').textContent") == THIS
                assert await friend.evaluate("document.querySelectorAll('#ledger details[open]').length") == 1
                assert await friend.evaluate("document.querySelectorAll('#peer-rounds tbody tr').length") == 15
                needed, there = await friend.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
                assert needed <= there, "the page is wider than the screen"
                await friend.evaluate("document.getElementById('peer-close').click()")
                await friend.evaluate(ONCE.format("document.getElementById('peer-card').hidden"))
                assert await friend.evaluate("location.hash.includes('axis=tokens')")
                assert friend.problems == []

    asyncio.run(scenario())


READ_OUT = "document.getElementById('loss-readout').textContent"


async def press(opened: Tab, key: str) -> None:
    for kind in ("keyDown", "keyUp"):
        await opened.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)


def test_the_keyboard_moves_along_a_chart_and_news_do_not_take_it_away() -> None:
    async def scenario() -> None:
        async with serving(shown(events(8))) as (page, url), tab() as opened:
            await opened.open(url, size=DESKTOP, is_dark=False)
            await opened.evaluate("document.querySelector('#loss svg').focus()")
            for key in ("Home", "ArrowRight", "ArrowRight"):
                await press(opened, key)
            assert (await opened.evaluate(READ_OUT)).startswith("round 2:")
            page.show(shown(events(12)))
            await opened.evaluate(ONCE.format("view.run.run.rounds === 12"))
            assert await opened.evaluate("document.activeElement === document.querySelector('#loss svg')")
            assert (await opened.evaluate(READ_OUT)).startswith("round 2:")
            words = await opened.evaluate("document.activeElement.getAttribute('aria-valuetext')")
            assert words == await opened.evaluate(READ_OUT)
            for place in ("a[data-peer]", "#family circle", "#ledger summary"):
                await opened.evaluate(f"document.querySelectorAll('{place}')[0].focus()")
                before = await opened.evaluate("document.activeElement.textContent")
                await opened.evaluate("(draw(view.run), 0)")
                assert await opened.evaluate("document.activeElement.textContent") == before
            assert opened.problems == []

    asyncio.run(scenario())


def test_many_peers_are_shown_on_demand_and_a_long_curve_has_its_extent() -> None:
    document = shown(events())
    rows = [{**document["peers"][0], "peer": f"{index:052d}", "nickname": "W" * 32} for index in range(64)]
    long = {**document, "peers": rows, "num_peers": 64}

    async def scenario() -> None:
        async with serving(long) as (_, url), tab() as opened:
            await opened.open(url, size=PHONE, is_dark=False)
            assert await opened.evaluate("extent(Array.from({ length: 300000 }, (_, index) => index))") == [0, 299_999]
            assert await opened.evaluate("document.querySelectorAll('#peers tbody tr').length") == 20
            await opened.evaluate("document.getElementById('peers-all').click()")
            assert await opened.evaluate("document.querySelectorAll('#peers tbody tr').length") == 64
            state = "document.querySelector('#peers td:nth-child(2)').getBoundingClientRect().right"
            assert await opened.evaluate(state) < PHONE[0], "a long name hides the state"
            assert await opened.evaluate("document.getElementById('peers').parentElement.tabIndex") == 0
            assert opened.problems == []

    asyncio.run(scenario())


def test_a_page_without_a_stream_of_news_shows_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adloco_p2p.web.server.MAX_EVENT_STREAMS", 0)

    async def scenario() -> None:
        async with serving(shown(events(8))) as (_, url), tab() as opened:
            await opened.open(url, size=DESKTOP, is_dark=False)
            await opened.evaluate("new Promise((done) => setTimeout(done, 500))")
            assert not await opened.evaluate("document.getElementById('state').classList.contains('lost')")
            assert any("503" in problem for problem in opened.problems), "the stream was refused"

    asyncio.run(scenario())


def test_no_empty_card_is_shown_before_a_run_is_found() -> None:
    async def scenario() -> None:
        async with serving({}) as (page, url), tab() as opened:
            page._runs.clear()
            page.show({})
            await opened.open(url, size=PHONE, is_dark=True, drawn="document.readyState === 'complete'")
            cards = "[...document.querySelectorAll('.card')].filter((card) => card.offsetHeight).length"
            assert await opened.evaluate(cards) == 0
            page.show(shown(events()))
            await opened.evaluate(ONCE.format(f"{cards} > 5"))
            assert opened.problems == []

    asyncio.run(scenario())
