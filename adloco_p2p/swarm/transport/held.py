"""HELD frames, which mark the pieces that a peer holds: one bit for each piece, the first one the lowest."""

from collections.abc import Collection

from adloco_p2p.errors import RemoteProtocolError


def num_held_bytes(num_pieces: int) -> int:
    return (num_pieces + 7) // 8


def encode_held(held: Collection[int], num_pieces: int) -> bytes:
    bits = bytearray(num_held_bytes(num_pieces))
    for piece in held:
        bits[piece // 8] |= 1 << piece % 8
    return bytes(bits)


def decode_held(data: bytes, num_pieces: int) -> frozenset[int]:
    """Return the marked pieces. Raises RemoteProtocolError for bits of another number of pieces."""
    if len(data) != num_held_bytes(num_pieces) or int.from_bytes(data, "little") >> num_pieces:
        raise RemoteProtocolError(f"{len(data)} bytes do not mark {num_pieces} pieces")
    return frozenset(piece for piece in range(num_pieces) if data[piece // 8] >> piece % 8 & 1)
