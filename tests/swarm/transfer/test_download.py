"""Which chunk is asked of whom, and what a donor may take."""

import asyncio
from collections import deque
from collections.abc import Container, Sequence
from typing import Any, cast

import pytest

from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.numerics.digest import blob_index, blob_root, chunk_digest
from adloco_p2p.swarm.transfer.chunk_fetcher import ChunkFetcher, ChunkSink, NothingNow, _Fetch, _introduce, next_chunk
from adloco_p2p.swarm.transfer.chunk_protocol import Answer, encode_reply, max_index_bytes
from adloco_p2p.swarm.transfer.chunk_server import Allowance
from adloco_p2p.swarm.transfer.download import (
    HELP_AFTER_SECONDS,
    HELP_AFTER_TIMES,
    LEAST_TIMED_BYTES,
    UNKNOWN_BYTES_PER_SECOND,
    Download,
)
from adloco_p2p.swarm.transport.framed_stream import CONTROL_BYTES, FrameKind
from adloco_p2p.swarm.transport.held import decode_held, encode_held, num_held_bytes
from benchmarks.virtual_time import play

CHUNKS = [bytes([number]) * (10 + number) for number in range(1, 7)]
INDEX = blob_index(b"", ((len(chunk), chunk_digest(chunk)) for chunk in CHUNKS))
A, B, C = PeerId("a"), PeerId("b"), PeerId("c")
ALL = range(len(CHUNKS))


def download_into(room: list[bytearray], *, may_hold_chunks: bool = False, now: list[float] | None = None) -> Download:
    return Download(
        blob_root(INDEX),
        lambda index: [memoryview(chunk) for chunk in room],
        max_chunks=len(room),
        may_hold_chunks=may_hold_chunks,
        clock=lambda: 0.0 if now is None else now[0],
    )


def empty_room() -> list[bytearray]:
    return [bytearray(len(chunk)) for chunk in CHUNKS]


def test_only_the_index_of_the_root_counts() -> None:
    room = empty_room()
    download = download_into(room)
    for false in (INDEX[:-36], INDEX[:-1] + b"\0", blob_index(b"", [(9, bytes(32))])):
        with pytest.raises(RemoteProtocolError, match="does not hash to the root"):
            asyncio.run(download.begin(false))
    assert asyncio.run(download.begin(INDEX)).chunks[0] == (11, chunk_digest(CHUNKS[0]))
    assert download.num_verified == 0


def take(download: Download, donor: PeerId, held: Container[int] = ALL, *, num_owed: int = 0) -> int | None:
    """As the fetcher of three donors asks."""
    return download.take(donor, held, num_owed=num_owed, num_donors=3)


def test_what_is_there_already_is_asked_of_nobody() -> None:
    room = empty_room()
    room[1][:], room[4][:] = CHUNKS[1], CHUNKS[4]
    download = download_into(room, may_hold_chunks=True)
    asyncio.run(download.begin(INDEX))
    assert [take(download, A) for _ in range(5)] == [0, 2, 3, 5, None]
    assert download.num_verified == 2


def test_a_donor_gets_chunks_beyond_its_first_once_it_has_delivered_and_while_enough_are_left_for_all() -> None:
    download = download_into(empty_room())
    asyncio.run(download.begin(INDEX))
    assert [take(download, A), take(download, A, num_owed=1)] == [0, None]
    download.put(A, 0, CHUNKS[0])
    assert [take(download, A, num_owed=num_owed) for num_owed in range(4)] == [1, 2, 3, None]
    assert [take(download, B), take(download, B, num_owed=1), take(download, C)] == [4, None, 5]


def test_the_time_of_a_donor_begins_anew_with_each_of_its_chunks() -> None:
    now = [0.0]
    download = download_into(empty_room(), now=now)
    asyncio.run(download.begin(INDEX))
    for chunk in (0, 1):
        assert take(download, A) == chunk
        download.put(A, chunk, CHUNKS[chunk])
    assert [take(download, A, num_owed=num_owed) for num_owed in range(2)] == [2, 3]
    now[0] = 0.75 * HELP_AFTER_SECONDS
    download.note_data(A)
    download.put(A, 2, CHUNKS[2])
    for chunk in (4, 5):
        assert take(download, B) == chunk
        download.put(B, chunk, CHUNKS[chunk])
    now[0] = 1.5 * HELP_AFTER_SECONDS
    assert take(download, B) is None
    now[0] = 1.75 * HELP_AFTER_SECONDS
    assert take(download, B) == 3


def test_an_idle_donor_helps_a_slow_one_from_its_last_chunk_on() -> None:
    now, room = [0.0], empty_room()
    download = download_into(room, now=now)
    asyncio.run(download.begin(INDEX))
    assert [take(download, peer) for peer in (A, B, A, B, A, B)] == [0, 1, 2, 3, 4, 5]
    assert take(download, C) is None
    now[0] = HELP_AFTER_SECONDS
    assert take(download, C, num_owed=1) is None
    assert take(download, C) == 5
    now[0] *= 2
    assert take(download, A) == 3  # 5 is asked of two already, 4 is its own
    assert not download.is_right(5, CHUNKS[1])
    assert download.is_right(5, CHUNKS[5])
    download.put(C, 5, CHUNKS[5])
    download.put(B, 5, CHUNKS[5])  # late, and right all the same
    download.give_back(A)  # 3 is still asked of B, 0, 2 and 4 are free again
    assert [take(download, C) for _ in range(3)] == [0, 2, 4]
    for chunk in (0, 1, 2, 3, 4):
        assert not download.is_complete
        download.put(B, chunk, CHUNKS[chunk])
    assert download.is_complete
    assert room == CHUNKS
    assert download.num_delivered == {B: 6, C: 1}


def test_a_helper_that_sends_nothing_keeps_no_chunk_from_a_third_donor() -> None:
    """A and B owe the last chunk, and B was to help A. Else one donor that holds chunks back could have another guard it."""
    now, room = [0.0], empty_room()
    download = download_into(room, now=now)
    asyncio.run(download.begin(INDEX))
    for chunk in (0, 1, 2, 3, 4):
        assert take(download, C) == chunk
        download.put(C, chunk, CHUNKS[chunk])
    assert take(download, A) == 5
    now[0] = HELP_AFTER_SECONDS
    assert take(download, B) == 5 and take(download, C) is None, "B has only begun"
    now[0] = 2 * HELP_AFTER_SECONDS
    assert take(download, C) == 5
    download.put(C, 5, CHUNKS[5])
    assert download.is_complete


LARGE = [bytes([number]) * (1 << 18) for number in range(3)]


def large_download(now: list[float], *, first: bytes = LARGE[0]) -> Download:
    """One of three chunks that A, B and nobody were asked for, in this order. A delivers the first one at 4 s."""
    chunks = [first, *LARGE[1:]]
    index = blob_index(b"", ((len(chunk), chunk_digest(chunk)) for chunk in chunks))
    room = [memoryview(bytearray(len(chunk))) for chunk in chunks]
    download = Download(blob_root(index), lambda _: room, max_chunks=3, clock=lambda: now[0])
    asyncio.run(download.begin(index))
    assert [take(download, A), take(download, B)] == [0, 1]
    now[0] = 4.0
    download.put(A, 0, first)
    return download


def when(download: Download, donor: PeerId, now: list[float], *, data_from: Sequence[PeerId] = ()) -> float:
    """Return when this donor, which is idle, is asked for something. Meanwhile data comes from others."""
    while True:
        for other in data_from:
            download.note_data(other)
        if take(download, donor) is not None:
            return now[0]
        now[0] += 0.25


def test_a_donor_helps_another_one_that_takes_more_than_twice_its_own_time() -> None:
    for other, since in ((B, 0.0), (C, 4.0)):  # since when it owes its chunk
        now = [0.0]
        download = large_download(now)
        assert take(download, C) == 2
        if other == C:
            download.put(B, 1, LARGE[1])
        assert when(download, A, now, data_from=[B, C]) == since + HELP_AFTER_TIMES * 4.0


def test_a_donor_helps_another_one_that_sends_nothing_in_its_own_time() -> None:
    now = [0.0]
    download = large_download(now)
    assert take(download, C) == 2
    download.note_data(B)
    assert when(download, A, now, data_from=[C]) == 4.0 + 4.0


def test_the_pace_of_a_donor_is_that_of_its_last_chunk() -> None:
    now = [0.0]
    download = large_download(now)
    assert take(download, A) == 2
    now[0] = 4.5
    download.put(A, 2, LARGE[2])
    download.note_data(B)
    assert when(download, A, now, data_from=[B]) == 4.5  # B was asked nine times as long ago


def test_the_time_of_a_small_chunk_says_little_of_the_rate() -> None:
    now = [0.0]
    download = large_download(now, first=b"list")
    assert take(download, C) == 2
    small_seconds = HELP_AFTER_TIMES * 4.0 * len(LARGE[1]) / LEAST_TIMED_BYTES
    assert when(download, A, now, data_from=[B, C]) == small_seconds == 32.0


def test_a_donor_that_has_delivered_nothing_is_not_expected_to_be_fast() -> None:
    for others, seconds in (([], 2.0), ([A], 4.0)):
        now = [0.0]
        download = large_download(now)
        assert take(download, A) == 2
        download.put(B, 1, LARGE[1])
        expected_seconds = len(LARGE[2]) / UNKNOWN_BYTES_PER_SECOND * (HELP_AFTER_TIMES if others else 1)
        assert when(download, C, now, data_from=others) - 4.0 == expected_seconds == seconds


def test_a_fetcher_is_asked_for_what_it_holds_and_serves_what_it_has_verified() -> None:
    now, room = [0.0], empty_room()
    download = download_into(room, now=now)
    assert download.verified() is None
    asyncio.run(download.begin(INDEX))
    assert download.verified() is None
    assert [take(download, B, {1, 4}) for _ in range(3)] == [1, 4, None]
    assert take(download, A) == 0
    now[0] = HELP_AFTER_SECONDS
    assert take(download, C, {4}) == 4  # not 0 or 1, which are owed for as long
    download.put(B, 4, CHUNKS[4])
    verified = download.verified()
    assert verified is not None
    index, chunks, held = verified
    assert (index, held, chunks[4]) == (INDEX, {4}, CHUNKS[4]) and all(chunk.readonly for chunk in chunks)
    download.put(A, 0, CHUNKS[0])
    assert held == {4}  # as it was


def test_the_chunks_are_asked_for_in_an_order_of_the_fetchers_own() -> None:
    room = empty_room()
    room[2][:] = CHUNKS[2]
    make_room, root = (lambda _: [memoryview(chunk) for chunk in room]), blob_root(INDEX)
    download = Download(root, make_room, max_chunks=len(room), may_hold_chunks=True, shuffle=list[int].reverse)
    asyncio.run(download.begin(INDEX))
    assert [take(download, A) for _ in range(6)] == [5, 4, 3, 1, 0, None]


@pytest.mark.parametrize("held", [set(), {0}, {3, 8}, set(range(9))])
def test_held_chunks_are_bits(held: set[int]) -> None:
    assert decode_held(encode_held(held, 9), 9) == held
    for wrong in (b"", bytes(1), bytes(3), bytes([0, 0b10])):
        with pytest.raises(RemoteProtocolError, match="do not mark 9 pieces"):
            decode_held(wrong, 9)


def test_a_download_has_a_least_speed_over_its_whole_time_and_ends() -> None:
    now = 0.0

    async def scenario() -> None:
        allowance = Allowance(1 << 20, clock=lambda: now)

        async def drip() -> None:
            nonlocal now
            while now < 600:
                async with allowance.waiting():
                    now += 29.0  # never silent for too long at once
                allowance.take(32 * 1024)

        with pytest.raises(TimeoutError, match="bytes in"):
            await drip()
        assert 60 <= now <= 90
        again = Allowance(1 << 20, clock=lambda: now)
        again.take(2 << 20)
        with pytest.raises(RemoteProtocolError, match="more than 2 times"):
            again.take(1)

    asyncio.run(scenario())


class _Refused(ChunkFetcher):
    """Every donor refuses, each after a time of its own."""

    num_asked = 0

    async def _fetch_from(self, donor: PeerId, fetch: object) -> None:
        self.num_asked += 1
        await asyncio.sleep(0.9 + 0.2 * int(donor))
        raise NothingNow("not held here")


def test_donors_that_all_refuse_are_not_asked_again_and_again() -> None:
    """One that refuses is asked again while others may deliver; these may not wait for each other."""

    async def scenario() -> None:
        donors = [PeerId(str(number)) for number in range(8)]
        fetcher = _Refused(cast(Any, None), "text")
        problems = await fetcher.fetch(download_into(empty_room()), donors, timeout_seconds=600)
        assert problems == dict.fromkeys(donors, "not held here")
        assert fetcher.num_asked <= 2 * len(donors)

    play(scenario())


class _Line:
    """A stream, as far as `next_chunk` looks at it."""

    bytes_received = 0
    is_paced = False


def test_a_slow_line_is_no_silence() -> None:
    """Bytes trickle in for several times as long as a donor may be silent; then nothing comes any more."""

    async def scenario() -> None:
        line, sink = _Line(), ChunkSink()
        sink.expect(7, 100_000)

        async def trickle() -> None:
            for _ in range(20):
                await asyncio.sleep(0.02)
                line.bytes_received += 1
            sink.filled.put_nowait((7, bytearray()))

        task = asyncio.create_task(trickle())
        assert await next_chunk(line, sink, 0.1) == (7, b"")  # type: ignore[arg-type]
        await task
        with pytest.raises(TimeoutError):
            await next_chunk(line, sink, 0.1)  # type: ignore[arg-type]

    play(scenario())


def test_a_trickle_of_bytes_does_not_hold_a_place_for_ever() -> None:
    """The chunk of 10 bytes would have come long ago, unless it is the own cap that holds it back."""

    async def scenario() -> None:
        line, sink = _Line(), ChunkSink()
        sink.expect(7, 10)

        async def trickle() -> None:
            while True:
                await asyncio.sleep(0.02)
                line.bytes_received += 1

        task = asyncio.create_task(trickle())
        with pytest.raises(TimeoutError):
            await next_chunk(line, sink, 0.1)  # type: ignore[arg-type]
        line.is_paced = True
        paced = asyncio.create_task(next_chunk(line, sink, 0.1))  # type: ignore[arg-type]
        assert not (await asyncio.wait({paced}, timeout=100.0))[0]
        paced.cancel()
        task.cancel()
        sink.filled.put_nowait(RemoteProtocolError("over"))
        with pytest.raises(RemoteProtocolError, match="over"):
            await next_chunk(line, sink, 0.1)  # type: ignore[arg-type]

    play(scenario())


def test_nothing_is_taken_that_was_not_asked_for() -> None:
    sink = ChunkSink()
    with pytest.raises(RemoteProtocolError, match="more bytes"):
        sink.target(1)
    sink.expect(0, 4)
    sink.target(3)[:] = b"abc"
    sink.arrived(3)
    with pytest.raises(RemoteProtocolError, match="more bytes"):
        sink.target(2)
    sink.target(1)[:] = b"d"
    sink.arrived(1)
    assert sink.filled.get_nowait() == (0, b"abcd")


def test_a_donor_whose_index_has_come_sends_no_long_frames_any_more() -> None:
    """Nobody reads them while chunks come: of an index of 65,536 chunks, 64 of them took 150 MB for each donor that lies."""

    class Donor:
        def __init__(self) -> None:
            self.max_control_bytes = CONTROL_BYTES
            self.answers = deque([encode_reply(Answer.GO), INDEX])

        def send(self, kind: FrameKind, payload: bytes) -> None:
            pass

        async def receive(self, expected: FrameKind) -> bytes:
            assert expected != FrameKind.TABLE or self.max_control_bytes == max_index_bytes(1 << 16)
            return self.answers.popleft()

    download, donor = Download(blob_root(INDEX), lambda _: [], max_chunks=1 << 16), Donor()
    assert asyncio.run(_introduce(cast(Any, donor), download)) == INDEX
    assert donor.max_control_bytes == num_held_bytes(1 << 16) == 8192


class EagerDonor:
    """The stream of a donor that delivers a chunk as soon as all that may be asked of it was asked for."""

    def __init__(self, chunks: Sequence[bytes], sink: ChunkSink) -> None:
        self.peer, self.bytes_received, self.is_paced = A, 0, False
        self.num_owed: list[int] = []
        """How many chunks it owed, each time that one was asked of it."""
        self._chunks, self._sink, self._asked = chunks, sink, deque[int]()

    def send(self, kind: FrameKind, payload: bytes) -> None:
        if not self._asked:
            asyncio.get_running_loop().call_soon(self._deliver)
        self._asked.append(int.from_bytes(payload, "little"))
        self.num_owed.append(len(self._asked))

    def _deliver(self) -> None:
        chunk = self._chunks[self._asked.popleft()]
        self._sink.target(len(chunk))[:] = chunk
        self._sink.arrived(len(chunk))
        if self._asked:
            asyncio.get_running_loop().call_soon(self._deliver)


@pytest.mark.parametrize(("num_bytes", "most"), [(4 << 20, 2), (1 << 20, 2), (1 << 18, 8), (1 << 15, 32), (10, 32)])
def test_a_donor_owes_two_megabytes_but_at_least_two_chunks_and_at_most_32(num_bytes: int, most: int) -> None:
    chunks = [bytes([number]) * num_bytes for number in range(5 * most)]
    encoded = blob_index(b"", ((len(chunk), chunk_digest(chunk)) for chunk in chunks))
    room = [memoryview(bytearray(num_bytes)) for _ in chunks]

    async def scenario() -> list[int]:
        download = Download(blob_root(encoded), lambda _: room, max_chunks=len(chunks))
        index = await download.begin(encoded)
        donor = EagerDonor(chunks, sink := ChunkSink())
        held = frozenset(range(len(chunks)))
        await ChunkFetcher(cast(Any, None), "test")._exchange(cast(Any, donor), sink, index, held, _Fetch(download, 20.0))
        assert download.is_complete
        return donor.num_owed

    num_owed = asyncio.run(scenario())
    assert num_owed[0] == 1 and max(num_owed) == most
