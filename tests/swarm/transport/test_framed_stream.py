"""One end of a stream over a pair of sockets."""

import asyncio
import socket

import pytest

from adloco_p2p.core.model.scalars import MAX_HOSTS, PeerId
from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.swarm.transport import framed_stream
from adloco_p2p.swarm.transport.framed_stream import CONTROL_BYTES, FRAME_BYTES, FramedStream, FrameKind, StreamLost
from adloco_p2p.swarm.transport.rate_limiter import GOSSIP_DEBT_SECONDS, RateLimiter
from adloco_p2p.swarm.transport.token_bucket import LOOK_SECONDS
from adloco_p2p.swarm.transport.traffic import Traffic
from benchmarks.virtual_time import play


async def pair() -> tuple[FramedStream, FramedStream]:
    ends = [await asyncio.open_connection(sock=end) for end in socket.socketpair()]
    ours, theirs = [await FramedStream.take_over(PeerId("peer"), reader, writer) for reader, writer in ends]
    return ours, theirs


@pytest.mark.parametrize(
    "frame",
    [
        (FrameKind.COMMITMENT, b"a kind that nobody waits for"),
        (FrameKind.COMMITMENT, bytes(2 * CONTROL_BYTES)),
        (FrameKind.DATA, bytes(FRAME_BYTES)),
        (FrameKind.NOTE, b""),
    ],
)
@pytest.mark.parametrize("is_held", [False, True])
def test_the_last_frame_outlives_whatever_the_other_end_still_sends(frame: tuple[FrameKind, bytes], is_held: bool) -> None:
    """A member that is refused has already sent what follows its hello: that must not end the stream under the answer."""

    async def scenario() -> None:
        ours, theirs = await pair()
        if is_held:
            theirs.send(FrameKind.HELLO, b"hello")
            assert await ours.receive(FrameKind.HELLO) == b"hello"
        for _ in range(100):  # more than an end keeps unread
            theirs.send(*frame)
        ours.send(FrameKind.HELLO_REPLY, b"refused")
        forgetting = asyncio.create_task(ours.until_closed(240))
        await theirs.flushed()
        assert await theirs.receive(FrameKind.HELLO_REPLY) == b"refused"
        while ours.bytes_received < theirs.bytes_sent:
            assert not forgetting.done()
            await asyncio.sleep(0)
        theirs.close()
        await forgetting
        assert ours.is_lost

    asyncio.run(asyncio.wait_for(scenario(), 240))


def noted(stream: FramedStream, monkeypatch: pytest.MonkeyPatch) -> list[bytes | memoryview]:
    """Return the list of the buffers that the transport is given from now on."""
    given: list[bytes | memoryview] = []
    writelines = stream._transport.writelines

    def note(buffers: list[bytes | memoryview]) -> None:
        given.extend(buffers)
        writelines(buffers)

    monkeypatch.setattr(stream._transport, "writelines", note)
    return given


@pytest.mark.parametrize("payload", [b"", memoryview(b""), b"some"])
def test_the_transport_is_given_no_empty_buffer(payload: bytes | memoryview, monkeypatch: pytest.MonkeyPatch) -> None:
    """From Python 3.12 on it would write it for ever: a peer kept a processor busy, and its streams stayed open."""

    async def scenario() -> None:
        ours, theirs = await pair()
        given = noted(ours, monkeypatch)
        ours.send(FrameKind.NOTE, payload)
        assert await theirs.receive(FrameKind.NOTE) == payload
        assert given and all(len(buffer) for buffer in given)
        ours.close()
        await theirs.until_closed(240)
        assert theirs.is_lost

    asyncio.run(asyncio.wait_for(scenario(), 240))


def test_a_transport_whose_write_failed_is_given_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """From Python 3.12 on it would keep it, and watch its descriptor when that is closed: the next stream with the same
    descriptor was never read."""

    async def scenario() -> None:
        ours, theirs = await pair()
        theirs._transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        ours.send(FrameKind.NOTE, b"fails")
        assert ours._transport.is_closing() and not ours.is_lost
        given = noted(ours, monkeypatch)
        ours.send(FrameKind.NOTE, b"before the loss is known")
        assert not given
        await ours.until_closed(240)
        assert ours.is_lost
        with pytest.raises(StreamLost):
            ours.send(FrameKind.NOTE)
        theirs.abort()

    asyncio.run(asyncio.wait_for(scenario(), 240))


def test_an_end_that_never_closes_is_not_waited_for() -> None:
    async def scenario() -> None:
        ours, theirs = await pair()
        await ours.until_closed(0.01)
        assert not ours.is_lost
        ours.abort()
        theirs.abort()

    asyncio.run(asyncio.wait_for(scenario(), 240))


def test_a_sign_of_life_names_at_most_all_members_of_an_average_however_long_a_frame_is_awaited() -> None:
    async def scenario() -> None:
        ours, theirs = await pair()
        ours.max_control_bytes = 1 << 20
        everybody = tuple(range(MAX_HOSTS))
        theirs.show_life(everybody, quiet_seconds=0.0)
        theirs.send(FrameKind.NOTE)
        await ours.receive(FrameKind.NOTE)
        assert ours.awaited_members == everybody
        theirs.show_life((*everybody, 0), quiet_seconds=0.0)
        theirs.send(FrameKind.NOTE)
        with pytest.raises(RemoteProtocolError, match="a control frame of 514 bytes"):
            await ours.receive(FrameKind.NOTE)
        assert ours.awaited_members == everybody
        theirs.abort()

    asyncio.run(asyncio.wait_for(scenario(), 240))


class Sink:
    """Takes whatever comes."""

    def __init__(self) -> None:
        self.has_begun = asyncio.Event()

    def target(self, num_bytes: int) -> memoryview:
        self.has_begun.set()
        return memoryview(bytearray(num_bytes))

    def arrived(self, num_bytes: int) -> None:
        raise AssertionError(f"{num_bytes} bytes are no longer awaited")


def test_data_that_is_half_here_when_its_average_ends_is_refused() -> None:
    async def scenario() -> None:
        ours, theirs = await pair()
        ours.sink = sink = Sink()
        frame = framed_stream._FRAME.pack(framed_stream._MARKER, FrameKind.DATA, 0, 8) + bytes(8)
        theirs._transport.write(frame[:-4])
        await sink.has_begun.wait()
        ours.sink = None
        theirs._transport.write(frame[-4:])
        with pytest.raises(RemoteProtocolError, match="nobody awaits"):
            await ours.receive(FrameKind.NOTE)
        theirs.abort()

    asyncio.run(asyncio.wait_for(scenario(), 240))


class Ignored:
    """Takes data and forgets it."""

    def __init__(self) -> None:
        self.has_come = asyncio.Event()

    def target(self, num_bytes: int) -> memoryview:
        return memoryview(bytearray(num_bytes))

    def arrived(self, num_bytes: int) -> None:
        self.has_come.set()


@pytest.mark.parametrize("is_lifted", [False, True])
def test_a_stream_rests_for_no_longer_than_its_debt_and_ends_its_rest_with_the_cap(is_lifted: bool) -> None:
    async def scenario() -> None:
        loop, traffic = asyncio.get_running_loop(), Traffic()
        rate_limiter = RateLimiter(traffic, down_bytes_per_second=100_000, clock=loop.time)
        (ours, theirs), sink = await pair(), Ignored()
        ours.sink, ours.pace = sink, rate_limiter
        traffic.gossip.received_bytes += 10**9
        theirs.send(FrameKind.DATA, bytes(1000))
        await sink.has_come.wait()
        assert ours.is_paced
        begun = loop.time()
        if is_lifted:
            rate_limiter.set_caps(up_bytes_per_second=None, down_bytes_per_second=0)
        while ours.is_paced and loop.time() < begun + 60:
            await asyncio.sleep(0.01)
            traffic.gossip.received_bytes += 10**6  # the flood goes on
        rested = loop.time() - begun
        least, most = (0.0, LOOK_SECONDS) if is_lifted else (GOSSIP_DEBT_SECONDS, GOSSIP_DEBT_SECONDS)
        assert least - 0.05 <= rested <= most + 0.05
        ours.abort()
        theirs.abort()

    play(scenario())
