"""Slices by hand: the bytes of every codec, written out, and the values that whoever holds a ledger finds in them."""

import struct

import pytest

from adloco_p2p.core.ledger import slice_sums
from adloco_p2p.core.ledger.slice_sums import are_equal, combined, decoded, returned

FLOAT32, FLOAT16, BFLOAT16, INT8, INT4, TOPK2, SIGN, SIGN_INT4 = range(1, 9)
SPARSE, MOST_SPARSE = 17, 72
"""The sparse means that keep 64 and 3584 values of a chunk, 8 bits each."""


def sized(size: int, layout: str = "", *numbers: float) -> bytes:
    return struct.pack("<I" + layout, size, *numbers)


def sparse(*, kept: int, size: int, places: list[int], values: bytes, scales: tuple[float, float]) -> bytes:
    return sized(size, f"2f{kept}H", *scales, *places) + values


@pytest.mark.parametrize(
    ("code", "data", "values"),
    [
        (FLOAT32, struct.pack("<3f", 1.5, -2.0, 0.0), [1.5, -2.0, 0.0]),
        (FLOAT16, struct.pack("<2e", 0.5, -4.0), [0.5, -4.0]),
        (BFLOAT16, b"\x80\x3f\x00\xc0", [1.0, -2.0]),  # the upper halves of 0x3f800000 and 0xc0000000
        (INT8, sized(3, "f", 127.0) + struct.pack("<3b", 127, -1, 0), [127.0, -1.0, 0.0]),
        (INT4, sized(3, "f", 7.0) + bytes([0x7 | 0xF << 4, 0x2]), [7.0, -1.0, 2.0]),  # 0xF is -1; two values a byte
        (SIGN, sized(3, "f", 0.25) + bytes([0b010]), [0.25, -0.25, 0.25]),
        (SIGN_INT4, sized(9, "f", 2.0) + bytes([0b1, 0b1]), [-2.0, *[2.0] * 7, -2.0]),
    ],
)
def test_values_by_hand(code: int, data: bytes, values: list[float]) -> None:
    assert decoded(code, data) == values


def test_two_bits_name_a_sign_and_one_of_two_magnitudes() -> None:
    values = bytes([0b11_10_01_00, *[0] * 15])  # the lowest two bits first: +low, -low, +high, -high, then +low
    data = sparse(kept=64, size=70, places=[*range(0, 8, 2), *range(8, 68)], values=values, scales=(0.5, 3.0))
    assert decoded(TOPK2, data)[:10] == [0.5, 0.0, -0.5, 0.0, 3.0, 0.0, -3.0, 0.0, 0.5, 0.5]
    assert decoded(TOPK2, data)[67:] == [0.5, 0.0, 0.0]


def test_a_sparse_mean_keeps_eight_bits_a_value() -> None:
    values = struct.pack("<64b", 127, -127, *[0] * 62)
    data = sparse(kept=64, size=100, places=list(range(10, 74)), values=values, scales=(0.0, 6.0))
    assert decoded(SPARSE, data)[9:13] == [0.0, 6.0, -6.0, 0.0]


def test_many_places_are_bits() -> None:
    """512 places, two bytes each, would take more than the 512 bytes of one bit for each of the 4096."""
    code, kept = SPARSE + 7, 512
    bits = bytes([0b10101010, *[0xFF] * 63, 0b1111, *[0] * 447])  # 4 + 504 + 4 places
    data = sized(600, "2f", 0.0, 127.0) + bits + struct.pack(f"<{kept}b", *[1] * kept)
    assert decoded(code, data)[:9] == [0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0]
    with pytest.raises(ValueError, match="places"):
        decoded(code, data.replace(bits, bytes(512)))


@pytest.mark.parametrize(
    ("code", "data", "why"),
    [
        (FLOAT32, b"\0\0\0", "another form"),
        (FLOAT32, struct.pack("<f", float("inf")), "not finite"),
        (INT8, b"\0", "another form"),
        (INT8, sized(3, "f", 1.0) + b"\0\0", "another length"),
        (INT8, sized(1, "f", -1.0) + b"\0", "a scale"),
        (INT8, sized(1, "f", 1.0) + b"\x80", "no encoder"),  # -128
        (SIGN, sized(0, "f", 1.0), "one chunk"),
        (SIGN, sized(4097, "f", 1.0) + bytes(513), "one chunk"),
        (SIGN, sized(3, "f", float("nan")) + b"\0", "a scale"),
        (TOPK2, sized(5000), "one chunk"),
        (TOPK2, sparse(kept=64, size=70, places=[*range(64)], values=bytes(16), scales=(-1.0, 0.0)), "a scale"),
        (TOPK2, sparse(kept=64, size=70, places=[7] * 64, values=bytes(16), scales=(1.0, 1.0)), "places"),
        (TOPK2, sparse(kept=64, size=70, places=[*range(63), 4096], values=bytes(16), scales=(1.0, 1.0)), "places"),
    ],
)
def test_bytes_that_no_honest_peer_sends(code: int, data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        decoded(code, data)


def test_a_sum_rounds_every_product_and_every_sum_to_float32() -> None:
    assert combined([[1.0, 3.0], [2.0, -4.0]], [0.5, 0.25]) == [1.0, 0.5]
    tiny = 2.0**-24
    assert combined([[1.0], [tiny], [tiny]], [1.0, 1.0, 1.0]) == [1.0]  # in double precision it would be 1 + 2**-23
    with pytest.raises(OverflowError):
        combined([[3e38], [3e38]], [1.0, 1.0])


@pytest.mark.parametrize(
    ("code", "mean", "values"),
    [
        (FLOAT32, [0.1, -2.0], [0.1, -2.0]),
        (FLOAT16, [1.0 + 2.0**-12, 2.0], [1.0, 2.0]),  # eleven bits; a tie goes to the even one
        (BFLOAT16, [1.0 + 2.0**-9, -(1.0 + 3 * 2.0**-8)], [1.0, -(1.0 + 2.0**-6)]),  # eight bits
        (INT8, [127.0, 0.6, -63.4], [127.0, 1.0, -63.0]),
        (INT4, [7.0, -3.4, 0.0], [7.0, -3.0, 0.0]),
        (INT4, [1e-31, -1e-31], [0.0, 0.0]),  # too small for a scale
        (SIGN, [3.0, -1.0, 0.0, -4.0], [2.0, -2.0, 2.0, -2.0]),
        (SPARSE, [127.0, 0.6, 0.0], [127.0, 1.0, 0.0]),
    ],
)
def test_what_a_mean_is_when_it_has_come_back(code: int, mean: list[float], values: list[float]) -> None:
    assert returned(code, mean) == values


def test_only_the_last_bits_of_a_sign_mean_s_scale_do_not_count() -> None:
    assert are_equal(SIGN, [1.0, -1.0], [1.0 + 2.0**-23, -1.0 - 2.0**-23])
    assert not are_equal(SIGN, [1.0, -1.0], [1.0, 1.0])
    assert not are_equal(FLOAT32, [1.0], [1.0 + 2.0**-23])


def test_codes_are_those_that_are_decoded_here() -> None:
    assert {*range(FLOAT32, SIGN_INT4 + 1), *range(SPARSE, MOST_SPARSE + 1)} == slice_sums.CODES
