"""The state of one attempt on one member: what its two sides, member and reducer, share, and what follows from it."""

from collections.abc import Callable

import numpy as np
import torch

from adloco_p2p.core.model.ledger_entry import inputs_digest
from adloco_p2p.core.model.types import Digest, PeerId
from adloco_p2p.swarm.allreduce.allreduce_spec import AllReduceSpec
from adloco_p2p.swarm.allreduce.attempt_end import AttemptEnd
from adloco_p2p.swarm.allreduce.awaited import Awaited
from adloco_p2p.swarm.allreduce.gram_barrier import GramBarrier
from adloco_p2p.swarm.allreduce.own_contribution import OwnContribution
from adloco_p2p.swarm.allreduce.part_assembly import PartAssembly
from adloco_p2p.swarm.allreduce.part_sink import PartSink
from adloco_p2p.swarm.allreduce.pledges import CommitmentBook, ProductsBook, ReceiptBook
from adloco_p2p.swarm.allreduce.shard_reduction import ShardReduction
from adloco_p2p.swarm.allreduce.stream_watch import StreamWatch
from adloco_p2p.swarm.allreduce.topology import Surroundings
from adloco_p2p.swarm.transport.framed_stream import FramedStream


class AttemptState:
    """Mutable."""

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
        self.around = surroundings
        self.vector = vector
        self.own = OwnContribution(spec, vector) if self.me in spec.contributors else None
        self.assembly = PartAssembly(spec, self.own, encoded=encoded)
        held_bytes = surroundings.limits.held_bytes
        self.reduction = ShardReduction(spec, self.me, self.assembly, self.own, held_bytes=held_bytes)
        self.barrier = GramBarrier(spec)
        self.commitments = CommitmentBook(spec, self.me, surroundings.notary)
        self.products = ProductsBook(spec, surroundings.notary)
        self.receipts = ReceiptBook(spec, surroundings.notary)
        self.watch = StreamWatch(surroundings.stall_detector, least_stall_seconds=surroundings.limits.stall_seconds)
        self.reducers: dict[tuple[int, int], tuple[FramedStream, PartSink]] = {}
        """By member and lane: streams on which a reducer answered."""
        self.awaited = Awaited(spec, self.me, self.reduction, self.commitments, self.barrier, self.receipts, self.reducers)
        self.end = AttemptEnd(
            spec,
            timeout_seconds=timeout_seconds,
            grace_seconds=surroundings.limits.grace_seconds,
            local_fault=surroundings.local_fault,
            awaited=self.awaited.by_result,
        )

    @property
    def remote_contributors(self) -> tuple[int, ...]:
        return tuple(member for member in self.spec.contributors if member != self.me)

    def peer(self, member: int) -> PeerId:
        return self.spec.members[member]

    @property
    def inputs(self) -> Digest:
        """What the average is made from; once decided."""
        spec = self.spec
        assert self.barrier.decision is not None
        decision, roots = self.barrier.decision, self.commitments.roots
        return inputs_digest(spec.codec.code, spec.mean_codec.code, roots, decision.coefficients, decision.divisors)

    def roots_of(self, reducer: int) -> list[bytes]:
        """Of the reducer's parts that are here."""
        return [self.assembly.roots[part.index] for part in self.spec.shards[reducer]]

    def count_settled(self) -> None:
        """One more part of the result is in place. Raises BadPart."""
        self.assembly.num_unsettled -= 1
        self.check_outcome()

    def check_outcome(self) -> None:
        """Parts of others may be here before the last inner products are, receipts before the last parts. Raises BadPart."""
        has_all = self.assembly.num_unsettled == 0 and self.barrier.decision is not None and self.receipts.is_complete
        if not has_all or self.end.outcome.done():
            return
        for reducer in self.spec.reducers:
            self.receipts.check(reducer, self.inputs, self.roots_of(reducer), self.products.all)
        self.end.outcome.set_result(None)

    def adopt_stream(self, stream: FramedStream, member: int, *, is_complete: Callable[[], bool]) -> None:
        """The stream's loss matters only while the other end still owes something."""

        def lost(error: Exception) -> None:
            if not is_complete():
                self.end.lose(member, str(error))

        self.watch.adopt(stream, member, on_lost=lost)

    def release(self) -> None:
        """Let go of the buffers, which are as large as the model."""
        self.reduction.release()
        self.assembly.release()
        if self.own is not None:
            self.own.release()
        self.vector = self.vector.new_empty(0)
