"""The seconds and bytes of a state behind lines of given rates, in virtual time (`benchmarks/state_lines.py`)."""

import pytest

from benchmarks.state_lines import CASES, Fetched, fetched

EXCESS = 0.01
"""Frames, the index, and what a donor says, in states."""
CHUNK = (1 << 20) / 5_000_000
"""The largest chunk, in states of 5 MB."""


def of(name: str, *, seed: int, uneven: bool = False) -> Fetched:
    (case,) = (case for case in CASES if case.name == name)
    found = fetched(case, seed=seed, uneven=seed if uneven else None)
    assert found.problems == {}
    return found


@pytest.mark.parametrize(("seed", "uneven"), [(0, False), (1, False), (2, True), (3, True)])
@pytest.mark.parametrize(
    ("name", "line_seconds"),
    [
        ("two donors behind one line of 5 Mbit/s", 8.0),
        ("the same, a state of two chunks", 3.36),
        ("four donors, a downlink of 5 Mbit/s", 8.0),
        ("four donors, a downlink of 1 Mbit/s", 40.0),
    ],
)
def test_where_donors_share_a_line_the_state_comes_once_and_in_the_time_of_the_line(
    name: str, line_seconds: float, seed: int, uneven: bool
) -> None:
    found = of(name, seed=seed, uneven=uneven)
    assert found.received < 1.0 + EXCESS, found
    assert found.seconds < 1.05 * line_seconds, found


@pytest.mark.parametrize("seed", range(3))
def test_a_slow_donor_holds_a_fast_one_up_for_little_more_than_a_second_and_costs_one_chunk(seed: int) -> None:
    """The fast one alone would take 0.8 s; the slow one, 8 s for its first chunk."""
    found = of("a fast donor and a slow one", seed=seed)
    assert found.seconds < 0.8 + 1.0, found
    assert found.received < 1.0 + CHUNK + EXCESS, found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("name", "whole_seconds"),
    [
        ("one of four donors stalls in its first chunk", 5.0 * 8 / 40),
        ("one of two donors stalls in its first chunk", 5.0 * 8 / 10 - 0.4),
        ("one of two donors slows down to 10 kB/s in its first chunk", 5.0 * 8 / 10 - 0.4),
        ("one of four donors behind a downlink of 5 Mbit/s stalls", 5.0 * 8 / 5),
    ],
)
def test_a_donor_that_stalls_or_trickles_costs_the_time_of_two_chunks_and_the_bytes_of_one(
    name: str, whole_seconds: float, seed: int
) -> None:
    """A chunk takes 0.9 s of a donor of 10 Mbit/s, and as long of a downlink that brings several at once."""
    found = of(name, seed=seed)
    assert found.seconds < whole_seconds + 2 * 0.9, found
    assert found.received < 1.0 + CHUNK + EXCESS, found


@pytest.mark.parametrize("seed", range(3))
def test_chunks_are_dealt_evenly_to_donors_with_lines_of_their_own(seed: int) -> None:
    """Two chunks come from two donors, and the time of large states is that of all lines together."""
    small, large = (of(f"four donors of 10 Mbit/s, {size} MB", seed=seed) for size in (2, 24))
    assert small.seconds < 1.1 and large.seconds < 1.2 * 24 / 5, (small, large)
    assert max(small.received, large.received) < 1.0 + EXCESS, (small, large)


def test_a_fast_donor_that_comes_late_takes_over_from_a_slow_one() -> None:
    """The slow one would take 16 s."""
    assert of("a slow donor, a fast one 2 s later", seed=0).seconds < 4.0
