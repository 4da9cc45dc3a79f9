"""Slices by hand: the bytes of every codec, written out, and the values that whoever holds a ledger finds in them."""

import struct

import pytest

from adloco_p2p.core.ledger import slice_sums
from adloco_p2p.core.ledger.slice_sums import are_equal, combined, decoded, returned

FLOAT32, FLOAT16, BFLOAT16, INT8, INT4, SIGN, SIGN_INT4, TOPK2, SPARSE_MEAN = 1, 2, 3, 4, 5, 7, 8, 9, 10


def sized(size: int, layout: str = "", *numbers: float) -> bytes:
    return struct.pack("<I" + layout, size, *numbers)


def packed(bits: str) -> bytes:
    """As many bytes as they take, the first bit the lowest of its byte. Blanks are for the reader."""
    ordered = bits.replace(" ", "")
    return bytes(int(ordered[at : at + 8][::-1], 2) for at in range(0, len(ordered), 8))


def topk2(unary: str, rests: str, values: bytes, *, size: int = 100, scales: bytes = b"\x00\x3f\x40\x40") -> bytes:
    """`scales`: the upper halves of the float32 numbers 0.5 and 3."""
    return sized(size) + scales + packed(unary).ljust(24, b"\0") + packed(rests).ljust(40, b"\0") + values.ljust(16, b"\0")


def sparse_mean(unary: str, rests: str, values: bytes, *, count: int, size: int = 4096, scale: float = 6.0) -> bytes:
    body = struct.pack("<fHH", scale, count, len(packed(unary))) + packed(unary) + packed(rests) + values
    return struct.pack("<II", size, 8 + len(body)) + body


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
    """Gaps of 1, then 33 = 1 * 32 + 1, then 62 of none: quotients 0, 1 and 0, rests of five bits 1, 1 and 0."""
    values = bytes([0b11_10_01_00])  # the lowest two bits first: +low, -low, +high, -high, then +low
    found = decoded(TOPK2, topk2("1 01" + 62 * "1", "10000 10000", values))
    assert found[:4] == [0.0, 0.5, 0.0, 0.0]
    assert found[34:40] == [0.0, -0.5, 3.0, -3.0, 0.5, 0.5]
    assert found[97:] == [0.5, 0.0, 0.0], "64 places: 1, and 35 to 97"


def test_a_sparse_mean_names_few_places_by_their_gaps() -> None:
    """Three of 4096: gaps 5, 0 and 2100 = 2 * 1024 + 52, rests of ten bits (k is 10 for three places)."""
    values = bytes([0x7 | 0x8 << 4, 0x2])  # 8 eighths, -1 eighth, 3 eighths of the scale
    found = decoded(SPARSE_MEAN, sparse_mean("1 1 001", "1010000000 0000000000 0010110000", values, count=3))
    assert (found[5], found[6], found[2107]) == (6.0, -0.75, 2.25)
    assert sum(value != 0 for value in found) == 3


def test_a_sparse_mean_of_all_places_names_them_by_a_bit_each() -> None:
    found = decoded(SPARSE_MEAN, sparse_mean(4096 * "1", "", bytes([0xF]) + bytes(2047), count=4096))
    assert found[:3] == [-6.0, 0.75, 0.75] and len(found) == 4096
    assert decoded(SPARSE_MEAN, sparse_mean("", "", b"", count=0, scale=0.0, size=3)) == [0.0] * 3


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
        (TOPK2, topk2(64 * "1", "", b"", scales=b"\x00\xbf\0\0"), "a scale"),
        (TOPK2, topk2(64 * "1", "", b"", scales=b"\x80\x7f\0\0"), "a scale"),
        (TOPK2, topk2(63 * "1", "", b""), "places"),
        (TOPK2, topk2(65 * "1", "", b""), "places"),
        (TOPK2, topk2(126 * "0" + 64 * "1", "00001", b"", size=4096), "places"),  # the first one is 126 * 32 + 16
        (SPARSE_MEAN, b"\0" * 15, "another form"),
        (SPARSE_MEAN, sparse_mean("1", 12 * "0", b"\0", count=1, size=4097), "one chunk"),
        (SPARSE_MEAN, sparse_mean("1", 12 * "0", b"\0", count=1) + b"\0", "one chunk"),
        (SPARSE_MEAN, sparse_mean("1", 12 * "0", b"\0\0", count=1), "another length"),
        (SPARSE_MEAN, sparse_mean("1", "", b"", count=0, scale=0.0), "another length"),
        (SPARSE_MEAN, sparse_mean("1", 12 * "0", b"\0", count=1, scale=-1.0), "a scale"),
        (SPARSE_MEAN, sparse_mean("1", 12 * "0", b"\0", count=1, scale=float("inf")), "a scale"),
        (SPARSE_MEAN, sparse_mean("1", 12 * "0", b"\0", count=1, scale=0.0), "of nothing"),
        (SPARSE_MEAN, sparse_mean("11", 12 * "0", b"\0", count=1), "places"),
        (SPARSE_MEAN, sparse_mean("0", 12 * "0", b"\0", count=1), "places"),
        (SPARSE_MEAN, sparse_mean("1", "001" + 9 * "0", b"\0", count=1, size=4), "places"),
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
        (SPARSE_MEAN, [8.0, -1.4, 0.6, 0.5, 0.0], [8.0, -1.0, 1.0, 0.0, 0.0]),  # a sixteenth goes to the even level
    ],
)
def test_what_a_mean_is_when_it_has_come_back(code: int, mean: list[float], values: list[float]) -> None:
    assert returned(code, mean) == values


def test_only_the_last_bits_of_a_sign_mean_s_scale_do_not_count() -> None:
    assert are_equal(SIGN, [1.0, -1.0], [1.0 + 2.0**-23, -1.0 - 2.0**-23])
    assert not are_equal(SIGN, [1.0, -1.0], [1.0, 1.0])
    assert not are_equal(FLOAT32, [1.0], [1.0 + 2.0**-23])


def test_a_mean_per_place_by_hand() -> None:
    """Three hosts, weights 2, 1 and 1. The largest magnitudes are 4, 2 and 100, the middle one is 4: 100 counts as 8."""
    vectors, shares = [[4.0, 0.0, 1.0, 0.0], [2.0, 2.0, 0.0, 0.0], [0.0, 0.0, -100.0, 0.0]], [0.5, 0.25, 0.25]
    assert combined(vectors, shares, shares) == pytest.approx([2.5 / 0.75, 2.0, -1.5 / 0.75, 0.0])
    halved = [0.25, 0.125, 0.25]  # what the rule `clip` does to the first two
    assert combined(vectors, halved, shares) == pytest.approx([1.25 / 0.75, 1.0, -1.75 / 0.75, 0.0])
    assert combined([[3.0], [5.0]], [0.5, 0.5], [0.5, 0.5]) == [4.0], "of two, none is larger than twice the larger one"
    with pytest.raises(ValueError, match="no positive weight"):
        combined(vectors, shares, [0.0, 0.0, 0.0])


def test_codes_are_those_that_are_decoded_here() -> None:
    assert {FLOAT32, FLOAT16, BFLOAT16, INT8, INT4, SIGN, SIGN_INT4, TOPK2, SPARSE_MEAN} == slice_sums.CODES
