"""The contribution of one host to an attempt: its vector, encoded once, part by part, and the hashes by which it commits to
that.

For float32 the encoded parts are views of the vector and cost nothing; every other codec's are memory of their own.
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
    """The commitment to a contribution: over the roots of all shards. A reducer checks its own parts against it with those of
    the other shards."""
    named = [shard_hash(peer, shard) for peer, shard in zip(spec.members, shards, strict=True)]
    return Digest(tree_root(named).hex())


def sent_root(spec: AllReduceSpec, part: Part, data: Buffer) -> bytes:
    """Of a part as it was sent; 32 bytes. Raises RemoteProtocolError."""
    return part_root(spec.codec, data, first=part.first, size=part.size, length=spec.slice_values)


def mean_root(spec: AllReduceSpec, part: Part, data: Buffer) -> bytes:
    """Of a part of the result; 32 bytes."""
    return part_root(spec.mean_codec, data, first=part.first, size=part.size, length=spec.slice_values)


class OwnContribution:
    """For one attempt. `encoded` may run in several threads; the work of two for one part comes to the same bytes."""

    def __init__(self, spec: AllReduceSpec, vector: torch.Tensor, encoded: list[memoryview | None] | None = None) -> None:
        """`vector`: float32 [P], written to by nobody while this, or what `all_encoded` gave, is there. `encoded`: its encoded
        parts, as far as they are known."""
        self._spec = spec
        self._vector = vector
        self._encoded: list[memoryview | None] = [None] * spec.num_parts if encoded is None else encoded

    def for_completion(self, spec: AllReduceSpec) -> "OwnContribution":
        """The same contribution in a retry that completes this attempt; in the same memory."""
        return OwnContribution(spec, self._vector, self._encoded)

    def values(self, part: Part) -> torch.Tensor:
        """As this host has them."""
        return self._vector[part.first : part.first + part.size]

    def encoded(self, part: Part) -> memoryview:
        """As the others get them."""
        known = self._encoded[part.index]
        if known is None:
            known = self._encoded[part.index] = self._spec.codec.encode(self.values(part))
        return known

    def leaves(self) -> tuple[tuple[bytes, ...], ...]:
        """The root of every encoded part, by reducer."""
        return tuple(tuple(sent_root(self._spec, part, self.encoded(part)) for part in shard) for shard in self._spec.shards)

    def all_encoded(self) -> list[memoryview]:
        """Every part, by its index, for as long as the caller likes: not copied."""
        return [self.encoded(part) for part in self._spec.parts]

    def sqnorm(self, reducer: int) -> float:
        """norm2 of the parts of one reducer as the others decode them, to the bit as the reducer computes it: the diagonal
        entry of its inner products."""
        decode = self._spec.codec.decode
        return fsum(partial_gram([decode(self.encoded(part)).numpy()])[0] for part in self._spec.shards[reducer])

    def copy_to(self, target: torch.Tensor) -> None:
        """The whole vector, float32 [P]."""
        target.copy_(self._vector)

    def release(self) -> None:
        """Let go of the vector."""
        self._vector = self._vector.new_empty(0)
        self._encoded = []
