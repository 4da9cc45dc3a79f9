"""Parts that failed attempts brought to a reducer and back from it: the next attempt at the same average need not send them
again.

Nothing here is taken on trust. A contributor commits itself anew in every attempt, and a reducer counts as held only bytes that
hash to that commitment (`uploads.py`); so a liar can neither bring in another contribution by an old one nor be given that of
another peer.

Of averaged parts that came back, the members report how many of each lane they have, and get the others:

    member --HELD (how many parts of each lane)--> reducer --DATA (the others)--> member

They are kept only where the retry is made from the same contributions, by the same coefficients (`inputs_digest`): then an
honest reducer makes the same bytes again, and its new receipt, which every member checks against the parts that it holds, old
ones included, names one that does not. A lane returns its parts in order, so their number identifies them. A contributor
keeps those alone whose own parts the reducer holds, from the first one on: so both count alike how far ahead it may send.
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
    """One contributor's encoded values of one part, by their places in the vector."""

    contributor: PeerId
    first: int
    size: int


Kept = dict[UploadKey, np.ndarray]
"""uint8, at least as long as the part is when encoded."""


def upload_key(contributor: PeerId, part: Part) -> UploadKey:
    return UploadKey(contributor, part.first, part.size)


@dataclass(frozen=True, slots=True, eq=False)
class ReturnedParts:
    """The parts that one failed attempt left."""

    inputs: Digest
    encoded: np.ndarray
    """uint8; the parts lie at the offsets of the spec."""
    has_come: tuple[bool, ...]
    """By part."""

    def counts(self, spec: AllReduceSpec, reducer: int, held: Collection[int] | None) -> tuple[int, ...]:
        """By lane of the reducer: how many of the first parts are here. `held`: places of the own parts that it holds; None of
        a member that sends none. Beyond the first ones that are held nothing is kept: a part that came back would let the own
        ones go further ahead than the reducer, which has to make it again, has room for."""
        return tuple(
            num_first(self.has_come[part.index] and (held is None or spec.place_of[part.index] in held) for part in lane)
            for lane in spec.lanes(reducer)
        )

    def copy_to(self, room: memoryview, part: Part) -> None:
        """Put an encoded part into the room that it has in the retry."""
        room[:] = self.encoded.data[part.offset : part.offset + part.num_bytes]


def encode_counts(counts: tuple[int, ...]) -> bytes:
    return struct.pack(f"<{len(counts)}I", *counts)


def decode_counts(payload: bytes, spec: AllReduceSpec, reducer: int) -> tuple[int, ...]:
    """Raises RemoteProtocolError."""
    lanes = spec.lanes(reducer)
    if len(payload) != 4 * len(lanes):
        raise RemoteProtocolError(f"{len(payload)} bytes are no counts of held parts for {len(lanes)} lanes")
    counts: tuple[int, ...] = struct.unpack(f"<{len(lanes)}I", payload)
    if any(count > len(parts) for count, parts in zip(counts, lanes, strict=True)):
        raise RemoteProtocolError("more parts are held than there are")
    return counts


def num_first(flags: Iterable[bool]) -> int:
    """How many are true before the first that is not."""
    return sum(1 for _ in takewhile(bool, flags))


class HeldUploads:
    """Of one peer. At most what its failed attempts of one round held."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, InstanceId], Kept] = {}
        """By round and instance."""
        self._returned: dict[tuple[int, InstanceId], tuple[AllReduceSpec, ReturnedParts]] = {}

    def begin(self, spec: AllReduceSpec) -> Kept:
        """The remains of earlier attempts at this average, which pass to the new attempt. Those of other rounds are dropped."""
        found = self._kept.pop((spec.round, spec.instance), {})
        self._kept = {average: kept for average, kept in self._kept.items() if average[0] == spec.round}
        self._returned = {average: kept for average, kept in self._returned.items() if average[0] == spec.round}
        return found if spec.is_retry else {}

    def keep(self, spec: AllReduceSpec, kept: Kept) -> None:
        """The attempt has failed, and leaves these."""
        self._kept[spec.round, spec.instance] = {**self._kept.get((spec.round, spec.instance), {}), **kept}

    def returned(self, spec: AllReduceSpec) -> ReturnedParts | None:
        """Averaged parts that came back in the attempt before this one, which the caller has now, where its members are the
        same ones."""
        earlier, parts = self._returned.pop((spec.round, spec.instance), (None, None))
        is_same = earlier is not None and replace(spec, key=earlier.key, attempt=earlier.attempt).digest == earlier.digest
        return parts if is_same and spec.is_retry else None

    def keep_returned(self, spec: AllReduceSpec, parts: ReturnedParts) -> None:
        """The attempt has failed, and leaves these."""
        self._returned[spec.round, spec.instance] = (spec, parts)

    def drop(self, round: int, instance: InstanceId) -> None:
        """There is no further attempt at this average."""
        self._kept.pop((round, instance), None)
        self._returned.pop((round, instance), None)
