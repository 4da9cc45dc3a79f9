"""Streams that are kept open between averages: which one is taken, how long it is kept, what happens when it was dead."""

import asyncio

import pytest

from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.errors import AveragingError
from adloco_p2p.swarm.allreduce.averaged import Averaged
from adloco_p2p.swarm.transport import stream_pool
from adloco_p2p.swarm.transport.framed_stream import FramedStream
from adloco_p2p.swarm.transport.stream_pool import IDLE_SECONDS, StreamPool
from tests.swarm.averaging_peers import Clock, Peers, kill, vectors_of

NEAR, FAR = PeerId("near"), PeerId("far")


class Wire(asyncio.Transport):
    """A transport on which nothing happens."""

    is_aborted = is_closed = False

    def abort(self) -> None:
        self.is_aborted = True

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_aborted or self.is_closed


class Opened:
    """A pool, and the streams that it has opened."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.streams: list[FramedStream] = []
        self.wires: list[Wire] = []
        self._loop = loop
        self.pool = StreamPool(self._open)

    async def _open(self, peer: PeerId, _timeout_seconds: float) -> FramedStream:
        wire = Wire()
        writer = asyncio.StreamWriter(wire, asyncio.StreamReaderProtocol(asyncio.StreamReader()), None, self._loop)
        self.wires.append(wire)
        self.streams.append(FramedStream(peer, writer, self._loop))
        return self.streams[-1]

    async def take(self, peer: PeerId) -> FramedStream:
        return await self.pool.take(peer, 1.0)


def run_with_clock(scenario) -> None:
    """`scenario` gets the loop whose clock it may put forward."""
    with asyncio.Runner(loop_factory=Clock) as runner:
        runner.run(scenario(runner.get_loop()))


def test_the_stream_used_last_is_taken_first_and_by_one_only() -> None:
    async def scenario(loop: Clock) -> None:
        opened = Opened(loop)
        first, second, other = [await opened.take(peer) for peer in (NEAR, NEAR, FAR)]
        for stream in (first, second, other):
            opened.pool.give_back(stream)
        assert [await opened.take(NEAR) for _ in range(2)] == [second, first]
        assert await opened.take(NEAR) not in (first, second, other)

    run_with_clock(scenario)


@pytest.mark.parametrize(("idle_seconds", "is_kept"), [(IDLE_SECONDS - 1, True), (IDLE_SECONDS + 1, False)])
def test_a_stream_that_was_idle_too_long_is_closed(idle_seconds: float, is_kept: bool) -> None:
    async def scenario(loop: Clock) -> None:
        opened = Opened(loop)
        stream = await opened.take(NEAR)
        opened.pool.give_back(stream)
        loop.ahead_seconds += idle_seconds
        assert (await opened.take(NEAR) is stream) == is_kept
        assert opened.wires[0].is_closed != is_kept

    run_with_clock(scenario)


def test_every_use_begins_the_time_anew() -> None:
    async def scenario(loop: Clock) -> None:
        opened = Opened(loop)
        stream = await opened.take(NEAR)
        for _ in range(3):
            opened.pool.give_back(stream)
            loop.ahead_seconds += 0.9 * IDLE_SECONDS
            assert await opened.take(NEAR) is stream

    run_with_clock(scenario)


def test_the_oldest_go_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_pool, "MAX_IDLE", 2)

    async def scenario(loop: Clock) -> None:
        opened = Opened(loop)
        streams = [await opened.take(NEAR) for _ in range(3)]
        for stream in streams:
            opened.pool.give_back(stream)
        assert [wire.is_closed for wire in opened.wires] == [True, False, False]

    run_with_clock(scenario)


def test_a_stream_that_ended_while_idle_is_not_taken() -> None:
    async def scenario(loop: Clock) -> None:
        opened = Opened(loop)
        stream = await opened.take(NEAR)
        opened.pool.give_back(stream)
        stream.eof_received()
        assert await opened.take(NEAR) is not stream

    run_with_clock(scenario)


def test_closing_closes_what_is_idle() -> None:
    async def scenario(loop: Clock) -> None:
        opened = Opened(loop)
        idle, used = await opened.take(NEAR), await opened.take(FAR)
        opened.pool.give_back(idle)
        opened.pool.close()
        assert [wire.is_closed for wire in opened.wires] == [True, False]
        assert not used.is_lost

    run_with_clock(scenario)


# --- an average on streams that have died --------------------------------------------------------------------------------


def make_deaf(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> list[FramedStream]:
    """Peer 0 hears of the end of a kept stream only once it has taken it. Returns those that it has taken from now on."""
    pool, taken = peers[0].averager._context.pool, []
    take = pool.take
    peers.run(peers[0].averager.settled())  # every stream was given back
    assert pool._idle
    for stream in pool._idle:
        stream._transport.pause_reading()

    async def take_deaf(peer: PeerId, timeout_seconds: float) -> FramedStream:
        stream = await take(peer, timeout_seconds)
        if stream.bytes_sent:
            taken.append(stream)
            asyncio.get_running_loop().call_soon(stream._transport.resume_reading)
        return stream

    monkeypatch.setattr(pool, "take", take_deaf)
    return taken


def noted_dials(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> list[PeerId]:
    """The peers to which peer 0 opens streams from now on."""
    pool, dialled = peers[0].averager._context.pool, list[PeerId]()
    open_stream = pool._open_stream

    async def noting(peer: PeerId, timeout_seconds: float) -> FramedStream:
        dialled.append(peer)
        return await open_stream(peer, timeout_seconds)

    monkeypatch.setattr(pool, "_open_stream", noting)
    return dialled


def test_a_kept_stream_that_proves_dead_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its other end was closed before the hello came, as by a restart."""
    with Peers(3) as peers:
        vectors = vectors_of(3, 30_000)
        (first, *_) = peers.average("fresh streams", vectors, (1, 2, 3))
        assert isinstance(first, Averaged)
        taken = make_deaf(peers, monkeypatch)

        async def close_other_ends() -> None:
            accepted = [stream for peer in peers.list[1:] for stream in peer.averager._acceptor.streams.values()]
            for stream in accepted:
                stream.abort()

        peers.run(close_other_ends())
        results = peers.average("dead streams", vectors, (1, 2, 3))
        digest = first.finished.digest
        assert all(isinstance(result, Averaged) and result.finished.digest == digest for result in results), results
        assert taken
        assert all(stream.is_lost for stream in taken)


def test_a_peer_that_cannot_be_reached_anew_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with Peers(3) as peers:
        vectors = vectors_of(3, 30_000)
        peers.average("fresh streams", vectors, (1, 1, 1))
        taken = make_deaf(peers, monkeypatch)
        kill(peers[1])
        dialled = noted_dials(peers, monkeypatch)
        results = peers.average("gone", vectors, (1, 1, 1), who=(0, 2))
        kept = sum(stream.peer == peers[1].peer_id for stream in taken)
        assert 1 <= dialled.count(peers[1].peer_id) <= kept, "once instead of each kept stream, and not again and again"
        assert [isinstance(result, AveragingError) and result.suspects for result in results] == [(peers[1].peer_id,)] * 2
