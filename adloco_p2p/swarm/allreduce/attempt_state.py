"""The state of one attempt on one member, which its two sides, member and reducer, share."""

import asyncio
from collections.abc import Callable

import numpy as np
import torch

from adloco_p2p.core.model.ledger_entry import inputs_digest
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.swarm.allreduce.allreduce_spec import AllReduceSpec
from adloco_p2p.swarm.allreduce.attempt_end import AttemptEnd
from adloco_p2p.swarm.allreduce.completion import decision_digest
from adloco_p2p.swarm.allreduce.gram_barrier import GramBarrier
from adloco_p2p.swarm.allreduce.held_uploads import ReturnedParts
from adloco_p2p.swarm.allreduce.own_contribution import OwnContribution
from adloco_p2p.swarm.allreduce.part_assembly import PartAssembly
from adloco_p2p.swarm.allreduce.part_sink import PartSink
from adloco_p2p.swarm.allreduce.pledges import CommitmentBook, ProductsBook, ReceiptBook
from adloco_p2p.swarm.allreduce.settled import Settled
from adloco_p2p.swarm.allreduce.shard_reduction import ShardReduction
from adloco_p2p.swarm.allreduce.stream_watch import StreamWatch
from adloco_p2p.swarm.allreduce.topology import Context
from adloco_p2p.swarm.transport.framed_stream import FramedStream


class AttemptState:
    """The mutable state of one attempt: buffers, books of pledges, streams and the outcome."""

    def __init__(
        self,
        spec: AllReduceSpec,
        vector: torch.Tensor,
        encoded: np.ndarray,
        timeout_seconds: float,
        context: Context,
        earlier: "AttemptState | None" = None,
    ) -> None:
        """See `topology.Topology`. `earlier` is the state of the attempt that this one completes; its parts belong to the
        result."""
        self.spec = spec
        self.earlier = earlier
        self._begun = asyncio.get_running_loop().time()
        self.me = spec.members.index(context.own_peer)
        self.context = context
        self.vector = vector
        self.own = OwnContribution(spec, vector) if self.me in spec.contributors else None
        if earlier is not None and earlier.own is not None:
            self.own = earlier.own.for_completion(spec)
        self.assembly: PartAssembly = earlier.assembly if earlier is not None else PartAssembly(spec, self.own, encoded=encoded)
        self.num_unsettled = sum(map(len, spec.shards))
        """The number of averaged parts that this attempt still has to bring."""
        self.left = frozenset(range(len(spec.members)))
        """The members that are also in the retry that completes this attempt; all members if there is none."""
        self.checked: set[int] = set()
        """The reducers of `left` whose parts and receipts are here and agree."""
        self.on_checked: Callable[[], None] | None = None
        """Called when `checked` may have grown; set by the retry that completes this attempt."""
        held_bytes = context.limits.held_bytes
        self.returned = context.held.returned(spec)
        """Averaged parts that came back in the previous attempt."""
        self.reduction = ShardReduction(spec, self.me, self.assembly, self.own, held_bytes=held_bytes)
        self.barrier = GramBarrier(spec)
        self.commitments = CommitmentBook(spec, self.me, context.notary)
        self.products = ProductsBook(spec, context.notary)
        self.receipts = ReceiptBook(spec, context.notary)
        self.watch = StreamWatch(context.stall_detector, least_stall_seconds=context.limits.stall_seconds)
        self.reducers: dict[tuple[int, int], tuple[FramedStream, PartSink]] = {}
        """The streams on which a reducer has answered, by member and lane."""
        self.end = AttemptEnd(
            spec,
            timeout_seconds=timeout_seconds,
            grace_seconds=context.limits.grace_seconds,
            local_fault=context.local_fault,
            awaited=self._awaited_in_all,
        )

    @property
    def remote_contributors(self) -> tuple[int, ...]:
        return tuple(member for member in self.spec.contributors if member != self.me)

    def peer(self, member: int) -> PeerId:
        return self.spec.members[member]

    @property
    def inputs(self) -> Digest:
        """The digest of the average's inputs. Only once the rule has decided."""
        spec = self.spec
        assert self.barrier.decision is not None
        decision, roots = self.barrier.decision, self.commitments.roots
        return inputs_digest(spec.codec.code, spec.mean_codec.code, roots, decision.coefficients, decision.divisors)

    @property
    def decision(self) -> Digest | None:
        """The decision by which a retry can complete this attempt; None before every reducer has all its contributions."""
        if not self.spec.needs_gram or self.barrier.decision is None or not self.commitments.is_complete.is_set():
            return None
        return decision_digest(self.spec, self.inputs)

    def roots_of(self, reducer: int) -> list[bytes]:
        """Return the roots of this reducer's averaged parts; empty for parts that are not here."""
        return [self.assembly.roots[part.index] for part in self.spec.shards[reducer]]

    def count_settled(self) -> None:
        """Note that one more part of the result is in place. Raises BadPart."""
        self.num_unsettled -= 1
        self.check_outcome()

    def check_outcome(self) -> None:
        """End the attempt with success if everything is here, in whatever order it came. Raises BadPart for a false receipt."""
        if self.on_checked is not None:
            self._check_rest(self.on_checked)
        has_all = self.num_unsettled == 0 and self.barrier.decision is not None and self.receipts.is_complete
        if not has_all or not self._has_rest or self.end.outcome.done():
            return
        for reducer in self.spec.reducers:
            self.receipts.check(reducer, self.inputs, self.roots_of(reducer), self.products.all)
        self.end.outcome.set_result(None)

    @property
    def _has_rest(self) -> bool:
        """Whether the earlier attempt, which this one completes, has brought everything that it still had to."""
        return self.earlier is None or self.earlier.checked.issuperset(self.earlier.reducers_left)

    @property
    def reducers_left(self) -> tuple[int, ...]:
        """The reducers that are not lost, in order."""
        return tuple(reducer for reducer in self.spec.reducers if reducer in self.left)

    def _check_rest(self, on_checked: Callable[[], None]) -> None:
        """For the retry that completes this attempt, check the reducers whose parts are all here. Raises BadPart."""
        for reducer in self.reducers_left:
            if reducer not in self.checked and self.receipts.has(reducer) and all(self.roots_of(reducer)):
                self.receipts.check(reducer, self.inputs, self.roots_of(reducer), self.products.all)
                self.checked.add(reducer)
        on_checked()

    # --- the members that hold up the attempt, as far as this one can determine: keepalives and deadlines name them ---

    def awaited_by_means(self, asker: int | None = None) -> tuple[int, ...]:
        """Return the members that hold up the averaged parts of this one: contributors, then reducers whose inner products are
        missing. A missing reducer that is the `asker` is named itself, and not the members that its own keepalives name."""
        senders = self._awaited_senders()
        if senders:
            return senders
        missing = [reducer for reducer in self.barrier.missing if reducer != self.me]
        awaited = set[int]().union(*({reducer} if reducer == asker else self._behind(reducer, 0) for reducer in missing))
        return tuple(sorted(awaited))

    def _awaited_senders(self) -> tuple[int, ...]:
        """Return the contributors that hold up this reducer."""
        counts = {member: self.reduction.num_arrived(member) for member in self.remote_contributors}
        least = min(counts.values(), default=0)
        if not self.reduction.parts:
            return ()
        if least == len(self.reduction.parts):
            return tuple(member for member in self.commitments.missing if member != self.me)
        return tuple(member for member, count in counts.items() if count == least)

    def awaited_by_result(self) -> set[int]:
        """Return the members that hold up the result here."""
        awaited = set(self.awaited_by_means())
        for member in self.spec.reducers:
            for lane in range(len(self.spec.lanes(member)) if member != self.me else 0):
                _, sink = self.reducers.get((member, lane), (None, None))
                if sink is None:
                    awaited.add(member)
                elif not sink.is_complete or not self.receipts.has(member):
                    awaited |= self._behind(member, lane)
        return awaited

    def _behind(self, reducer: int, lane: int) -> set[int]:
        """Return the members that an unfinished reducer waits for, by its keepalives; if they name none, the reducer itself."""
        stream, _ = self.reducers.get((reducer, lane), (None, None))
        awaited = set(stream.awaited_members) if stream is not None else set()
        return awaited & {*self.remote_contributors, *self.spec.reducers} - {self.me} or {reducer}

    def _awaited_in_all(self) -> set[int]:
        """Return the members that hold up the result in this attempt or in the one that it completes."""
        found = self.awaited_by_result()
        if self.earlier is not None:
            names = {self.earlier.peer(member) for member in self.earlier.awaited_by_result()}
            found |= {member for member, peer in enumerate(self.spec.members) if peer in names}
        return found

    # --- streams, and the end ---

    def adopt_stream(self, stream: FramedStream, member: int, *, is_complete: Callable[[], bool]) -> None:
        """Watch a stream. Its loss matters only while the other end still owes something."""

        def lost(error: Exception) -> None:
            if not is_complete():
                self.end.lose(member, str(error))

        self.watch.adopt(stream, member, on_lost=lost)

    def settled(self, own: list[memoryview]) -> Settled:
        """Return the ended attempt in the form in which its parts can be made again; `own` are the own parts, if kept."""
        assert self.barrier.decision is not None
        spec = self.spec
        gone = [member for member in spec.contributors if member not in self.left]
        is_shown = self.context.keeps_contributions and self.reduction.parts
        return Settled(
            spec=spec,
            me=self.me,
            coefficients=self.barrier.decision.coefficients,
            divisors=self.barrier.decision.divisors,
            roots=tuple(self.commitments.roots),
            receipts=self.receipts.of(self.reducers_left),
            result_roots=self.assembly.roots,
            own_leaves=self.commitments.own_leaves,
            own=own,
            seconds=asyncio.get_running_loop().time() - self._begun,
            gone=frozenset(gone),
            held={m: self.commitments.held_of(m, self.reduction.of(m)) for m in gone if is_shown},
        )

    def sent(self) -> Settled | None:
        """Return the own contribution to an attempt that failed here, to be shown, since others may have got their result."""
        own_leaves = self.commitments.own_leaves
        if self.own is None or not own_leaves or not self.context.keeps_contributions:
            return None
        return Settled(
            spec=self.spec,
            me=self.me,
            coefficients=(),
            roots=(),
            receipts={},
            result_roots=(),
            own_leaves=own_leaves,
            own=self.own.all_encoded(),  # costs nothing: hashing the leaves has encoded all parts
        )

    def leave_returned(self) -> None:
        """Keep the averaged parts that came back in this failed attempt, for a retry of the same members."""
        if self.barrier.decision is not None and self.commitments.is_complete.is_set():
            has_come = tuple(digest != b"" for digest in self.assembly.digests)
            parts = ReturnedParts(self.inputs, self.assembly.encoded, has_come)
            self.context.held.keep_returned(self.spec, parts)

    def release(self) -> None:
        """Release the buffers, which are as large as the model."""
        self.reduction.release()
        if self.earlier is None:
            self.assembly.release()
        if self.own is not None:
            self.own.release()
        self.vector = self.vector.new_empty(0)
        self.returned = None
