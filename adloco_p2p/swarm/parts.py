"""What the members of one average agree on, how the vector is cut, and the arithmetic on one part. Pure.

The vector is cut into contiguous shards, one per reducer, and every shard into parts of equal size (the last may be
shorter). A part is summed in member order, each product and each sum rounded to float32 (no fused operation), so the same
inputs give the same bits on every run and every machine.
"""

import hashlib
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from adloco_p2p.core import canonical
from adloco_p2p.core.types import MAX_HOSTS, Digest, PeerId, PseudoGradientStatistics
from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.swarm.tensor_codec import Buffer, TensorCodec, fits

_SHARE_UNIT = 1 << 20  # shares are rounded to this fraction of one, so that every peer cuts with whole numbers
_STATISTICS_BLOCK = 8192  # values; stays in the cache, and is short enough that no BLAS splits it over threads
MAX_PARTS = 1 << 17
"""Parts of one vector; with parts of 1 MiB this is 128 GiB."""


class BadPart(RemoteProtocolError):
    """A part whose values no honest peer sends. `member` is the index of its sender."""

    def __init__(self, member: int, why: str) -> None:
        super().__init__(why)
        self.member = member


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of the vector: values `first` to `first + size`, which are bytes `offset` to `offset + num_bytes`."""

    index: int
    first: int
    size: int
    offset: int
    num_bytes: int


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Everything that must be equal on all members of one average.

    Raises ValueError for what no plan says: doubled members, negative or all-zero shares, an empty vector.
    """

    key: Digest
    weights: tuple[tuple[PeerId, int], ...]
    """Members and their samples; the order is the order of summation."""
    shares: tuple[float, ...]
    """How much of the vector each member reduces, in any unit; 0: none (a receiver, or a peer that nobody can reach)."""
    size: int
    codec: TensorCodec
    part_bytes: int

    def __post_init__(self) -> None:
        members = [peer for peer, _ in self.weights]
        if len(set(members)) != len(members) or not 1 <= len(members) <= MAX_HOSTS:
            raise ValueError(f"members must be distinct, 1 to {MAX_HOSTS}")
        if any(weight < 0 for _, weight in self.weights) or self.total_weight == 0:
            raise ValueError("weights must not be negative, and one must be positive")
        if len(self.shares) != len(members) or any(not 0 <= share < math.inf for share in self.shares):
            raise ValueError("one finite share per member")
        if len(self.key) != 64 or self.size < 1 or self.part_bytes < self.codec.bytes_per_value:
            raise ValueError("a key is a SHA-256 in hex, a vector has a value, a part holds one")
        if sum(self._whole_shares) == 0:
            raise ValueError("no member reduces")
        if sum(len(parts) for parts in self.shards) > MAX_PARTS:
            raise ValueError(f"more than {MAX_PARTS} parts")

    @property
    def total_weight(self) -> int:
        return sum(weight for _, weight in self.weights)

    @cached_property
    def members(self) -> tuple[PeerId, ...]:
        return tuple(peer for peer, _ in self.weights)

    @cached_property
    def contributors(self) -> tuple[int, ...]:
        """Members whose vectors are in the average, in order of summation."""
        return tuple(member for member, (_, weight) in enumerate(self.weights) if weight > 0)

    @property
    def _whole_shares(self) -> tuple[int, ...]:
        largest = max(self.shares)
        return tuple(round(share / largest * _SHARE_UNIT) if largest else 0 for share in self.shares)

    @cached_property
    def shards(self) -> tuple[tuple[Part, ...], ...]:
        """The parts that each member reduces; together they are the vector, in order."""
        whole = self._whole_shares
        part_values, value_bytes = self.part_bytes // self.codec.bytes_per_value, self.codec.bytes_per_value
        shards, index, given = [], 0, 0
        for share in whole:
            begin = self.size * given // sum(whole)
            given += share
            end = self.size * given // sum(whole)
            parts = []
            for first in range(begin, end, part_values):
                size = min(part_values, end - first)
                parts.append(Part(index, first, size, first * value_bytes, size * value_bytes))
                index += 1
            shards.append(tuple(parts))
        return tuple(shards)

    @cached_property
    def digest(self) -> bytes:
        """32 bytes that differ wherever two members would not do the same thing."""
        fields = {
            "key": self.key,
            "weights": self.weights,
            "shares": self._whole_shares,
            "size": self.size,
            "codec": self.codec.name,
            "part_bytes": self.part_bytes,
        }
        return bytes.fromhex(canonical.digest(fields))


def weighted_mean(codec: TensorCodec, contributions: Sequence[tuple[int, int, Buffer]]) -> torch.Tensor:
    """Mean of encoded parts, each (member, weight, bytes), in the given order: [n] float32.

    Raises BadPart for a contribution that is not finite.
    """
    total = sum(weight for _, weight, _ in contributions)
    mean: np.ndarray | None = None
    for member, weight, data in contributions:
        values = codec.decode(data)
        if not fits(codec, values):
            raise BadPart(member, "values that are not finite")
        product = values.numpy() * np.float32(weight / total)
        if mean is None:
            mean = product
        else:
            mean += product
    assert mean is not None
    return torch.from_numpy(mean)


def part_statistics(own: torch.Tensor | None, averaged: torch.Tensor) -> tuple[float, float, float]:
    """norm2(own), <own, averaged> and norm2(averaged) of one part, in float64; zeros where nothing was transmitted."""
    sums = np.zeros(3)
    for first in range(0, averaged.numel(), _STATISTICS_BLOCK):
        mean = averaged[first : first + _STATISTICS_BLOCK].numpy().astype(np.float64)
        sums[2] += mean @ mean
        if own is not None:
            mine = own[first : first + _STATISTICS_BLOCK].numpy().astype(np.float64)
            sums[0] += mine @ mine
            sums[1] += mine @ mean
    return float(sums[0]), float(sums[1]), float(sums[2])


def statistics_of(parts: Sequence[tuple[float, float, float]]) -> PseudoGradientStatistics:
    """The three scalars of the whole vector from those of its parts (method section 4.3)."""
    own, inner, averaged = (math.fsum(column) for column in zip(*parts, strict=True))
    return PseudoGradientStatistics(own_sqnorm=own, inner_product=inner, averaged_sqnorm=averaged)


def part_digest(data: Buffer) -> bytes:
    return hashlib.sha256(data).digest()


def result_digest(codec: TensorCodec, size: int, part_digests: Sequence[bytes]) -> Digest:
    """What every host of an average must share: SHA-256 over codec, size and the SHA-256 of every encoded part, in order.

    A hash of hashes, so that parts are hashed while others still travel, and a repaired part is checked by itself.
    """
    head = struct.pack("<4sBQ", b"mean", codec.code, size)
    return Digest(hashlib.sha256(head + b"".join(part_digests)).hexdigest())
