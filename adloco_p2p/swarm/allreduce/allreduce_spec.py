"""The parameters that all members of one all-reduce share, how the vector is cut, and the arithmetic on one part. Pure.

The vector is cut into contiguous shards, one per reducer, and every shard into parts of equal size (the last may be
shorter). A part is summed in member order by `numerics/reduction.py`, so the same inputs give the same bits on every run and
every machine.
"""

import math
from dataclasses import dataclass
from functools import cached_property

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.hash_tree import slice_values
from adloco_p2p.core.model.types import MAX_HOSTS, Digest, PeerId
from adloco_p2p.numerics.aggregation.rule import AggregationRule
from adloco_p2p.numerics.tensor_codec import TensorCodec

_SHARE_UNIT = 1 << 20  # shares are rounded to this fraction of one, so that every peer cuts with whole numbers
_STREAMS_PER_PEER = 64  # that a peer opens for one average, roughly; more only where there are more members
_SMALLEST_PART_BYTES = 1 << 17
_PARTS_PER_SHARD = 16  # at least, where that makes no part too small
MAX_LANES = 4
"""Streams between a member and a reducer."""
WINDOW = 16
"""Parts that a member sends to a reducer ahead of the averaged parts it got, under a rule that needs no decision."""
NO_PLAN = Digest("0" * 64)
"""Of an average that no plan asks for."""
MAX_PARTS = 1 << 17
"""Parts of one vector; with parts of 1 MiB this is 128 GiB."""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of the vector, values `first` to `first + size`; `offset` to `offset + num_bytes` has room for its mean."""

    index: int
    first: int
    size: int
    offset: int
    num_bytes: int
    num_sent_bytes: int
    """As a member encodes its own values."""


@dataclass(frozen=True, kw_only=True)
class AllReduceSpec:
    """Everything that must be equal on all members of one average.

    Raises ValueError for values that no plan has: doubled members, negative or all-zero shares, an empty vector.
    """

    key: Digest
    weights: tuple[tuple[PeerId, int], ...]
    """Members and their samples; the order is the order of summation."""
    shares: tuple[float, ...]
    """How much of the vector each member reduces, in any unit; 0: none (a receiver, or a peer that cannot be reached)."""
    size: int
    codec: TensorCodec
    """Of what members send; see `mean_codec` for what they get back."""
    part_bytes: int
    """Of a part as float32; rounded to whole groups of the codec."""
    rule: AggregationRule
    steps: tuple[int, ...]
    """Inner steps that the plan gave each member."""
    plan: Digest = NO_PLAN
    """The plan that asks for this average, which the key contains; and its round."""
    round: int = 0

    def __post_init__(self) -> None:
        members = [peer for peer, _ in self.weights]
        if len(set(members)) != len(members) or not 1 <= len(members) <= MAX_HOSTS:
            raise ValueError(f"members must be distinct, 1 to {MAX_HOSTS}")
        if any(weight < 0 for _, weight in self.weights) or self.total_weight == 0:
            raise ValueError("weights must not be negative, and one must be positive")
        if len(self.shares) != len(members) or any(not 0 <= share < math.inf for share in self.shares):
            raise ValueError("one finite share per member")
        if len(self.steps) != len(members) or any(steps < 1 for steps in self.contributor_steps):
            raise ValueError("one number of inner steps per member, at least 1 for those that contribute")
        if len(self.key) != 64 or self.size < 1 or self.part_bytes < 4:
            raise ValueError("a key is a SHA-256 in hex, a vector has a value, a part holds one")
        if sum(self._whole_shares) == 0:
            raise ValueError("no member reduces")
        if self.num_parts > MAX_PARTS:
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
    def contributor_weights(self) -> tuple[int, ...]:
        return tuple(self.weights[member][1] for member in self.contributors)

    @property
    def contributor_steps(self) -> tuple[int, ...]:
        return tuple(self.steps[member] for member in self.contributors)

    @cached_property
    def reducers(self) -> tuple[int, ...]:
        """Members that reduce a part of the vector, in order."""
        return tuple(member for member, parts in enumerate(self.shards) if parts)

    @cached_property
    def mean_codec(self) -> TensorCodec:
        return self.codec.mean_codec

    @property
    def slice_values(self) -> int:
        """Values in a slice of the hash trees, of contributions as of the result."""
        return slice_values(max(self.codec.group, self.mean_codec.group))

    @property
    def needs_gram(self) -> bool:
        """Whether parts wait for the inner products of all contributions: the rule decides by them, or only they give the
        statistics of the batch test, because what comes back is not the mean."""
        return self.rule.needs_gram or not self.codec.returns_mean

    @cached_property
    def num_parts(self) -> int:
        return sum(len(parts) for parts in self.shards)

    @cached_property
    def num_result_bytes(self) -> int:
        return sum(part.num_bytes for shard in self.shards for part in shard)

    @property
    def _whole_shares(self) -> tuple[int, ...]:
        largest = max(self.shares)
        return tuple(round(share / largest * _SHARE_UNIT) if largest else 0 for share in self.shares)

    @cached_property
    def shards(self) -> tuple[tuple[Part, ...], ...]:
        """The parts that each member reduces; together they are the vector, in order."""
        whole, group = self._whole_shares, self.codec.group
        part_values = max(group, self.part_bytes // 4 // group * group)
        shards, index, offset, given, begin = [], 0, 0, 0, 0
        for share in whole:
            given += share
            end = self.size * given // sum(whole)
            end = end if given == sum(whole) else end // group * group
            parts = []
            for first in range(begin, end, part_values):
                size = min(part_values, end - first)
                num_bytes = self.mean_codec.num_bytes(size)
                parts.append(Part(index, first, size, offset, num_bytes, self.codec.num_bytes(size)))
                offset += num_bytes
                index += 1
            shards.append(tuple(parts))
            begin = end
        return tuple(shards)

    def lanes(self, reducer: int) -> tuple[tuple[Part, ...], ...]:
        """The streams between a member and this reducer: which parts travel on each, in order."""
        parts = self.shards[reducer]
        count = min(len(parts), max(1, _STREAMS_PER_PEER // len(self.members)), MAX_LANES)
        return tuple(parts[lane::count] for lane in range(count))

    @property
    def window(self) -> int:
        """Parts that a member sends on a lane ahead of the averaged parts that came back on it: all of them where these wait
        for a decision about all contributions."""
        return MAX_PARTS if self.needs_gram else WINDOW // MAX_LANES

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
            "rule": self.rule.name,
            "steps": self.steps,
        }
        return bytes.fromhex(canonical.digest(fields))


def suitable_part_bytes(vector_bytes: int, num_members: int) -> int:
    """So small that sending, summing and returning overlap, so large that the work per part does not count."""
    return max(_SMALLEST_PART_BYTES, vector_bytes // (num_members * _PARTS_PER_SHARD) // 4096 * 4096)
