"""The parameters that all members of one all-reduce share, how the vector is cut, and the arithmetic on one part. Pure.

The vector is cut into contiguous stretches, one per reducer of the first attempt, and every stretch into parts of equal size
(the last may be shorter). The parts of reducers that a retry has lost are dealt to the others; what a member reduces is its
shard. So every part is the same one in all attempts at an average. A part is summed in member order by
`numerics/reduction.py`: the same inputs give the same bits on every run and every machine.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.averages import LostShare, largest_share
from adloco_p2p.core.model.hash_tree import slice_values
from adloco_p2p.core.model.quorum import Quorum
from adloco_p2p.core.model.scalars import MAX_HOSTS, Digest, InstanceId, PeerId
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
NO_PLAN, NO_INSTANCE = Digest("0" * 64), InstanceId(0)
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
    instance: InstanceId = NO_INSTANCE
    attempt: int = 0
    """Number of the attempt at this average. In a retry, from 1 on, reducers report what they hold before anything is sent."""
    lost: tuple[LostShare, ...] = ()
    """Of peers that were to reduce and are not members of this retry."""

    completes: Digest | None = None
    """The decision (`completion.py`) of an earlier attempt: only the parts of lost reducers are averaged."""
    quorum: Quorum | None = None
    """When it ends without its slowest contributors. Each reducer applies it for itself."""

    def __post_init__(self) -> None:
        members = [peer for peer, _ in self.weights]
        if len(set(members)) != len(members) or not 1 <= len(members) <= MAX_HOSTS:
            raise ValueError(f"members must be distinct, 1 to {MAX_HOSTS}")
        if any(weight < 0 for _, weight in self.weights) or self.total_weight == 0:
            raise ValueError("weights must not be negative, and one must be positive")
        if len(self.shares) != len(members) or any(not 0 <= share < math.inf for share in self.shares):
            raise ValueError("one finite share per member")
        if any(not 0 <= place <= len(members) or not 0 <= share < math.inf for place, share in self.lost):
            raise ValueError("a lost share is finite, and its place among the members")
        if len(self.steps) != len(members) or any(steps < 1 for steps in self.contributor_steps):
            raise ValueError("one number of inner steps per member, at least 1 for those that contribute")
        if len(self.key) != 64 or self.size < 1 or self.part_bytes < 4:
            raise ValueError("a key is a SHA-256 in hex, a vector has a value, a part holds one")
        if not any(self._whole_shares[0]):
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
        return self.completes is None and (self.rule.needs_gram or not self.codec.returns_mean)

    @cached_property
    def num_parts(self) -> int:
        return len(self.parts)

    @cached_property
    def num_result_bytes(self) -> int:
        return sum(part.num_bytes for part in self.parts)

    @property
    def is_retry(self) -> bool:
        return self.attempt > 0

    @cached_property
    def _whole_shares(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of the members, and of the lost ones."""
        shares = (*self.shares, *(share for _, share in self.lost))
        largest = max(shares)
        whole = tuple(round(share / largest * _SHARE_UNIT) if largest else 0 for share in shares)
        return whole[: len(self.shares)], whole[len(self.shares) :]

    @cached_property
    def _stretches(self) -> list[tuple[int | None, tuple[Part, ...]]]:
        """The stretches of the first attempt, which are the vector in order, and their reducers; None: a lost one."""
        members, lost = self._whole_shares
        cut: list[tuple[int, int | None, int]] = []
        cut += [(place, None, share) for (place, _), share in zip(self.lost, lost, strict=True)]
        cut += [(member, member, share) for member, share in enumerate(members)]
        cut.sort(key=lambda entry: entry[0])  # stable: a lost one stood before the member of its place
        ends = _ends([share for *_, share in cut], self.size, self.codec.group)
        stretches: list[tuple[int | None, tuple[Part, ...]]] = []
        index = offset = begin = 0
        for (_, owner, _), end in zip(cut, ends, strict=True):
            parts = []
            for first in range(begin, end, self._part_values):
                size = min(self._part_values, end - first)
                num_bytes = self.mean_codec.num_bytes(size)
                parts.append(Part(index, first, size, offset, num_bytes, self.codec.num_bytes(size)))
                offset += num_bytes
                index += 1
            stretches.append((owner, tuple(parts)))
            begin = end
        return stretches

    @property
    def _part_values(self) -> int:
        return max(self.codec.group, self.part_bytes // 4 // self.codec.group * self.codec.group)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """All of them: the vector, in order."""
        return tuple(part for _, stretch in self._stretches for part in stretch)

    @cached_property
    def shards(self) -> tuple[tuple[Part, ...], ...]:
        """The parts that each member reduces, in order: its own stretch, unless this attempt completes an earlier one, and what
        it is dealt of the lost ones."""
        owned: list[list[Part]] = [[] for _ in self.members]
        lost_parts: list[Part] = []
        for owner, stretch in self._stretches:
            (lost_parts if owner is None else owned[owner]).extend(stretch)
        whole = self._whole_shares[0]
        sizes = {member: sum(part.size for part in owned[member]) for member, share in enumerate(whole) if share}
        largest = self.size * largest_share(len(self.members), len(sizes))
        loads = [(size / whole[member], member) for member, size in sizes.items()]
        heapq.heapify(loads)
        if self.completes is not None:
            owned = [[] for _ in self.members]
        for part in lost_parts:  # each to the member that has least to reduce for its share, and room for it
            while len(loads) > 1 and sizes[loads[0][1]] + part.size > largest:
                heapq.heappop(loads)
            _, member = loads[0]
            sizes[member] += part.size
            heapq.heapreplace(loads, (sizes[member] / whole[member], member))
            owned[member].append(part)
        return tuple(tuple(sorted(parts, key=lambda part: part.index)) for parts in owned)

    @cached_property
    def reducer_of(self) -> Mapping[int, int]:
        """By part, of those that are averaged."""
        return {part.index: member for member, shard in enumerate(self.shards) for part in shard}

    @cached_property
    def place_of(self) -> Mapping[int, int]:
        """By part: its place in the shard of its reducer."""
        return {part.index: place for shard in self.shards for place, part in enumerate(shard)}

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
        """32 bytes that differ wherever two members would act differently."""
        fields = {
            "key": self.key,
            "weights": self.weights,
            "shares": self._whole_shares,
            "lost": [place for place, _ in self.lost],
            "attempt": self.attempt,
            "size": self.size,
            "codec": self.codec.name,
            "part_bytes": self.part_bytes,
            "rule": self.rule.name,
            "steps": self.steps,
            "completes": self.completes,
        }
        return bytes.fromhex(canonical.digest(fields))


def _ends(whole: Sequence[int], size: int, group: int) -> list[int]:
    """Where the stretch of each share ends, at whole groups but for the last value."""
    ends, given = [], 0
    for share in whole:
        given += share
        end = size * given // sum(whole)
        ends.append(end if given == sum(whole) else end // group * group)
    return ends


def suitable_part_bytes(vector_bytes: int, num_members: int) -> int:
    """Small enough that sending, summing and returning overlap; large enough that the work per part is negligible."""
    return max(_SMALLEST_PART_BYTES, vector_bytes // (num_members * _PARTS_PER_SHARD) // 4096 * 4096)
