"""The reduction of one member's shard: contributions come in, inner products and means go out.

Contributions are held until the attempt has ended, because a barrier needs them until the rule has decided, and a retry takes
them over. They take as much memory as one encoded vector if all members reduce equal shares. Without a barrier, those beyond
`AveragingLimits.held_bytes` are dropped once the mean of their part is there.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

import numpy as np

from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.numerics.aggregation.gram import partial_gram, summed_gram
from adloco_p2p.numerics.aggregation.rule import Decision
from adloco_p2p.numerics.reduction import BadPart, combination, decoded_parts
from adloco_p2p.numerics.tensor_codec import Buffer
from adloco_p2p.swarm.allreduce.allreduce_spec import AllReduceSpec, Part
from adloco_p2p.swarm.allreduce.gram_barrier import encode_products
from adloco_p2p.swarm.allreduce.own_contribution import OwnContribution, sent_root
from adloco_p2p.swarm.allreduce.part_assembly import PartAssembly


class ShardReduction:
    """Reduces one member's shard in one attempt. The coroutines compute in worker threads."""

    def __init__(
        self, spec: AllReduceSpec, me: int, assembly: PartAssembly, own: OwnContribution | None, *, held_bytes: int = 0
    ) -> None:
        """`own` is this member's contribution, if it makes one. `held_bytes` is the most memory for contributions that are held
        although no barrier needs them."""
        self.parts = spec.shards[me]
        self.is_reduced = [asyncio.Event() for _ in self.parts]
        self.num_reduced = [0] * len(spec.lanes(me))
        """The number of reduced parts, by lane."""
        self.num_measured = 0
        """The number of parts whose inner products are known."""
        self.products = b""
        """The encoded inner products of the whole shard."""
        self._spec, self._me = spec, me
        self._assembly = assembly
        self._own = own
        self._inbox: list[dict[int, np.ndarray]] = [{} for _ in self.parts]
        self._has_arrived: list[set[int]] = [set() for _ in self.parts]
        """By part: the members whose contribution is complete."""
        self._num_remote = len(set(spec.contributors) - {me})
        self._num_arrived = [0] * len(spec.members)
        self._held_bytes = held_bytes
        self._spare: list[np.ndarray] = []
        self._grams: list[tuple[float, ...]] = [()] * len(self.parts)

    def index_of(self, part: Part) -> int:
        return self._spec.place_of[part.index]

    def room(self, member: int, part: Part) -> memoryview:
        """Return memory for a member's contribution to the part."""
        largest = max(part.num_sent_bytes for part in self.parts)
        room = self._spare.pop() if self._spare else np.empty(0, dtype=np.uint8)
        if room.nbytes < largest:  # none, or that of an earlier attempt, in which this member reduced shorter parts only
            room = np.empty(largest, dtype=np.uint8)
        self._inbox[self.index_of(part)][member] = room
        return room.data[: part.num_sent_bytes]

    def arrive(self, member: int, part: Part) -> bool:
        """Note that a contribution is complete. Return whether those of all other members to the part are."""
        arrived = self._has_arrived[self.index_of(part)]
        arrived.add(member)
        self._num_arrived[member] += 1
        return len(arrived) == self._num_remote

    def adopt(self, member: int, part: Part, room: np.ndarray) -> bool:
        """Take over a contribution of an earlier attempt. Return whether those of all other members to the part are here."""
        self._inbox[self.index_of(part)][member] = room
        return self.arrive(member, part)

    def num_arrived(self, member: int) -> int:
        """Return the number of this member's complete contributions."""
        return self._num_arrived[member]

    def arrived(self) -> list[tuple[int, Part, np.ndarray]]:
        """Return the complete contributions that are held, each as member, part and bytes."""
        whole = zip(self.parts, self._inbox, self._has_arrived, strict=True)
        return [(member, part, inbox[member]) for part, inbox, arrived in whole for member in arrived if member in inbox]

    def of(self, member: int) -> dict[int, Buffer]:
        """Return the parts that are held of a member, by index."""
        held = zip(self.parts, self._inbox, strict=True)
        return {part.index: inbox[member].data[: part.num_sent_bytes] for part, inbox in held if member in inbox}

    def _contributions(self, index: int) -> list[tuple[int, Buffer]]:
        part, inbox = self.parts[index], self._inbox[index]
        encoded: dict[int, Buffer] = {member: room.data[: part.num_sent_bytes] for member, room in inbox.items()}
        if self._own is not None:
            encoded[self._me] = self._own.encoded(part)
        return [(member, encoded[member]) for member in self._spec.contributors]

    async def check(self, index: int, leaf: Callable[[int, Part], bytes], executor: Executor) -> None:
        """Check that the contributions to one part, which are all here, have the roots that their senders committed themselves
        to, as `leaf` returns them. Raises BadPart."""
        part, inbox = self.parts[index], self._inbox[index]

        def check() -> None:
            for member, room in inbox.items():
                try:
                    root = sent_root(self._spec, part, room.data[: part.num_sent_bytes])
                except RemoteProtocolError as error:
                    raise BadPart(member, str(error)) from None
                if root != leaf(member, part):
                    raise BadPart(member, "a part that it did not commit itself to")

        await asyncio.get_running_loop().run_in_executor(executor, check)

    async def measure(self, index: int, executor: Executor) -> bool:
        """Compute the inner products of the contributions to one part, which are all here. Return whether it was the last part.
        Raises BadPart."""

        def measure() -> tuple[float, ...]:
            return partial_gram(decoded_parts(self._spec.codec, self._contributions(index), self.parts[index].size))

        self._grams[index] = await asyncio.get_running_loop().run_in_executor(executor, measure)
        self.num_measured += 1
        if self.num_measured < len(self.parts):
            return False
        num_hosts = len(self._spec.contributors)
        gram = summed_gram(self._grams, num_hosts)
        self.products = encode_products([gram[row][column] for row in range(num_hosts) for column in range(row + 1)])
        return True

    async def reduce(self, index: int, decision: Decision, executor: Executor) -> None:
        """Form the average of one part, encode it once, and decode it as every other member will. Raises BadPart."""
        part = self.parts[index]

        def reduce() -> None:
            assembly, codec = self._assembly, self._spec.mean_codec
            average = combination(
                self._spec.codec, self._contributions(index), decision.coefficients, part.size, divisors=decision.divisors
            )
            encoded = codec.encode(average)
            assembly.room(part)[: len(encoded)] = encoded
            assembly.settle(part, codec.decode(assembly.data(part)))

        await asyncio.get_running_loop().run_in_executor(executor, reduce)
        self._hold_or_reuse(index)
        self.num_reduced[index % len(self.num_reduced)] += 1
        self.is_reduced[index].set()

    def _hold_or_reuse(self, index: int) -> None:
        """After a part is reduced, hold its contributions for a retry, or reuse their memory if the limit is reached."""
        if self._spec.needs_gram:
            return
        self._held_bytes -= sum(room.nbytes for room in self._inbox[index].values())
        if self._held_bytes < 0:
            self._spare.extend(self._inbox[index].values())
            self._inbox[index].clear()

    def release(self) -> None:
        """Drop all contributions."""
        self._inbox = [{} for _ in self.parts]
        self._spare.clear()
        self._own = None
