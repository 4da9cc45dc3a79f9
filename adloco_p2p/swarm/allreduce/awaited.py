"""The members that hold up one attempt, as far as one member can determine: keepalives and deadlines name them."""

from collections.abc import Mapping

from adloco_p2p.swarm.allreduce.allreduce_spec import AllReduceSpec
from adloco_p2p.swarm.allreduce.gram_barrier import GramBarrier
from adloco_p2p.swarm.allreduce.part_sink import PartSink
from adloco_p2p.swarm.allreduce.pledges import CommitmentBook, ReceiptBook
from adloco_p2p.swarm.allreduce.shard_reduction import ShardReduction
from adloco_p2p.swarm.transport.framed_stream import FramedStream


class Awaited:
    """On one member; reads what the attempt's other parts hold, and changes nothing."""

    def __init__(
        self,
        spec: AllReduceSpec,
        me: int,
        reduction: ShardReduction,
        commitments: CommitmentBook,
        barrier: GramBarrier,
        receipts: ReceiptBook,
        reducers: Mapping[tuple[int, int], tuple[FramedStream, PartSink]],
    ) -> None:
        """`reducers`: by member and lane, streams on which a reducer answered."""
        self._spec, self._me = spec, me
        self._reduction, self._commitments = reduction, commitments
        self._barrier, self._receipts = barrier, receipts
        self._reducers = reducers
        self._remote_contributors = tuple(member for member in spec.contributors if member != me)

    def _senders(self) -> tuple[int, ...]:
        """The contributors that hold up this reducer."""
        counts = {member: self._reduction.num_arrived(member) for member in self._remote_contributors}
        least = min(counts.values(), default=0)
        if not self._reduction.parts:
            return ()
        if least == len(self._reduction.parts):
            return tuple(member for member in self._commitments.missing if member != self._me)
        return tuple(member for member, count in counts.items() if count == least)

    def by_means(self, asker: int | None = None) -> tuple[int, ...]:
        """Those that hold up what this member returns: contributors, and then reducers whose inner products are missing. To a
        reducer that is the `asker` this member names that reducer itself, and does not repeat what it reported."""
        senders = self._senders()
        if senders:
            return senders
        missing = [reducer for reducer in self._barrier.missing if reducer != self._me]
        awaited = set[int]().union(*({reducer} if reducer == asker else self._behind(reducer, 0) for reducer in missing))
        return tuple(sorted(awaited))

    def by_result(self) -> set[int]:
        """Those that hold up the result here."""
        awaited = set(self.by_means())
        for member in self._spec.reducers:
            for lane in range(len(self._spec.lanes(member)) if member != self._me else 0):
                _, sink = self._reducers.get((member, lane), (None, None))
                if sink is None:
                    awaited.add(member)
                elif not sink.is_complete or not self._receipts.has(member):
                    awaited |= self._behind(member, lane)
        return awaited

    def _behind(self, reducer: int, lane: int) -> set[int]:
        """The members that an unfinished reducer waits for, by its keepalives; otherwise the reducer itself."""
        stream, _ = self._reducers.get((reducer, lane), (None, None))
        awaited = set(stream.awaited_members) if stream is not None else set()
        return awaited & {*self._remote_contributors, *self._spec.reducers} - {self._me} or {reducer}
