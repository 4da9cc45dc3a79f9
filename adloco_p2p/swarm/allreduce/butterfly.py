"""The butterfly all-reduce: every member sends its parts to their reducers and gets the averaged parts back.

    member --HELLO--> reducer --HELLO_REPLY--> member --DATA (own parts)--> reducer --DATA (averaged parts)--> member

A member opens a few streams to each reducer, or takes those that the last average left open, and deals the parts to them in
turn (`AllReduceSpec.lanes`), because the daemon's flow control lets one stream fill only half of a long link. It does not wait
for the reply. A reducer sums part i as soon as part i of all contributors is here and encodes the mean ONCE. All members, the
reducer included, decode those bytes, so they have one result, byte for byte. When the member has everything, it sends NOTE, and
the stream is free for the next average.

In a retry a contributor first learns what a reducer holds of earlier attempts, and sends the rest; see `uploads.py`.

On the first lane a contributor sends its COMMITMENT. A reducer sends those of all (PLEDGES) before its first averaged part, and
its RECEIPT after the last; see `pledges.py`. Parts are reduced only when all commitments are here, so a member sends its
commitment first: behind the parts it would be late, and nothing would come back meanwhile.

Under a rule that needs the Gram matrix (`gram_barrier.py`) parts do not wait for the commitment, which is hashed at the same
time, because nothing comes back before all uploads are there. A reducer that has all contributions sends the inner products of
its parts on the first lane (GRAM), and forms its parts when those of all reducers are here and the rule has decided. Every
contributor computes the norm of its own parts as the reducer must have computed it; a reducer whose norm differs by a bit is a
suspect.

Flow control is end to end: on each lane a member sends part i only after it got averaged part i - `AllReduceSpec.window`. So a
reducer holds at most WINDOW parts of a member ahead of the means, or its whole shard under a rule with a barrier, and never has
to stop reading.

Suspects: both ends of a stream send keepalives while they have no data; an end that is silent for too long
(`stall_detector.py`), or gone, is a suspect. A reducer's keepalives name the member that it waits for, so at the deadline the
suspect is the peer that never came and not the one that waits for it.

`member_side.py` and `reducer_side.py` are the two ends of the streams, `attempt_state.py` is the state that they share, and
`attempt_end.py` determines when the attempt is over and which members caused that. This module joins them.

Memory beside the caller's vector: the encoded result (P encoded values; kept for repairs); unless the codec is float32, the
averaged vector (4 P bytes) and the encoded own vector; 4 P bytes of residual for codecs with feedback; and the contributions
that a reducer holds, one more encoded vector, or without a barrier at most `AveragingLimits.held_bytes` and WINDOW parts per
member. A failed attempt leaves for the retry only these contributions and the averaged parts that came back, one more encoded
vector, until the retry has reported to the last reducer which parts it keeps. The encoded own vector (for float32 the caller's)
is kept until an average of a later round has ended, so that members can make parts again.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np
import torch

from adloco_p2p.core.model.gradient_statistics import PseudoGradientStatistics
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.errors import AveragingError
from adloco_p2p.numerics.aggregation.rule import AggregationRule
from adloco_p2p.numerics.aggregation.statistics import gram_statistics
from adloco_p2p.numerics.digest import blob_root, result_index
from adloco_p2p.numerics.reduction import statistics_of
from adloco_p2p.swarm.allreduce.allreduce_spec import AllReduceSpec
from adloco_p2p.swarm.allreduce.attempt_state import AttemptState
from adloco_p2p.swarm.allreduce.completion import DecidedRule, decision_of_rest
from adloco_p2p.swarm.allreduce.handshake import Hello, HelloReply
from adloco_p2p.swarm.allreduce.member_side import MemberSide
from adloco_p2p.swarm.allreduce.reducer_side import ReducerSide
from adloco_p2p.swarm.allreduce.result_store import EncodedResult
from adloco_p2p.swarm.allreduce.settled import Settled
from adloco_p2p.swarm.allreduce.topology import AttemptResult, Context
from adloco_p2p.swarm.transport.framed_stream import FramedStream

logger = logging.getLogger(__name__)


class Butterfly:
    """One attempt. `run` returns when this host has the whole result; `serve_stragglers` then serves slower members."""

    def __init__(
        self,
        spec: AllReduceSpec,
        vector: torch.Tensor,
        encoded: np.ndarray,
        timeout_seconds: float,
        context: Context,
        earlier: "Butterfly | None" = None,
    ) -> None:
        """See `topology.Topology`. `earlier` is the attempt that this one completes."""
        self.spec = spec
        self._earlier = earlier
        self._completion: Butterfly | None = None
        """The newest retry that completes this attempt."""
        self._state: AttemptState = AttemptState(
            spec, vector, encoded, timeout_seconds, context, earlier._state if earlier else None
        )
        self._reducer = ReducerSide(self._state)
        self.sent: Settled | None = None
        self._member = MemberSide(self._state, put_products=self._reducer.put_products)

    async def run(self) -> AttemptResult:
        """Run until the whole result is here. Raises AveragingError; the caller then calls `closed`, or, if there is a
        `decision`, may have a retry complete this attempt until it calls `let_go`."""
        state, executor = self._state, self._state.context.executor
        loop = asyncio.get_running_loop()
        state.end.spawn(state.watch.look_on(state.awaited_by_means, state.peer), member=None)
        self._member.begin()
        self._reducer.begin()
        if self._earlier is not None:
            self._follow(self._earlier)
        has_result = False
        try:
            await state.end.wait()
            if state.me in self._left_out:
                await loop.run_in_executor(executor, state.assembly.take_back)
            own = state.own.all_encoded() if state.own is not None and state.context.keeps_contributions else []
            packed, lengths = await loop.run_in_executor(executor, state.assembly.packed)
            has_result = True
        except AveragingError as error:
            if state.peer(state.me) in error.suspects and not self.spec.is_retry:
                error.upload_bytes_per_second = self._member.sending_rate
                error.vector_bytes = sum(part.num_sent_bytes for part in self.spec.parts)
            raise
        finally:
            if not has_result:
                self.sent = state.sent()
                if self.decision is None:
                    self.let_go()
        result = self._result(own, packed, lengths)
        for attempt in (self, self._earlier):
            if attempt is not None:
                attempt._release()
        return result

    def let_go(self) -> None:
        """Give up completing this failed attempt; the parts that came are kept for another retry."""
        state = self._state
        state.context.held.keep(self.spec, self._reducer.uploads.kept())
        if state.earlier is None:
            state.leave_returned()
        self._release()

    def _release(self) -> None:
        self._reducer.uploads.release()
        self._state.release()

    # --- an attempt that a retry completes ---

    @property
    def decision(self) -> Digest | None:
        """The decision (`completion.py`) by which a retry can complete this attempt; None where there is none."""
        return self._state.decision

    def report_decision(self, on_decided: Callable[[Digest], None]) -> None:
        """Call `on_decided` as soon as there is a decision."""
        if self.spec.needs_gram:
            self._state.end.spawn(self._report_decision(on_decided), member=None)

    async def _report_decision(self, on_decided: Callable[[Digest], None]) -> None:
        await self._state.barrier.is_decided.wait()
        await self._state.commitments.is_complete.wait()
        if self.decision is not None:
            on_decided(self.decision)

    def rule_of_rest(self, members: Collection[PeerId]) -> AggregationRule:
        """Return the rule for the lost parts, over those contributors that are among `members`. Raises AveragingError."""
        assert self.decision is not None and self._state.barrier.decision is not None
        rest = [place for place, member in enumerate(self.spec.contributors) if self.spec.members[member] in members]
        return DecidedRule(self.decision, decision_of_rest(self._state.barrier.decision, rest))

    async def completed_by(self, spec: AllReduceSpec, timeout_seconds: float) -> "Butterfly":
        """Begin the retry that completes this attempt, which has failed."""
        state = self._state
        if self._completion is not None:
            await self._completion.closed()
        await self._member.cut_off({member for member, peer in enumerate(self.spec.members) if peer not in spec.members})
        self._completion = Butterfly(spec, state.vector, state.assembly.encoded, timeout_seconds, state.context, self)
        return self._completion

    def _follow(self, earlier: "Butterfly") -> None:
        """End when the earlier attempt has brought its other parts, or when a member that owes some of them has failed."""
        state, before = self._state, earlier._state

        def fail_with_it() -> None:
            failed = [peer for peer in before.end.late if peer in self.spec.members and peer != state.context.own_peer]
            if failed:
                state.end.fail("; ".join(before.end.late[peer] for peer in failed), tuple(failed))

        async def look(attempt: AttemptState) -> None:
            attempt.check_outcome()

        def look_again() -> None:
            state.end.spawn(look(state), member=None)

        before.left = frozenset(member for member, peer in enumerate(before.spec.members) if peer in self.spec.members)
        before.end.on_late = fail_with_it
        before.on_checked = look_again
        fail_with_it()
        before.end.spawn(look(before), member=None)

    def _result(self, own: list[memoryview], packed: np.ndarray, lengths: list[int]) -> AttemptResult:
        """Build the result. `own` are the own parts as sent, if they are kept; for `packed` and `lengths` see
        `PartAssembly.packed`."""
        state, spec, barrier, assembly = self._state, self.spec, self._state.barrier, self._state.assembly
        assert barrier.decision is not None
        binding, table = barrier.binding(state.commitments.roots), tuple(zip(lengths, assembly.digests, strict=True))
        encoded = EncodedResult(
            digest=blob_root(result_index(spec.mean_codec, spec.size, table, binding=binding)),
            codec=spec.mean_codec,
            sent_codec=spec.codec,
            size=spec.size,
            encoded=packed,
            parts=table,
            binding=binding,
            receipts=state.receipts.all,
        )
        names = [state.peer(member) for member in spec.contributors]
        return AttemptResult(
            vector=assembly.averaged,
            encoded=encoded,
            left_out={
                names[place]: why for place, why in zip(barrier.decision.left_out, barrier.decision.reasons, strict=True)
            },
            statistics=self._statistics() if self._earlier is None else None,
            settled=(state.settled(own), *([self._earlier._state.settled(own)] if self._earlier else [])),
            residual=assembly.residual,
            upload_bytes_per_second=self._member.uplink.bytes_per_second,
        )

    @property
    def _left_out(self) -> tuple[int, ...]:
        """Indices of the contributors that the rule left out."""
        decision = self._state.barrier.decision
        return tuple(self.spec.contributors[place] for place in decision.left_out) if decision else ()

    def _statistics(self) -> PseudoGradientStatistics:
        """Return this member's statistics, from the Gram matrix where there is one (`gram_statistics`). For a member whose
        vector is not in the average, all but the average's norm is 0."""
        gram, decision = self._state.barrier.gram, self._state.barrier.decision
        if gram is None or decision is None:
            return statistics_of(self._state.assembly.sums)
        scalars = gram_statistics(gram, self.spec.contributor_weights, decision.kept)
        kept = [self.spec.contributors[place] for place in decision.kept]
        return (
            scalars[kept.index(self._state.me)]
            if self._state.me in kept
            else replace(scalars[0], own_sqnorm=0.0, inner_product=0.0)
        )

    async def serve_stragglers(self) -> None:
        """Serve slower members until each is served or the deadline has come, then close."""
        watch, uploads = self._state.watch, self._reducer.uploads
        assert self._state.end.outcome.done()
        expected = (len(self.spec.members) - 1) * len(self.spec.lanes(self._state.me))
        try:
            async with asyncio.timeout_at(self._state.end.deadline):
                while watch.streams or uploads.num_streams < expected:
                    watch.has_ended.clear()
                    await watch.has_ended.wait()
        except TimeoutError:
            served = uploads.num_streams
            logger.info("averaging.serve_stragglers key=%.12s members=%d served=%d", self.spec.key, expected, served)
        finally:
            self.close()

    async def closed(self) -> None:
        """Close, and wait until no task of this attempt holds its buffers any more."""
        self.close()
        await self._state.end.closed()

    def close(self) -> None:
        """End every stream and task, and break the reference cycles through this object: its buffers, as large as the model,
        must not wait for the garbage collector. Idempotent."""
        earlier, self._earlier = self._earlier, None
        if earlier is not None:
            earlier._state.on_checked, earlier._state.end.on_late = None, lambda: None
        self._state.watch.close()
        self._state.end.close()
        self._reducer.uploads.close()
        self._member.close()

    def fail(self, reason: str, suspects: tuple[PeerId, ...] = ()) -> None:
        """End the attempt without a result; the first reason stands."""
        self._state.end.fail(reason, suspects)

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received until now, frames included."""
        return self._state.watch.traffic

    async def serve(self, stream: FramedStream, hello: Hello) -> bool:
        """Take a member's parts and send it the means, until it has all. Return whether the stream is free for another
        average."""
        return await self._reducer.serve(stream, hello)

    def on_remote_failure(self, reporter: PeerId, spec: bytes, reply: HelloReply) -> None:
        """Handle another member's report that the average has failed; see `AttemptEnd`."""
        self._state.end.on_remote_failure(reporter, spec, reply)
