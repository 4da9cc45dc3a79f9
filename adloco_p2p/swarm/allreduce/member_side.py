"""The member's side of an attempt: its parts go to their reducers, and the averaged parts come back."""

import asyncio
import contextlib
import math
from collections.abc import Callable, Collection

import torch

from adloco_p2p.errors import AveragingError, RemoteProtocolError
from adloco_p2p.numerics.aggregation.gram import packed_size
from adloco_p2p.numerics.codecs import fits
from adloco_p2p.numerics.reduction import BadPart
from adloco_p2p.swarm.allreduce.allreduce_spec import Part
from adloco_p2p.swarm.allreduce.attempt_state import AttemptState
from adloco_p2p.swarm.allreduce.gram_barrier import diagonal_of
from adloco_p2p.swarm.allreduce.handshake import Hello, HelloReply, Purpose
from adloco_p2p.swarm.allreduce.held_uploads import ReturnedParts, encode_counts
from adloco_p2p.swarm.allreduce.own_contribution import OwnContribution
from adloco_p2p.swarm.allreduce.part_sink import PartSink
from adloco_p2p.swarm.allreduce.pledges import most_pledges_bytes
from adloco_p2p.swarm.allreduce.uplink_measure import UplinkMeasure
from adloco_p2p.swarm.transport.framed_stream import FramedStream, FrameKind, StreamLost, StreamSilent
from adloco_p2p.swarm.transport.held import decode_held, num_held_bytes


class MemberSide:
    """Opens this member's streams to all reducers and exchanges parts on them."""

    def __init__(self, state: AttemptState, *, put_products: Callable[[int, bytes], None]) -> None:
        """`put_products` is called with a reducer and its inner products, when they are here."""
        self._state = state
        self._put_products = put_products
        self._loop = asyncio.get_running_loop()
        self.uplink = UplinkMeasure()
        self._skipped: dict[int, tuple[int, ...]] = {}
        """By reducer: how many leading parts of each lane came back in the previous attempt, once that is known."""
        if not state.spec.is_retry:
            self._skipped = {member: (0,) * len(state.spec.lanes(member)) for member in state.spec.reducers}
        self._sinks: dict[tuple[int, int], PartSink] = {}
        """The receivers of averaged parts, by reducer and lane."""
        self._num_uploads = 0
        """The number of streams on which own parts go out now."""
        self._sending_since = math.inf
        """The `loop.time()` at which the first own parts could go out."""
        self._held_there: dict[int, asyncio.Future[frozenset[int]]] = {}
        """By reducer: places of the own parts that it holds from an earlier attempt, once it has reported them."""
        self._settling: dict[int, set[asyncio.Task[None]]] = {}
        """By reducer: the tasks that put averaged parts in place."""

    def begin(self) -> None:
        """Hash and check the own vector, and open every stream."""
        state = self._state
        if state.own is not None:
            state.end.spawn(self._check_own_vector(), member=None)
            state.end.spawn(self._commit(state.own), member=None)
        for member in range(len(state.spec.members)):
            if member != state.me:
                for lane, parts in enumerate(state.spec.lanes(member)):
                    state.end.spawn(self._exchange(member, lane, parts), member=member)

    def close(self) -> None:
        """Forget all streams, because they bring nothing any more."""
        self._state.reducers.clear()
        self._sinks.clear()

    async def cut_off(self, members: Collection[int]) -> None:
        """End the streams to these members, and wait until none of their parts is being put in place."""
        watch = self._state.watch
        for stream, member in tuple(watch.streams.items()):
            if member in members:
                watch.forget(stream)
                stream.abort()
        settling = [task for member in members for task in self._settling.get(member, ())]
        if settling:
            await asyncio.wait(settling)

    @property
    def sending_rate(self) -> float:
        """The rate in bytes per second at which the own contribution goes out; 0 once the others have it."""
        return self.uplink.sending_rate if self._num_uploads else 0.0

    async def _exchange(self, member: int, lane: int, parts: tuple[Part, ...]) -> None:
        """Exchange the parts of one lane with a reducer.

        A stream kept open from an earlier average may have died unnoticed. If it ends before the reducer has answered, a new
        one replaces it, once. No part counts twice, because a reducer refuses a second stream of the same member and lane.
        """
        state = self._state
        stream = await self._reach(member)
        is_new = stream.bytes_sent == 0
        try:
            await self._exchange_on(stream, member, lane, parts, is_new=is_new)
        except StreamSilent:
            raise
        except StreamLost:
            if is_new or stream.bytes_received:
                raise
            timeout_seconds = max(0.1, min(state.context.limits.connect_seconds, state.end.deadline - self._loop.time()))
            stream = await state.context.pool.open(state.peer(member), timeout_seconds)
            await self._exchange_on(stream, member, lane, parts, is_new=True)

    async def _exchange_on(
        self, stream: FramedStream, member: int, lane: int, parts: tuple[Part, ...], *, is_new: bool
    ) -> None:
        state = self._state
        sink = PartSink(
            state.peer(member),
            parts,
            room=state.assembly.room,
            on_part=lambda part: self._on_averaged(member, part),
            permitted=lambda: len(parts) if member in self._skipped else 0,
            length=state.assembly.length,
        )
        self._sinks[member, lane] = sink
        if member in self._skipped:
            sink.skip(self._skipped[member][lane])

        def owes() -> bool:
            return not sink.is_complete or (lane == 0 and not state.receipts.has(member))

        state.adopt_stream(stream, member, is_complete=lambda: not (owes() and (is_new or stream.bytes_received)))
        num_hosts = len(state.spec.contributors)
        stream.max_control_bytes = 8 * packed_size(num_hosts) + most_pledges_bytes(1 + len(state.spec.members))
        stream.max_control_bytes += num_held_bytes(len(state.spec.shards[member]))
        stream.sink = sink
        stream.send(FrameKind.HELLO, self._hello(lane))
        begun = self._loop.time()
        if state.own is not None and lane == 0:
            state.end.spawn(self._send_commitment(stream, member), member=member)
        if state.own is not None:
            state.end.spawn(self._send_own(state.own, stream, sink, member, parts), member=member)
        reply = HelloReply.decode(await stream.receive(FrameKind.HELLO_REPLY))
        waited = 0.0 if state.spec.is_retry else max(0.0, self._loop.time() - max(begun, self._sending_since))
        if reply.status == "refused":
            raise AveragingError(f"{state.peer(member)} refused: {reply.reason}", suspects=(state.peer(member),))
        if reply.status == "failed":
            state.end.on_remote_failure(state.peer(member), state.spec.digest, reply)
            return
        state.reducers[member, lane] = (stream, sink)
        if state.own is not None and lane == 0 and state.spec.is_retry:
            held = decode_held(await stream.receive(FrameKind.HELD), len(state.spec.shards[member]))
            self._held_by(member).set_result(held)
        if state.own is not None:
            self.uplink.note(await stream.receive(FrameKind.THROUGHPUT), parts, waited_seconds=waited)
        if lane == 0:
            state.commitments.take_all(member, await stream.receive(FrameKind.PLEDGES))
        if lane == 0 and state.spec.needs_gram:
            products = state.products.take(member, await stream.receive(FrameKind.GRAM))
            await self._check_own_norm(member, products)
            self._put_products(member, products)
        if lane == 0 and state.spec.is_retry:
            stream.send(FrameKind.HELD, await self._keep_returned(member))
        await sink.wait_for(len(parts))
        if lane == 0:
            state.receipts.take(member, await stream.receive(FrameKind.RECEIPT))
            state.check_outcome()
        stream.send(FrameKind.NOTE)
        state.watch.forget(stream)
        state.context.pool.give_back(stream)

    async def _keep_returned(self, reducer: int) -> bytes:
        """In a retry, once its inputs are decided, keep the parts that came back from this reducer. Return the report to it."""
        state, spec = self._state, self._state.spec
        await state.commitments.is_complete.wait()
        await state.barrier.is_decided.wait()
        counts, returned = (0,) * len(spec.lanes(reducer)), state.returned
        if returned is not None and returned.inputs == state.inputs:
            counts = returned.counts(spec, reducer, self._held_by(reducer).result() if state.own is not None else None)
        self._skipped[reducer] = counts
        if len(self._skipped) == len(set(spec.reducers) - {state.me}):  # it is as large as the model, and needed no longer
            state.returned = None
        for lane, count in enumerate(counts):
            if (reducer, lane) in self._sinks:
                self._sinks[reducer, lane].skip(count)
            for part in spec.lanes(reducer)[lane][:count]:
                state.end.spawn(self._settle_received(reducer, part, returned), member=reducer)
        return encode_counts(counts)

    def _held_by(self, reducer: int) -> asyncio.Future[frozenset[int]]:
        """Return a future of the places, in the reducer's shard, of the own parts that the reducer holds already."""
        if reducer not in self._held_there:
            self._held_there[reducer] = self._loop.create_future()
            if not self._state.spec.is_retry:
                self._held_there[reducer].set_result(frozenset())
        return self._held_there[reducer]

    async def _send_own(
        self, own: OwnContribution, stream: FramedStream, sink: PartSink, reducer: int, parts: tuple[Part, ...]
    ) -> None:
        state = self._state
        if not state.spec.needs_gram:  # parts are reduced as they come, but only with the commitment, so that goes first
            await state.commitments.wait_for(state.me)
        self._sending_since = min(self._sending_since, self._loop.time())
        held = await self._held_by(reducer)
        self._num_uploads += 1
        way = self.uplink.new_way()
        with contextlib.suppress(StreamLost):  # handled where the answer is awaited
            for turn, part in enumerate(parts):
                if state.spec.place_of[part.index] in held:
                    continue
                await sink.wait_for(turn + 1 - state.spec.window)
                encoded = await self._loop.run_in_executor(state.context.executor, own.encoded, part)
                with way.sending(len(encoded)):
                    await stream.send_data(encoded)
        self._num_uploads -= 1

    async def _commit(self, own: OwnContribution) -> None:
        """Hash the own parts and sign their root."""
        state = self._state
        state.commitments.commit_own(await self._loop.run_in_executor(state.context.executor, own.leaves))

    async def _send_commitment(self, stream: FramedStream, reducer: int) -> None:
        frame = await self._state.commitments.own_frame(reducer)
        with contextlib.suppress(StreamLost):
            stream.send(FrameKind.COMMITMENT, frame)

    async def _reach(self, member: int) -> FramedStream:
        """Dial a member until it answers; a peer that has just started may need a moment. Raises StreamLost."""
        state = self._state
        limits = state.context.limits
        give_up = min(state.end.deadline, self._loop.time() + limits.connect_seconds)
        while True:
            try:
                return await state.context.pool.take(state.peer(member), max(0.1, give_up - self._loop.time()))
            except StreamLost:
                if self._loop.time() + limits.retry_seconds >= give_up:
                    raise
            await asyncio.sleep(limits.retry_seconds)

    def _hello(self, lane: int) -> bytes:
        spec = self._state.spec
        return Hello(
            purpose=Purpose.AVERAGE,
            key=spec.key,
            spec=spec.digest,
            codec=spec.codec.code,
            lane=lane,
            size=spec.size,
            part_bytes=spec.part_bytes,
        ).encode()

    def _on_averaged(self, member: int, part: Part) -> None:
        task = self._state.end.spawn(self._settle_received(member, part), member=member)
        settling = self._settling.setdefault(member, set())
        settling.add(task)
        task.add_done_callback(settling.discard)

    async def _settle_received(self, member: int, part: Part, returned: ReturnedParts | None = None) -> None:
        """Put an averaged part in place, which is in its room, or among those `returned` in the previous attempt."""
        state = self._state

        def settle() -> None:
            codec = state.spec.mean_codec
            if returned is not None:
                returned.copy_to(state.assembly.room(part), part)
            try:
                values = codec.decode(state.assembly.data(part))
            except RemoteProtocolError as error:
                raise BadPart(member, f"an average of {error}") from None
            if len(values) != part.size or not fits(codec, values):
                raise BadPart(member, "an average that is not finite, or of another size")
            state.assembly.settle(part, values)

        await self._loop.run_in_executor(state.context.executor, settle)
        state.count_settled()

    async def _check_own_norm(self, reducer: int, products: bytes) -> None:
        """Check the norm that a reducer signed for this host's parts. A false one gets this host clipped or left out, and no
        other host can detect it."""
        state = self._state
        if state.own is None:
            return
        try:
            theirs = diagonal_of(products, len(state.spec.contributors))[state.spec.contributors.index(state.me)]
        except RemoteProtocolError as error:
            raise BadPart(reducer, str(error)) from None
        ours = await self._loop.run_in_executor(state.context.executor, state.own.sqnorm, reducer)
        if theirs != ours:
            raise BadPart(reducer, f"a squared norm of {theirs!r} for this host's parts, which have {ours!r}")

    async def _check_own_vector(self) -> None:
        """Fail with this host as the suspect if its vector does not fit the codec: every other member would refuse it."""
        state = self._state
        codec = state.spec.codec
        if not await self._loop.run_in_executor(state.context.executor, fits, codec, state.vector):
            low, high = torch.aminmax(state.vector)
            why = f"the own vector has values from {float(low)} to {float(high)}; codec {codec.name} holds {codec.largest:.6g}"
            raise AveragingError(why, suspects=(state.peer(state.me),))
