"""Averaged parts that came back in an attempt that failed: a retry of the same members need not return them again.

    member --HELD (how many parts of each lane)--> reducer --DATA (the others)--> member

They are kept only where the retry is made from the same contributions, by the same coefficients (`inputs_digest`): then an
honest reducer makes the same bytes again, and its new receipt, which every member checks against the parts that it holds, old
ones included, names one that does not. A lane returns its parts in order, so their number identifies them. A contributor
keeps those alone whose own parts the reducer holds, from the first one on: so both count alike how far ahead it may send.
"""

import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from adloco_p2p.core.model.scalars import Digest
from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.swarm.allreduce.allreduce_spec import AllReduceSpec, Part


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
