"""The form of gossip messages in envelopes: deflated, and in pieces where they are too large for one envelope.

Payloads are JSON that repeats the names of its fields and of peers, and writes hashes and signatures in hexadecimal, so they
deflate to a half or a fifth. Every piece is deflated on its own, and all limits of a receiver apply to the plain bytes. The
envelope states their number, which is charged before anything is inflated, and nothing is inflated beyond it.

Pieces come in order, one message at a time per sender, and only from senders that this peer expects. Every piece but the last
is full. All carry the SHA-256 of the whole, which is checked before the message is decoded. A sender has at most one message in
assembly; its next first piece, or a piece that does not follow, drops the earlier ones.
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
"""The most plain bytes of a message, or a piece of one, in one envelope."""
MAX_PIECES = -(-MAX_MESSAGE_BYTES // MAX_PAYLOAD_BYTES)
_MOST_INFLATED, _INFLATED_BESIDE = 1032, 64
"""The most bytes from one deflated byte (zlib's technical notes: 258 bytes from two bits), and a small constant beside."""
PIECE_SECONDS = 10.0
"""The longest time between two pieces, after which the message is dropped."""
MAX_ASSEMBLED_BYTES = 128 << 20
"""The most bytes of all messages in assembly."""
MAX_STRANGERS_BYTES = 64 << 20
"""The most bytes of those from peers outside the roster, which give way if a member's message needs the memory."""


def in_pieces(payload: bytes) -> list[bytes]:
    """Cut a message into the payloads of the envelopes that carry it."""
    starts = range(0, max(1, len(payload)), MAX_PAYLOAD_BYTES)
    return [payload[start : start + MAX_PAYLOAD_BYTES] for start in starts]


def deflated(plain: bytes) -> bytes:
    """Return the deflated payload if it is shorter than the plain one, otherwise nothing."""
    short = zlib.compress(plain)
    return short if len(short) < len(plain) else b""


def num_plain_bytes(envelope: gossip_pb2.Envelope) -> int:
    """Return the plain size of the payload as the envelope states it; `inflate` checks that statement."""
    return max(int(envelope.plain_bytes), len(envelope.payload))


def num_charged_bytes(envelope: gossip_pb2.Envelope) -> int:
    """Return the size of the whole envelope with a plain payload, which its receiver charges."""
    return int(envelope.ByteSize()) - len(envelope.payload) + num_plain_bytes(envelope)


def check_plain_bytes(envelope: gossip_pb2.Envelope) -> None:
    """Check the stated size before it is charged. Raises RemoteProtocolError where it is too large, or more than the payload
    can inflate to."""
    if num_plain_bytes(envelope) > MAX_PAYLOAD_BYTES:
        raise RemoteProtocolError(f"a payload of {num_plain_bytes(envelope)} bytes, at most {MAX_PAYLOAD_BYTES} accepted")
    if envelope.plain_bytes > _MOST_INFLATED * len(envelope.payload) + _INFLATED_BESIDE:
        raise RemoteProtocolError(f"{len(envelope.payload)} bytes do not inflate to the {envelope.plain_bytes} that they name")


def inflate(envelope: gossip_pb2.Envelope) -> None:
    """Replace the payload, whose stated size was checked, by the plain one. Raises RemoteProtocolError where it does not have
    that size."""
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
    """The messages in assembly, one per sender, in the order of their last pieces."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.num_bytes = 0
        """Bytes held now."""
        self._clock = clock
        self._partial: OrderedDict[PeerId, _Partial] = OrderedDict()

    def __len__(self) -> int:
        return len(self._partial)

    def take(self, sender: PeerId, envelope: gossip_pb2.Envelope, *, is_member: bool) -> bytes | None:
        """Take a piece; return the message that it completes, or None while others are missing. Raises RemoteProtocolError, in
        words for the sender, for a piece that is refused; the earlier pieces of its message are then dropped."""
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
        """Drop messages whose next piece is overdue."""
        due = self._clock() - PIECE_SECONDS
        while self._partial and next(iter(self._partial.values())).last_at < due:
            self._pop(next(iter(self._partial)))

    def _make_room(self, num_bytes: int, *, is_member: bool) -> bool:
        """Return whether there is room for an unfinished message of this size. For one of a member, strangers' messages give
        way, then larger ones: otherwise three members that let the largest message trickle would keep out all others."""
        strangers = [peer for peer, partial in self._partial.items() if not partial.is_member]
        if not is_member:
            held = sum(self._partial[peer].num_bytes for peer in strangers)
            return held + num_bytes <= MAX_STRANGERS_BYTES and self.num_bytes + num_bytes <= MAX_ASSEMBLED_BYTES
        while self.num_bytes + num_bytes > MAX_ASSEMBLED_BYTES:
            largest = max(self._partial, key=lambda peer: self._partial[peer].num_bytes)
            if not strangers and self._partial[largest].num_bytes <= num_bytes:
                return False
            self._pop(strangers.pop(0) if strangers else largest)
        return True

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
