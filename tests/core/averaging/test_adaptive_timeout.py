"""How long an attempt may take, by hand."""

import pytest

from adloco_p2p.core.averaging.adaptive_timeout import LONGEST_UNKNOWN_SECONDS, AdaptiveTimeout


@pytest.mark.parametrize(
    ("waits", "expected", "seconds"),
    [
        ([], 40.0, 60.0 + 3 * 40.0),
        ([1.0, 2.0], 0.0, 5.0 + 3 * 2.0),
        ([1.0, 2.0], 12.0, 5.0 + 3 * 2.0),
        ([1.0, 2.0], 188.0, 5.0 + 94.0),  # hosts of a longer round may differ by more than those of the rounds before
        ([1.0, 40.0], 188.0, 5.0 + 3 * 40.0),
    ],
)
def test_three_times_the_longest_wait_and_no_less_than_half_of_the_work(
    waits: list[float], expected: float, seconds: float
) -> None:
    timeout = AdaptiveTimeout()
    for wait in waits:
        timeout.observe(wait)
    assert timeout.timeout_seconds(expected_seconds=expected) == seconds


def test_the_least_timeout_is_within_the_longest() -> None:
    timeout = AdaptiveTimeout()
    timeout.observe(0.0)
    for expected in (0.0, 1.0, 60.0, 3600.0):
        assert timeout.timeout_seconds(expected_seconds=expected) <= timeout.longest_seconds(
            expected_seconds=expected, uplinks=()
        )


def test_an_uplink_of_nothing_is_unknown() -> None:
    """A member may claim the least number above 0, a quarter of which is 0: each of the others was to divide by it."""
    timeout = AdaptiveTimeout()
    timeout.observe(1.0, num_bytes=1_000_000)
    known = timeout.longest_seconds(expected_seconds=1.0, uplinks=(0.0, 0.0))
    assert timeout.longest_seconds(expected_seconds=1.0, uplinks=(5e-324, 0.0)) == known < 60.0


def test_the_first_attempt_has_the_time_of_its_bytes_on_a_link_of_8_mbit_per_second() -> None:
    timeout = AdaptiveTimeout(vector_bytes=600_000_000)  # 150M parameters in float32
    assert timeout.timeout_seconds(expected_seconds=0.0) == 60.0 + 2 * 600.0
    assert timeout.patience_seconds == 60.0  # nothing travels
    timeout.observe(480.0)
    assert timeout.timeout_seconds(expected_seconds=0.0) == timeout.patience_seconds == 5.0 + 3 * 480.0


def test_the_first_attempt_of_a_huge_model_ends_too() -> None:
    timeout = AdaptiveTimeout(vector_bytes=28_000_000_000)  # 7B parameters in float32: 15.6 h at that speed
    assert timeout.timeout_seconds(expected_seconds=40.0) == 60.0 + 3 * 40.0 + LONGEST_UNKNOWN_SECONDS


def test_the_time_of_an_average_over_the_median_link_does_not_depend_on_the_slowest_host() -> None:
    timeout = AdaptiveTimeout()
    assert timeout.transfer_seconds([1e6, 2e6, 4e6]) == 0.0, "no average was seen"
    timeout.observe(500.0, num_bytes=40_000_000)
    assert timeout.transfer_seconds([1e3, 2e6, 4e6]) == 10.0
    assert timeout.transfer_seconds([0.0, 0.0]) == 0.0


@pytest.mark.parametrize("claim", [1.0, 1e3, 1e12])
def test_claims_of_a_minority_lengthen_nothing_while_the_others_are_unknown(claim: float) -> None:
    """In a first round nobody else may have an uplink yet."""
    timeout = AdaptiveTimeout()
    timeout.observe(1.0, num_bytes=40_000_000)
    liars = [claim, claim]
    assert timeout.transfer_seconds([*liars, 0.0, 0.0, 0.0]) == 0.0
    unknown = timeout.longest_seconds(expected_seconds=1.0, uplinks=[0.0] * 5)
    assert timeout.longest_seconds(expected_seconds=1.0, uplinks=[*liars, 0.0, 0.0, 0.0]) == unknown == 2.0 + 160.0 + 30.0
    assert timeout.transfer_seconds([*liars, 2e6, 3e6, 4e6]) <= 10.0, "as the slowest honest one at most"
    assert timeout.longest_seconds(expected_seconds=1.0, uplinks=[*liars, 2e6, 3e6, 4e6]) <= 2.0 + 80.0 + 30.0
