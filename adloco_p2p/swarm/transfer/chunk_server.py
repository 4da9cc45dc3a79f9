"""The server of blobs, which gives chunks to every peer that knows a root. Members come before strangers, and an idle peer
loses its place."""

import asyncio
import contextlib
import errno
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.swarm.transfer.chunk_protocol import Answer, decode_want, encode_reply, handler_name
from adloco_p2p.swarm.transport.endpoint import Endpoint
from adloco_p2p.swarm.transport.framed_stream import FramedStream, FrameKind, StreamLost
from adloco_p2p.swarm.transport.held import encode_held
from adloco_p2p.swarm.transport.log_limiter import LogLimiter
from adloco_p2p.swarm.transport.stream_acceptor import StreamAcceptor, StreamLimits, StreamPlaces

MAX_DOWNLOADS = 4
"""Downloads that run at the same time; further fetchers are told that this peer is busy. If a member needs a place, the oldest
download of a stranger ends, or else the oldest one that has lasted TURN_SECONDS."""
TURN_SECONDS = 120.0
"""The time after which a download may have to end for a member. Its fetcher keeps its chunks and takes turns with those that
wait; otherwise a few members that read slowly, for ever, could keep all others from the state."""
MAX_DOWNLOADS_PER_PEER = 1
MAX_REQUESTS = 16
"""Streams of strangers that have no download yet."""
MAX_REQUESTS_PER_PEER = 2
"""Streams of one peer that have no download yet."""
REQUEST_SECONDS = 10.0
"""A stream that has not asked for a blob after this time is dropped."""
IDLE_SECONDS = 30.0
"""A fetcher that neither asks nor reads for this time is dropped."""
LEAST_BYTES_PER_SECOND = 8 * 1024
"""A download that is slower than this, over all the time that the donor waited for its fetcher, is dropped."""
LEAST_AFTER_SECONDS = 60.0
"""The time of waiting after which the least rate applies."""
MAX_COPIES = 2
"""A download that takes more bytes than this many copies of the blob is dropped."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FileChunk:
    """A chunk that is read when it is sent. It is not mapped into memory: the process would die of reading what somebody has
    cut off the file meanwhile."""

    path: Path
    start: int
    num_bytes: int

    def __len__(self) -> int:
        return self.num_bytes

    def read(self) -> memoryview:
        """Raises OSError, also where the file has become shorter."""
        with self.path.open("rb") as file:
            file.seek(self.start)
            data = file.read(self.num_bytes)
        if len(data) != self.num_bytes:
            raise OSError(errno.EIO, "shorter than before", str(self.path))
        return memoryview(data)


@dataclass(frozen=True, slots=True, eq=False)
class Blob:
    """A blob that is served."""

    index: bytes
    chunks: Sequence[memoryview | FileChunk]
    held: frozenset[int] | None = None
    """The chunks that are here; None for all of them."""
    source: object = None
    """The object to pass to `ChunkServer.drop` when the bytes are about to change."""

    async def read(self, chunk: int) -> memoryview:
        """Return the bytes of a chunk. Raises OSError."""
        place = self.chunks[chunk]
        return place if isinstance(place, memoryview) else await asyncio.to_thread(place.read)


@dataclass(frozen=True, slots=True)
class _Running:
    """A running download."""

    blob: Blob
    is_strangers: bool
    begun_at: float


class Allowance:
    """The limits of one download: its bytes, and the time that the donor waits for the fetcher, without that of its own cap."""

    def __init__(self, num_bytes: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._bytes_left = MAX_COPIES * num_bytes
        self._num_bytes = 0
        self._waited_seconds = 0.0

    def take(self, num_bytes: int) -> None:
        """Count bytes to be sent. Raises RemoteProtocolError where the fetcher asks for more than it can need."""
        self._bytes_left -= num_bytes
        self._num_bytes += num_bytes
        if self._bytes_left < 0:
            raise RemoteProtocolError(f"asked for more than {MAX_COPIES} times the blob")

    @contextlib.asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        """Measure a wait for the fetcher. Raises TimeoutError where the fetcher is silent, or too slow on the whole."""
        begun = self._clock()
        async with asyncio.timeout(IDLE_SECONDS):
            yield
        self._waited_seconds += self._clock() - begun
        if self._waited_seconds > max(LEAST_AFTER_SECONDS, self._num_bytes / LEAST_BYTES_PER_SECOND):
            raise TimeoutError(f"{self._num_bytes} bytes in {self._waited_seconds:.0f} s")


class ChunkServer:
    """Serves blobs of one kind."""

    def __init__(
        self,
        endpoint: Endpoint,
        kind: str,
        find: Callable[[Digest], Awaitable[Blob | None]],
        *,
        max_downloads: int = MAX_DOWNLOADS,
        max_downloads_per_peer: int = MAX_DOWNLOADS_PER_PEER,
    ) -> None:
        """`find` returns the blob of a root, if it is held here, and may raise OSError. Bytes of it in memory must not change
        while `num_served_now` is not 0, or until `drop` is called with its source."""
        self._find = find
        self._endpoint = endpoint
        self._acceptor = StreamAcceptor(endpoint, handler_name(kind), self._serve_stream)
        self._requests = StreamPlaces(
            StreamLimits(per_peer=MAX_REQUESTS_PER_PEER, strangers=MAX_REQUESTS, per_stranger=MAX_REQUESTS_PER_PEER),
            is_stranger=endpoint.is_stranger,
        )
        """The places of streams that have no download yet."""
        self._max_downloads, self._max_downloads_per_peer = max_downloads, max_downloads_per_peer
        self._unreadable = LogLimiter()
        self._downloads: dict[FramedStream, _Running] = {}
        """Running downloads by their streams, oldest first."""
        self.num_served_now = 0
        """The number of streams that may still read a blob."""
        self.on_served: Callable[[Digest, PeerId], None] = lambda *_: None
        """Called with root and peer when a download ends whose peer took the whole blob, or reports as a member that it has
        it."""

    async def start(self) -> None:
        await self._acceptor.start()

    async def stop(self) -> None:
        """Accept no new fetchers; running downloads end with the daemon."""
        await self._acceptor.stop()

    def drop(self, source: object) -> None:
        """End the downloads of blobs with this source."""
        for stream in [stream for stream, running in self._downloads.items() if running.blob.source is source]:
            stream.abort()

    async def _serve_stream(self, stream: FramedStream) -> None:
        with self._requests.place_of(stream.peer):
            async with asyncio.timeout(REQUEST_SECONDS):
                root = Digest((await stream.receive(FrameKind.HELLO)).hex())
            stream.resume()
            try:
                blob = await self._find(root)
            except OSError as error:
                self._note_unreadable(error)
                blob = None
            if blob is None or not self._take_place(stream, blob):
                busy = Answer.BUSY, f"busy with {len(self._downloads)} downloads"
                reply = busy if blob else (Answer.REFUSED, "not held here")
                stream.send(FrameKind.HELLO_REPLY, encode_reply(*reply))
                await stream.until_closed(REQUEST_SECONDS)
                return
        await self._serve(root, blob, stream)

    def _note_unreadable(self, error: OSError) -> None:
        """Log a problem of a file, but not as often as others ask for it."""
        if count := self._unreadable.count(self._endpoint.me, str(error), time.monotonic()):
            logger.warning("chunks.unreadable count=%d error=%s", count, error)

    def _take_place(self, stream: FramedStream, blob: Blob) -> bool:
        """Take a place for a download, for a member if need be that of another one that has to yield. Return whether there was
        one."""
        is_stranger = self._endpoint.is_stranger(stream.peer)
        if sum(running.peer == stream.peer for running in self._downloads) >= self._max_downloads_per_peer:
            return False
        if len(self._downloads) >= self._max_downloads:
            yielding = self._yielding()
            if is_stranger or yielding is None:
                return False
            del self._downloads[yielding]
            yielding.abort()
        self._downloads[stream] = _Running(blob, is_stranger, time.monotonic())
        return True

    def _yielding(self) -> FramedStream | None:
        """Return the stream whose download ends if a member needs its place."""
        of_strangers = (stream for stream, running in self._downloads.items() if running.is_strangers)
        begun_before = time.monotonic() - TURN_SECONDS
        had_their_turn = (stream for stream, running in self._downloads.items() if running.begun_at <= begun_before)
        return next(of_strangers, None) or next(had_their_turn, None)

    async def _serve(self, root: Digest, blob: Blob, stream: FramedStream) -> None:
        """Serve a blob until the fetcher ends the stream."""
        served: set[int] = set()
        has_all = False
        self.num_served_now += 1
        try:
            stream.send(FrameKind.HELLO_REPLY, encode_reply(Answer.GO))
            stream.send(FrameKind.TABLE, blob.index)
            held = frozenset(range(len(blob.chunks))) if blob.held is None else blob.held
            stream.send(FrameKind.HELD, encode_held(held, len(blob.chunks)))
            allowance = Allowance(sum(len(chunk) for chunk in blob.chunks))
            while True:
                async with allowance.waiting():
                    await stream.drain()
                    wanted = decode_want(await stream.receive(FrameKind.WANT))
                if wanted is None:  # others gave it the rest; a stranger's claim does not count, since it costs nothing
                    has_all = not self._endpoint.is_stranger(stream.peer)
                    return
                if wanted not in held:
                    raise RemoteProtocolError(f"asked for chunk {wanted}, which is not among the {len(held)} that are here")
                allowance.take(len(blob.chunks[wanted]))
                try:
                    data = await blob.read(wanted)
                except OSError as error:
                    self._note_unreadable(error)
                    raise StreamLost(f"chunk {wanted} cannot be read: {error}") from error
                await stream.send_data(data, allowance.waiting)
                served.add(wanted)
        finally:
            stream.abort()
            self.num_served_now -= 1
            self._downloads.pop(stream, None)
            if has_all or len(served) == len(blob.chunks):
                self.on_served(root, stream.peer)
