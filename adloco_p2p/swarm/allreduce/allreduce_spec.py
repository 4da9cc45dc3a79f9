"""The parameters that all members of one all-reduce share, and the cut of the vector that follows from them. Pure.

The vector is cut into contiguous stretches, one per reducer of the first attempt, and every stretch into parts of equal size
(the last may be shorter). A retry deals the parts of lost reducers to the others, so the parts are the same in all attempts at
an average. The parts that a member reduces are its shard. `numerics/reduction.py` sums a part in member order: the same inputs
give the same bits on every run and every machine.
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

_SHARE_UNIT = 1 << 20  # shares are scaled so that the largest is this, and rounded, so that every peer cuts alike
_STREAMS_PER_PEER = 64  # roughly what a peer opens for one average; more only where there are more members
_SMALLEST_PART_BYTES = 1 << 17
_PARTS_PER_SHARD = 16  # the fewest parts of a shard, unless they would be too small
MAX_LANES = 4
"""The most streams between a member and a reducer."""
WINDOW = 16
"""Parts that a member sends to a reducer ahead of the averaged parts that came back, where no barrier holds these back."""
NO_PLAN, NO_INSTANCE = Digest("0" * 64), InstanceId(0)
"""Plan and instance of an average that no plan asks for."""
MAX_PARTS = 1 << 17
"""The most parts of one vector; with parts of 1 MiB this is 128 GiB."""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of the vector: the values `first` to `first + size`. The result's buffer has room for its encoded mean at
    `offset` to `offset + num_bytes`."""

    index: int
    first: int
    size: int
    offset: int
    num_bytes: int
    num_sent_bytes: int
    """The bytes of the part in the codec of the contributions."""


@dataclass(frozen=True, kw_only=True)
class AllReduceSpec:
    """Everything that must be equal on all members of one average.

    Raises ValueError for values that no plan has, such as duplicate members, negative or all-zero shares or an empty vector.
    """

    key: Digest
    weights: tuple[tuple[PeerId, int], ...]
    """Members and their samples, in the order of summation."""
    shares: tuple[float, ...]
    """The reduction share of each member, in any unit; 0 for a member that reduces nothing (a receiver, or unreachable)."""
    size: int
    codec: TensorCodec
    """The codec of the contributions; see `mean_codec` for that of the averaged parts."""
    part_bytes: int
    """Bytes of a part as float32, before rounding to whole groups of the codec."""
    rule: AggregationRule
    steps: tuple[int, ...]
    """The inner steps that the plan gave each member."""
    plan: Digest = NO_PLAN
    """The plan that asks for this average, which the key covers; `round` is its round."""
    round: int = 0
    instance: InstanceId = NO_INSTANCE
    attempt: int = 0
    """The number of the attempt at this average. In a retry, from 1 on, reducers report what they hold before any upload."""
    lost: tuple[LostShare, ...] = ()
    """The lost shares: those of reducers of the first attempt that are not members of this retry."""

    completes: Digest | None = None
    """The decision (`completion.py`) of the attempt that this one completes; only parts of lost reducers are averaged then."""
    quorum: Quorum | None = None
    """When the attempt ends without its slowest contributors; each reducer applies it on its own."""

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
        """Indices of the members whose vectors are in the average, in the order of summation."""
        return tuple(member for member, (_, weight) in enumerate(self.weights) if weight > 0)

    @property
    def contributor_weights(self) -> tuple[int, ...]:
        return tuple(self.weights[member][1] for member in self.contributors)

    @property
    def contributor_steps(self) -> tuple[int, ...]:
        return tuple(self.steps[member] for member in self.contributors)

    @cached_property
    def reducers(self) -> tuple[int, ...]:
        """Indices of the members that reduce some parts, in order."""
        return tuple(member for member, parts in enumerate(self.shards) if parts)

    @cached_property
    def mean_codec(self) -> TensorCodec:
        return self.codec.mean_codec

    @property
    def slice_values(self) -> int:
        """Values in one slice of the hash trees, both of contributions and of the result."""
        return slice_values(max(self.codec.group, self.mean_codec.group))

    @property
    def needs_gram(self) -> bool:
        """Whether reduction waits for the inner products of all contributions. The rule may decide by them, or only they may
        give the statistics of the norm test, because the returned average is not the mean."""
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
        """The shares of the members and the lost shares, as whole numbers up to `_SHARE_UNIT`."""
        shares = (*self.shares, *(share for _, share in self.lost))
        largest = max(shares)
        whole = tuple(round(share / largest * _SHARE_UNIT) if largest else 0 for share in shares)
        return whole[: len(self.shares)], whole[len(self.shares) :]

    @cached_property
    def _stretches(self) -> list[tuple[int | None, tuple[Part, ...]]]:
        """The stretches of the first attempt, in the order of the vector, each with its reducer; None for a lost reducer."""
        members, lost = self._whole_shares
        cut: list[tuple[int, int | None, int]] = []
        cut += [(place, None, share) for (place, _), share in zip(self.lost, lost, strict=True)]
        cut += [(member, member, share) for member, share in enumerate(members)]
        cut.sort(key=lambda entry: entry[0])  # stable: a lost reducer stood before the member at its place
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
        """All parts of the vector, in order."""
        return tuple(part for _, stretch in self._stretches for part in stretch)

    @cached_property
    def shards(self) -> tuple[tuple[Part, ...], ...]:
        """The parts that each member reduces, in order: its own stretch, unless this attempt completes an earlier one, and
        those of the lost parts that it is dealt."""
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
        for part in lost_parts:  # each goes to the member with the least load for its share that has room for it
            while len(loads) > 1 and sizes[loads[0][1]] + part.size > largest:
                heapq.heappop(loads)
            _, member = loads[0]
            sizes[member] += part.size
            heapq.heapreplace(loads, (sizes[member] / whole[member], member))
            owned[member].append(part)
        return tuple(tuple(sorted(parts, key=lambda part: part.index)) for parts in owned)

    @cached_property
    def reducer_of(self) -> Mapping[int, int]:
        """The reducer of each part that is averaged."""
        return {part.index: member for member, shard in enumerate(self.shards) for part in shard}

    @cached_property
    def place_of(self) -> Mapping[int, int]:
        """The place of each part in the shard of its reducer."""
        return {part.index: place for shard in self.shards for place, part in enumerate(shard)}

    def lanes(self, reducer: int) -> tuple[tuple[Part, ...], ...]:
        """Return the parts that travel on each stream between a member and this reducer, in order."""
        parts = self.shards[reducer]
        count = min(len(parts), max(1, _STREAMS_PER_PEER // len(self.members)), MAX_LANES)
        return tuple(parts[lane::count] for lane in range(count))

    @property
    def window(self) -> int:
        """Parts that a member sends on a lane ahead of the averaged parts that came back on it; unlimited where these wait for
        a decision about all contributions."""
        return MAX_PARTS if self.needs_gram else WINDOW // MAX_LANES

    @cached_property
    def digest(self) -> bytes:
        """A hash, 32 bytes, that differs between members that would act differently."""
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
    """Return the end of each share's stretch, a multiple of the group except at the end of the vector."""
    ends, given = [], 0
    for share in whole:
        given += share
        end = size * given // sum(whole)
        ends.append(end if given == sum(whole) else end // group * group)
    return ends


def suitable_part_bytes(vector_bytes: int, num_members: int) -> int:
    """Return a part size that is small enough for sending, summing and returning to overlap, and large enough to make the work
    per part negligible."""
    return max(_SMALLEST_PART_BYTES, vector_bytes // (num_members * _PARTS_PER_SHARD) // 4096 * 4096)
