"""One attempt at one average: every member sends its parts to their reducers and gets the averaged parts back.

    member --HELLO--> reducer --HELLO_REPLY--> member --DATA (own parts)--> reducer --DATA (averaged parts)--> member

A member opens a few streams to each reducer, or takes those that the last average left open, and deals the parts to them in
turn (`AllReduceSpec.lanes`): the daemon's flow control lets one stream alone fill only half of a long link. It does not wait
for the reply: the first parts are on their way behind the hello. A reducer sums part i as soon as all contributors' part i is
here, encodes the mean ONCE, and all members, the reducer too, decode those bytes: one result, byte for byte. At the end the
member sends NOTE: it has all, and the stream is free for the next average.

In a retry a contributor first learns what a reducer holds of earlier attempts, and sends the rest; see `uploads.py`.

On the first lane a contributor sends its COMMITMENT beside its parts, a reducer those of all (PLEDGES) before its first
averaged part, and its RECEIPT after the last; see `pledges.py`. Parts are reduced when the commitments of all are
here.

Under an aggregation rule that needs the Gram matrix (`gram_barrier.py`) uploads start at once as well; a reducer that has all
contributions sends the inner products of its parts on the first lane (GRAM), and forms its parts when those of all reducers
are here and the rule has decided. Every contributor computes the norm of its own parts as the reducer must have computed it:
equal to the bit, or the reducer is a suspect.

Flow control is end to end: on each lane a member sends part i only after it got averaged part i - `AllReduceSpec.window`, so a
reducer takes no more than WINDOW parts of anyone ahead of the means, under a rule with a barrier all of its shard, and never
has to stop reading.

Suspects: both ends of a stream send keepalives while they have no data; an end that is silent for too long
(`stall_detector.py`), or gone, is a suspect. A reducer's keepalives name the member that it waits for, so at the deadline the
suspect is the peer that never came and not the one that waits for it.

Memory beside the caller's vector: the encoded result (P values as encoded; kept for repairs), and unless that is float32 the
averaged vector (4 P bytes) and the own vector as encoded; 4 P bytes of residual for codecs with feedback; and the contributions
that a reducer holds: one more encoded vector, without a barrier at most `AveragingLimits.held_bytes` and WINDOW parts per
member. Of a failed attempt these alone stay, for the retry. What members make parts again from, until an average of a later
round has ended, is the own vector as encoded: for float32 the caller's.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from adloco_p2p.core.model.ledger_entry import inputs_digest
from adloco_p2p.core.model.types import Digest, PeerId, PseudoGradientStatistics
from adloco_p2p.errors import AveragingError, RemoteProtocolError, SwarmError
from adloco_p2p.numerics.aggregation.gram import packed_size
from adloco_p2p.numerics.aggregation.statistics import gram_statistics
from adloco_p2p.numerics.codecs import fits
from adloco_p2p.numerics.digest import blob_root, result_index
from adloco_p2p.numerics.reduction import BadPart, statistics_of
from adloco_p2p.swarm.allreduce.allreduce_spec import AllReduceSpec, Part
from adloco_p2p.swarm.allreduce.awaited import Awaited
from adloco_p2p.swarm.allreduce.gram_barrier import GramBarrier, diagonal_of
from adloco_p2p.swarm.allreduce.handshake import GO, THROUGHPUT, Hello, HelloReply, Purpose, refusal
from adloco_p2p.swarm.allreduce.own_contribution import OwnContribution
from adloco_p2p.swarm.allreduce.part_assembly import PartAssembly
from adloco_p2p.swarm.allreduce.part_sink import PartSink
from adloco_p2p.swarm.allreduce.pledges import (
    CommitmentBook,
    ProductsBook,
    ReceiptBook,
    most_commitment_bytes,
    most_pledges_bytes,
)
from adloco_p2p.swarm.allreduce.result_store import EncodedResult
from adloco_p2p.swarm.allreduce.settled import Settled
from adloco_p2p.swarm.allreduce.shard_reduction import ShardReduction
from adloco_p2p.swarm.allreduce.stream_watch import StreamWatch
from adloco_p2p.swarm.allreduce.topology import AttemptResult, Surroundings
from adloco_p2p.swarm.allreduce.uplink_measure import UplinkMeasure
from adloco_p2p.swarm.allreduce.uploads import Uploads, decode_held, num_held_bytes
from adloco_p2p.swarm.transport.framed_stream import CONTROL_BYTES, FramedStream, FrameKind, StreamLost, StreamSilent

_LOG = logging.getLogger(__name__)
T = TypeVar("T")


class Butterfly:
    """One attempt. `run` returns when this host has the whole result; `serve_stragglers` then serves those who are slower."""

    def __init__(
        self,
        spec: AllReduceSpec,
        vector: torch.Tensor,
        encoded: np.ndarray,
        timeout_seconds: float,
        surroundings: Surroundings,
    ) -> None:
        """See `topology.Topology`."""
        self.spec = spec
        self.me = spec.members.index(surroundings.own_peer)
        self._is_contributor = self.me in spec.contributors
        self._around = surroundings
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + timeout_seconds
        self._outcome: asyncio.Future[None] = self._loop.create_future()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._vector = vector
        self._own = OwnContribution(spec, vector) if self._is_contributor else None
        self._assembly = PartAssembly(spec, self._own, encoded=encoded)
        self._reduction = ShardReduction(spec, self.me, self._assembly, self._own, held_bytes=surroundings.limits.held_bytes)
        self._uploads = Uploads(spec, self.me, self._reduction, surroundings.held.begin(spec))
        self._barrier = GramBarrier(spec)
        self._commitments = CommitmentBook(spec, self.me, surroundings.notary)
        self._products = ProductsBook(spec, surroundings.notary)
        self._receipts = ReceiptBook(spec, surroundings.notary)
        self._remote_contributors = tuple(member for member in spec.contributors if member != self.me)
        self._watch = StreamWatch(surroundings.stall_detector, least_stall_seconds=surroundings.limits.stall_seconds)
        self._held_there: dict[int, asyncio.Future[frozenset[int]]] = {}
        """By reducer: places of the own parts that it holds of an earlier attempt, once it has said so."""
        self._reducers: dict[tuple[int, int], tuple[FramedStream, PartSink]] = {}
        """By member and lane: streams on which a reducer answered."""
        self._uplink = UplinkMeasure()
        self._awaited = Awaited(
            spec, self.me, self._reduction, self._commitments, self._barrier, self._receipts, self._reducers
        )
        self._lost: dict[int, str] = {}

    # --- life ---

    async def run(self) -> AttemptResult:
        """Until the whole result is here. Raises AveragingError; the caller then calls `closed`."""
        alarm = self._loop.call_at(self._deadline, self._meet_deadline)
        self._spawn(self._watch.look_on(self._awaited.by_means, self._peer), member=None)
        if self._own is not None:
            self._spawn(self._check_own_vector(), member=None)
            self._spawn(self._commit(self._own), member=None)
        for member in range(len(self.spec.members)):
            if member != self.me:
                for lane, parts in enumerate(self.spec.lanes(member)):
                    self._spawn(self._exchange(member, lane, parts), member=member)
        if not self._remote_contributors:
            for index in range(len(self._reduction.parts)):
                self._spawn(self._complete(index), member=None)
        has_result = False
        try:
            await self._outcome
            has_result = True
            if self.me in self._left_out:
                await self._loop.run_in_executor(self._around.executor, self._assembly.take_back)
            keeps_own = self._own is not None and self._around.keeps_contributions
            own = self._own.all_encoded() if self._own is not None and keeps_own else []
            packed, lengths = await self._loop.run_in_executor(self._around.executor, self._assembly.packed)
        finally:
            alarm.cancel()
            if not has_result:
                self._around.held.keep(self.spec, self._uploads.kept())
            self._uploads.release()
            self._reduction.release()
            self._assembly.release()
            if self._own is not None:
                self._own.release()
            self._vector = self._vector.new_empty(0)
        return self._result(own, packed, lengths)

    def _result(self, own: list[memoryview], packed: np.ndarray, lengths: list[int]) -> AttemptResult:
        """`own`: the own parts as they were sent, where they are kept; `packed` and `lengths`: see `PartAssembly.packed`."""
        spec, barrier, assembly = self.spec, self._barrier, self._assembly
        assert barrier.decision is not None
        binding, table = barrier.binding(self._commitments.roots), tuple(zip(lengths, assembly.digests, strict=True))
        encoded = EncodedResult(
            digest=blob_root(result_index(spec.mean_codec, spec.size, table, binding=binding)),
            codec=spec.mean_codec,
            sent_codec=spec.codec,
            size=spec.size,
            encoded=packed,
            parts=table,
            binding=binding,
            receipts=self._receipts.all,
        )
        names = [self._peer(member) for member in spec.contributors]
        return AttemptResult(
            vector=assembly.averaged,
            encoded=encoded,
            left_out={
                names[place]: why for place, why in zip(barrier.decision.left_out, barrier.decision.reasons, strict=True)
            },
            statistics=self._statistics(),
            settled=Settled(
                spec=spec,
                me=self.me,
                coefficients=barrier.decision.coefficients,
                divisors=barrier.decision.divisors,
                roots=tuple(self._commitments.roots),
                receipts=encoded.receipts,
                result_roots=assembly.roots,
                own_leaves=self._commitments.own_leaves,
                own=own,
            ),
            residual=assembly.residual,
            upload_bytes_per_second=self._uplink.bytes_per_second,
        )

    @property
    def _left_out(self) -> tuple[int, ...]:
        """Contributors that the rule left out."""
        decision = self._barrier.decision
        return tuple(self.spec.contributors[place] for place in decision.left_out) if decision else ()

    def _statistics(self) -> PseudoGradientStatistics:
        """From the Gram matrix where there is one; see `gram_statistics`. Zeros beside the average's norm for a member whose
        vector is not in it."""
        gram, decision = self._barrier.gram, self._barrier.decision
        if gram is None or decision is None:
            return statistics_of(self._assembly.sums)
        scalars = gram_statistics(gram, self.spec.contributor_weights, decision.kept)
        kept = [self.spec.contributors[place] for place in decision.kept]
        return scalars[kept.index(self.me)] if self.me in kept else replace(scalars[0], own_sqnorm=0.0, inner_product=0.0)

    async def serve_stragglers(self) -> None:
        """Serve slower members until each is served or the deadline has come, then close."""
        assert self._outcome.done()
        expected = (len(self.spec.members) - 1) * len(self.spec.lanes(self.me))
        try:
            async with asyncio.timeout_at(self._deadline):
                while self._watch.streams or self._uploads.num_streams < expected:
                    self._watch.has_ended.clear()
                    await self._watch.has_ended.wait()
        except TimeoutError:
            served = self._uploads.num_streams
            _LOG.info("averaging.serve_stragglers key=%.12s members=%d served=%d", self.spec.key, expected, served)
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
        self._watch.close()
        for task in tuple(self._tasks):
            task.cancel()
        self._uploads.close()
        self._reducers.clear()
        if not self._outcome.cancelled() and (error := self._outcome.exception()) is not None:
            error.__traceback__ = None  # it leads through `run`

    def fail(self, reason: str, suspects: tuple[PeerId, ...] = ()) -> None:
        """End the attempt without a result; the first reason stands."""
        if not self._outcome.done():
            self._outcome.set_exception(AveragingError(reason, suspects=suspects))

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received until now, frames included."""
        return self._watch.traffic

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
            timeout_seconds = max(0.1, min(self._around.limits.connect_seconds, self._deadline - self._loop.time()))
            stream = await self._around.pool.open(self._peer(member), timeout_seconds)
            await self._exchange_on(stream, member, lane, parts, is_new=True)

    async def _exchange_on(
        self, stream: FramedStream, member: int, lane: int, parts: tuple[Part, ...], *, is_new: bool
    ) -> None:
        sink = PartSink(
            self._peer(member),
            parts,
            room=self._assembly.room,
            on_part=lambda part: self._on_averaged(member, part),
            permitted=lambda: len(parts),
            length=self._assembly.length,
        )

        def owes() -> bool:
            return not sink.is_complete or (lane == 0 and not self._receipts.has(member))

        self._adopt_stream(stream, member, is_complete=lambda: not (owes() and (is_new or stream.bytes_received)))
        num_hosts = len(self.spec.contributors)
        stream.max_control_bytes = 8 * packed_size(num_hosts) + most_pledges_bytes(1 + len(self.spec.members))
        stream.max_control_bytes += num_held_bytes(len(self.spec.shards[member]))
        stream.sink = sink
        stream.send(FrameKind.HELLO, self._hello(lane))
        if self._own is not None:
            self._spawn(self._send_own(self._own, stream, sink, member, parts), member=member)
        if self._own is not None and lane == 0:
            self._spawn(self._send_commitment(stream, member), member=member)
        reply = HelloReply.decode(await stream.receive(FrameKind.HELLO_REPLY))
        if reply.status == "refused":
            raise AveragingError(f"{self._peer(member)} refused: {reply.reason}", suspects=(self._peer(member),))
        if reply.status == "failed":
            self.on_remote_failure(self._peer(member), self.spec.digest, reply)
            return
        self._reducers[member, lane] = (stream, sink)
        if self._is_contributor and lane == 0 and self.spec.is_retry:
            held = decode_held(await stream.receive(FrameKind.HELD), len(self.spec.shards[member]))
            self._held_by(member).set_result(held)
        if self._is_contributor:
            self._uplink.note(await stream.receive(FrameKind.THROUGHPUT), parts)
        if lane == 0:
            self._commitments.take_all(member, await stream.receive(FrameKind.PLEDGES))
        if lane == 0 and self.spec.needs_gram:
            products = self._products.take(member, await stream.receive(FrameKind.GRAM))
            await self._check_own_norm(member, products)
            self._put_products(member, products)
        await sink.wait_for(len(parts))
        if lane == 0:
            self._receipts.take(member, await stream.receive(FrameKind.RECEIPT))
            self._check_outcome()
        stream.send(FrameKind.NOTE)
        self._watch.forget(stream)
        self._around.pool.give_back(stream)

    def _held_by(self, reducer: int) -> asyncio.Future[frozenset[int]]:
        """Places in its shard of the own parts that it holds already."""
        if reducer not in self._held_there:
            self._held_there[reducer] = self._loop.create_future()
            if not self.spec.is_retry:
                self._held_there[reducer].set_result(frozenset())
        return self._held_there[reducer]

    async def _send_own(
        self, own: OwnContribution, stream: FramedStream, sink: PartSink, reducer: int, parts: tuple[Part, ...]
    ) -> None:
        held = await self._held_by(reducer)
        with contextlib.suppress(StreamLost):  # seen where the answer is awaited
            for turn, part in enumerate(parts):
                if self.spec.place_of[part.index] in held:
                    continue
                await sink.wait_for(turn + 1 - self.spec.window)
                encoded = await self._loop.run_in_executor(self._around.executor, own.encoded, part)
                await stream.send_data(encoded, self._around.pace)

    async def _commit(self, own: OwnContribution) -> None:
        """Hash the own parts, while the first of them travel, and sign their root."""
        self._commitments.commit_own(await self._loop.run_in_executor(self._around.executor, own.leaves))

    async def _send_commitment(self, stream: FramedStream, reducer: int) -> None:
        frame = await self._commitments.own_frame(reducer)
        with contextlib.suppress(StreamLost):
            stream.send(FrameKind.COMMITMENT, frame)

    async def _reach(self, member: int) -> FramedStream:
        """Dial until it works; a peer that has just started may need a moment."""
        limits = self._around.limits
        give_up = min(self._deadline, self._loop.time() + limits.connect_seconds)
        while True:
            try:
                return await self._around.pool.take(self._peer(member), max(0.1, give_up - self._loop.time()))
            except StreamLost:
                if self._loop.time() + limits.retry_seconds >= give_up:
                    raise
            await asyncio.sleep(limits.retry_seconds)

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

    def _on_averaged(self, member: int, part: Part) -> None:
        self._spawn(self._settle_received(member, part), member=member)

    async def _settle_received(self, member: int, part: Part) -> None:
        def settle() -> None:
            codec = self.spec.mean_codec
            try:
                values = codec.decode(self._assembly.data(part))
            except RemoteProtocolError as error:
                raise BadPart(member, f"an average of {error}") from None
            if len(values) != part.size or not fits(codec, values):
                raise BadPart(member, "an average that is not finite, or of another size")
            self._assembly.settle(part, values)

        await self._loop.run_in_executor(self._around.executor, settle)
        self._count_settled()

    async def _check_own_norm(self, reducer: int, products: bytes) -> None:
        """A reducer that invents a norm of this host has it clipped, or left out. Only this host can tell."""
        if self._own is None:
            return
        try:
            theirs = diagonal_of(products, len(self.spec.contributors))[self.spec.contributors.index(self.me)]
        except RemoteProtocolError as error:
            raise BadPart(reducer, str(error)) from None
        ours = await self._loop.run_in_executor(self._around.executor, self._own.sqnorm, reducer)
        if theirs != ours:
            raise BadPart(reducer, f"a squared norm of {theirs!r} for this host's parts, which have {ours!r}")

    async def _check_own_vector(self) -> None:
        """Refuse here, by name, what every other member would have to refuse."""
        codec = self.spec.codec
        if not await self._loop.run_in_executor(self._around.executor, fits, codec, self._vector):
            low, high = torch.aminmax(self._vector)
            why = f"the own vector has values from {float(low)} to {float(high)}; codec {codec.name} holds {codec.largest:.6g}"
            raise AveragingError(why, suspects=(self._peer(self.me),))

    # --- as a reducer: from one member and back ---

    async def serve(self, stream: FramedStream, hello: Hello) -> bool:
        """Take a member's parts and send it the means, until it has all. True: the stream is free for another average."""
        refused = self._reason_to_refuse(stream.peer, hello)
        if refused:
            self._around.on_refused(stream.peer, refused)
            stream.send(FrameKind.HELLO_REPLY, refusal(refused).encode())
            return False
        member = self.spec.members.index(stream.peer)
        served = self._spawn(self._serve_member(stream, member, hello.lane), member=member)
        await asyncio.wait({served})
        return not served.cancelled() and served.exception() is None and served.result()

    async def _serve_member(self, stream: FramedStream, member: int, lane: int) -> bool:
        parts = self.spec.lanes(self.me)[lane]
        reduction, contributes = self._reduction, member in self._remote_contributors
        sink = stream.sink = self._uploads.open(member, lane, partial(self._on_contribution, member))
        stream.max_control_bytes = max(CONTROL_BYTES, most_commitment_bytes(self.spec, self.me))

        def owes() -> bool:
            return not sink.is_complete or (lane == 0 and member in self._commitments.missing)

        self._adopt_stream(stream, member, is_complete=lambda: not owes())
        stream.resume()
        try:
            stream.send(FrameKind.HELLO_REPLY, GO.encode())
            if contributes and lane == 0 and self.spec.is_retry:
                await self._take_commitment(stream, member)
                stream.send(FrameKind.HELD, await self._take_over(member))
            if contributes:
                first = await self._uploads.first_parts(member, lane)
                throughput = self._spawn(self._send_throughput(stream, sink, first), member=member)
            if contributes and lane == 0:
                if not self.spec.is_retry:
                    await self._take_commitment(stream, member)
                await throughput
            if lane == 0:
                await self._commitments.is_complete.wait()
                stream.send(FrameKind.PLEDGES, self._commitments.frame())
            if lane == 0 and self.spec.needs_gram:
                stream.send(FrameKind.GRAM, await self._products.own())
            for part in parts:
                await reduction.is_reduced[reduction.index_of(part)].wait()
                await stream.send_data(self._assembly.data(part), self._around.pace)
            if lane == 0:
                stream.send(FrameKind.RECEIPT, await self._receipts.own())
            await stream.receive(FrameKind.NOTE)
        except BadPart:
            raise
        except (StreamLost, RemoteProtocolError) as error:
            if owes():
                self._lose(member, str(error))
            return False
        else:
            return sink.is_complete
        finally:
            stream.sink = stream.on_lost = None
            self._watch.forget(stream)

    async def _take_commitment(self, stream: FramedStream, member: int) -> None:
        self._commitments.take(member, await stream.receive(FrameKind.COMMITMENT))

    async def _take_over(self, member: int) -> bytes:
        """In a retry: what is held of this contributor, as it is told."""
        held, whole = await self._uploads.take_over(member, self._commitments.leaf, self._around.executor)
        for part in whole:
            self._spawn(self._complete(self._reduction.index_of(part)), member=None)
        return held

    async def _send_throughput(self, stream: FramedStream, sink: PartSink, first: Sequence[Part]) -> None:
        """Report to the member how fast its first parts came: those that it sends without waiting for others."""
        begun = self._loop.time()
        await sink.wait_for(len(first))
        seconds = self._loop.time() - begun
        with contextlib.suppress(StreamLost):  # the member then owes nothing, or its loss is seen elsewhere
            stream.send(FrameKind.THROUGHPUT, THROUGHPUT.pack(sum(part.num_sent_bytes for part in first), seconds))

    def _reason_to_refuse(self, peer: PeerId, hello: Hello) -> str | None:
        spec = self.spec
        if peer not in spec.members or peer == self._peer(self.me):
            return "not a member of this average"
        if not self._reduction.parts:
            return "this peer reduces nothing in this average"
        member = spec.members.index(peer)
        if hello.lane >= len(spec.lanes(self.me)):
            return "no such lane"
        if self._uploads.has_stream(member, hello.lane):
            return "a second stream of the same member"
        if hello.spec != spec.digest:
            theirs = f"size {hello.size}, codec {hello.codec}, part bytes {hello.part_bytes}"
            ours = f"size {spec.size}, codec {spec.codec.code}, part bytes {spec.part_bytes}"
            why = f"the members do not agree: {peer} has {theirs}; here it is {ours}"
            self.fail(why, (peer,))
            return why
        return None

    def _on_contribution(self, member: int, part: Part) -> None:
        if self._reduction.arrive(member, part):
            self._spawn(self._complete(self._reduction.index_of(part)), member=None)

    async def _complete(self, index: int) -> None:
        """All contributions to one of the own parts are here: check them against the commitments, then reduce them, or take
        what the decision needs."""
        await self._commitments.is_complete.wait()
        await self._reduction.check(index, self._commitments.leaf, self._around.executor)
        if not self.spec.needs_gram:
            await self._reduce(index)
        elif await self._reduction.measure(index, self._around.executor):
            self._products.sign(self.me, self._reduction.products)
            self._put_products(self.me, self._reduction.products)

    def _put_products(self, reducer: int, payload: bytes) -> None:
        """The inner products of one reducer's parts are here; with the last of them the rule decides."""
        try:
            self._barrier.put(reducer, payload)
        except RemoteProtocolError as error:
            raise BadPart(reducer, str(error)) from None
        if self._barrier.decision is not None:
            self._spawn(self._reduce_all(), member=None)

    async def _reduce_all(self) -> None:
        for index in range(len(self._reduction.parts)):
            await self._reduce(index)
        self._check_outcome()

    async def _reduce(self, index: int) -> None:
        assert self._barrier.decision is not None
        await self._reduction.reduce(index, self._barrier.decision, self._around.executor)
        if all(is_reduced.is_set() for is_reduced in self._reduction.is_reduced):
            self._receipts.sign(self.me, self._inputs, self._roots_of(self.me), self._products.all)
        self._count_settled()

    @property
    def _inputs(self) -> Digest:
        """What the average is made from; once decided."""
        spec = self.spec
        assert self._barrier.decision is not None
        decision, roots = self._barrier.decision, self._commitments.roots
        return inputs_digest(spec.codec.code, spec.mean_codec.code, roots, decision.coefficients, decision.divisors)

    def _roots_of(self, reducer: int) -> list[bytes]:
        """Of the reducer's parts that are here."""
        return [self._assembly.roots[part.index] for part in self.spec.shards[reducer]]

    # --- the result ---

    def _count_settled(self) -> None:
        self._assembly.num_unsettled -= 1
        self._check_outcome()

    def _check_outcome(self) -> None:
        """Parts of others may be here before the last inner products are, receipts before the last parts. Raises BadPart."""
        has_all = self._assembly.num_unsettled == 0 and self._barrier.decision is not None and self._receipts.is_complete
        if not has_all or self._outcome.done():
            return
        for reducer in self.spec.reducers:
            self._receipts.check(reducer, self._inputs, self._roots_of(reducer), self._products.all)
        self._outcome.set_result(None)

    # --- who is to blame ---

    def _adopt_stream(self, stream: FramedStream, member: int, *, is_complete: Callable[[], bool]) -> None:
        """The stream's loss matters only while the other end still owes something."""

        def lost(error: Exception) -> None:
            if not is_complete():
                self._lose(member, str(error))

        self._watch.adopt(stream, member, on_lost=lost)

    def _lose(self, member: int, reason: str) -> None:
        """A member is gone. It may have failed because of another one, so wait a moment for its note."""
        if self._outcome.done() or member in self._lost:
            return
        self._lost[member] = reason
        if len(self._lost) == 1:
            self._spawn(self._blame_lost(), member=None)

    async def _blame_lost(self) -> None:
        await asyncio.sleep(self._around.limits.grace_seconds)
        if (trouble := await self._around.local_fault()) is not None:
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

    @property
    def awaited(self) -> set[int]:
        """The members that hold up the result, as far as this one can tell."""
        return self._awaited.by_result()

    def _meet_deadline(self) -> None:
        if self._outcome.done():
            return
        names = tuple(self._peer(member) for member in sorted(self.awaited))
        self.fail(f"the deadline passed, waiting for {', '.join(names) or 'no member'}", names)
