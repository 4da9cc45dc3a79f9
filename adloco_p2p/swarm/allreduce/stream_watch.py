"""The live streams of one attempt: this module sends keepalives on them, ends silent ones and counts their bytes."""

import asyncio
from collections.abc import Callable

from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.swarm.transport.framed_stream import FramedStream, StreamSilent
from adloco_p2p.swarm.transport.stall_detector import StallDetector


class StreamWatch:
    """Watches every live stream, each with the member at its other end."""

    def __init__(self, stall_detector: StallDetector, *, least_stall_seconds: float) -> None:
        self.streams: dict[FramedStream, int] = {}
        self.has_ended = asyncio.Event()
        """Set whenever a stream has ended or left."""
        self._stall_detector, self._silence = stall_detector, stall_detector.watch()
        self._quiet_seconds = min(1.0, least_stall_seconds / 5)
        self._loop = asyncio.get_running_loop()
        self._bytes_sent = self._bytes_received = 0
        """Bytes on streams that are not watched any more."""

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received until now, frames included."""
        sent = self._bytes_sent + sum(stream.bytes_sent for stream in self.streams)
        return sent, self._bytes_received + sum(stream.bytes_received for stream in self.streams)

    def adopt(self, stream: FramedStream, member: int, *, on_lost: Callable[[Exception], None]) -> None:
        """Watch a stream. Its silence counts from now on, because between two averages it was allowed to be silent."""

        def lost(error: Exception) -> None:
            self.forget(stream)
            on_lost(error)

        self.streams[stream] = member
        stream.bytes_sent = stream.bytes_received = 0
        stream.last_received = self._loop.time()
        stream.on_lost = lost

    def forget(self, stream: FramedStream) -> None:
        if self.streams.pop(stream, None) is not None:
            self._bytes_sent += stream.bytes_sent
            self._bytes_received += stream.bytes_received
            self.has_ended.set()

    def close(self) -> None:
        """End every stream."""
        for stream in tuple(self.streams):
            self.forget(stream)
            stream.abort()
        self._silence.reset()

    async def look_on(self, awaited: Callable[[int], tuple[int, ...]], name_of: Callable[[int], PeerId]) -> None:
        """Send keepalives and end streams that are silent for too long, for ever. A keepalive names the members that are
        `awaited` here, as far as they concern the member at the other end."""
        last = self._loop.time()
        while True:
            await asyncio.sleep(self._quiet_seconds)
            now = self._loop.time()
            was_suspended = now - last > 2 * self._quiet_seconds  # this process itself did not run, so no stream fell silent
            last = now
            if was_suspended:
                self._silence.reset()
            for stream in self.streams:
                if was_suspended or stream.is_paced:
                    stream.last_received = now
            self._silence.look({stream: now - stream.last_received for stream in self.streams})
            limit_seconds = self._stall_detector.limit_seconds
            names = {member: awaited(member) for member in set(self.streams.values())}
            for stream, member in tuple(self.streams.items()):
                if now - stream.last_received > limit_seconds and stream.on_lost:
                    stream.end(StreamSilent(f"{name_of(member)} was silent for {limit_seconds:.3g} s"))
                stream.show_life(names[member], quiet_seconds=self._quiet_seconds)
