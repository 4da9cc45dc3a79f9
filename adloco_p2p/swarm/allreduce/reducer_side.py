"""The reducer's side of an attempt: the parts of all members come in, and their means, each encoded once, go out."""

import asyncio
import contextlib
from collections.abc import Collection, Sequence
from functools import partial

from adloco_p2p.core.model.quorum import Quorum
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.errors import AveragingError, RemoteProtocolError
from adloco_p2p.numerics.reduction import BadPart
from adloco_p2p.swarm.allreduce.allreduce_spec import Part
from adloco_p2p.swarm.allreduce.attempt_state import AttemptState
from adloco_p2p.swarm.allreduce.handshake import GO, THROUGHPUT, Hello, refusal
from adloco_p2p.swarm.allreduce.held_uploads import decode_counts
from adloco_p2p.swarm.allreduce.part_sink import PartSink
from adloco_p2p.swarm.allreduce.pledges import most_commitment_bytes
from adloco_p2p.swarm.allreduce.uploads import LOOK_SECONDS, StragglerWatch, Uploads
from adloco_p2p.swarm.transport.framed_stream import CONTROL_BYTES, FramedStream, FrameKind, StreamLost


class ReducerSide:
    """Serves the streams that the other members open to this reducer."""

    def __init__(self, state: AttemptState) -> None:
        self._state = state
        self._loop = asyncio.get_running_loop()
        self._returned: dict[int, asyncio.Future[tuple[int, ...]]] = {}
        """By member: how many leading parts of each lane it has from an earlier attempt."""
        self.uploads = Uploads(state.spec, state.me, state.reduction, state.context.held.begin(state.spec))

    def begin(self) -> None:
        """Look for stragglers if there is a quorum; reduce at once if no other member contributes."""
        state, quorum = self._state, self._state.spec.quorum
        if state.remote_contributors and quorum is not None:
            state.end.spawn(self._look_for_stragglers(quorum), member=None)
        if not state.remote_contributors:
            for index in range(len(state.reduction.parts)):
                state.end.spawn(self._complete(index), member=None)

    async def _look_for_stragglers(self, quorum: Quorum) -> None:
        state = self._state
        watch = StragglerWatch(state.spec, quorum, self.uploads, self._loop.time())
        while not self.uploads.are_complete:
            await asyncio.sleep(LOOK_SECONDS)
            found = watch.look(self._loop.time())
            if found and self._others_wait_for(found):
                reason = "; ".join(f"{state.peer(member)} {why}" for member, why in found.items())
                raise AveragingError(reason, suspects=tuple(state.peer(member) for member in found))

    def _others_wait_for(self, late: Collection[int]) -> bool:
        """Return whether other reducers wait for these members, too, so that this host's downlink is not the cause.

        That is so if another reducer's keepalives name one of them, or if there is no other reducer to compare with.
        """
        state = self._state
        others = set(state.spec.reducers) - {state.me, *late}
        streams = [stream for (member, _), (stream, _) in state.reducers.items() if member in others]
        return not others or any(not set(late).isdisjoint(stream.awaited_members) for stream in streams)

    async def serve(self, stream: FramedStream, hello: Hello) -> bool:
        """Take a member's parts and send it the means, until it has all. Return whether the stream is free for another
        average."""
        state = self._state
        refused = self._reason_to_refuse(stream.peer, hello)
        if refused:
            state.context.on_refused(stream.peer, refused)
            stream.send(FrameKind.HELLO_REPLY, refusal(refused).encode())
            return False
        member = state.spec.members.index(stream.peer)
        served = state.end.spawn(self._serve_member(stream, member, hello.lane), member=member)
        await asyncio.wait({served})
        return not served.cancelled() and served.exception() is None and served.result()

    async def _serve_member(self, stream: FramedStream, member: int, lane: int) -> bool:
        state = self._state
        parts = state.spec.lanes(state.me)[lane]
        reduction, contributes = state.reduction, member in state.remote_contributors
        sink = stream.sink = self.uploads.open(member, lane, partial(self._on_contribution, member))
        stream.max_control_bytes = max(CONTROL_BYTES, most_commitment_bytes(state.spec, state.me))

        def owes() -> bool:
            return not sink.is_complete or (lane == 0 and member in state.commitments.missing)

        state.adopt_stream(stream, member, is_complete=lambda: not owes())
        stream.resume()
        try:
            stream.send(FrameKind.HELLO_REPLY, GO.encode())
            if contributes and lane == 0 and state.spec.is_retry:
                await self._take_commitment(stream, member)
                stream.send(FrameKind.HELD, await self._take_over(member))
            if contributes:
                first = await self.uploads.first_parts(member, lane)
                throughput = state.end.spawn(self._send_throughput(stream, member, sink, first), member=member)
            if contributes and lane == 0:
                if not state.spec.is_retry:
                    await self._take_commitment(stream, member)
                await throughput
            if lane == 0:
                await state.commitments.is_complete.wait()
                stream.send(FrameKind.PLEDGES, state.commitments.frame())
            if lane == 0 and state.spec.needs_gram:
                stream.send(FrameKind.GRAM, await state.products.own())
            if lane == 0 and state.spec.is_retry:
                self._learn_returned(member, await stream.receive(FrameKind.HELD))
            skipped = await self._returned_to(member)
            for part in parts[skipped[lane] :]:
                await reduction.is_reduced[reduction.index_of(part)].wait()
                await stream.send_data(state.assembly.data(part))
            if lane == 0:
                stream.send(FrameKind.RECEIPT, await state.receipts.own())
            await stream.receive(FrameKind.NOTE)
        except BadPart:
            raise
        except (StreamLost, RemoteProtocolError) as error:
            if owes():
                state.end.lose(member, str(error))
            return False
        else:
            return sink.is_complete
        finally:
            stream.sink = stream.on_lost = None
            state.watch.forget(stream)

    def _returned_to(self, member: int) -> asyncio.Future[tuple[int, ...]]:
        """Return a future of the number of leading parts of each lane that the member has from an earlier attempt."""
        if member not in self._returned:
            self._returned[member] = self._loop.create_future()
            if not self._state.spec.is_retry:
                self._returned[member].set_result((0,) * len(self._state.spec.lanes(self._state.me)))
        return self._returned[member]

    def _learn_returned(self, member: int, payload: bytes) -> None:
        try:
            self._returned_to(member).set_result(decode_counts(payload, self._state.spec, self._state.me))
        except RemoteProtocolError as error:
            raise BadPart(member, str(error)) from None

    async def _take_commitment(self, stream: FramedStream, member: int) -> None:
        self._state.commitments.take(member, await stream.receive(FrameKind.COMMITMENT))

    async def _take_over(self, member: int) -> bytes:
        """In a retry, take over the held parts of this contributor, and return the report about them."""
        state = self._state
        held, whole = await self.uploads.take_over(member, state.commitments.leaf, state.context.executor)
        for part in whole:
            state.end.spawn(self._complete(state.reduction.index_of(part)), member=None)
        return held

    async def _send_throughput(self, stream: FramedStream, member: int, sink: PartSink, first: Sequence[Part]) -> None:
        """Report to the member how fast its first parts came, those that it sends without waiting for averaged parts."""
        if not self._state.spec.needs_gram:  # the parts follow the commitment
            await self._state.commitments.wait_for(member)
        begun = self._loop.time()
        await sink.wait_for(len(first))
        seconds = self._loop.time() - begun
        with contextlib.suppress(StreamLost):  # either the member owes nothing any more, or its loss is handled elsewhere
            stream.send(FrameKind.THROUGHPUT, THROUGHPUT.pack(sum(part.num_sent_bytes for part in first), seconds))

    def _reason_to_refuse(self, peer: PeerId, hello: Hello) -> str | None:
        state = self._state
        spec = state.spec
        if peer not in spec.members or peer == state.peer(state.me):
            return "not a member of this average"
        if not state.reduction.parts:
            return "this peer reduces nothing in this average"
        member = spec.members.index(peer)
        if hello.lane >= len(spec.lanes(state.me)):
            return "no such lane"
        if self.uploads.has_stream(member, hello.lane):
            return "a second stream of the same member"
        if hello.spec != spec.digest:
            theirs = f"size {hello.size}, codec {hello.codec}, part bytes {hello.part_bytes}"
            ours = f"size {spec.size}, codec {spec.codec.code}, part bytes {spec.part_bytes}"
            why = f"the members do not agree: {peer} has {theirs}; here it is {ours}"
            state.end.fail(why, (peer,))
            return why
        return None

    def _on_contribution(self, member: int, part: Part) -> None:
        state = self._state
        if state.reduction.arrive(member, part):
            state.end.spawn(self._complete(state.reduction.index_of(part)), member=None)

    async def _complete(self, index: int) -> None:
        """Check the contributions to one of the own parts, which are all here, against the commitments; then reduce them, or
        measure the inner products that the decision needs."""
        state = self._state
        await state.commitments.is_complete.wait()
        await state.reduction.check(index, state.commitments.leaf, state.context.executor)
        if not state.spec.needs_gram:
            await self._reduce(index)
        elif await state.reduction.measure(index, state.context.executor):
            state.products.sign(state.me, state.reduction.products)
            self.put_products(state.me, state.reduction.products)

    def put_products(self, reducer: int, payload: bytes) -> None:
        """Take the inner products of one reducer's parts; with the last of them the rule decides. Raises BadPart."""
        state = self._state
        try:
            state.barrier.put(reducer, payload)
        except RemoteProtocolError as error:
            raise BadPart(reducer, str(error)) from None
        if state.barrier.decision is not None:
            state.end.spawn(self._reduce_all(), member=None)

    async def _reduce_all(self) -> None:
        state = self._state
        for index in range(len(state.reduction.parts)):
            await self._reduce(index)
        state.check_outcome()

    async def _reduce(self, index: int) -> None:
        state = self._state
        assert state.barrier.decision is not None
        await state.reduction.reduce(index, state.barrier.decision, state.context.executor)
        if all(is_reduced.is_set() for is_reduced in state.reduction.is_reduced):
            state.receipts.sign(state.me, state.inputs, state.roots_of(state.me), state.products.all)
        state.count_settled()
