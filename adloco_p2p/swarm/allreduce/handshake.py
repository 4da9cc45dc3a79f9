"""The messages that open, answer and abort an average. Each is checked here, and every length has a limit."""

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Literal

from annotated_types import MaxLen

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.scalars import Digest, PeerId, Text
from adloco_p2p.decode import decode
from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.swarm.allreduce.allreduce_spec import MAX_LANES
from adloco_p2p.swarm.transport.framed_stream import CONTROL_BYTES

HANDLER = "adloco.average.9"
"""The name of the binary stream handler. It ends in the version, so that peers of different versions cannot connect."""
MAX_SUSPECTS = 16
"""The most suspects that one note names."""

_HELLO = struct.Struct("<4sBBBB32s32sQI")
THROUGHPUT = struct.Struct("<Qd")  # bytes, seconds: how fast a member's first parts came, as measured by the reducer
_MAGIC = b"ADLO"
_VERSION = 9


class Purpose(IntEnum):
    AVERAGE = 1
    ABORT = 2
    RECEIPTS = 3
    """The sender shows the receipts that it got, so that a reducer cannot give two different ones."""
    RECHECK = 4
    """The sender makes parts again and asks for the receiver's contributions to them."""
    ASSESS = 5
    """The sender assesses the receiver's contribution and asks for all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first frame of a stream, and of every further average on it, which states the purpose. 84 bytes."""

    purpose: Purpose
    key: Digest
    """The key of the attempt."""
    spec: bytes = bytes(32)
    codec: int = 0
    lane: int = 0
    """The number of this stream among those between the member and the reducer."""
    size: int = 0
    """The number of values in the vector."""
    part_bytes: int = 0

    def encode(self) -> bytes:
        fields = (self.purpose, self.codec, self.lane, bytes.fromhex(self.key), self.spec, self.size, self.part_bytes)
        return _HELLO.pack(_MAGIC, _VERSION, *fields)

    @classmethod
    def decode(cls, data: bytes) -> "Hello":
        if len(data) != _HELLO.size:
            raise RemoteProtocolError(f"hello of {len(data)} bytes")
        magic, version, purpose, codec, lane, key, spec, size, part_bytes = _HELLO.unpack(data)
        if magic != _MAGIC or version != _VERSION or purpose not in tuple(Purpose):
            raise RemoteProtocolError("hello of another protocol or version")
        if lane >= MAX_LANES:
            raise RemoteProtocolError(f"hello of lane {lane}")
        return cls(
            purpose=Purpose(purpose),
            key=Digest(key.hex()),
            spec=spec,
            codec=codec,
            lane=lane,
            size=size,
            part_bytes=part_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HelloReply:
    """The answer to a hello, and the content of an abort."""

    status: Literal["go", "refused", "failed"]
    """refused: this peer does not serve the stream; failed: the average has failed."""
    reason: Text = ""
    suspects: Annotated[tuple[PeerId, ...], MaxLen(MAX_SUSPECTS)] = ()

    def encode(self) -> bytes:
        return canonical.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> "HelloReply":
        return decode(cls, data, max_bytes=CONTROL_BYTES)


GO = HelloReply(status="go")


def refusal(reason: str) -> HelloReply:
    return HelloReply(status="refused", reason=_short(reason))


def failure(reason: str, suspects: tuple[str, ...]) -> HelloReply:
    """Return the note of a failure for the other members, with the reason cut to fit one frame."""
    named = tuple(PeerId(peer) for peer in suspects[:MAX_SUSPECTS])
    return HelloReply(status="failed", reason=_short(reason), suspects=named)


def _short(text: str) -> str:
    return text.encode("ascii", "replace").decode("ascii")[:400]
