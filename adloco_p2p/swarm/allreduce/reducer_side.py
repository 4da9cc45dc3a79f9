"""An attempt as a reducer has it: the parts of all come in, their means go out, each encoded once."""

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
    """Its streams are those that the other members open."""

    def __init__(self, at: AttemptState) -> None:
        self._at = at
        self._loop = asyncio.get_running_loop()
        self._returned: dict[int, asyncio.Future[tuple[int, ...]]] = {}
        """By member."""
        self.uploads = Uploads(at.spec, at.me, at.reduction, at.around.held.begin(at.spec))

    def begin(self) -> None:
        """Reduce at once the parts to which no other member contributes."""
        at, quorum = self._at, self._at.spec.quorum
        if at.remote_contributors and quorum is not None:
            at.end.spawn(self._look_for_stragglers(quorum), member=None)
        if not at.remote_contributors:
            for index in range(len(at.reduction.parts)):
                at.end.spawn(self._complete(index), member=None)

    async def _look_for_stragglers(self, quorum: Quorum) -> None:
        at = self._at
        watch = StragglerWatch(at.spec, quorum, self.uploads, self._loop.time())
        while not self.uploads.are_complete:
            await asyncio.sleep(LOOK_SECONDS)
            found = watch.look(self._loop.time())
            if found and self._others_wait_for(found):
                reason = "; ".join(f"{at.peer(member)} {why}" for member, why in found.items())
                raise AveragingError(reason, suspects=tuple(at.peer(member) for member in found))

    def _others_wait_for(self, late: Collection[int]) -> bool:
        """Whether this host's downlink is not the cause: another reducer's keepalives name one of these, too, or there is no
        other reducer to compare with."""
        at = self._at
        others = set(at.spec.reducers) - {at.me, *late}
        streams = [stream for (member, _), (stream, _) in at.reducers.items() if member in others]
        return not others or any(not set(late).isdisjoint(stream.awaited_members) for stream in streams)

    async def serve(self, stream: FramedStream, hello: Hello) -> bool:
        """Take a member's parts and send it the means, until it has all. True: the stream is free for another average."""
        at = self._at
        refused = self._reason_to_refuse(stream.peer, hello)
        if refused:
            at.around.on_refused(stream.peer, refused)
            stream.send(FrameKind.HELLO_REPLY, refusal(refused).encode())
            return False
        member = at.spec.members.index(stream.peer)
        served = at.end.spawn(self._serve_member(stream, member, hello.lane), member=member)
        await asyncio.wait({served})
        return not served.cancelled() and served.exception() is None and served.result()

    async def _serve_member(self, stream: FramedStream, member: int, lane: int) -> bool:
        at = self._at
        parts = at.spec.lanes(at.me)[lane]
        reduction, contributes = at.reduction, member in at.remote_contributors
        sink = stream.sink = self.uploads.open(member, lane, partial(self._on_contribution, member))
        stream.max_control_bytes = max(CONTROL_BYTES, most_commitment_bytes(at.spec, at.me))

        def owes() -> bool:
            return not sink.is_complete or (lane == 0 and member in at.commitments.missing)

        at.adopt_stream(stream, member, is_complete=lambda: not owes())
        stream.resume()
        try:
            stream.send(FrameKind.HELLO_REPLY, GO.encode())
            if contributes and lane == 0 and at.spec.is_retry:
                await self._take_commitment(stream, member)
                stream.send(FrameKind.HELD, await self._take_over(member))
            if contributes:
                first = await self.uploads.first_parts(member, lane)
                throughput = at.end.spawn(self._send_throughput(stream, member, sink, first), member=member)
            if contributes and lane == 0:
                if not at.spec.is_retry:
                    await self._take_commitment(stream, member)
                await throughput
            if lane == 0:
                await at.commitments.is_complete.wait()
                stream.send(FrameKind.PLEDGES, at.commitments.frame())
            if lane == 0 and at.spec.needs_gram:
                stream.send(FrameKind.GRAM, await at.products.own())
            if lane == 0 and at.spec.is_retry:
                self._learn_returned(member, await stream.receive(FrameKind.HELD))
            skipped = await self._returned_to(member)
            for part in parts[skipped[lane] :]:
                await reduction.is_reduced[reduction.index_of(part)].wait()
                await stream.send_data(at.assembly.data(part))
            if lane == 0:
                stream.send(FrameKind.RECEIPT, await at.receipts.own())
            await stream.receive(FrameKind.NOTE)
        except BadPart:
            raise
        except (StreamLost, RemoteProtocolError) as error:
            if owes():
                at.end.lose(member, str(error))
            return False
        else:
            return sink.is_complete
        finally:
            stream.sink = stream.on_lost = None
            at.watch.forget(stream)

    def _returned_to(self, member: int) -> asyncio.Future[tuple[int, ...]]:
        """By lane: the number of first parts that the member has of an earlier attempt."""
        if member not in self._returned:
            self._returned[member] = self._loop.create_future()
            if not self._at.spec.is_retry:
                self._returned[member].set_result((0,) * len(self._at.spec.lanes(self._at.me)))
        return self._returned[member]

    def _learn_returned(self, member: int, payload: bytes) -> None:
        try:
            self._returned_to(member).set_result(decode_counts(payload, self._at.spec, self._at.me))
        except RemoteProtocolError as error:
            raise BadPart(member, str(error)) from None

    async def _take_commitment(self, stream: FramedStream, member: int) -> None:
        self._at.commitments.take(member, await stream.receive(FrameKind.COMMITMENT))

    async def _take_over(self, member: int) -> bytes:
        """In a retry: report to this contributor which of its parts are held."""
        at = self._at
        held, whole = await self.uploads.take_over(member, at.commitments.leaf, at.around.executor)
        for part in whole:
            at.end.spawn(self._complete(at.reduction.index_of(part)), member=None)
        return held

    async def _send_throughput(self, stream: FramedStream, member: int, sink: PartSink, first: Sequence[Part]) -> None:
        """Report to the member how fast its first parts came: those that it sends without waiting for others."""
        if not self._at.spec.needs_gram:  # they follow the commitment
            await self._at.commitments.wait_for(member)
        begun = self._loop.time()
        await sink.wait_for(len(first))
        seconds = self._loop.time() - begun
        with contextlib.suppress(StreamLost):  # the member then owes nothing, or its loss is seen elsewhere
            stream.send(FrameKind.THROUGHPUT, THROUGHPUT.pack(sum(part.num_sent_bytes for part in first), seconds))

    def _reason_to_refuse(self, peer: PeerId, hello: Hello) -> str | None:
        at = self._at
        spec = at.spec
        if peer not in spec.members or peer == at.peer(at.me):
            return "not a member of this average"
        if not at.reduction.parts:
            return "this peer reduces nothing in this average"
        member = spec.members.index(peer)
        if hello.lane >= len(spec.lanes(at.me)):
            return "no such lane"
        if self.uploads.has_stream(member, hello.lane):
            return "a second stream of the same member"
        if hello.spec != spec.digest:
            theirs = f"size {hello.size}, codec {hello.codec}, part bytes {hello.part_bytes}"
            ours = f"size {spec.size}, codec {spec.codec.code}, part bytes {spec.part_bytes}"
            why = f"the members do not agree: {peer} has {theirs}; here it is {ours}"
            at.end.fail(why, (peer,))
            return why
        return None

    def _on_contribution(self, member: int, part: Part) -> None:
        at = self._at
        if at.reduction.arrive(member, part):
            at.end.spawn(self._complete(at.reduction.index_of(part)), member=None)

    async def _complete(self, index: int) -> None:
        """All contributions to one of the own parts are here: check them against the commitments, then reduce them, or take
        what the decision needs."""
        at = self._at
        await at.commitments.is_complete.wait()
        await at.reduction.check(index, at.commitments.leaf, at.around.executor)
        if not at.spec.needs_gram:
            await self._reduce(index)
        elif await at.reduction.measure(index, at.around.executor):
            at.products.sign(at.me, at.reduction.products)
            self.put_products(at.me, at.reduction.products)

    def put_products(self, reducer: int, payload: bytes) -> None:
        """The inner products of one reducer's parts are here; with the last of them the rule decides."""
        at = self._at
        try:
            at.barrier.put(reducer, payload)
        except RemoteProtocolError as error:
            raise BadPart(reducer, str(error)) from None
        if at.barrier.decision is not None:
            at.end.spawn(self._reduce_all(), member=None)

    async def _reduce_all(self) -> None:
        at = self._at
        for index in range(len(at.reduction.parts)):
            await self._reduce(index)
        at.check_outcome()

    async def _reduce(self, index: int) -> None:
        at = self._at
        assert at.barrier.decision is not None
        await at.reduction.reduce(index, at.barrier.decision, at.around.executor)
        if all(is_reduced.is_set() for is_reduced in at.reduction.is_reduced):
            at.receipts.sign(at.me, at.inputs, at.roots_of(at.me), at.products.all)
        at.count_settled()
