"""This host's contribution to an attempt: its vector, encoded once, part by part, and the hashes that commit to it.

For float32 the encoded parts are views of the vector and cost nothing; with any other codec they take memory of their own.
"""

from collections.abc import Sequence
from math import fsum

import torch

from adloco_p2p.core.model.hash_tree import shard_hash, tree_root
from adloco_p2p.core.model.scalars import Digest
from adloco_p2p.numerics.aggregation.gram import partial_gram
from adloco_p2p.numerics.part_tree import part_root
from adloco_p2p.numerics.tensor_codec import Buffer
from adloco_p2p.swarm.allreduce.allreduce_spec import AllReduceSpec, Part


def root_of(spec: AllReduceSpec, shards: Sequence[bytes]) -> Digest:
    """Return the root of a contribution, over the roots of all its shards. A reducer checks its own parts against it with the
    roots of the other shards."""
    named = [shard_hash(peer, shard) for peer, shard in zip(spec.members, shards, strict=True)]
    return Digest(tree_root(named).hex())


def sent_root(spec: AllReduceSpec, part: Part, data: Buffer) -> bytes:
    """Return the root, 32 bytes, of a part as it was sent. Raises RemoteProtocolError."""
    return part_root(spec.codec, data, first=part.first, size=part.size, length=spec.slice_values)


def mean_root(spec: AllReduceSpec, part: Part, data: Buffer) -> bytes:
    """Return the root, 32 bytes, of a part of the result. Raises RemoteProtocolError."""
    return part_root(spec.mean_codec, data, first=part.first, size=part.size, length=spec.slice_values)


class OwnContribution:
    """This host's vector in one attempt. `encoded` may run in several threads: two that encode one part get the same bytes."""

    def __init__(self, spec: AllReduceSpec, vector: torch.Tensor, encoded: list[memoryview | None] | None = None) -> None:
        """`vector`, float32 [P], must not be written to while this object or a result of `all_encoded` exists. `encoded`: its
        encoded parts, as far as they are known."""
        self._spec = spec
        self._vector = vector
        self._encoded: list[memoryview | None] = [None] * spec.num_parts if encoded is None else encoded

    def for_completion(self, spec: AllReduceSpec) -> "OwnContribution":
        """Return the same contribution, in the same memory, for a retry that completes this attempt."""
        return OwnContribution(spec, self._vector, self._encoded)

    def values(self, part: Part) -> torch.Tensor:
        """Return the values of a part as this host has them."""
        return self._vector[part.first : part.first + part.size]

    def encoded(self, part: Part) -> memoryview:
        """Return a part as the others get it."""
        known = self._encoded[part.index]
        if known is None:
            known = self._encoded[part.index] = self._spec.codec.encode(self.values(part))
        return known

    def leaves(self) -> tuple[tuple[bytes, ...], ...]:
        """Return the roots of all encoded parts, by reducer."""
        return tuple(tuple(sent_root(self._spec, part, self.encoded(part)) for part in shard) for shard in self._spec.shards)

    def all_encoded(self) -> list[memoryview]:
        """Return every encoded part, by its index. The parts are not copied and outlive `release`."""
        return [self.encoded(part) for part in self._spec.parts]

    def sqnorm(self, reducer: int) -> float:
        """Return norm2 of one reducer's parts as the others decode them. It equals, to the bit, the diagonal entry of the inner
        products that the reducer computes."""
        decode = self._spec.codec.decode
        return fsum(partial_gram([decode(self.encoded(part)).numpy()])[0] for part in self._spec.shards[reducer])

    def copy_to(self, target: torch.Tensor) -> None:
        """Copy the whole vector to `target`, float32 [P]."""
        target.copy_(self._vector)

    def release(self) -> None:
        """Release the vector."""
        self._vector = self._vector.new_empty(0)
        self._encoded = []
