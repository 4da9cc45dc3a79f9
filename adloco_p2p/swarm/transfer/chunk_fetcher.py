"""The fetcher of a blob with a known root: it asks several donors at once and verifies every chunk.

The chunks are dealt to the donors; one that has nothing left to deliver takes over from a slow one. A donor may be another
fetcher, which has a part of the blob. A donor that lies, refuses or is silent costs only time, because the others deliver what
it was asked for.
"""

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from adloco_p2p.background import BackgroundTasks
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.swarm.transfer.chunk_protocol import (
    Answer,
    ChunkIndex,
    decode_reply,
    encode_want,
    handler_name,
    max_index_bytes,
)
from adloco_p2p.swarm.transfer.download import Download
from adloco_p2p.swarm.transport.endpoint import Endpoint
from adloco_p2p.swarm.transport.framed_stream import CONTROL_BYTES, FramedStream, FrameKind, StreamLost
from adloco_p2p.swarm.transport.held import decode_held, num_held_bytes

MAX_DONORS = 8
"""Donors that are asked at the same time; further ones wait until one of these is busy or dropped."""
LEAST_IN_FLIGHT, MOST_IN_FLIGHT, IN_FLIGHT_BYTES = 2, 32, 2 << 20
"""Chunks that one donor owes at the same time: two, or as many as make these bytes, enough for 300 Mbit/s at a round trip of 50
ms, but no more than half the requests that a donor lets wait. With more bytes, a donor would be asked for chunks that another
fetcher could have passed on meanwhile."""
MAX_ATTEMPTS = 3
"""Attempts in a row at a donor whose connection breaks before a single chunk has come."""
CONNECT_SECONDS = 20.0
SILENCE_SECONDS = 20.0
"""A donor that sends nothing for this time is dropped."""
LEAST_BYTES_PER_SECOND = 6500
"""A donor that takes SILENCE_SECONDS longer for a chunk than at this rate is dropped, too, unless the own cap slows it."""
PAUSE_SECONDS = 0.5
"""The pause before a lost or busy donor is asked again; it doubles each time that the donor is still busy."""
MOST_DOUBLINGS = 4
"""The most doublings of that pause, which end at 8 s."""
LATER_SECONDS = 2.0
"""The pause before a donor is asked again that had nothing more, or did not hold the blob: it may be fetching it itself."""
LOOK_SECONDS = 0.25
"""How often it is looked whether a donor without work may help another one."""

LEAVE_SECONDS = 60.0
"""The wait for a donor to close the stream after it was told that the whole blob is here: it may still be sending what it was
asked for."""

logger = logging.getLogger(__name__)


class _Busy(Exception):
    """The donor serves as many fetchers as its limit allows; it may be asked again later."""


class NothingNow(Exception):
    """The donor holds no chunk of the blob that is still wanted; it may be fetching the blob as well."""


class ChunkSink:
    """Receives the chunks of one donor, in the order in which they were asked for."""

    def __init__(self) -> None:
        self.filled: asyncio.Queue[tuple[int, bytearray] | Exception] = asyncio.Queue()
        """Complete chunks, not verified, or the reason why no more will come."""
        self._asked: deque[tuple[int, int]] = deque()
        self._chunk = bytearray()
        self._num_bytes = 0
        self.on_data: Callable[[], None] = lambda: None
        """Called whenever a part of a chunk has come."""

    @property
    def awaited_bytes(self) -> int:
        """The length of the chunk that comes next."""
        return self._asked[0][1] if self._asked else 0

    def expect(self, index: int, num_bytes: int) -> None:
        """Await this chunk, which was asked for."""
        self._asked.append((index, num_bytes))

    def target(self, num_bytes: int) -> memoryview:
        if num_bytes > self.awaited_bytes - self._num_bytes:
            raise RemoteProtocolError("more bytes came than were asked for")
        if not self._num_bytes:
            self._chunk = bytearray(self.awaited_bytes)
        return memoryview(self._chunk)[self._num_bytes : self._num_bytes + num_bytes]

    def arrived(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        self.on_data()
        if self._num_bytes == self.awaited_bytes:
            self.filled.put_nowait((self._asked.popleft()[0], self._chunk))
            self._chunk, self._num_bytes = bytearray(), 0


@dataclass(slots=True)
class _Fetch:
    """The state of one call of `fetch`."""

    download: Download
    silence_seconds: float
    problems: dict[PeerId, str] = field(default_factory=dict)
    """The last reason why each donor did not deliver."""
    at_work: set[PeerId] = field(default_factory=set)
    """Donors that are not dropped, and that had something to give, or were busy, when they were last asked."""
    num_failures: Counter[PeerId] = field(default_factory=Counter)
    """By donor: connections in a row that broke before a chunk came."""
    num_refusals: Counter[PeerId] = field(default_factory=Counter)
    """By donor: how often it was busy since it last gave a place."""


class ChunkFetcher:
    """Fetches blobs of one kind. Belongs to one event loop."""

    def __init__(
        self,
        endpoint: Endpoint,
        kind: str,
        *,
        connect_seconds: float = CONNECT_SECONDS,
        max_refusals: int | None = None,
    ) -> None:
        """A donor that is busy `max_refusals` times in a row is asked no more; None sets no limit."""
        self._endpoint = endpoint
        self._handler = handler_name(kind)
        self._connect_seconds = connect_seconds
        self._max_refusals = max_refusals
        self._leaving = BackgroundTasks()

    async def fetch(
        self, download: Download, donors: Sequence[PeerId], *, timeout_seconds: float, silence_seconds: float = SILENCE_SECONDS
    ) -> dict[PeerId, str]:
        """Fetch until every chunk is here and verified, no donor is left, or time is up.

        Return why each donor did not deliver the rest; empty if the download is complete. If it is not, it may be passed again:
        chunks that have come are not asked for again.
        """
        fetch = _Fetch(download, silence_seconds)
        finished = asyncio.create_task(download.completed.wait())
        workers = asyncio.create_task(self._use(dict.fromkeys(donors), fetch))
        try:
            await asyncio.wait((finished, workers), timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
            if workers.done():
                workers.result()  # raises only for a bug
        finally:
            finished.cancel()
            workers.cancel()
            await asyncio.gather(finished, workers, return_exceptions=True)
        return {} if download.is_complete else {donor: fetch.problems.get(donor, "too slow") for donor in donors}

    async def _use(self, donors: Collection[PeerId], fetch: _Fetch) -> None:
        """Ask the donors until nothing is missing or no donor is left."""
        turn = asyncio.Semaphore(MAX_DONORS)
        fetch.at_work = set(donors)

        async def use(donor: PeerId) -> None:
            while not fetch.download.is_complete:
                async with turn:
                    pause_seconds = await self._ask(donor, fetch)
                if pause_seconds is None:
                    return
                await asyncio.sleep(pause_seconds)

        async with asyncio.TaskGroup() as group:
            for donor in donors:
                group.create_task(use(donor))

    async def _ask(self, donor: PeerId, fetch: _Fetch) -> float | None:
        """Take the chunks that the donor has. Return after how many seconds it is worth another try, because it is busy, its
        connection broke, or it may get more chunks meanwhile; None if it is not."""
        num_before = fetch.download.num_delivered[donor]
        try:
            await self._fetch_from(donor, fetch)
        except _Busy as busy:
            fetch.problems[donor] = str(busy)
            fetch.num_refusals[donor] += 1
            if fetch.num_refusals[donor] != self._max_refusals:
                return _busy_pause(fetch.num_refusals[donor])
        except NothingNow as nothing:
            fetch.problems[donor] = str(nothing)
            if fetch.download.num_delivered[donor] > num_before:
                fetch.at_work.add(donor)
            else:
                fetch.at_work.discard(donor)
            return LATER_SECONDS if fetch.at_work else None  # if no donor has anything, the fetch has failed
        except RemoteProtocolError as error:
            fetch.problems[donor] = str(error)
        except (StreamLost, TimeoutError) as error:
            fetch.problems[donor] = str(error) or f"silent or too slow for {fetch.silence_seconds:g} s"
            has_delivered = fetch.download.num_delivered[donor] > num_before
            fetch.num_failures[donor] = 1 if has_delivered else fetch.num_failures[donor] + 1
            if fetch.num_failures[donor] < MAX_ATTEMPTS:
                return PAUSE_SECONDS
        else:
            return None
        fetch.at_work.discard(donor)
        logger.info("donor %s of %s dropped: %s", donor, fetch.download.name, fetch.problems[donor])
        return None

    async def _fetch_from(self, donor: PeerId, fetch: _Fetch) -> None:
        """Take chunks from one donor until all are here. Raises _Busy, NothingNow, RemoteProtocolError, StreamLost or
        TimeoutError."""
        stream = await self._endpoint.open_stream(donor, self._handler, timeout_seconds=self._connect_seconds)
        sink = ChunkSink()
        sink.on_data = lambda: fetch.download.note_data(donor)
        stream.sink, stream.on_lost = sink, sink.filled.put_nowait
        try:
            async with asyncio.timeout(fetch.silence_seconds):
                raw = await _introduce(stream, fetch.download)
            fetch.num_refusals.pop(donor, None)
            index = await fetch.download.begin(raw)
            async with asyncio.timeout(fetch.silence_seconds):
                held = decode_held(await stream.receive(FrameKind.HELD), len(index.chunks))
            await self._exchange(stream, sink, index, held, fetch)
        finally:
            if fetch.download.is_complete and not stream.is_lost:
                stream.send(FrameKind.WANT, encode_want(None))
                self._leaving.begin(_leave(stream))
            else:
                stream.abort()
            fetch.download.bytes_sent += stream.bytes_sent
            fetch.download.bytes_received += stream.bytes_received
            fetch.download.give_back(donor)

    async def _exchange(
        self, stream: FramedStream, sink: ChunkSink, index: ChunkIndex, held: frozenset[int], fetch: _Fetch
    ) -> None:
        download, num_owed, owed_bytes = fetch.download, 0, 0
        while not download.is_complete:
            while num_owed < LEAST_IN_FLIGHT or (num_owed < MOST_IN_FLIGHT and owed_bytes < IN_FLIGHT_BYTES):
                wanted = download.take(stream.peer, held, num_owed=num_owed, num_donors=len(fetch.at_work))
                if wanted is None:
                    break
                sink.expect(wanted, index.chunks[wanted][0])
                stream.send(FrameKind.WANT, encode_want(wanted))
                num_owed, owed_bytes = num_owed + 1, owed_bytes + index.chunks[wanted][0]
            if not num_owed and len(held) < len(index.chunks):
                raise NothingNow(f"holds {len(held)} of {len(index.chunks)} chunks, and no further one that is missing here")
            if not num_owed:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(download.wait_for_news(), LOOK_SECONDS)
                continue
            chunk, data = await next_chunk(stream, sink, fetch.silence_seconds)
            if not await asyncio.to_thread(download.is_right, chunk, data):
                raise RemoteProtocolError(f"chunk {chunk} is not what the root promises")
            download.put(stream.peer, chunk, data)
            num_owed, owed_bytes = num_owed - 1, owed_bytes - index.chunks[chunk][0]


def _busy_pause(num_refusals: int) -> float:
    """Return the pause in seconds before a donor that was busy so many times in a row is asked again."""
    return PAUSE_SECONDS * 2.0 ** min(num_refusals - 1, MOST_DOUBLINGS)


async def _leave(stream: FramedStream) -> None:
    """End the stream once the donor has got the last frame."""
    try:
        await stream.until_closed(LEAVE_SECONDS)
    finally:
        stream.abort()


async def _introduce(stream: FramedStream, download: Download) -> bytes:
    """Ask for the blob, and return the index that the donor sends, which is not checked yet."""
    stream.max_control_bytes = max(CONTROL_BYTES, max_index_bytes(download.max_chunks))
    stream.send(FrameKind.HELLO, bytes.fromhex(download.root))
    answer, reason = decode_reply(await stream.receive(FrameKind.HELLO_REPLY))
    if answer != Answer.GO:
        raise (_Busy if answer == Answer.BUSY else NothingNow)(reason)
    index = await stream.receive(FrameKind.TABLE)
    stream.max_control_bytes = max(CONTROL_BYTES, num_held_bytes(download.max_chunks))  # unread frames stay in memory
    return index


async def next_chunk(stream: FramedStream, sink: ChunkSink, silence_seconds: float) -> tuple[int, bytearray]:
    """Return the next complete chunk, not verified. Raises TimeoutError if nothing at all comes for `silence_seconds`, or if
    the chunk takes that much longer than at LEAST_BYTES_PER_SECOND, because a slow link is not a silent one."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + silence_seconds + sink.awaited_bytes / LEAST_BYTES_PER_SECOND
    while True:
        num_before = stream.bytes_received
        try:
            async with asyncio.timeout(silence_seconds):
                arrived = await sink.filled.get()
        except TimeoutError:
            if not stream.is_paced and (stream.bytes_received == num_before or loop.time() > deadline):
                raise
            continue
        if isinstance(arrived, Exception):
            raise arrived
        return arrived
