"""Held and returned parts: those that failed attempts brought to a reducer, and back from it, so that the next attempt at the
same average need not send them again.

Nothing here is taken on trust. A contributor commits itself anew in every attempt, and a reducer counts as held only bytes that
hash to that commitment (`uploads.py`). So a liar can neither smuggle in another contribution by an old one nor be given that of
another peer.

Members report how many averaged parts of each lane came back to them, and get the others:

    member --HELD (how many parts of each lane)--> reducer --DATA (the others)--> member

Returned parts are kept only where the retry has the same contributions and coefficients (`inputs_digest`). Then an honest
reducer makes the same bytes again. Every member checks the new receipt against its parts, old ones included, so a reducer that
makes other bytes is found. A lane returns its parts in order, so their number identifies them. A contributor keeps only the
leading parts whose uploads the reducer holds, so both agree how far ahead it may send.
"""

import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.swarm.allreduce.allreduce_spec import AllReduceSpec, Part


class UploadKey(NamedTuple):
    """The key of one contributor's upload of one part, by its place in the vector."""

    contributor: PeerId
    first: int
    size: int


Kept = dict[UploadKey, np.ndarray]
"""Held parts: uint8 arrays, each at least as long as the encoded part."""


def upload_key(contributor: PeerId, part: Part) -> UploadKey:
    return UploadKey(contributor, part.first, part.size)


@dataclass(frozen=True, slots=True, eq=False)
class ReturnedParts:
    """The averaged parts that came back in one failed attempt."""

    inputs: Digest
    encoded: np.ndarray
    """uint8, with the parts at the offsets of the spec."""
    has_come: tuple[bool, ...]
    """Whether each part has come back."""

    def counts(self, spec: AllReduceSpec, reducer: int, held: Collection[int] | None) -> tuple[int, ...]:
        """Return how many leading parts of each lane of the reducer are kept.

        `held` are the places of the own parts that the reducer holds, or None for a member that sends none. Parts beyond the
        first that is not held are not kept: they would let uploads run further ahead than the reducer, which has to make them
        again, has room for.
        """
        return tuple(
            num_first(self.has_come[part.index] and (held is None or spec.place_of[part.index] in held) for part in lane)
            for lane in spec.lanes(reducer)
        )

    def copy_to(self, room: memoryview, part: Part) -> None:
        """Copy an encoded part to its room in the retry."""
        room[:] = self.encoded.data[part.offset : part.offset + part.num_bytes]


def encode_counts(counts: tuple[int, ...]) -> bytes:
    return struct.pack(f"<{len(counts)}I", *counts)


def decode_counts(payload: bytes, spec: AllReduceSpec, reducer: int) -> tuple[int, ...]:
    """Decode a member's counts of returned parts, one per lane. Raises RemoteProtocolError."""
    lanes = spec.lanes(reducer)
    if len(payload) != 4 * len(lanes):
        raise RemoteProtocolError(f"{len(payload)} bytes are no counts of held parts for {len(lanes)} lanes")
    counts: tuple[int, ...] = struct.unpack(f"<{len(lanes)}I", payload)
    if any(count > len(parts) for count, parts in zip(counts, lanes, strict=True)):
        raise RemoteProtocolError("more parts are held than there are")
    return counts


def num_first(flags: Iterable[bool]) -> int:
    """Return the number of flags before the first that is false."""
    return sum(1 for _ in takewhile(bool, flags))


class HeldUploads:
    """The held and returned parts of one peer: at most those of its failed attempts of one round."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, InstanceId], Kept] = {}
        """Held parts, by round and instance."""
        self._returned: dict[tuple[int, InstanceId], tuple[AllReduceSpec, ReturnedParts]] = {}

    def begin(self, spec: AllReduceSpec) -> Kept:
        """Hand the held parts of earlier attempts at this average to a new one, and drop those of other rounds."""
        found = self._kept.pop((spec.round, spec.instance), {})
        self._kept = {average: kept for average, kept in self._kept.items() if average[0] == spec.round}
        self._returned = {average: kept for average, kept in self._returned.items() if average[0] == spec.round}
        return found if spec.is_retry else {}

    def keep(self, spec: AllReduceSpec, kept: Kept) -> None:
        """Keep the uploads that a failed attempt leaves."""
        self._kept[spec.round, spec.instance] = {**self._kept.get((spec.round, spec.instance), {}), **kept}

    def returned(self, spec: AllReduceSpec) -> ReturnedParts | None:
        """Hand over the averaged parts that came back in the previous attempt; None if its members were not the same."""
        earlier, parts = self._returned.pop((spec.round, spec.instance), (None, None))
        is_same = earlier is not None and replace(spec, key=earlier.key, attempt=earlier.attempt).digest == earlier.digest
        return parts if is_same and spec.is_retry else None

    def keep_returned(self, spec: AllReduceSpec, parts: ReturnedParts) -> None:
        """Keep the averaged parts that came back in a failed attempt."""
        self._returned[spec.round, spec.instance] = (spec, parts)

    def drop(self, round: int, instance: InstanceId) -> None:
        """Drop everything of an average at which there is no further attempt."""
        self._kept.pop((round, instance), None)
        self._returned.pop((round, instance), None)
