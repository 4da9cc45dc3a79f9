"""What one host sends into an attempt: its vector, encoded once, part by part, and the hashes by which it commits to that.

For float32 the encoded parts are views of the vector and cost nothing; every other codec's are kept until the attempt is over.
"""

import hashlib
from collections.abc import Sequence
from math import fsum

import torch

from adloco_p2p.core.model.types import Digest
from adloco_p2p.numerics.aggregation.gram import partial_gram
from adloco_p2p.numerics.digest import chunk_digest
from adloco_p2p.swarm.allreduce.allreduce_spec import AllReduceSpec, Part


def shard_digest(leaves: Sequence[bytes]) -> bytes:
    """Of the hashes of one reducer's parts; 32 bytes."""
    return hashlib.sha256(b"".join(leaves)).digest()


def root_of(shards: Sequence[bytes]) -> Digest:
    """What commits to a contribution. A reducer checks its own parts against it with the digests of the other shards."""
    return Digest(hashlib.sha256(b"".join(shards)).hexdigest())


class OwnContribution:
    """For one attempt. `encoded` may run in several threads; the work of two for one part comes to the same bytes."""

    def __init__(self, spec: AllReduceSpec, vector: torch.Tensor) -> None:
        """`vector`: float32 [P], untouched until `release`."""
        self._spec = spec
        self._vector = vector
        self._encoded: list[memoryview | None] = [None] * spec.num_parts

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
        """SHA-256 of every encoded part, by reducer."""
        return tuple(tuple(chunk_digest(self.encoded(part)) for part in shard) for shard in self._spec.shards)

    def sqnorm(self, reducer: int) -> float:
        """norm2 of the parts of one reducer as the others decode them, to the bit as the reducer computes it: the diagonal
        entry of its inner products."""
        decode = self._spec.codec.decode
        return fsum(partial_gram([decode(self.encoded(part)).numpy()])[0] for part in self._spec.shards[reducer])

    def copy_to(self, target: torch.Tensor) -> None:
        """The whole vector, float32 [P]."""
        target.copy_(self._vector)

    def release(self) -> None:
        """The caller may change the vector again."""
        self._vector = self._vector.new_empty(0)
        self._encoded.clear()
