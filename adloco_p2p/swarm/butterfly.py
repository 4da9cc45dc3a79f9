"""One attempt at one average: every member sends its parts to their reducers and gets the averaged parts back.

    member --HELLO--> reducer --VERDICT--> member --DATA (own parts)--> reducer --DATA (averaged parts)--> member

One stream per member and reducer, opened by the member. A reducer sums part i as soon as all contributors' part i is here,
encodes the mean ONCE, and everybody, the reducer too, decodes those bytes: one result, byte for byte.

Flow control is end to end: a member sends part i only after it got averaged part i - WINDOW, so a reducer never holds more
than WINDOW parts of anyone and never has to stop reading.

Who is to blame: both ends of a stream show signs of life while they have nothing to send; an end that is silent for
`stall_seconds`, or gone, is a suspect. A reducer's signs of life say whom it waits for, so at the deadline the blame goes to
the peer that never came and not to the one that waits for it.

Memory beside the caller's vector: the averaged vector (4 P bytes, the caller's `out` where given), the encoded result (P
values as encoded; kept for repairs) and the window: WINDOW parts per member, and never more than one more encoded vector.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
import torch

from adloco_p2p.core.types import PeerId
from adloco_p2p.errors import AverageFailed, RemoteProtocolError, SwarmError
from adloco_p2p.swarm.averaging_wire import GO, Hello, Purpose, Verdict, refusal
from adloco_p2p.swarm.parts import Agreement, BadPart, Part, part_digest, part_statistics, weighted_mean
from adloco_p2p.swarm.streams import FramedStream, FrameKind, Pace, StreamLost
from adloco_p2p.swarm.tensor_codec import fits

_LOG = logging.getLogger(__name__)

WINDOW = 16
"""Parts that a member sends ahead of the averaged parts it got."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AveragingLimits:
    """What may grow and what may wait."""

    stall_seconds: float = 5.0
    """A peer that shows no sign of life for so long is a suspect."""
    connect_seconds: float = 20.0
    """A reducer that cannot be reached for so long is a suspect."""
    retry_seconds: float = 0.5
    """Pause before a reducer is dialed again."""
    grace_seconds: float = 0.3
    """After a stream has ended: wait so long for a note that names the true cause."""
    hello_seconds: float = 5.0
    """An accepted stream that does not say what it wants is dropped."""
    waiting_seconds: float = 300.0
    """How long a stream may wait for this peer to start its average."""
    max_streams: int = 2048
    """Accepted streams, in all."""
    max_streams_per_peer: int = 32
    kept_results: int = 32
    """Encoded results that are held for repairs; the oldest go first."""
    kept_bytes: int = 4 << 30
    """The newest result is kept whatever its size."""


class PartSink:
    """Parts that arrive on one stream, in order, each into its own room."""

    def __init__(
        self,
        sender: PeerId,
        parts: tuple[Part, ...],
        *,
        room: Callable[[int], memoryview],
        on_part: Callable[[int], None],
        permitted: Callable[[], int],
    ) -> None:
        self.num_arrived = 0
        self._sender = sender
        self._parts = parts
        self._room, self._on_part, self._permitted = room, on_part, permitted
        self._view = memoryview(b"")
        self._waiter: tuple[int, asyncio.Future[None]] | None = None

    def target(self, num_bytes: int) -> memoryview:
        if not len(self._view):
            if self.num_arrived == len(self._parts) or self.num_arrived >= self._permitted():
                raise RemoteProtocolError(f"{self._sender} sends more than was asked")
            self._view = self._room(self.num_arrived)
        if num_bytes > len(self._view):
            raise RemoteProtocolError(f"{self._sender} sends a part that is too long")
        return self._view[:num_bytes]

    def arrived(self, num_bytes: int) -> None:
        self._view = self._view[num_bytes:]
        if len(self._view):
            return
        self.num_arrived += 1
        if self._waiter and self.num_arrived >= self._waiter[0] and not self._waiter[1].done():
            self._waiter[1].set_result(None)
        self._on_part(self.num_arrived - 1)

    @property
    def is_complete(self) -> bool:
        return self.num_arrived == len(self._parts)

    async def wait_for(self, count: int) -> None:
        """Until so many parts are here; one waiter at a time. The caller bounds the waiting."""
        if self.num_arrived < count:
            self._waiter = (count, asyncio.get_running_loop().create_future())
            await self._waiter[1]


class Butterfly:
    """One attempt. `run` returns when this host has the whole result; `linger` then serves those who are slower."""

    def __init__(
        self,
        agreement: Agreement,
        vector: torch.Tensor,
        *,
        averaged: torch.Tensor,
        encoded: np.ndarray,
        own_peer: PeerId,
        timeout_seconds: float,
        limits: AveragingLimits,
        executor: Executor,
        pace: Pace | None,
        connect: Callable[[PeerId, float], Awaitable[FramedStream]],
        has_network: Callable[[], Awaitable[bool]],
    ) -> None:
        self.agreement = agreement
        self.me = agreement.members.index(own_peer)
        self.averaged = averaged
        self.encoded = encoded
        self.part_digests: list[bytes] = [b""] * sum(len(shard) for shard in agreement.shards)
        self.part_sums: list[tuple[float, float, float]] = [(0.0, 0.0, 0.0)] * len(self.part_digests)
        self.bytes_sent = self.bytes_received = 0
        """On streams that have ended; see `traffic`."""
        self._vector = vector
        self._limits, self._executor, self._pace = limits, executor, pace
        self._connect, self._has_network = connect, has_network
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + timeout_seconds
        self._outcome: asyncio.Future[None] = self._loop.create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._num_unsettled = len(self.part_digests)

        self._own_parts = agreement.shards[self.me]
        self._remote_contributors = tuple(member for member in agreement.contributors if member != self.me)
        self._inbox: list[dict[int, np.ndarray]] = [{} for _ in self._own_parts]
        self._spare: list[np.ndarray] = []
        self._is_reduced = [asyncio.Event() for _ in self._own_parts]
        self._num_reduced = 0

        self._streams: dict[FramedStream, int] = {}
        """Every live stream and the member at its other end."""
        self._senders: dict[int, PartSink] = {}
        """Members that opened a stream to this reducer."""
        self._reducers: dict[int, tuple[FramedStream, PartSink]] = {}
        """Reducers that answered."""
        self._stream_ended = asyncio.Event()
        self._lost: dict[int, str] = {}

    # --- life ---

    async def run(self) -> None:
        """Until the whole result is here. Raises AverageFailed; the caller then calls `close`."""
        alarm = self._loop.call_at(self._deadline, self._meet_deadline)
        self._spawn(self._watch(), member=None)
        if self.me in self.agreement.contributors:
            self._spawn(self._check_own_vector(), member=None)
        for member, parts in enumerate(self.agreement.shards):
            if parts and member != self.me:
                self._spawn(self._exchange(member, parts), member=member)
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

    async def linger(self) -> None:
        """Serve slower members until each is served or the deadline has come, then close."""
        assert self._outcome.done()
        expected = len(self.agreement.members) - 1 if self._own_parts else 0
        try:
            async with asyncio.timeout_at(self._deadline):
                while self._streams or len(self._senders) < expected:
                    self._stream_ended.clear()
                    await self._stream_ended.wait()
        except TimeoutError:
            _LOG.info("averaging.linger key=%.12s members=%d served=%d", self.agreement.key, expected, len(self._senders))
        finally:
            self.close()

    def close(self) -> None:
        """End every stream and task. Idempotent."""
        if not self._outcome.done():
            self._outcome.cancel()
        for stream in tuple(self._streams):
            self._forget_stream(stream)
            stream.abort()
        for task in tuple(self._tasks):
            task.cancel()

    def fail(self, reason: str, suspects: tuple[PeerId, ...] = ()) -> None:
        """End the attempt without a result; the first reason stands."""
        if not self._outcome.done():
            self._outcome.set_exception(AverageFailed(reason, suspects=suspects))

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received until now, frames included."""
        sent = self.bytes_sent + sum(stream.bytes_sent for stream in self._streams)
        return sent, self.bytes_received + sum(stream.bytes_received for stream in self._streams)

    def _spawn(self, work: Coroutine[None, None, None], *, member: int | None) -> asyncio.Task[None]:
        """Run beside the others. What it raises ends the attempt; a lost stream only after the grace."""

        def finished(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            error = None if task.cancelled() else task.exception()
            if isinstance(error, AverageFailed):
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
        return self.agreement.members[member]

    # --- as a member: to one reducer and back ---

    async def _exchange(self, member: int, parts: tuple[Part, ...]) -> None:
        stream = await self._reach(member)
        sink = PartSink(
            self._peer(member),
            parts,
            room=lambda index: self._encoded_view(parts[index]),
            on_part=lambda index: self._on_averaged(member, parts[index]),
            permitted=lambda: len(parts),
        )
        self._adopt_stream(stream, member, is_complete=lambda: sink.is_complete)
        stream.sink = sink
        stream.send(FrameKind.HELLO, self._hello())
        verdict = Verdict.decode(await stream.receive(FrameKind.VERDICT))
        if verdict.status == "refused":
            raise AverageFailed(f"{self._peer(member)} refused: {verdict.reason}", suspects=(self._peer(member),))
        if verdict.status == "failed":
            self.hear_failure(self._peer(member), self.agreement.digest, verdict)
            return
        self._reducers[member] = (stream, sink)
        if self.me in self.agreement.contributors:
            for index, part in enumerate(parts):
                await sink.wait_for(index + 1 - WINDOW)
                await stream.send_data(await self._own_encoded(part), self._pace)
        await sink.wait_for(len(parts))
        self._forget_stream(stream)
        stream.close()

    async def _reach(self, member: int) -> FramedStream:
        """Dial until it works; a peer that has just started may need a moment."""
        give_up = min(self._deadline, self._loop.time() + self._limits.connect_seconds)
        while True:
            try:
                return await self._connect(self._peer(member), max(0.1, give_up - self._loop.time()))
            except StreamLost:
                if self._loop.time() + self._limits.retry_seconds >= give_up:
                    raise
            await asyncio.sleep(self._limits.retry_seconds)

    def _hello(self) -> bytes:
        agreement = self.agreement
        return Hello(
            purpose=Purpose.AVERAGE,
            key=agreement.key,
            agreement=agreement.digest,
            codec=agreement.codec.code,
            size=agreement.size,
            part_bytes=agreement.part_bytes,
        ).encode()

    async def _own_encoded(self, part: Part) -> memoryview:
        own = self._vector[part.first : part.first + part.size]
        if self.agreement.codec.bytes_per_value == own.element_size():
            return self.agreement.codec.encode(own)  # no work to hand over
        return await self._loop.run_in_executor(self._executor, self.agreement.codec.encode, own)

    def _on_averaged(self, member: int, part: Part) -> None:
        self._spawn(self._settle_received(member, part), member=member)

    async def _settle_received(self, member: int, part: Part) -> None:
        def settle() -> None:
            values = self.agreement.codec.decode(self._encoded_view(part))
            if not fits(self.agreement.codec, values):
                raise BadPart(member, "an average that is not finite")
            self._settle(part, values)

        await self._loop.run_in_executor(self._executor, settle)
        self._count_settled()

    async def _check_own_vector(self) -> None:
        """Refuse here, by name, what every other member would have to refuse."""
        codec = self.agreement.codec
        if not await self._loop.run_in_executor(self._executor, fits, codec, self._vector):
            low, high = torch.aminmax(self._vector)
            why = f"the own vector has values from {float(low)} to {float(high)}; codec {codec.name} holds {codec.largest:.6g}"
            raise AverageFailed(why, suspects=(self._peer(self.me),))

    # --- as a reducer: from one member and back ---

    async def serve(self, stream: FramedStream, hello: Hello) -> None:
        """Take a member's parts and send it the means, until it has all. Ends when the stream does."""
        refused = self._reason_to_refuse(stream.peer, hello)
        if refused:
            _LOG.warning("averaging.refused peer=%s key=%.12s reason=%s", stream.peer, hello.key, refused)
            stream.send(FrameKind.VERDICT, refusal(refused).encode())
            await stream.flushed()
            return
        member = self.agreement.members.index(stream.peer)
        await asyncio.wait({self._spawn(self._serve_member(stream, member), member=member)})

    async def _serve_member(self, stream: FramedStream, member: int) -> None:
        parts = self._own_parts
        sink = PartSink(
            stream.peer,
            parts if member in self._remote_contributors else (),
            room=lambda index: self._inbox_room(member, index),
            on_part=self._on_contribution,
            permitted=lambda: self._num_reduced + WINDOW,
        )
        stream.sink = sink
        self._senders[member] = sink
        self._adopt_stream(stream, member, is_complete=lambda: sink.is_complete)
        try:
            stream.send(FrameKind.VERDICT, GO.encode())
            for index, part in enumerate(parts):
                await self._is_reduced[index].wait()
                await stream.send_data(self._encoded_view(part), self._pace)
            await stream.receive(FrameKind.NOTE)  # nothing more comes: this waits until the member closes
        except (StreamLost, RemoteProtocolError) as error:
            if not sink.is_complete:
                self._lose(member, str(error))
        finally:
            self._forget_stream(stream)

    def _reason_to_refuse(self, peer: PeerId, hello: Hello) -> str | None:
        agreement = self.agreement
        if peer not in agreement.members or peer == self._peer(self.me):
            return "not a member of this average"
        if not self._own_parts:
            return "this peer reduces nothing in this average"
        member = agreement.members.index(peer)
        if member in self._senders:
            return "a second stream of the same member"
        if hello.agreement != agreement.digest:
            theirs = f"size {hello.size}, codec {hello.codec}, part bytes {hello.part_bytes}"
            ours = f"size {agreement.size}, codec {agreement.codec.code}, part bytes {agreement.part_bytes}"
            why = f"the members do not agree: {peer} has {theirs}; here it is {ours}"
            self.fail(why, (peer,))
            return why
        return None

    def _inbox_room(self, member: int, index: int) -> memoryview:
        room = self._spare.pop() if self._spare else np.empty(self.agreement.part_bytes, dtype=np.uint8)
        self._inbox[index][member] = room
        return room.data[: self._own_parts[index].num_bytes]

    def _on_contribution(self, index: int) -> None:
        if all(member in self._senders for member in self._remote_contributors) and all(
            self._senders[member].num_arrived > index for member in self._remote_contributors
        ):
            self._spawn(self._reduce(index), member=None)

    async def _reduce(self, index: int) -> None:
        part, inbox = self._own_parts[index], self._inbox[index]

        def reduce() -> None:
            codec = self.agreement.codec
            own = codec.encode(self._vector[part.first : part.first + part.size])
            contributions = [
                (member, self.agreement.weights[member][1], own if member == self.me else inbox[member].data[: part.num_bytes])
                for member in self.agreement.contributors
            ]
            self._encoded_view(part)[:] = codec.encode(weighted_mean(codec, contributions))
            self._settle(part, codec.decode(self._encoded_view(part)))

        await self._loop.run_in_executor(self._executor, reduce)
        self._spare.extend(inbox.values())
        inbox.clear()
        self._num_reduced += 1
        self._is_reduced[index].set()
        self._count_settled()

    # --- the result ---

    def _encoded_view(self, part: Part) -> memoryview:
        return self.encoded.data[part.offset : part.offset + part.num_bytes]

    def _settle(self, part: Part, values: torch.Tensor) -> None:
        """Put a part of the result in place. Runs in a worker thread."""
        self.averaged[part.first : part.first + part.size] = values
        self.part_digests[part.index] = part_digest(self._encoded_view(part))
        transmitted = None
        if self.me in self.agreement.contributors:
            codec = self.agreement.codec
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
            was_away = now - last > 2 * self._quiet_seconds  # this process stood still: the silence was ours
            last, awaited = now, self._awaited_senders()
            for stream, member in tuple(self._streams.items()):
                if was_away:
                    stream.last_received = now
                if now - stream.last_received > self._limits.stall_seconds and stream.on_lost:
                    stream.on_lost(StreamLost(f"{self._peer(member)} was silent for {self._limits.stall_seconds:g} s"))
                    stream.abort()
                stream.show_life(awaited, quiet_seconds=self._quiet_seconds)

    def _adopt_stream(self, stream: FramedStream, member: int, *, is_complete: Callable[[], bool]) -> None:
        """Watch the stream. Its loss matters only while the other end still owes something."""

        def lost(error: Exception) -> None:
            self._forget_stream(stream)
            if not is_complete():
                self._lose(member, str(error))

        self._streams[stream] = member
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
        if not await self._has_network():
            raise AverageFailed("this peer's own network daemon is gone")
        suspects = tuple(self._peer(member) for member in sorted(self._lost))
        raise AverageFailed("; ".join(self._lost[member] for member in sorted(self._lost)), suspects=suspects)

    def hear_failure(self, teller: PeerId, agreement: bytes, verdict: Verdict) -> None:
        """Another member says that the average has failed. One that disagrees on what is averaged is not believed."""
        if teller not in self.agreement.members:
            return
        if agreement != self.agreement.digest:
            self.fail(f"the members do not agree: {teller} means another average", (teller,))
        named = tuple(peer for peer in verdict.suspects if peer in self.agreement.members)
        self.fail(f"{teller} says: {verdict.reason}", named)

    def _awaited_senders(self) -> tuple[int, ...]:
        """The contributors that hold up this reducer."""
        counts = {m: self._senders[m].num_arrived if m in self._senders else 0 for m in self._remote_contributors}
        least = min(counts.values(), default=0)
        if not self._own_parts or least == len(self._own_parts):
            return ()
        return tuple(member for member, count in counts.items() if count == least)

    def _meet_deadline(self) -> None:
        if self._outcome.done():
            return
        awaited = set(self._awaited_senders())
        for member, parts in enumerate(self.agreement.shards):
            if not parts or member == self.me:
                continue
            stream, sink = self._reducers.get(member, (None, None))
            if stream is None or sink is None:
                awaited.add(member)
            elif not sink.is_complete:
                others = set(stream.awaited_members) & set(self._remote_contributors)
                awaited |= others or {member}
        names = tuple(self._peer(member) for member in sorted(awaited))
        self.fail(f"the deadline passed, waiting for {', '.join(names) or 'nobody'}", names)
