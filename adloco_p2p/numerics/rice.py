"""Sets of places in a chunk, stored as Golomb-Rice codes of the gaps between them (Rice and Plaunt, 1971).

A gap is the number of places that are passed over. Its quotient by 2^k is coded in unary, zeros and a final one, and its
remainder in k bits. All unary codes of a set come first, then all remainders. Bits fill a byte from the lowest, and each of the
two lists fills whole bytes.
"""

from functools import cache

import numpy as np

from adloco_p2p.errors import RemoteProtocolError


def most_unary_bits(count: int, span: int, remainder_bits: int) -> int:
    """Return the most bits that the unary codes of `count` places out of `span` can take: a one for each place, and the zeros
    of the gaps."""
    return count + (span - count >> remainder_bits)


@cache
def remainder_bits_for(count: int, span: int) -> int:
    """Return the smallest k that minimises the bits of the worst set of `count` places. With k = 0 the code is a bit mask of
    the span."""
    return min(range(span.bit_length()), key=lambda bits: (most_unary_bits(count, span, bits) + count * bits, bits))


def most_bytes(span: int) -> int:
    """Return the most bytes of any set of places out of `span`: one bit per place suffices, and each of the two lists is
    rounded up to whole bytes."""
    return (span + 7) // 8 + 1


def remainder_bytes(count: int, remainder_bits: int) -> int:
    return (count * remainder_bits + 7) // 8


def pack_places(places: np.ndarray, remainder_bits: int, *, unary_bytes: int = 0) -> np.ndarray:
    """Encode places [rows, count], each row ascending, as uint8 [rows, bytes]; the unary codes are padded with zeros to
    `unary_bytes`."""
    gaps = np.diff(places, axis=1, prepend=-1) - 1
    ones = np.cumsum((gaps >> remainder_bits) + 1, axis=1) - 1
    unary = np.zeros((len(places), 8 * unary_bytes or int(ones.max(initial=-1)) + 1), dtype=np.uint8)
    np.put_along_axis(unary, ones, 1, axis=1)
    rests = (
        (gaps[:, :, None] >> np.arange(remainder_bits) & 1)
        .astype(np.uint8)
        .reshape(len(places), places.shape[1] * remainder_bits)
    )
    return np.concatenate([np.packbits(bits, axis=1, bitorder="little") for bits in (unary, rests)], axis=1)


def unpack_places(packed: np.ndarray, count: int, remainder_bits: int, *, unary_bytes: int) -> np.ndarray:
    """Decode `pack_places`: int64 [rows, count], each row ascending. Raises RemoteProtocolError for another count."""
    rows = len(packed)
    unary = np.unpackbits(packed[:, :unary_bytes], axis=1, bitorder="little")
    if (unary.sum(axis=1, dtype=np.int64) != count).any():
        raise RemoteProtocolError(f"places that are not {count} of a chunk")
    ones = np.nonzero(unary)[1].reshape(rows, count)
    quotients = np.diff(ones, axis=1, prepend=-1) - 1
    rests = np.unpackbits(packed[:, unary_bytes:], axis=1, count=count * remainder_bits, bitorder="little")
    gaps = (quotients << remainder_bits) + rests.reshape(rows, count, remainder_bits).astype(np.int64) @ (
        1 << np.arange(remainder_bits)
    )
    return np.cumsum(gaps + 1, axis=1) - 1
