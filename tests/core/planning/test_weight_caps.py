"""How much of an instance one host may be."""

from itertools import pairwise
from statistics import median_low

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adloco_p2p.core.planning.apportionment import capped_parts


@pytest.mark.parametrize(
    ("amounts", "parts"),
    [
        ((7.0,), (1.0,)),
        ((1.0, 1.0), (1 / 2, 1 / 2)),
        ((10.0, 1.0), (2 / 3, 1 / 3)),
        ((16.0, 1.0, 1.0), (1 / 2, 1 / 4, 1 / 4)),
        ((4.0, 3.0, 2.0, 1.0), (1 / 4, 1 / 4, 1 / 4, 1 / 4)),  # of four, a quarter is all
        ((3.0, 1.0, 1.0, 1.0, 1.0), (1 / 4, 3 / 16, 3 / 16, 3 / 16, 3 / 16)),  # twice the median is a third of them
        ((9.0, 9.0, 1.0, 1.0, 1.0), (1 / 4, 1 / 4, 1 / 6, 1 / 6, 1 / 6)),
        ((16.0,) + (1.0,) * 9, (2 / 11,) + (1 / 11,) * 9),
        ((1.0, 2.0, 3.0, 3.0, 3.0, 4.0), (1 / 16, 2 / 16, 3 / 16, 3 / 16, 3 / 16, 4 / 16)),  # nothing to cut
    ],
)
def test_by_hand(amounts: tuple[float, ...], parts: tuple[float, ...]) -> None:
    assert capped_parts(amounts) == pytest.approx(parts)


@given(st.lists(st.floats(1e-3, 1e30), min_size=1, max_size=20))
def test_what_holds_for_all(amounts: list[float]) -> None:
    parts, count = capped_parts(amounts), len(amounts)
    assert sum(parts) == pytest.approx(1.0) and min(parts) > 0
    assert max(parts) <= max(2 * median_low(parts), 1 / count) * (1 + 1e-9)
    assert count < 4 or max(parts) <= 0.25 + 1e-12
    order = sorted(range(count), key=lambda host: amounts[host])
    assert all(parts[low] <= parts[high] * (1 + 1e-9) for low, high in pairwise(order))
    below = [h for h in range(count) if parts[h] < 0.25 * (1 - 1e-9) and amounts[h] < 2 * median_low(amounts)]
    for host in below[1:]:  # whom no cap touches keeps its proportion to the others
        assert parts[host] / parts[below[0]] == pytest.approx(amounts[host] / amounts[below[0]], rel=1e-6)


@given(st.lists(st.floats(1.0, 10.0), min_size=4, max_size=12), st.floats(1.0, 1e30))
def test_a_boast_buys_a_quarter_at_most_and_twice_the_median(honest: list[float], boast: float) -> None:
    *others, liar = capped_parts([*honest, boast])
    assert liar <= 0.25 + 1e-12
    assert liar <= 2 * sorted(others)[len(others) // 2] * (1 + 1e-9)
