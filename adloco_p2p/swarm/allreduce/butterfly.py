"""One attempt at one average: every member sends its parts to their reducers and gets the averaged parts back.

    member --HELLO--> reducer --HELLO_REPLY--> member --DATA (own parts)--> reducer --DATA (averaged parts)--> member

A member opens a few streams to each reducer, or takes those that the last average left open, and deals the parts to them in
turn (`AllReduceSpec.lanes`): the daemon's flow control lets one stream alone fill only half of a long link. It does not wait
for the reply: the first parts are on their way behind the hello. A reducer sums part i as soon as all contributors' part i is
here, encodes the mean ONCE, and all members, the reducer too, decode those bytes: one result, byte for byte. At the end the
member sends NOTE: it has all, and the stream is free for the next average.

Flow control is end to end: on each lane a member sends part i only after it got averaged part i - `AllReduceSpec.window`, so a
reducer never holds more than WINDOW parts of anyone and never has to stop reading.

Suspects: both ends of a stream send keepalives while they have no data; an end that is silent for too long
(`stall_detector.py`), or gone, is a suspect. A reducer's keepalives name the member that it waits for, so at the deadline the
suspect is the peer that never came and not the one that waits for it.

Memory beside the caller's vector: the averaged vector (4 P bytes, the caller's `out` where given), the encoded result (P
values as encoded; kept for repairs) and the window: WINDOW parts per member, and never more than one more encoded vector.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from adloco_p2p.core.model.types import ROUNDS_KEPT, PeerId
from adloco_p2p.errors import AveragingError, RemoteProtocolError, SwarmError
from adloco_p2p.numerics.codecs import fits
from adloco_p2p.numerics.digest import chunk_digest
from adloco_p2p.numerics.reduction import BadPart, part_statistics, weighted_mean
from adloco_p2p.swarm.allreduce.allreduce_spec import AllReduceSpec, Part
from adloco_p2p.swarm.allreduce.handshake import GO, THROUGHPUT, Hello, HelloReply, Purpose, refusal
from adloco_p2p.swarm.allreduce.part_sink import PartSink
from adloco_p2p.swarm.transport.framed_stream import FramedStream, FrameKind, Pacing, StreamLost, StreamSilent
from adloco_p2p.swarm.transport.stall_detector import StallDetector
from adloco_p2p.swarm.transport.stream_pool import StreamPool

_LOG = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class AveragingLimits:
    """Limits of memory and of waiting."""

    stall_seconds: float = 5.0
    """A peer that shows no sign of life for so long is a suspect, ..."""
    longest_stall_seconds: float = 20.0
    """... where ended stalls were short. However long they were, no member may be silent for longer than this."""
    connect_seconds: float = 20.0
    """A reducer that cannot be reached for so long is a suspect."""
    retry_seconds: float = 0.5
    """Pause before a reducer is dialed again."""
    grace_seconds: float = 0.3
    """After a stream has ended: wait so long for a note that names the true cause."""
    hello_seconds: float = 5.0
    """An accepted stream that sends no hello by then is dropped."""
    waiting_seconds: float = 300.0
    """How long a stream may wait for this peer to start its average."""
    max_streams: int = 2048
    """Accepted streams, in all; fewer where the system allows this process fewer descriptors."""
    max_streams_per_peer: int = 64
    stranger_seconds: float = 5.0
    """`waiting_seconds` of a peer that has no seat: no plan that is known here gives it a part in an average."""
    max_stranger_streams: int = 64
    """Of all accepted streams, those of peers without a seat."""
    max_streams_per_stranger: int = 4
    kept_rounds: int = ROUNDS_KEPT + 2
    """Rounds before the newest average whose encoded results are held for repairs: a peer vouches for those before its last
    report, and its next average is at most two rounds after that one; ..."""
    kept_bytes: int = 1 << 28
    """... as far as they all fit in this; those of the newest round are held whatever their size."""


class Butterfly:
    """One attempt. `run` returns when this host has the whole result; `serve_stragglers` then serves those who are slower."""

    def __init__(
        self,
        spec: AllReduceSpec,
        vector: torch.Tensor,
        *,
        averaged: torch.Tensor,
        encoded: np.ndarray,
        own_peer: PeerId,
        timeout_seconds: float,
        limits: AveragingLimits,
        executor: Executor,
        pace: Pacing | None,
        pool: StreamPool,
        stall_detector: StallDetector,
        local_fault: Callable[[], Awaitable[str | None]],
        on_refused: Callable[[PeerId, str], None],
    ) -> None:
        """`local_fault` returns what is wrong with this peer's own network daemon, if anything; `on_refused` gets the
        refused peer and the reason."""
        self.spec = spec
        self.me = spec.members.index(own_peer)
        self.averaged = averaged
        self.encoded = encoded
        self.part_digests: list[bytes] = [b""] * sum(len(shard) for shard in spec.shards)
        self.part_sums: list[tuple[float, float, float]] = [(0.0, 0.0, 0.0)] * len(self.part_digests)
        self.bytes_sent = self.bytes_received = 0
        """On streams that have ended; see `traffic`."""
        self._vector = vector
        self._limits, self._executor, self._pace = limits, executor, pace
        self._pool, self._local_fault, self._on_refused = pool, local_fault, on_refused
        self._stall_detector, self._silence = stall_detector, stall_detector.watch()
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + timeout_seconds
        self._outcome: asyncio.Future[None] = self._loop.create_future()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._num_unsettled = len(self.part_digests)

        self._own_parts = spec.shards[self.me]
        self._remote_contributors = tuple(member for member in spec.contributors if member != self.me)
        self._inbox: list[dict[int, np.ndarray]] = [{} for _ in self._own_parts]
        self._spare: list[np.ndarray] = []
        self._is_reduced = [asyncio.Event() for _ in self._own_parts]
        self._num_reduced = [0] * len(spec.lanes(self.me))

        self._streams: dict[FramedStream, int] = {}
        """Every live stream and the member at its other end."""
        self._senders: dict[tuple[int, int], PartSink] = {}
        """By member and lane: streams that were opened to this reducer."""
        self._reducers: dict[tuple[int, int], tuple[FramedStream, PartSink]] = {}
        """By member and lane: streams on which a reducer answered."""
        self._throughputs: list[tuple[int, float]] = []
        """Bytes and seconds: how fast the reducers got what this peer sent."""
        self._stream_ended = asyncio.Event()
        self._lost: dict[int, str] = {}

    # --- life ---

    async def run(self) -> None:
        """Until the whole result is here. Raises AveragingError; the caller then calls `close`."""
        alarm = self._loop.call_at(self._deadline, self._meet_deadline)
        self._spawn(self._watch(), member=None)
        if self.me in self.spec.contributors:
            self._spawn(self._check_own_vector(), member=None)
        for member in range(len(self.spec.members)):
            if member != self.me:
                for lane, parts in enumerate(self.spec.lanes(member)):
                    self._spawn(self._exchange(member, lane, parts), member=member)
        if not self._remote_contributors:
            for index in range(len(self._own_parts)):
                self._spawn(self._reduce(index), member=None)
        try:
            await self._outcome
        finally:
            alarm.cancel()
            self._inbox = [{} for _ in self._own_parts]
            self._spare.clear()
            self._vector = self._vector.new_empty(0)

    async def serve_stragglers(self) -> None:
        """Serve slower members until each is served or the deadline has come, then close."""
        assert self._outcome.done()
        expected = (len(self.spec.members) - 1) * len(self.spec.lanes(self.me))
        try:
            async with asyncio.timeout_at(self._deadline):
                while self._streams or len(self._senders) < expected:
                    self._stream_ended.clear()
                    await self._stream_ended.wait()
        except TimeoutError:
            _LOG.info("averaging.serve_stragglers key=%.12s members=%d served=%d", self.spec.key, expected, len(self._senders))
        finally:
            self.close()

    async def closed(self) -> None:
        """Close, and wait until no task of this attempt holds its buffers any more."""
        self.close()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def close(self) -> None:
        """End every stream and task, and every way from this object to itself: its buffers, as large as the model, must not
        wait for the garbage collector. Idempotent."""
        if not self._outcome.done():
            self._outcome.cancel()
        for stream in tuple(self._streams):
            self._forget_stream(stream)
            stream.abort()
        for task in tuple(self._tasks):
            task.cancel()
        self._senders.clear()
        self._reducers.clear()
        self._silence.reset()
        if not self._outcome.cancelled() and (error := self._outcome.exception()) is not None:
            error.__traceback__ = None  # it leads through `run`

    def fail(self, reason: str, suspects: tuple[PeerId, ...] = ()) -> None:
        """End the attempt without a result; the first reason stands."""
        if not self._outcome.done():
            self._outcome.set_exception(AveragingError(reason, suspects=suspects))

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received until now, frames included."""
        sent = self.bytes_sent + sum(stream.bytes_sent for stream in self._streams)
        return sent, self.bytes_received + sum(stream.bytes_received for stream in self._streams)

    def _spawn(self, work: Coroutine[None, None, T], *, member: int | None) -> asyncio.Task[T]:
        """Run beside the others. Its exception ends the attempt; a lost stream only after the grace."""

        def finished(task: asyncio.Task[T]) -> None:
            self._tasks.discard(task)
            error = None if task.cancelled() else task.exception()
            if isinstance(error, AveragingError):
                self.fail(str(error), tuple(PeerId(peer) for peer in error.suspects))
            elif isinstance(error, BadPart):
                self.fail(f"{self._peer(error.member)} sent {error}", (self._peer(error.member),))
            elif isinstance(error, (SwarmError, RemoteProtocolError)) and member is not None:
                self._lose(member, str(error))
            elif error is not None and not self._outcome.done():
                self._outcome.set_exception(error)

        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(finished)
        return task

    def _peer(self, member: int) -> PeerId:
        return self.spec.members[member]

    # --- as a member: to one reducer and back ---

    async def _exchange(self, member: int, lane: int, parts: tuple[Part, ...]) -> None:
        """A stream that was kept open may have died unnoticed: where it ends before the reducer has answered, a new one
        takes its place, once. No part can count twice: a reducer takes one stream per member and lane, and refuses others."""
        stream = await self._reach(member)
        is_new = stream.bytes_sent == 0
        try:
            await self._exchange_on(stream, member, lane, parts, is_new=is_new)
        except StreamSilent:
            raise
        except StreamLost:
            if is_new or stream.bytes_received:
                raise
            timeout_seconds = max(0.1, min(self._limits.connect_seconds, self._deadline - self._loop.time()))
            stream = await self._pool.open(self._peer(member), timeout_seconds)
            await self._exchange_on(stream, member, lane, parts, is_new=True)

    async def _exchange_on(
        self, stream: FramedStream, member: int, lane: int, parts: tuple[Part, ...], *, is_new: bool
    ) -> None:
        sink = PartSink(
            self._peer(member),
            parts,
            room=self._encoded_view,
            on_part=lambda part: self._on_averaged(member, part),
            permitted=lambda: len(parts),
        )
        self._adopt_stream(stream, member, is_complete=lambda: sink.is_complete or not (is_new or stream.bytes_received))
        stream.sink = sink
        stream.send(FrameKind.HELLO, self._hello(lane))
        if self.me in self.spec.contributors:
            self._spawn(self._send_own(stream, sink, parts), member=member)
        reply = HelloReply.decode(await stream.receive(FrameKind.HELLO_REPLY))
        if reply.status == "refused":
            raise AveragingError(f"{self._peer(member)} refused: {reply.reason}", suspects=(self._peer(member),))
        if reply.status == "failed":
            self.on_remote_failure(self._peer(member), self.spec.digest, reply)
            return
        self._reducers[member, lane] = (stream, sink)
        await sink.wait_for(len(parts))
        if self.me in self.spec.contributors:
            self._note_throughput(await stream.receive(FrameKind.THROUGHPUT), parts)
        stream.send(FrameKind.NOTE)
        self._forget_stream(stream)
        self._pool.give_back(stream)

    def _note_throughput(self, payload: bytes, parts: tuple[Part, ...]) -> None:
        """A reducer reports how fast it got the first of our parts. Impossible values are ignored."""
        num_bytes, seconds = THROUGHPUT.unpack(payload) if len(payload) == THROUGHPUT.size else (0, 0.0)
        if 0 < num_bytes <= sum(part.num_sent_bytes for part in parts) and 0 < seconds < math.inf:
            self._throughputs.append((num_bytes, seconds))

    @property
    def upload_bytes_per_second(self) -> float:
        """All that arrived over the time that the slowest way took: the ways share the uplink, and are used at once."""
        if not self._throughputs:
            return 0.0
        return sum(num_bytes for num_bytes, _ in self._throughputs) / max(seconds for _, seconds in self._throughputs)

    async def _send_own(self, stream: FramedStream, sink: PartSink, parts: tuple[Part, ...]) -> None:
        with contextlib.suppress(StreamLost):  # seen where the answer is awaited
            for count, part in enumerate(parts):
                await sink.wait_for(count + 1 - self.spec.window)
                await stream.send_data(await self._own_encoded(part), self._pace)

    async def _reach(self, member: int) -> FramedStream:
        """Dial until it works; a peer that has just started may need a moment."""
        give_up = min(self._deadline, self._loop.time() + self._limits.connect_seconds)
        while True:
            try:
                return await self._pool.take(self._peer(member), max(0.1, give_up - self._loop.time()))
            except StreamLost:
                if self._loop.time() + self._limits.retry_seconds >= give_up:
                    raise
            await asyncio.sleep(self._limits.retry_seconds)

    def _hello(self, lane: int) -> bytes:
        spec = self.spec
        return Hello(
            purpose=Purpose.AVERAGE,
            key=spec.key,
            spec=spec.digest,
            codec=spec.codec.code,
            lane=lane,
            size=spec.size,
            part_bytes=spec.part_bytes,
        ).encode()

    async def _own_encoded(self, part: Part) -> memoryview:
        own = self._vector[part.first : part.first + part.size]
        if self.spec.codec.name == "float32":
            return self.spec.codec.encode(own)  # no work to hand over
        return await self._loop.run_in_executor(self._executor, self.spec.codec.encode, own)

    def _on_averaged(self, member: int, part: Part) -> None:
        self._spawn(self._settle_received(member, part), member=member)

    async def _settle_received(self, member: int, part: Part) -> None:
        def settle() -> None:
            codec = self.spec.mean_codec
            try:
                values = codec.decode(self._encoded_view(part))
            except RemoteProtocolError as error:
                raise BadPart(member, f"an average of {error}") from None
            if len(values) != part.size or not fits(codec, values):
                raise BadPart(member, "an average that is not finite, or of another size")
            self._settle(part, values)

        await self._loop.run_in_executor(self._executor, settle)
        self._count_settled()

    async def _check_own_vector(self) -> None:
        """Refuse here, by name, what every other member would have to refuse."""
        codec = self.spec.codec
        if not await self._loop.run_in_executor(self._executor, fits, codec, self._vector):
            low, high = torch.aminmax(self._vector)
            why = f"the own vector has values from {float(low)} to {float(high)}; codec {codec.name} holds {codec.largest:.6g}"
            raise AveragingError(why, suspects=(self._peer(self.me),))

    # --- as a reducer: from one member and back ---

    async def serve(self, stream: FramedStream, hello: Hello) -> bool:
        """Take a member's parts and send it the means, until it has all. True: the stream is free for another average."""
        refused = self._reason_to_refuse(stream.peer, hello)
        if refused:
            self._on_refused(stream.peer, refused)
            stream.send(FrameKind.HELLO_REPLY, refusal(refused).encode())
            return False
        member = self.spec.members.index(stream.peer)
        served = self._spawn(self._serve_member(stream, member, hello.lane), member=member)
        await asyncio.wait({served})
        return not served.cancelled() and served.exception() is None and served.result()

    async def _serve_member(self, stream: FramedStream, member: int, lane: int) -> bool:
        parts = self.spec.lanes(self.me)[lane]
        sink = PartSink(
            stream.peer,
            parts if member in self._remote_contributors else (),
            room=lambda part: self._inbox_room(member, part),
            on_part=self._on_contribution,
            permitted=lambda: self._num_reduced[lane] + self.spec.window,
        )
        stream.sink = sink
        self._senders[member, lane] = sink
        self._adopt_stream(stream, member, is_complete=lambda: sink.is_complete)
        stream.resume()
        try:
            stream.send(FrameKind.HELLO_REPLY, GO.encode())
            if member in self._remote_contributors:
                self._spawn(self._send_throughput(stream, sink, parts), member=member)
            for part in parts:
                await self._is_reduced[self._own_index(part)].wait()
                await stream.send_data(self._encoded_view(part), self._pace)
            await stream.receive(FrameKind.NOTE)
        except (StreamLost, RemoteProtocolError) as error:
            if not sink.is_complete:
                self._lose(member, str(error))
            return False
        else:
            return sink.is_complete
        finally:
            stream.sink = stream.on_lost = None
            self._forget_stream(stream)

    async def _send_throughput(self, stream: FramedStream, sink: PartSink, parts: tuple[Part, ...]) -> None:
        """Report to the member how fast its first parts came: those that it sends without waiting for others."""
        begun, first = self._loop.time(), parts[: self.spec.window]
        await sink.wait_for(len(first))
        seconds = self._loop.time() - begun
        with contextlib.suppress(StreamLost):  # the member then owes nothing, or its loss is seen elsewhere
            stream.send(FrameKind.THROUGHPUT, THROUGHPUT.pack(sum(part.num_sent_bytes for part in first), seconds))

    def _reason_to_refuse(self, peer: PeerId, hello: Hello) -> str | None:
        spec = self.spec
        if peer not in spec.members or peer == self._peer(self.me):
            return "not a member of this average"
        if not self._own_parts:
            return "this peer reduces nothing in this average"
        member = spec.members.index(peer)
        if hello.lane >= len(spec.lanes(self.me)):
            return "no such lane"
        if (member, hello.lane) in self._senders:
            return "a second stream of the same member"
        if hello.spec != spec.digest:
            theirs = f"size {hello.size}, codec {hello.codec}, part bytes {hello.part_bytes}"
            ours = f"size {spec.size}, codec {spec.codec.code}, part bytes {spec.part_bytes}"
            why = f"the members do not agree: {peer} has {theirs}; here it is {ours}"
            self.fail(why, (peer,))
            return why
        return None

    def _own_index(self, part: Part) -> int:
        return part.index - self._own_parts[0].index

    def _inbox_room(self, member: int, part: Part) -> memoryview:
        largest = max(part.num_sent_bytes for part in self._own_parts)
        room = self._spare.pop() if self._spare else np.empty(largest, dtype=np.uint8)
        self._inbox[self._own_index(part)][member] = room
        return room.data[: part.num_sent_bytes]

    def _on_contribution(self, part: Part) -> None:
        turn, lane = divmod(self._own_index(part), len(self._num_reduced))
        sinks = [self._senders.get((member, lane)) for member in self._remote_contributors]
        if all(sink is not None and sink.num_arrived > turn for sink in sinks):
            self._spawn(self._reduce(self._own_index(part)), member=None)

    async def _reduce(self, index: int) -> None:
        part, inbox = self._own_parts[index], self._inbox[index]

        def reduce() -> None:
            codec = self.spec.codec
            own = codec.encode(self._vector[part.first : part.first + part.size])
            encoded = {member: room.data[: part.num_sent_bytes] for member, room in inbox.items()} | {self.me: own}
            weights = self.spec.weights
            contributions = [(member, weights[member][1], encoded[member]) for member in self.spec.contributors]
            mean_codec = self.spec.mean_codec
            self._encoded_view(part)[:] = mean_codec.encode(weighted_mean(codec, contributions, part.size))
            self._settle(part, mean_codec.decode(self._encoded_view(part)))

        await self._loop.run_in_executor(self._executor, reduce)
        self._spare.extend(inbox.values())
        inbox.clear()
        self._num_reduced[index % len(self._num_reduced)] += 1
        self._is_reduced[index].set()
        self._count_settled()

    # --- the result ---

    def _encoded_view(self, part: Part) -> memoryview:
        return self.encoded.data[part.offset : part.offset + part.num_bytes]

    def _settle(self, part: Part, values: torch.Tensor) -> None:
        """Put a part of the result in place. Runs in a worker thread."""
        self.averaged[part.first : part.first + part.size] = values
        self.part_digests[part.index] = chunk_digest(self._encoded_view(part))
        transmitted = None
        if self.me in self.spec.contributors:
            codec = self.spec.codec
            transmitted = codec.decode(codec.encode(self._vector[part.first : part.first + part.size]))
        self.part_sums[part.index] = part_statistics(transmitted, values)

    def _count_settled(self) -> None:
        self._num_unsettled -= 1
        if self._num_unsettled == 0 and not self._outcome.done():
            self._outcome.set_result(None)

    # --- who is to blame ---

    @property
    def _quiet_seconds(self) -> float:
        return min(1.0, self._limits.stall_seconds / 5)

    async def _watch(self) -> None:
        """Show signs of life and look for them."""
        last = self._loop.time()
        while True:
            await asyncio.sleep(self._quiet_seconds)
            now = self._loop.time()
            was_suspended = now - last > 2 * self._quiet_seconds  # this process did not run: the stall was ours
            last, awaited = now, self._awaited_senders()
            if was_suspended:
                self._silence.reset()
            for stream in self._streams:
                if was_suspended or stream.is_paced:
                    stream.last_received = now
            self._silence.look({stream: now - stream.last_received for stream in self._streams})
            limit_seconds = self._stall_detector.limit_seconds
            for stream, member in tuple(self._streams.items()):
                if now - stream.last_received > limit_seconds and stream.on_lost:
                    stream.end(StreamSilent(f"{self._peer(member)} was silent for {limit_seconds:.3g} s"))
                stream.show_life(awaited, quiet_seconds=self._quiet_seconds)

    def _adopt_stream(self, stream: FramedStream, member: int, *, is_complete: Callable[[], bool]) -> None:
        """Watch the stream from now on: between two averages it was silent by right. Its loss matters only while the other end
        still owes something."""

        def lost(error: Exception) -> None:
            self._forget_stream(stream)
            if not is_complete():
                self._lose(member, str(error))

        self._streams[stream] = member
        stream.bytes_sent = stream.bytes_received = 0
        stream.last_received = self._loop.time()
        stream.on_lost = lost

    def _forget_stream(self, stream: FramedStream) -> None:
        if self._streams.pop(stream, None) is not None:
            self.bytes_sent += stream.bytes_sent
            self.bytes_received += stream.bytes_received
            self._stream_ended.set()

    def _lose(self, member: int, reason: str) -> None:
        """A member is gone. It may have failed because of another one, so wait a moment for its note."""
        if self._outcome.done() or member in self._lost:
            return
        self._lost[member] = reason
        if len(self._lost) == 1:
            self._spawn(self._blame_lost(), member=None)

    async def _blame_lost(self) -> None:
        await asyncio.sleep(self._limits.grace_seconds)
        if (trouble := await self._local_fault()) is not None:
            raise AveragingError(trouble)
        suspects = tuple(self._peer(member) for member in sorted(self._lost))
        raise AveragingError("; ".join(self._lost[member] for member in sorted(self._lost)), suspects=suspects)

    def on_remote_failure(self, teller: PeerId, spec: bytes, reply: HelloReply) -> None:
        """Another member reports that the average has failed. A report about another spec is ignored."""
        if teller not in self.spec.members:
            return
        if spec != self.spec.digest:
            self.fail(f"the members do not agree: {teller} means another average", (teller,))
        named = tuple(peer for peer in reply.suspects if peer in self.spec.members)
        if 2 * len([peer for peer in named if peer != teller]) >= len(self.spec.members) > 2:
            named = ()  # one member's report cannot make half of the members suspects
        self.fail(f"{teller} reports: {reply.reason}", named)

    def _awaited_senders(self) -> tuple[int, ...]:
        """The contributors that hold up this reducer."""
        counts = dict.fromkeys(self._remote_contributors, 0)
        for (member, _), sink in self._senders.items():
            if member in counts:
                counts[member] += sink.num_arrived
        least = min(counts.values(), default=0)
        if not self._own_parts or least == len(self._own_parts):
            return ()
        return tuple(member for member, count in counts.items() if count == least)

    def _meet_deadline(self) -> None:
        if self._outcome.done():
            return
        awaited = set(self._awaited_senders())
        for member in range(len(self.spec.members)):
            for lane in range(len(self.spec.lanes(member)) if member != self.me else 0):
                stream, sink = self._reducers.get((member, lane), (None, None))
                if stream is None or sink is None:
                    awaited.add(member)
                elif not sink.is_complete:
                    others = set(stream.awaited_members) & set(self._remote_contributors)
                    awaited |= others or {member}
        names = tuple(self._peer(member) for member in sorted(awaited))
        self.fail(f"the deadline passed, waiting for {', '.join(names) or 'no member'}", names)
