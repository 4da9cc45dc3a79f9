"""Accepting streams: limits on their number, and the tasks that serve them. Nothing that a peer sends raises an error here."""

import asyncio
import contextlib
import logging
import resource
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from hivemind.p2p.p2p_daemon_bindings.datastructures import StreamInfo
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError

from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.swarm.transport.endpoint import Endpoint
from adloco_p2p.swarm.transport.framed_stream import FramedStream, StreamLost

logger = logging.getLogger(__name__)

STOP_SECONDS = 20.0
"""The time limit for the daemon to remove a handler."""
WANTED_DESCRIPTORS = 4096
"""The limit of descriptors that this process asks the system for, if its own is lower."""
RESERVED_DESCRIPTORS = 512
"""Descriptors for files, the page, the daemon, and streams that this peer opens itself."""
LEAST_STREAMS = 256
"""The least number of accepted streams, however low the limit is: below it not even averages of a small swarm work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    """The limits on the number of accepted streams."""

    per_peer: int
    strangers: int
    """Streams of all peers without a seat."""
    per_stranger: int
    in_all: int = sys.maxsize


def places_for_streams(wanted: int) -> int:
    """Raise this process's limit of descriptors if allowed; return how many streams may be accepted, at most `wanted`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    aim = WANTED_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, WANTED_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < aim:
        resource.setrlimit(resource.RLIMIT_NOFILE, (aim, hard))
        soft = aim
    if soft == resource.RLIM_INFINITY:
        return wanted
    return max(LEAST_STREAMS, min(wanted, soft - RESERVED_DESCRIPTORS))


class StreamPlaces:
    """Counts streams per peer. Strangers cannot take the places of members."""

    def __init__(self, limits: StreamLimits, *, is_stranger: Callable[[PeerId], bool]) -> None:
        self.limits = limits
        self.taken: Counter[PeerId] = Counter()
        self.num_of_strangers = 0
        self._is_stranger = is_stranger

    @contextlib.contextmanager
    def place_of(self, peer: PeerId) -> Iterator[None]:
        """Count one more stream of the peer within the block. Raises RemoteProtocolError where there is no place for it."""
        is_stranger = self._is_stranger(peer)
        if not self._has_place(peer, is_stranger=is_stranger):
            raise RemoteProtocolError("too many streams")
        self.taken[peer] += 1
        self.num_of_strangers += is_stranger
        try:
            yield
        finally:
            self.num_of_strangers -= is_stranger
            self.taken[peer] -= 1
            if not self.taken[peer]:
                del self.taken[peer]

    def _has_place(self, peer: PeerId, *, is_stranger: bool) -> bool:
        if is_stranger:
            return self.num_of_strangers < self.limits.strangers and self.taken[peer] < self.limits.per_stranger
        num_of_members = self.taken.total() - self.num_of_strangers
        return num_of_members < self.limits.in_all - self.limits.strangers and self.taken[peer] < self.limits.per_peer


class StreamAcceptor:
    """Accepts the streams of one handler and calls `serve` with each; the stream ends when `serve` returns."""

    def __init__(
        self,
        endpoint: Endpoint,
        handler: str,
        serve: Callable[[FramedStream], Awaitable[None]],
        *,
        on_refused: Callable[[PeerId, str], None] | None = None,
    ) -> None:
        """`serve` may raise StreamLost, TimeoutError, and RemoteProtocolError, whose text `on_refused` gets."""
        self._endpoint, self._handler, self._serve = endpoint, handler, serve
        self._on_refused = on_refused
        self.streams: dict[asyncio.Task[None], FramedStream] = {}
        """Accepted streams and the tasks that serve them."""

    async def start(self) -> None:
        await self._endpoint.p2p.add_binary_stream_handler(self._handler, self._accept)

    async def stop(self) -> None:
        """Accept no more streams; those that are being served go on."""
        if not self._endpoint.p2p.is_alive:
            return
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._endpoint.p2p.remove_binary_stream_handler(self._handler)
        except (OSError, P2PDaemonError, asyncio.IncompleteReadError) as error:  # a TimeoutError is an OSError
            logger.info("accept.stop handler=%s daemon=%s", self._handler, error)  # the daemon is gone, and the handler with it

    async def abort(self, *, timeout_seconds: float) -> None:
        """End every stream, and give the tasks this many seconds to end."""
        for stream in self.streams.values():
            stream.abort()
        if self.streams:
            await asyncio.wait(self.streams, timeout=timeout_seconds)

    async def _accept(self, info: StreamInfo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one stream from an authenticated peer."""
        peer, task = PeerId(str(info.peer_id)), asyncio.current_task()
        assert task is not None
        try:
            stream = self.streams[task] = self._endpoint.take_over(await FramedStream.take_over(peer, reader, writer))
            await self._serve(stream)
        except RemoteProtocolError as error:
            logger.debug("accept.refused handler=%s peer=%s reason=%s", self._handler, peer, error)
            if self._on_refused is not None:
                self._on_refused(peer, str(error))
        except (StreamLost, TimeoutError) as error:
            logger.debug("accept.stream_ended handler=%s peer=%s reason=%r", self._handler, peer, error)
        finally:
            taken_over = self.streams.pop(task, None)
            if taken_over is None:
                writer.transport.abort()
            else:
                taken_over.abort()
