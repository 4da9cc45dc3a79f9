"""What peers tell each other about the ways between them, over real connections on loopback."""

import asyncio
import math
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from adloco_p2p.core.model.protocol import NEWEST
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.errors import ProtocolOutgrown, SwarmError
from adloco_p2p.swarm.discovery import reachability
from adloco_p2p.swarm.discovery.clock_survey import survey
from adloco_p2p.swarm.discovery.join import check_protocol
from adloco_p2p.swarm.discovery.reachability import (
    AdlocoReachability,
    ClockReading,
    ask_to_dial_back,
    dialable_for,
    measure_speed,
    ping,
    ping_all,
)
from tests.swarm.swarm_hosts import started_hosts

RUN = Digest("ab" * 32)
ALICE = "12D3KooWQkxwZWd7pAqo4nri2UXpypCziQafHx7YoEtdZBsauLWL"
BOB = "12D3KooWAyUjq8p3jBZTzB3Au3Bib8B2cfVSBWUBmVFTiaMLWPyG"


@asynccontextmanager
async def serving(workdir, *, run=RUN, wall_clock=lambda: 5000.0, protocol=lambda: NEWEST):
    """A host that asks, and one that serves."""
    async with AsyncExitStack() as stack:
        asker, server = await stack.enter_async_context(started_hosts(workdir, 2))
        servicer = AdlocoReachability(
            server.p2p, run=run, dial=server.dial_from_outside, wall_clock=wall_clock, protocol=protocol
        )
        await servicer.start()
        stack.push_async_callback(servicer.stop)
        yield asker, server


def test_a_ping_answers_with_clock_run_and_observed_address(tmp_path):
    async def scenario():
        async with serving(tmp_path) as (asker, server):
            reading = await ping(asker.p2p, server.me, wall_clock=lambda: 4000.0)
            assert reading.offset_seconds == pytest.approx(1000.0, abs=reading.round_trip_seconds)
            assert (reading.protocol, reading.run) == (NEWEST, RUN)
            assert reading.observed.startswith("/ip4/127.0.0.1/tcp/")
            with pytest.raises(SwarmError, match="does not answer"):
                await ping(server.p2p, asker.me)  # serves nothing

    asyncio.run(scenario())


@pytest.mark.parametrize("observed", ["/ip4/garbage/tcp/1", "/dns4/example.com/tcp/1", "/ip4//tcp/1", "nonsense"])
def test_an_observed_address_that_is_none_is_not_reported(observed, tmp_path, monkeypatch):
    """The doctor has others dial what it is told here, and judges its host."""

    async def lie(*_):
        return (observed,)

    async def scenario():
        monkeypatch.setattr(AdlocoReachability, "_observed", lie)
        async with serving(tmp_path) as (asker, server):
            assert (await ping(asker.p2p, server.me)).observed == ""

    asyncio.run(scenario())


@pytest.mark.parametrize("time", [math.nan, math.inf])
def test_a_time_that_is_no_number_is_no_answer(time, tmp_path):
    """It would stand in the event file as null, and no reader takes a file with such a line."""

    async def scenario():
        async with serving(tmp_path, wall_clock=lambda: time) as (asker, server):
            with pytest.raises(SwarmError, match="no number"):
                await ping(asker.p2p, server.me)
            assert await ping_all(asker.p2p, [server.me]) == {}

    asyncio.run(scenario())


def test_a_joiner_is_refused_before_it_fetches_anything_where_all_peers_name_a_protocol_beyond_its_own(tmp_path):
    named = [NEWEST + 1]

    async def scenario():
        async with serving(tmp_path, protocol=lambda: named[0]) as (asker, _):
            await check_protocol(asker, Digest("cd" * 32))  # of another run
            with pytest.raises(ProtocolOutgrown, match=f"the run follows protocol {NEWEST + 1}, and the installed version"):
                await check_protocol(asker, RUN)
            named[0] = NEWEST
            await check_protocol(asker, RUN)

    asyncio.run(scenario())


def test_a_peer_is_dialled_back_where_it_listens_and_nowhere_else(tmp_path):
    async def scenario():
        async with serving(tmp_path, run=None) as (asker, server):
            (listening,) = await asker.addresses()
            deaf = f"/ip4/127.0.0.1/tcp/1/p2p/{asker.me}"
            elsewhere = f"/ip4/127.0.0.2/tcp/1/p2p/{asker.me}"
            third = (await server.addresses())[0]
            found = await ask_to_dial_back(asker.p2p, server.me, [third, elsewhere, deaf, listening])
            assert set(found) == {listening, deaf}
            assert found[listening] is None and "refused" in str(found[deaf])
            with pytest.raises(SwarmError, match="too often"):
                await ask_to_dial_back(asker.p2p, server.me, [listening])

    asyncio.run(scenario())


def test_speed_is_measured_and_bounded(tmp_path, monkeypatch):
    async def scenario():
        async with serving(tmp_path) as (asker, server):
            speed = await measure_speed(asker.p2p, server.me)
            assert min(speed.up_bytes_per_second, speed.down_bytes_per_second) > 0
            monkeypatch.setattr(reachability, "SPEED_BYTES", 2 * int(reachability.SPEED_BURST_BYTES))
            with pytest.raises(SwarmError, match="too often"):
                await measure_speed(asker.p2p, server.me)

    asyncio.run(scenario())


def test_only_an_askers_own_addresses_are_dialled_back():
    own = f"/ip4/198.51.100.7/tcp/4001/p2p/{ALICE}"
    others = [
        f"/ip4/198.51.100.8/tcp/4001/p2p/{ALICE}",  # another machine
        f"/ip4/198.51.100.7/tcp/4001/p2p/{BOB}",  # another peer
        f"/dns4/example.org/tcp/4001/p2p/{ALICE}",  # a name may lead anywhere
        f"/ip4/198.51.100.7/tcp/4001/p2p/{BOB}/p2p-circuit/p2p/{ALICE}",
        "nonsense",
    ]
    assert [str(address) for address in dialable_for(ALICE, [own, *others], {"198.51.100.7", ""})] == [own]
    assert dialable_for(ALICE, [own, *others], set()) == []


def _reading(offset, round_trip=0.1):
    return ClockReading(offset_seconds=offset, round_trip_seconds=round_trip, protocol=1, run=RUN, observed="")


def test_the_median_of_the_others_judges_a_clock():
    found = survey({PeerId("c"): _reading(300.0), PeerId("a"): _reading(-1.0), PeerId("b"): _reading(0.5, round_trip=2.0)})
    assert (found.offset_seconds, found.uncertainty_seconds) == (0.5, 1.0)
    assert found.peers == ("a", "b", "c") and found.offsets_seconds == (-1.0, 0.5, 300.0)
    assert not found.is_off
    late = survey({PeerId("a"): _reading(61.0, round_trip=1.0)})
    assert late.is_off and "61.0 s" in late.in_words and "behind the clock of the one other" in late.in_words
    assert not survey({PeerId("a"): _reading(61.0, round_trip=4.0)}).is_off  # may be 59
    assert "ahead of the median of 2" in survey({PeerId("a"): _reading(-90.0), PeerId("b"): _reading(-90.0)}).in_words


def test_the_wire_names_are_pinned():
    AdlocoReachability._collect_rpc_handlers()
    handlers = AdlocoReachability._rpc_handlers
    names = {AdlocoReachability._get_handle_name(None, handler.method_name) for handler in handlers}
    assert names == {f"AdlocoReachability.rpc_{name}" for name in ("ping", "dial_back", "speed")}
