"""Framed binary streams between peers, over the streams of hivemind's network daemon.

A stream is an asyncio protocol on the transport itself, not a reader and a writer: bytes go from the socket straight to their
destination, and the end of a stream is noticed at once, even while no task reads. Every wait for a remote peer can be
cancelled by the caller.

The daemon has no half-closed streams: when one end closes, both directions end, and bytes on their way to it are lost. So
only the end that has everything it needs may close.

After a hello nothing is read until `resume`. Data may follow the hello at once, and flow control holds it back until the other
end has a place for it.
"""

import asyncio
import contextlib
import struct
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from copy import copy
from enum import IntEnum
from math import ceil
from typing import Protocol, cast

from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.control import DaemonConnector
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError, raise_if_failed, read_pbmsg_safe, write_pbmsg
from hivemind.proto import p2pd_pb2

from adloco_p2p.core.model.scalars import MAX_HOSTS, PeerId
from adloco_p2p.errors import RemoteProtocolError, SwarmError
from adloco_p2p.swarm.transport.token_bucket import LOOK_SECONDS
from adloco_p2p.swarm.transport.traffic import Meter


class Pacing(Protocol):
    """The hook of a rate limiter; see `rate_limiter.RateLimiter`."""

    @property
    def up_piece_bytes(self) -> int: ...
    @property
    def down_piece_bytes(self) -> int: ...
    async def sending(self, num_bytes: int) -> None: ...
    def received(self, num_bytes: int) -> float: ...


FRAME_BYTES = 1 << 18
"""The largest data frame; a keepalive or another stream may go between two frames."""
CONTROL_BYTES = 4096
"""The largest control frame, unless the caller expects a longer one."""
MAX_ALIVE_BYTES = 2 * MAX_HOSTS
"""The largest keepalive: two bytes for each member that it names."""
_CONTROL_FRAMES = 64  # the most unread control frames; an honest peer sends a few
_HIGH_WATER = 1 << 19
_LEAST_REST_SECONDS = 0.01
_FRAME = struct.Struct("<BBHI")  # marker, kind, zero, payload bytes
_MARKER = 0xAD


class FrameKind(IntEnum):
    HELLO = 1
    HELLO_REPLY = 2
    DATA = 3
    ALIVE = 4
    TABLE = 5
    WANT = 6
    NOTE = 7
    THROUGHPUT = 8
    GRAM = 9
    COMMITMENT = 10
    PLEDGES = 11
    RECEIPT = 12
    PROOF = 13
    HELD = 14


_KINDS = frozenset(int(kind) for kind in FrameKind)


class StreamLost(SwarmError):
    """The stream could not be opened, or has ended before its time."""


class StreamSilent(StreamLost):
    """The other end was silent for too long."""


class DataSink(Protocol):
    """The receiver of data frames. Its methods run in the event loop and must not block; they raise RemoteProtocolError to end
    the stream."""

    def target(self, num_bytes: int) -> memoryview:
        """Return memory for exactly this many bytes."""
        ...

    def arrived(self, num_bytes: int) -> None:
        """Handle the bytes of `target`, which have all come."""
        ...


class FramedStream(asyncio.BufferedProtocol):
    """One end of a stream to an authenticated peer."""

    def __init__(self, peer: PeerId, writer: asyncio.StreamWriter, loop: asyncio.AbstractEventLoop) -> None:
        self.peer = peer
        self.sink: DataSink | None = None
        self.on_lost: Callable[[Exception], None] | None = None
        """Called once when the stream ends other than by `close` or `abort`."""
        self.awaited_members: tuple[int, ...] = ()
        """The members that the other end waits for, by its last keepalive."""
        self.max_control_bytes = CONTROL_BYTES
        self.pace: Pacing | None = None
        """The rate limiter of sent and received data, if there is one."""
        self.bytes_sent = self.bytes_received = 0
        self._meter = Meter()
        self.last_sent = self.last_received = loop.time()
        self._loop = loop
        self._writer = writer  # newer Pythons close the transport when the writer is collected
        self._transport = cast(asyncio.Transport, writer.transport)  # a socket's transport goes both ways
        self._header = memoryview(bytearray(_FRAME.size))
        self._view, self._filled, self._kind = self._header, 0, 0
        self._control: deque[tuple[FrameKind, bytes]] = deque()
        self._is_held = self._is_paced = self._is_forgotten = False
        self._held = memoryview(b"")
        self._reader_waiter: asyncio.Future[None] | None = None
        self._is_full = False
        self._writer_waiters: list[asyncio.Future[None]] = []
        self._lost: Exception | None = None

    @classmethod
    async def take_over(cls, peer: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> "FramedStream":
        """Take over a stream that was begun with a reader and a writer. Raises StreamLost if that fails; a stream that has
        ended is returned as lost."""
        stream = cls(peer, writer, asyncio.get_running_loop())
        transport = stream._transport
        has_ended = reader.at_eof() or transport.is_closing()
        if not has_ended:
            transport.pause_reading()
            transport.set_write_buffer_limits(high=_HIGH_WATER)
            transport.set_protocol(stream)
        reader.feed_eof()  # the reader gets nothing more, so that reading its rest does not wait
        try:
            rest = memoryview(await reader.read())
        except OSError as error:
            raise StreamLost(f"stream to {peer}: {error}") from None
        stream._feed(rest)
        if has_ended:
            stream.end(StreamLost(f"stream to {peer} has ended"))
        stream._read_on()
        return stream

    def _feed(self, data: memoryview) -> None:
        """Take bytes that did not come from the transport; bytes after a hello wait for `resume`."""
        while len(data) and self._lost is None and not self._is_held:
            room = self.get_buffer(-1)[: len(data)]
            room[:] = data[: len(room)]
            data = data[len(room) :]
            self.buffer_updated(len(room))
        self._held = data

    def resume(self) -> None:
        """Read on after a hello, now that the consumer of the bytes is set."""
        self._is_held = False
        self.last_received = self._loop.time()
        self._feed(self._held)
        self._read_on()

    @property
    def is_paced(self) -> bool:
        """Whether this end does not read now because of its own cap."""
        return self._is_paced

    def _rest(self, num_bytes: int) -> None:
        """Charge data that has come, and read no more until the cap allows it."""
        assert self.pace is not None
        seconds = self.pace.received(num_bytes)
        if seconds >= _LEAST_REST_SECONDS and self._lost is None and not self._is_paced:
            self._is_paced = True
            self._transport.pause_reading()
            self._loop.call_later(min(seconds, LOOK_SECONDS), self._rest_on, self._loop.time() + seconds)

    def _rest_on(self, until: float) -> None:
        """Rest until then, unless another cap allows reading earlier. Bytes that other streams read meanwhile do not
        prolong the rest."""
        assert self.pace is not None
        seconds = min(until - self._loop.time(), self.pace.received(0))
        if seconds > 0 and self._lost is None:
            self._loop.call_later(min(seconds, LOOK_SECONDS), self._rest_on, until)
            return
        self._is_paced = False
        self.last_received = self._loop.time()
        self._read_on()

    def _read_on(self) -> None:
        if not self._is_held and not self._is_paced and self._lost is None:
            self._transport.resume_reading()

    def count_into(self, meter: Meter) -> None:
        """Count the bytes of this stream, past and future, in the meter."""
        meter.sent_bytes += self.bytes_sent
        meter.received_bytes += self.bytes_received
        self._meter = meter

    # --- called by the transport ---

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        if self.pace is not None:
            return self._view[self._filled : self._filled + self.pace.down_piece_bytes]
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self.last_received = self._loop.time()
        self.bytes_received += nbytes
        self._meter.note_received(self.peer, nbytes)
        self._filled += nbytes
        if self.pace is not None and self._kind == FrameKind.DATA:
            self._rest(nbytes)
        if self._is_forgotten:
            self._filled = 0
        if self._filled < len(self._view):
            return
        try:
            self._advance()
        except RemoteProtocolError as error:
            self.end(error)

    def eof_received(self) -> bool:
        self.end(StreamLost(f"{self.peer} ended the stream"))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(StreamLost(f"{self.peer} ended the stream" + (f": {exc}" if exc else "")))

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._wake_writers()

    # --- reading ---

    def _advance(self) -> None:
        """Handle a complete header or payload."""
        if self._view is not self._header:
            self._finish_frame()
        else:
            marker, kind, zero, length = _FRAME.unpack(self._header)
            if marker != _MARKER or zero or kind not in _KINDS:
                raise RemoteProtocolError(f"{self.peer} does not speak this protocol")
            self._kind = kind
            if kind == FrameKind.DATA:
                if self.sink is None or not 0 < length <= FRAME_BYTES:
                    raise RemoteProtocolError(f"{self.peer} sent {length} bytes of data, unexpected here")
                self._view = self.sink.target(length)
            elif length > self._max_bytes(kind) or len(self._control) >= _CONTROL_FRAMES:
                raise RemoteProtocolError(f"{self.peer} sent a control frame of {length} bytes or too many of them")
            else:
                self._view = memoryview(bytearray(length))
            if length == 0:
                self._finish_frame()
        self._filled = 0

    def _max_bytes(self, kind: int) -> int:
        """Return the most bytes of a control frame. A sign of life names members, and may come at any time, so it may not be as
        long as a frame that is awaited."""
        return min(self.max_control_bytes, MAX_ALIVE_BYTES) if kind == FrameKind.ALIVE else self.max_control_bytes

    def _finish_frame(self) -> None:
        payload, self._view = self._view, self._header
        if self._kind == FrameKind.DATA:
            if self.sink is None:  # the average has ended here while the frame was coming
                raise RemoteProtocolError(f"{self.peer} sent data that nobody awaits any more")
            self.sink.arrived(len(payload))
        elif self._kind == FrameKind.ALIVE:
            if len(payload) % 2:
                raise RemoteProtocolError(f"{self.peer} sent a malformed sign of life")
            self.awaited_members = struct.unpack(f"<{len(payload) // 2}H", payload)
        else:
            if self._kind == FrameKind.HELLO:
                self._is_held = True
                self._transport.pause_reading()
            self._control.append((FrameKind(self._kind), bytes(payload)))
            if self._reader_waiter and not self._reader_waiter.done():
                self._reader_waiter.set_result(None)

    async def receive(self, expected: FrameKind) -> bytes:
        """Wait for the next control frame. Raises RemoteProtocolError for another kind, StreamLost when the stream ends."""
        while not self._control:
            if self._lost is not None:
                raise self._why_lost()
            self._reader_waiter = self._loop.create_future()
            await self._reader_waiter
        kind, payload = self._control.popleft()
        if kind != expected:
            raise RemoteProtocolError(f"{self.peer} sent {kind.name} where {expected.name} belongs")
        return payload

    # --- writing ---

    def send(self, kind: FrameKind, payload: bytes | memoryview = b"") -> None:
        """Queue one frame. Raises StreamLost."""
        if self._lost is not None:
            raise self._why_lost()
        self._write([_FRAME.pack(_MARKER, kind, 0, len(payload)), payload])
        self.bytes_sent += _FRAME.size + len(payload)
        self._meter.sent_bytes += _FRAME.size + len(payload)
        self.last_sent = self._loop.time()

    def _write(self, pieces: list[bytes | memoryview]) -> None:
        """Hand the pieces to the transport, and spare it what it does not survive from Python 3.12 on: an empty piece at the
        end, which it writes again and again and never closes, and anything after a failed write, for which it watches the
        number of a closed descriptor, so that the next stream with this number is never read."""
        if not self._transport.is_closing():  # `connection_lost` is about to be called
            self._transport.writelines([piece for piece in pieces if len(piece)])

    async def send_data(
        self, data: memoryview, waiting: Callable[[], AbstractAsyncContextManager[None]] = contextlib.nullcontext
    ) -> None:
        """Send data as frames, as fast as the peer and `pace` allow. Waits for the peer to read happen within `waiting`. Raises
        StreamLost."""
        while len(data):
            piece = data[: FRAME_BYTES if self.pace is None else self.pace.up_piece_bytes]
            data = data[len(piece) :]
            if self.pace is not None:
                await self.pace.sending(len(piece))
            self.send(FrameKind.DATA, piece)
            async with waiting():
                await self.drain()

    async def drain(self) -> None:
        """Wait until there is room for more. Raises StreamLost."""
        while self._is_full and self._lost is None:
            waiter = self._loop.create_future()
            self._writer_waiters.append(waiter)
            await waiter
        if self._lost is not None:
            raise self._why_lost()

    async def flushed(self) -> None:
        """Wait until the daemon has taken all bytes. Raises StreamLost."""
        self._transport.set_write_buffer_limits(high=0)
        await self.drain()

    def show_life(self, awaited_members: tuple[int, ...], *, quiet_seconds: float) -> None:
        """Send a keepalive if nothing was sent for `quiet_seconds` and nothing is queued."""
        is_idle = self._transport.get_write_buffer_size() == 0 and self._loop.time() - self.last_sent >= quiet_seconds
        if self._lost is None and is_idle:
            self.send(FrameKind.ALIVE, struct.pack(f"<{len(awaited_members)}H", *awaited_members))

    # --- ending ---

    async def until_closed(self, timeout_seconds: float) -> None:
        """Discard everything that comes until the other end closes, because the frame that was sent last would be lost if this
        end closed first."""
        self.on_lost = self.sink = None
        self._is_forgotten, self._view, self._filled = True, memoryview(bytearray(FRAME_BYTES)), 0
        if self._is_held:
            self.resume()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                while self._lost is None:
                    self._reader_waiter = self._loop.create_future()
                    await self._reader_waiter

    @property
    def is_lost(self) -> bool:
        return self._lost is not None

    def close(self) -> None:
        """End the stream after the daemon has taken the queued bytes."""
        self.on_lost = None
        self._end_quietly(StreamLost(f"stream to {self.peer} is closed"))
        self._transport.close()

    def abort(self) -> None:
        """End the stream now, and drop the queued bytes."""
        self.on_lost = None
        self._end_quietly(StreamLost(f"stream to {self.peer} is closed"))
        self._transport.abort()

    def end(self, reason: Exception) -> None:
        """End the stream now because of what the other end did or did not do; `on_lost` is called."""
        if self._lost is None:
            self._end_quietly(reason)
            self._transport.abort()
            on_lost, self.on_lost = self.on_lost, None  # the callback refers to the consumers of this stream
            if on_lost is not None:
                on_lost(reason)

    def _end_quietly(self, reason: Exception) -> None:
        if self._lost is None:
            self._lost = reason
        self.sink = None
        if self._reader_waiter and not self._reader_waiter.done():
            self._reader_waiter.set_result(None)
        self._wake_writers()

    def _why_lost(self) -> Exception:
        """Return a copy of the error to raise: a raised error refers to frames that refer to this stream and its buffers."""
        assert self._lost is not None
        return copy(self._lost)

    def _wake_writers(self) -> None:
        waiters, self._writer_waiters = self._writer_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


async def open_stream(p2p: P2P, peer: PeerId, handler: str, *, timeout_seconds: float) -> FramedStream:
    """Open a new stream to the peer's handler. Raises StreamLost.

    The request is made here and not by `P2P.call_binary_stream_handler`, which never closes the socket of a request that
    failed or was given up, and lets the daemon dial for a minute whatever the caller's deadline is.
    """
    target = PeerID.from_base58(peer).to_bytes()
    stream_open = p2pd_pb2.StreamOpenRequest(peer=target, proto=[handler], timeout=max(1, ceil(timeout_seconds)))
    request = p2pd_pb2.Request(type=p2pd_pb2.Request.STREAM_OPEN, streamOpen=stream_open)
    writer = stream = None
    try:
        async with asyncio.timeout(timeout_seconds):
            reader, writer = await DaemonConnector(p2p.daemon_listen_maddr).open_connection()
            await write_pbmsg(writer, request)
            response = p2pd_pb2.Response()
            await read_pbmsg_safe(reader, response)
            raise_if_failed(response)
            stream = await FramedStream.take_over(peer, reader, writer)
            return stream
    except TimeoutError:
        raise StreamLost(f"{peer} was not reached in {timeout_seconds:.1f} s") from None
    except (OSError, asyncio.IncompleteReadError, P2PDaemonError) as error:
        raise StreamLost(f"{peer} cannot be reached: {error}") from None
    finally:
        if stream is None and writer is not None:
            writer.transport.abort()
