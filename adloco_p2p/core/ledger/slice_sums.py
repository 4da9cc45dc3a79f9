"""The values of short slices, made again by plain arithmetic: what evidence about a reducer is judged by.

The second implementation of `numerics/codecs.py` and `numerics/reduction.py`, slow and without a library, so that whoever holds
a ledger can check its bans. Every product, quotient and sum of float32 numbers is formed in double precision and rounded to
float32 once, which is what float32 arithmetic gives.
"""

import math
import struct
from collections.abc import Sequence
from itertools import pairwise

from adloco_p2p.core.model.hash_tree import LEAST_VALUE, SCALE_ROUNDING

_FLOAT32, _FLOAT16, _BFLOAT16, _INT8, _INT4, _TOPK2, _SIGN, _SIGN_INT4 = range(1, 9)
_SPARSE, _MOST_SPARSE = 16, 72  # a sparse mean of so many more than the first keeps 64 times as many values
CODES = frozenset((*range(_FLOAT32, _SIGN_INT4 + 1), *range(_SPARSE + 1, _MOST_SPARSE + 1)))
"""Of the codecs that are known here."""
_GROUP = 4096
_SIZE = struct.Struct("<I")
_LEAST_SCALE = struct.unpack("<f", struct.pack("<f", 1e-30))[0]


def rounded(values: Sequence[float]) -> list[float]:
    """To float32. Raises OverflowError where one is too large."""
    return list(struct.unpack(f"<{len(values)}f", struct.pack(f"<{len(values)}f", *values)))


def decoded(code: int, data: bytes) -> list[float]:
    """The values of an encoded slice. Raises ValueError for bytes that no honest peer sends."""
    try:
        if code in (_FLOAT32, _FLOAT16, _BFLOAT16):
            values = _cast(code, data)
        elif code in (_INT8, _INT4):
            values = _integers(data, bits=8 if code == _INT8 else 4, group=256 if code == _INT8 else 64)
        elif code in (_SIGN, _SIGN_INT4):
            values = _signs(data)
        elif code == _TOPK2:
            values = _largest(data, kept=64, bits=2)
        else:
            assert code in CODES
            values = _largest(data, kept=64 * (code - _SPARSE), bits=8)
    except (struct.error, IndexError, OverflowError) as error:
        raise ValueError(f"bytes of another form: {error}") from None
    if not all(map(math.isfinite, values)):
        raise ValueError("values that are not finite")
    return values


def combined(vectors: Sequence[Sequence[float]], coefficients: Sequence[float]) -> list[float]:
    """sum_i c_i v_i as every reducer forms it; at least one vector. Raises OverflowError."""
    factors = rounded(coefficients)
    result = rounded([value * factors[0] for value in vectors[0]])
    for vector, factor in zip(vectors[1:], factors[1:], strict=True):
        products = rounded([value * factor for value in vector])
        result = rounded([have + more for have, more in zip(result, products, strict=True)])
    return result


def returned(code: int, values: Sequence[float]) -> list[float] | None:
    """A mean as members decode it; None where the codec leaves more than one way. Raises OverflowError."""
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
    return None if code <= _SPARSE or sum(value != 0 for value in values) > 64 * (code - _SPARSE) else _quantized(values, 127)


def are_equal(code: int, wanted: Sequence[float], have: Sequence[float]) -> bool:
    """Whether these are the values of one mean; of a sign mean the last bits of the scale do not count."""
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


def _largest(data: bytes, *, kept: int, bits: int) -> list[float]:
    (size,) = _SIZE.unpack_from(data)
    place_bytes = min(_GROUP // 8, 2 * kept)
    if size > _GROUP or len(data) != _SIZE.size + 8 + place_bytes + kept * bits // 8:
        raise ValueError("more or less than one chunk")
    low, high = struct.unpack_from("<2f", data, _SIZE.size)
    if not all(math.isfinite(scale) and scale >= 0 for scale in (low, high)):
        raise ValueError("a scale that is not finite, or negative")
    places = _places(data[_SIZE.size + 8 :][:place_bytes], kept)
    codes = data[_SIZE.size + 8 + place_bytes :]
    if bits == 8:
        kept_values = _scaled(struct.unpack(f"<{kept}b", codes), 127, high)
    else:
        levels = (low, -low, high, -high)
        kept_values = [levels[byte >> shift & 3] for byte in codes for shift in (0, 2, 4, 6)]
    values = [0.0] * _GROUP
    for place, value in zip(places, kept_values, strict=True):
        values[place] = value
    return values[:size]


def _places(packed: bytes, kept: int) -> list[int]:
    """Of the values that a chunk keeps, ascending: two bytes each or, where that is shorter, a bit for every place."""
    if 2 * kept > _GROUP // 8:
        places = [at for at in range(_GROUP) if packed[at // 8] >> at % 8 & 1]
    else:
        places = list(struct.unpack(f"<{kept}H", packed))
    if len(places) != kept or places[-1] >= _GROUP or any(one >= other for one, other in pairwise(places)):
        raise ValueError("places that no encoder makes")
    return places
