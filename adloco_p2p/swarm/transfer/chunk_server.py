"""Serves the chunks of blobs to all that have their root. Members come before strangers, and an idle peer loses its place."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.swarm.transfer.chunk_protocol import Answer, decode_want, encode_reply, handler_name
from adloco_p2p.swarm.transport.endpoint import Endpoint
from adloco_p2p.swarm.transport.framed_stream import FramedStream, FrameKind
from adloco_p2p.swarm.transport.held import encode_held
from adloco_p2p.swarm.transport.stream_acceptor import StreamAcceptor, StreamLimits, StreamPlaces

MAX_DOWNLOADS = 4
"""Downloads that run at the same time; further fetchers are asked to come back. Members come first: where one needs a place,
the oldest download of a peer without a seat ends, ..."""
TURN_SECONDS = 120.0
"""... or else the oldest that has lasted so long. Its fetcher keeps what it has, and takes turns with those that wait: a few
members that read slowly, for ever, would otherwise keep all others from the state."""
MAX_DOWNLOADS_PER_PEER = 1
MAX_REQUESTS = 16
MAX_REQUESTS_PER_PEER = 2
"""Streams of peers without a seat, and of one peer, that have no download yet."""
REQUEST_SECONDS = 10.0
"""A stream that has not asked for a blob after this time is dropped."""
IDLE_SECONDS = 30.0
"""A fetcher that neither asks nor reads for this time is dropped."""
LEAST_BYTES_PER_SECOND = 8 * 1024
"""A download that is slower for the whole time that the donor waited for its fetcher, ..."""
LEAST_AFTER_SECONDS = 60.0
"""... from this time on, is dropped, and so is one that takes the whole blob more often than MAX_COPIES."""
MAX_COPIES = 2


@dataclass(frozen=True, slots=True, eq=False)
class Blob:
    """A blob that is served."""

    index: bytes
    chunks: Sequence[memoryview]
    held: frozenset[int] | None = None
    """The chunks that are here; none: all of them."""
    source: object = None
    """The argument of `ChunkServer.drop` when the bytes are about to change."""


@dataclass(frozen=True, slots=True)
class _Running:
    """A download that runs."""

    blob: Blob
    is_strangers: bool
    begun_at: float


class Allowance:
    """The limits of one download: bytes, and seconds in which the donor waits for the fetcher. Its own cap is not counted."""

    def __init__(self, num_bytes: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._bytes_left = MAX_COPIES * num_bytes
        self._num_bytes = 0
        self._waited_seconds = 0.0

    def take(self, num_bytes: int) -> None:
        """Raises RemoteProtocolError where the fetcher asks for more than it can need."""
        self._bytes_left -= num_bytes
        self._num_bytes += num_bytes
        if self._bytes_left < 0:
            raise RemoteProtocolError(f"asked for more than {MAX_COPIES} times the blob")

    @contextlib.asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        """While the fetcher has to do something. Raises TimeoutError where it is silent, or slow all in all."""
        begun = self._clock()
        async with asyncio.timeout(IDLE_SECONDS):
            yield
        self._waited_seconds += self._clock() - begun
        if self._waited_seconds > max(LEAST_AFTER_SECONDS, self._num_bytes / LEAST_BYTES_PER_SECOND):
            raise TimeoutError(f"{self._num_bytes} bytes in {self._waited_seconds:.0f} s")


class ChunkServer:
    """The donor's side, for one kind of blob."""

    def __init__(
        self,
        endpoint: Endpoint,
        kind: str,
        find: Callable[[Digest], Awaitable[Blob | None]],
        *,
        max_downloads: int = MAX_DOWNLOADS,
        max_downloads_per_peer: int = MAX_DOWNLOADS_PER_PEER,
    ) -> None:
        """`find`: the blob of a root, if it is held here; its bytes do not change while `num_served_now` is not 0, or until
        `drop` is called with its source. Members come first."""
        self._find = find
        self._endpoint = endpoint
        self._acceptor = StreamAcceptor(endpoint, handler_name(kind), self._serve_stream)
        self._requests = StreamPlaces(
            StreamLimits(per_peer=MAX_REQUESTS_PER_PEER, strangers=MAX_REQUESTS, per_stranger=MAX_REQUESTS_PER_PEER),
            is_stranger=endpoint.is_stranger,
        )
        """Of streams that have no download yet."""
        self._max_downloads, self._max_downloads_per_peer = max_downloads, max_downloads_per_peer
        self._downloads: dict[FramedStream, _Running] = {}
        """By their streams, oldest first."""
        self.num_served_now = 0
        """Streams that may still read a blob."""
        self.on_served: Callable[[Digest, PeerId], None] = lambda *_: None
        """Called with the root and the peer when it has taken a whole blob, or reports as a member that it has it, and gone."""

    async def start(self) -> None:
        await self._acceptor.start()

    async def stop(self) -> None:
        """New fetchers are turned away; downloads that run end with the daemon."""
        await self._acceptor.stop()

    def drop(self, source: object) -> None:
        """End the downloads of blobs that come from there."""
        for stream in [stream for stream, running in self._downloads.items() if running.blob.source is source]:
            stream.abort()

    async def _serve_stream(self, stream: FramedStream) -> None:
        with self._requests.place_of(stream.peer):
            async with asyncio.timeout(REQUEST_SECONDS):
                root = Digest((await stream.receive(FrameKind.HELLO)).hex())
            stream.resume()
            blob = await self._find(root)
            if blob is None or not self._take_place(stream, blob):
                busy = Answer.BUSY, f"busy with {len(self._downloads)} downloads"
                reply = busy if blob else (Answer.REFUSED, "not held here")
                stream.send(FrameKind.HELLO_REPLY, encode_reply(*reply))
                await stream.until_closed(REQUEST_SECONDS)
                return
        await self._serve(root, blob, stream)

    def _take_place(self, stream: FramedStream, blob: Blob) -> bool:
        """Take a place for a download, if need be that of a stranger; false where all are taken by those who come first."""
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
        """Whose download ends where a member needs its place."""
        of_strangers = (stream for stream, running in self._downloads.items() if running.is_strangers)
        begun_before = time.monotonic() - TURN_SECONDS
        had_their_turn = (stream for stream, running in self._downloads.items() if running.begun_at <= begun_before)
        return next(of_strangers, None) or next(had_their_turn, None)

    async def _serve(self, root: Digest, blob: Blob, stream: FramedStream) -> None:
        """Until the fetcher ends the stream."""
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
                if wanted is None:  # others gave it the rest; a stranger could claim it at no cost
                    has_all = not self._endpoint.is_stranger(stream.peer)
                    return
                if wanted not in held:
                    raise RemoteProtocolError(f"asked for chunk {wanted}, which is not among the {len(held)} that are here")
                allowance.take(len(blob.chunks[wanted]))
                await stream.send_data(blob.chunks[wanted], allowance.waiting)
                served.add(wanted)
        finally:
            stream.abort()
            self.num_served_now -= 1
            self._downloads.pop(stream, None)
            if has_all or len(served) == len(blob.chunks):
                self.on_served(root, stream.peer)
