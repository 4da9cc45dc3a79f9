"""The pool of streams to other peers that are kept open between averages.

Opening a stream is quick, but the daemon's flow control begins with a small window on every new stream, which grows while data
flows. On a link of 100 Mbit/s and 50 ms a new stream is slow for its first megabytes.
"""

import asyncio
from collections.abc import Awaitable, Callable

from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.swarm.transport.framed_stream import FramedStream

IDLE_SECONDS = 900.0
"""A stream that was not used for this time, longer than most rounds last, is closed. Its other end waits twice as long."""
MAX_IDLE = 256
"""The most idle streams; the oldest go first."""


class StreamPool:
    """Keeps idle streams. A caller that takes a stream owns it until it gives it back, ready for the next hello. Belongs to one
    event loop."""

    def __init__(self, open_stream: Callable[[PeerId, float], Awaitable[FramedStream]]) -> None:
        self._open_stream = open_stream
        self._idle: dict[FramedStream, float] = {}
        """Idle streams, oldest first, and since when they are idle."""

    async def take(self, peer: PeerId, timeout_seconds: float) -> FramedStream:
        """Return the idle stream to the peer that was used last, or a new one. Raises StreamLost."""
        self._drop_old()
        for stream in reversed(self._idle):
            if stream.peer == peer and not stream.is_lost:
                del self._idle[stream]
                stream.on_lost = None
                return stream
        return await self.open(peer, timeout_seconds)

    async def open(self, peer: PeerId, timeout_seconds: float) -> FramedStream:
        """Open a new stream to the peer. Raises StreamLost."""
        return await self._open_stream(peer, timeout_seconds)

    def give_back(self, stream: FramedStream) -> None:
        """Keep the stream for the next average; no bytes may be under way on it."""
        stream.sink = None
        stream.on_lost = lambda _: self._forget(stream)
        if stream.is_lost:
            stream.abort()
            return
        self._idle[stream] = asyncio.get_running_loop().time()
        self._drop_old()

    def close(self) -> None:
        """Close every idle stream."""
        for stream in tuple(self._idle):
            stream.close()
        self._idle.clear()

    def _forget(self, stream: FramedStream) -> None:
        self._idle.pop(stream, None)

    def _drop_old(self) -> None:
        now = asyncio.get_running_loop().time()
        for stream, since in tuple(self._idle.items()):
            if now - since > IDLE_SECONDS or len(self._idle) > MAX_IDLE or stream.is_lost:
                del self._idle[stream]
                stream.close()
