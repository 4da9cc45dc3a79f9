"""Blobs on the wire: bytes cut into chunks, whose root the fetcher knows beforehand.

    fetcher --HELLO(root)--> donor --HELLO_REPLY, TABLE(index), HELD(bits)--> fetcher --WANT(chunk)--> donor --DATA--> fetcher
                                                                         fetcher --WANT()--> donor

The root is the hash of the index, and the index has the hash of every chunk (`numerics/digest.py`), so donors need not be
trusted. HELD has a bit for each chunk, because a donor that is still fetching the blob serves the chunks that it has verified.
The fetcher asks for several chunks ahead, and they come in that order. Either end may close. A fetcher that has the whole blob,
whichever donors it came from, sends an empty WANT and lets the donor close.
"""

from dataclasses import dataclass
from enum import IntEnum

from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.numerics.digest import CHUNK_ENTRY

MAX_CHUNK_BYTES = 1 << 22
MAX_HEAD_BYTES = 64
MAX_REASON_BYTES = 300
_WANT_BYTES = 4


class Answer(IntEnum):
    """A donor's answer to a hello."""

    GO = 1
    BUSY = 2
    """All places are taken; the fetcher may ask again."""
    REFUSED = 3


@dataclass(frozen=True, slots=True)
class ChunkIndex:
    """The head and the chunks of a blob."""

    head: bytes
    chunks: tuple[tuple[int, bytes], ...]
    """Length and SHA-256 of every chunk, in order."""

    @property
    def num_bytes(self) -> int:
        return sum(num_bytes for num_bytes, _ in self.chunks)

    @classmethod
    def decode(cls, data: bytes) -> "ChunkIndex":
        """Decode an index. Raises RemoteProtocolError if it is malformed, or if a chunk is empty or too long."""
        start = 1 + data[0] if data else 0
        if not 0 < start <= min(1 + MAX_HEAD_BYTES, len(data)) or (len(data) - start) % CHUNK_ENTRY.size:
            raise RemoteProtocolError(f"no index: {len(data)} bytes")
        chunks = tuple(CHUNK_ENTRY.iter_unpack(data[start:]))
        if not all(0 < num_bytes <= MAX_CHUNK_BYTES for num_bytes, _ in chunks):
            raise RemoteProtocolError(f"an index with chunks that are empty or longer than {MAX_CHUNK_BYTES} bytes")
        return cls(data[1:start], chunks)


def handler_name(kind: str) -> str:
    """Return the name of the stream handler for blobs of this kind. It contains the version, so that others cannot connect."""
    return f"adloco/chunks/2/{kind}"


def max_index_bytes(num_chunks: int) -> int:
    """Return the length of the longest index of so many chunks."""
    return 1 + MAX_HEAD_BYTES + num_chunks * CHUNK_ENTRY.size


def encode_reply(answer: Answer, reason: str = "") -> bytes:
    return bytes([answer]) + reason.encode("ascii", "replace")[:MAX_REASON_BYTES]


def decode_reply(data: bytes) -> tuple[Answer, str]:
    """Return the answer and a printable reason. Raises RemoteProtocolError."""
    if not 0 < len(data) <= 1 + MAX_REASON_BYTES or data[0] not in tuple(Answer):
        raise RemoteProtocolError(f"no reply to a hello: {len(data)} bytes")
    return Answer(data[0]), "".join(letter if letter.isprintable() else "?" for letter in data[1:].decode("ascii", "replace"))


def encode_want(chunk: int | None) -> bytes:
    """Encode a request for a chunk; None reports that the fetcher has all of them."""
    return b"" if chunk is None else chunk.to_bytes(_WANT_BYTES, "little")


def decode_want(data: bytes) -> int | None:
    """Return the chunk that is asked for, which may not exist. Raises RemoteProtocolError."""
    if not data:
        return None
    if len(data) != _WANT_BYTES:
        raise RemoteProtocolError(f"{len(data)} bytes name no chunk")
    return int.from_bytes(data, "little")
