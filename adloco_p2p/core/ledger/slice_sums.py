"""The values of short slices, computed again by plain arithmetic, by which evidence about a reducer is judged.

This is the second implementation of `numerics/codecs.py` and `numerics/reduction.py`, slow and without a library, so that any
holder of a ledger can check its bans. Every product, quotient and sum of float32 numbers is formed in double precision and
rounded to float32 once, which gives the result of float32 arithmetic.
"""

import math
import struct
from collections.abc import Sequence

from adloco_p2p.core.model.hash_tree import LEAST_VALUE, SCALE_ROUNDING
from adloco_p2p.core.model.median import upper_weighted_median

_FLOAT32, _FLOAT16, _BFLOAT16, _INT8, _INT4, _SIGN, _SIGN_INT4, _TOPK2, _SPARSE_MEAN = 1, 2, 3, 4, 5, 7, 8, 9, 10
CODES = frozenset((_FLOAT32, _FLOAT16, _BFLOAT16, _INT8, _INT4, _SIGN, _SIGN_INT4, _TOPK2, _SPARSE_MEAN))
"""The codes of the codecs that this module has."""
MEAN_CODES = frozenset((_FLOAT32, _FLOAT16, _BFLOAT16, _INT8, _INT4, _SIGN, _SPARSE_MEAN))
"""The codes of the codecs by which means are returned."""
_GROUP = 4096
_KEPT, _KEPT_REST_BITS, _KEPT_UNARY_BYTES = 64, 5, 24  # the form of a chunk of `topk2`
_LEVELS = 8  # the number of magnitudes of a sparse mean
_BOUND = 2.0  # the multiple of the middle host's largest magnitude to which a mean per place cuts values
_SIZE = struct.Struct("<I")
_LEAST_SCALE = struct.unpack("<f", struct.pack("<f", 1e-30))[0]


def rounded(values: Sequence[float]) -> list[float]:
    """Return the values rounded to float32. Raises OverflowError if one is too large."""
    return list(struct.unpack(f"<{len(values)}f", struct.pack(f"<{len(values)}f", *values)))


def decoded(code: int, data: bytes) -> list[float]:
    """Return the values of an encoded slice. Raises ValueError for bytes that no honest peer sends."""
    try:
        if code in (_FLOAT32, _FLOAT16, _BFLOAT16):
            values = _cast(code, data)
        elif code in (_INT8, _INT4):
            values = _integers(data, bits=8 if code == _INT8 else 4, group=256 if code == _INT8 else 64)
        elif code in (_SIGN, _SIGN_INT4):
            values = _signs(data)
        elif code == _TOPK2:
            values = _largest(data)
        else:
            assert code == _SPARSE_MEAN
            values = _sparse_mean(data)
    except (struct.error, IndexError, OverflowError) as error:
        raise ValueError(f"bytes of another form: {error}") from None
    if not all(map(math.isfinite, values)):
        raise ValueError("values that are not finite")
    return values


def combined(vectors: Sequence[Sequence[float]], coefficients: Sequence[float], divisors: Sequence[float] = ()) -> list[float]:
    """Return sum_i c_i v_i as every reducer forms it, of at least one vector. With divisors, values are cut to twice the
    weighted median of the vectors' largest magnitudes, and every sum is divided by the divisors of the vectors that are not 0
    there. Raises OverflowError, and ValueError if no divisor is positive."""
    factors = rounded(coefficients)
    if divisors:
        limit = _BOUND * upper_weighted_median([max(map(abs, vector), default=0.0) for vector in vectors], divisors)
        cut = [[max(-limit, min(limit, value)) for value in vector] for vector in vectors]
    else:
        cut = list(map(list, vectors))
    result = rounded([value * factors[0] for value in cut[0]])
    for vector, factor in zip(cut[1:], factors[1:], strict=True):
        products = rounded([value * factor for value in vector])
        result = rounded([have + more for have, more in zip(result, products, strict=True)])
    if not divisors:
        return result
    parts = rounded(divisors)
    named = [0.0] * len(result)
    for sent, part in zip(vectors, parts, strict=True):
        named = rounded([have + part if value != 0 else have for have, value in zip(named, sent, strict=True)])
    return rounded([have / whole if whole > 0 else 0.0 for have, whole in zip(result, named, strict=True)])


def returned(code: int, values: Sequence[float]) -> list[float]:
    """Return a mean as members decode it. Raises OverflowError."""
    if code == _FLOAT32:
        return list(values)
    if code == _FLOAT16:
        return list(struct.unpack(f"<{len(values)}e", struct.pack(f"<{len(values)}e", *values)))
    if code == _BFLOAT16:
        bits = struct.unpack(f"<{len(values)}I", struct.pack(f"<{len(values)}f", *values))
        halves = [(word + 0x7FFF + (word >> 16 & 1)) >> 16 << 16 for word in bits]
        return list(struct.unpack(f"<{len(values)}f", struct.pack(f"<{len(values)}I", *halves)))
    if code in (_INT8, _INT4):
        group, top = (256, 127) if code == _INT8 else (64, 7)
        return [value for at in range(0, len(values), group) for value in _quantized(values[at : at + group], top)]
    if code == _SIGN:
        (scale,) = rounded([math.fsum(map(abs, values)) / len(values)])
        return [-scale if value < 0 else scale for value in values]
    assert code == _SPARSE_MEAN
    return _quantized(values, _LEVELS)


def are_equal(code: int, wanted: Sequence[float], have: Sequence[float]) -> bool:
    """Return whether these are the values of one mean; the last bits of the scale of a sign mean do not count."""
    if code != _SIGN:
        return list(wanted) == list(have)
    pairs = zip(wanted, have, strict=True)
    return all(abs(one - other) <= SCALE_ROUNDING * abs(other) + LEAST_VALUE for one, other in pairs)


def _quantized(values: Sequence[float], top: int) -> list[float]:
    scale = max(map(abs, values), default=0.0)
    if scale < _LEAST_SCALE:
        return [0.0] * len(values)
    integers = map(round, rounded([value * top for value in rounded([value / scale for value in values])]))
    return _scaled(list(integers), top, scale)


def _scaled(integers: Sequence[int], top: int, scale: float) -> list[float]:
    return rounded([value * scale for value in rounded([integer / top for integer in integers])])


def _cast(code: int, data: bytes) -> list[float]:
    if code == _BFLOAT16:
        data = b"".join(b"\0\0" + data[at : at + 2] for at in range(0, len(data), 2))
    width, letter = (2, "e") if code == _FLOAT16 else (4, "f")
    return list(struct.unpack(f"<{len(data) // width}{letter}", data))


def _integers(data: bytes, *, bits: int, group: int) -> list[float]:
    (size,) = _SIZE.unpack_from(data)
    num_blocks, top = -(-size // group), 2 ** (bits - 1) - 1
    packed = data[_SIZE.size + 4 * num_blocks :]
    if len(packed) != (size * bits + 7) // 8:
        raise ValueError("integers of another length")
    scales = struct.unpack_from(f"<{num_blocks}f", data, _SIZE.size)
    if not all(math.isfinite(scale) and scale >= 0 for scale in scales):
        raise ValueError("a scale that is not finite, or negative")
    if bits == 4:
        nibbles = [nibble for byte in packed for nibble in (byte & 15, byte >> 4)][:size]
        integers = [nibble - 16 if nibble > 7 else nibble for nibble in nibbles]
    else:
        integers = list(struct.unpack(f"<{size}b", packed))
    if min(integers, default=0) < -top:
        raise ValueError("an integer that no encoder makes")
    cut = [integers[at : at + group] for at in range(0, size, group)]
    return [value for block, scale in zip(cut, scales, strict=True) for value in _scaled(block, top, scale)]


def _signs(data: bytes) -> list[float]:
    (size,) = _SIZE.unpack_from(data)
    (scale,) = struct.unpack_from("<f", data, _SIZE.size)
    packed = data[_SIZE.size + 4 :]
    if not 0 < size <= _GROUP or len(packed) != (size + 7) // 8:
        raise ValueError("more or less than one chunk")
    if not (math.isfinite(scale) and scale >= 0):
        raise ValueError("a scale that is not finite, or negative")
    return [-scale if packed[at // 8] >> at % 8 & 1 else scale for at in range(size)]


def _largest(data: bytes) -> list[float]:
    (size,) = _SIZE.unpack_from(data)
    at, values_at = _SIZE.size + 4, _SIZE.size + 4 + _KEPT_UNARY_BYTES + _KEPT * _KEPT_REST_BITS // 8
    if size > _GROUP or len(data) != values_at + _KEPT // 4:
        raise ValueError("more or less than one chunk")
    low, high = _cast(_BFLOAT16, data[_SIZE.size : at])
    if not all(math.isfinite(scale) and scale >= 0 for scale in (low, high)):
        raise ValueError("a scale that is not finite, or negative")
    places = _places(data[at:values_at], _KEPT, remainder_bits=_KEPT_REST_BITS, unary_bytes=_KEPT_UNARY_BYTES, size=_GROUP)
    levels = (low, -low, high, -high)
    kept_values = [levels[byte >> shift & 3] for byte in data[values_at:] for shift in (0, 2, 4, 6)]
    values = [0.0] * _GROUP
    for place, value in zip(places, kept_values, strict=True):
        values[place] = value
    return values[:size]


def _sparse_mean(data: bytes) -> list[float]:
    size, length, scale, count, unary_bytes = struct.unpack_from("<IIfHH", data)
    at = struct.calcsize("<IIfHH")
    if not 0 < size <= _GROUP or length != len(data) or count > size:
        raise ValueError("more or less than one chunk")
    if not (math.isfinite(scale) and scale >= 0) or (scale > 0) != (count > 0):
        raise ValueError("a scale that is not finite, or negative, or of nothing")
    remainder_bits = _remainder_bits_for(count)
    values_at = at + unary_bytes + (count * remainder_bits + 7) // 8
    if len(data) != values_at + (count + 1) // 2 or (unary_bytes and not count):
        raise ValueError("values of another length")
    places = _places(data[at:values_at], count, remainder_bits=remainder_bits, unary_bytes=unary_bytes, size=size)
    nibbles = [nibble for byte in data[values_at:] for nibble in (byte & 15, byte >> 4)][:count]
    integers = [-(nibble & 7) - 1 if nibble & 8 else (nibble & 7) + 1 for nibble in nibbles]
    values = [0.0] * size
    for place, value in zip(places, _scaled(integers, _LEVELS, scale), strict=True):
        values[place] = value
    return values


def _remainder_bits_for(count: int) -> int:
    """Return the first k for which `count` Rice codes of gaps in a chunk take the fewest bits in the worst case."""
    worst = [count * (1 + bits) + (_GROUP - count) // 2**bits for bits in range(_GROUP.bit_length())]
    return worst.index(min(worst))


def _places(packed: bytes, count: int, *, remainder_bits: int, unary_bytes: int, size: int) -> list[int]:
    """Return the places in ascending order. Their gaps are Rice-coded: the quotients by 2**remainder_bits come first, in unary
    up to a one, then the remainders of all gaps."""
    unary = [byte >> bit & 1 for byte in packed[:unary_bytes] for bit in range(8)]
    rests = [byte >> bit & 1 for byte in packed[unary_bytes:] for bit in range(8)]
    places, place, quotient = list[int](), -1, 0
    for bit in unary:
        if not bit:
            quotient += 1
            continue
        begin = len(places) * remainder_bits
        rest = sum(one << at for at, one in enumerate(rests[begin : begin + remainder_bits]))
        place += 1 + quotient * 2**remainder_bits + rest
        places.append(place)
        quotient = 0
    if len(places) != count or place >= size:
        raise ValueError("places that no encoder makes")
    return places
