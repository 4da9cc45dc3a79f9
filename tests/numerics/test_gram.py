"""Gram matrices of parts: exact enough, equal everywhere, and checked where they come from others."""

import math
from fractions import Fraction

import numpy as np
import pytest

from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.numerics.aggregation.gram import checked_partial_gram, packed_size, partial_gram, summed_gram


def vectors(count: int, size: int) -> list[np.ndarray]:
    generator = np.random.default_rng(size)
    return [generator.standard_normal(size).astype(np.float32) for _ in range(count)]


def test_packed_by_hand() -> None:
    parts = [np.array(values, dtype=np.float32) for values in ([1, 2], [3, 4], [0, -1])]
    assert partial_gram(parts) == (5, 11, 25, -2, -4, 1)
    assert summed_gram([(5, 11, 25, -2, -4, 1)], 3) == [[5, 11, -2], [11, 25, -4], [-2, -4, 1]]


@pytest.mark.parametrize("size", [0, 1, 8191, 8192, 8193, 30000])
def test_products_are_the_exact_ones_to_the_last_digits(size: int) -> None:
    left, right = vectors(2, size)
    exact = sum((Fraction(float(x)) * Fraction(float(y)) for x, y in zip(left, right, strict=True)), Fraction(0))
    assert partial_gram([left, right])[1] == pytest.approx(float(exact), rel=1e-12, abs=1e-12)


def test_a_block_is_summed_by_halves() -> None:
    """The order of additions is part of the format: a byte-exact check by another host depends on it."""
    left, right = vectors(2, 8192)
    terms = [float(x) * float(y) for x, y in zip(left, right, strict=True)]
    while len(terms) > 1:
        half = len(terms) // 2
        terms = [terms[i] + terms[i + half] for i in range(half)]
    assert partial_gram([left, right])[1] == terms[0]


def test_parts_add_up_in_any_order() -> None:
    whole = vectors(3, 50_000)
    cuts = [(0, 7), (7, 20_000), (20_000, 50_000)]
    parts = [partial_gram([vector[first:last] for vector in whole]) for first, last in cuts]
    assert summed_gram(parts, 3) == summed_gram(parts[::-1], 3)
    assert summed_gram(parts, 3)[2][0] == pytest.approx(partial_gram(whole)[3], rel=1e-12)


def test_the_largest_values_fit() -> None:
    top = np.full(10_000, np.finfo(np.float32).max)
    packed = partial_gram([top, -top])
    assert checked_partial_gram(packed, 2) == packed


def test_what_partial_gram_gives_is_accepted() -> None:
    for size in (1, 5, 9000):
        packed = partial_gram([*vectors(4, size), np.zeros(size, dtype=np.float32)])
        assert checked_partial_gram(packed, 5) == packed


@pytest.mark.parametrize(
    ("packed", "why"),
    [
        ((1.0, 0.0), "2 inner products of 2 hosts, 3 needed"),
        ((1.0, math.nan, 1.0), "not finite"),
        ((1.0, 0.0, math.inf), "not finite"),
        ((1.0, 0.0, 1e91), "larger than any"),
        ((-1.0, 0.0, 1.0), "below zero"),
        ((1.0, 1.1, 1.0), "beyond the product"),
        ((0.0, -1e-9, 1.0), "beyond the product"),
    ],
)
def test_what_no_reducer_can_find_is_refused(packed: tuple[float, ...], why: str) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        checked_partial_gram(packed, 2)


def test_packed_size() -> None:
    assert [packed_size(count) for count in (1, 2, 8)] == [1, 3, 36]
