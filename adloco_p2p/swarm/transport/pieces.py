"""Messages travel deflated, and those that are too large for one envelope in pieces: in order, one message at a time per
sender, and only from senders that this peer expects.

Payloads are JSON that repeats the names of its fields and of peers, and writes hashes and signatures in hexadecimal, so they
deflate to a half or a fifth. Every piece is deflated by itself, and all limits of a receiver apply to the plain bytes. The
envelope states their number: that is charged before anything is inflated, and nothing is inflated beyond it.

Every piece but the last is full. All carry the SHA-256 of the whole, which is checked before the message is decoded. A sender
has at most one message in assembly; its next first piece, or a piece that does not follow, drops the earlier ones.
"""

import hashlib
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from adloco_p2p.core.model.messages import MAX_MESSAGE_BYTES
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.v1 import gossip_pb2

MAX_PAYLOAD_BYTES = 256 << 10
"""Of a message, or a piece of one, in one envelope."""
MAX_PIECES = -(-MAX_MESSAGE_BYTES // MAX_PAYLOAD_BYTES)
_MOST_INFLATED, _INFLATED_BESIDE = 1032, 64
"""Bytes from one deflated byte at most, and a little more (zlib's technical notes: 258 bytes from two bits)."""
PIECE_SECONDS = 10.0
"""A piece comes this soon after the one before it, or the message is dropped."""
MAX_ASSEMBLED_BYTES = 128 << 20
"""Of all messages in assembly."""
MAX_STRANGERS_BYTES = 64 << 20
"""Of those from peers outside the roster. They give way where a member's message needs the room."""


def in_pieces(payload: bytes) -> list[bytes]:
    """The payloads of the envelopes that carry a message; one where it fits into one."""
    starts = range(0, max(1, len(payload)), MAX_PAYLOAD_BYTES)
    return [payload[start : start + MAX_PAYLOAD_BYTES] for start in starts]


def deflated(plain: bytes) -> bytes:
    """The payload of an envelope as it travels, where that is shorter than the plain one; else empty."""
    short = zlib.compress(plain)
    return short if len(short) < len(plain) else b""


def num_plain_bytes(envelope: gossip_pb2.Envelope) -> int:
    """The cost of the payload for its receiver, as the envelope states it; `inflate` checks that."""
    return max(int(envelope.plain_bytes), len(envelope.payload))


def num_charged_bytes(envelope: gossip_pb2.Envelope) -> int:
    """Of the whole envelope with its plain payload."""
    return int(envelope.ByteSize()) - len(envelope.payload) + num_plain_bytes(envelope)


def check_plain_bytes(envelope: gossip_pb2.Envelope) -> None:
    """Check the size before it is charged. Raises RemoteProtocolError where the payload is too long, or states more bytes than
    it can inflate to."""
    if num_plain_bytes(envelope) > MAX_PAYLOAD_BYTES:
        raise RemoteProtocolError(f"a payload of {num_plain_bytes(envelope)} bytes, at most {MAX_PAYLOAD_BYTES} accepted")
    if envelope.plain_bytes > _MOST_INFLATED * len(envelope.payload) + _INFLATED_BESIDE:
        raise RemoteProtocolError(f"{len(envelope.payload)} bytes do not inflate to the {envelope.plain_bytes} that they name")


def inflate(envelope: gossip_pb2.Envelope) -> None:
    """Put the plain payload, whose length was checked, in its place. Raises RemoteProtocolError where its size is not the one
    that the envelope states."""
    if not envelope.plain_bytes:
        return
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(envelope.payload, envelope.plain_bytes + 1)
    except zlib.error as error:
        raise RemoteProtocolError(f"a payload that cannot be inflated: {error}") from None
    if len(plain) != envelope.plain_bytes or not inflater.eof or inflater.unused_data:
        raise RemoteProtocolError(f"a payload that does not inflate to the {envelope.plain_bytes} bytes that it names")
    envelope.payload, envelope.plain_bytes = plain, 0


@dataclass(slots=True, kw_only=True)
class _Partial:
    kind: str
    digest: bytes
    num_pieces: int
    is_member: bool
    last_at: float = 0.0
    num_bytes: int = 0
    pieces: list[bytes] = field(default_factory=list)

    def is_continued_by(self, envelope: gossip_pb2.Envelope) -> bool:
        named = (envelope.kind, envelope.digest, envelope.num_pieces, envelope.piece)
        return named == (self.kind, self.digest, self.num_pieces, len(self.pieces))


class Assembly:
    """The messages that have come in part, one per sender, the one with the newest piece last."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.num_bytes = 0
        """Held now."""
        self._clock = clock
        self._partial: OrderedDict[PeerId, _Partial] = OrderedDict()

    def __len__(self) -> int:
        return len(self._partial)

    def take(self, sender: PeerId, envelope: gossip_pb2.Envelope, *, is_member: bool) -> bytes | None:
        """The message that this piece completes; none where others are still to come. Raises RemoteProtocolError, in words
        for the sender, for a piece that is not taken; then what came before it is gone as well."""
        self.drop_stale()
        partial = self._pop(sender)
        _check_form(envelope)
        if envelope.piece == 0:
            partial = _Partial(kind=envelope.kind, digest=envelope.digest, num_pieces=envelope.num_pieces, is_member=is_member)
        if partial is None or not partial.is_continued_by(envelope):
            raise RemoteProtocolError("a piece that does not follow the one before it")
        partial.pieces.append(envelope.payload)
        partial.num_bytes += len(envelope.payload)
        if len(partial.pieces) == partial.num_pieces:
            whole = b"".join(partial.pieces)
            if hashlib.sha256(whole).digest() != partial.digest:
                raise RemoteProtocolError("the pieces are not those of the message that they name")
            return whole
        if not self._make_room(partial.num_bytes, is_member=partial.is_member):
            raise RemoteProtocolError("too many messages are in assembly")
        partial.last_at = self._clock()
        self._partial[sender] = partial
        self.num_bytes += partial.num_bytes
        return None

    def drop_stale(self) -> None:
        """Forget messages whose next piece is overdue."""
        due = self._clock() - PIECE_SECONDS
        while self._partial and next(iter(self._partial.values())).last_at < due:
            self._pop(next(iter(self._partial)))

    def _make_room(self, num_bytes: int, *, is_member: bool) -> bool:
        strangers = [peer for peer, partial in self._partial.items() if not partial.is_member]
        if not is_member:
            held = sum(self._partial[peer].num_bytes for peer in strangers)
            return held + num_bytes <= MAX_STRANGERS_BYTES and self.num_bytes + num_bytes <= MAX_ASSEMBLED_BYTES
        while strangers and self.num_bytes + num_bytes > MAX_ASSEMBLED_BYTES:
            self._pop(strangers.pop(0))
        return self.num_bytes + num_bytes <= MAX_ASSEMBLED_BYTES

    def _pop(self, sender: PeerId) -> _Partial | None:
        partial = self._partial.pop(sender, None)
        if partial is not None:
            self.num_bytes -= partial.num_bytes
        return partial


def _check_form(envelope: gossip_pb2.Envelope) -> None:
    is_last = envelope.piece == envelope.num_pieces - 1
    if not 2 <= envelope.num_pieces <= MAX_PIECES or envelope.piece >= envelope.num_pieces or len(envelope.digest) != 32:
        raise RemoteProtocolError(f"a message in {envelope.num_pieces} pieces, at most {MAX_PIECES} accepted")
    if not 1 <= len(envelope.payload) <= MAX_PAYLOAD_BYTES or (not is_last and len(envelope.payload) < MAX_PAYLOAD_BYTES):
        raise RemoteProtocolError(f"a piece of {len(envelope.payload)} bytes, {MAX_PAYLOAD_BYTES} expected")
