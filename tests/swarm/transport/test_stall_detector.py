"""How long a peer may be silent, by what was seen of others."""

import pytest

from adloco_p2p.swarm.transport.stall_detector import FACTOR, WINDOW, StallDetector, Watch


@pytest.fixture
def stall_detector() -> StallDetector:
    return StallDetector(least_seconds=5.0, most_seconds=20.0)


def see(watch: Watch, *seconds: float) -> None:
    """One stream, look after look."""
    for silent in seconds:
        watch.look({"stream": silent})


def test_among_quick_peers_the_limit_is_the_least_one(stall_detector: StallDetector) -> None:
    assert stall_detector.limit_seconds == 5.0
    see(stall_detector.watch(), 0.2, 1.0, 0.1, 1.1, 0.0)
    assert stall_detector.limit_seconds == 5.0


def test_a_silence_that_ended_is_waited_for_several_times_over(stall_detector: StallDetector) -> None:
    see(stall_detector.watch(), 1.0, 2.0, 3.0, 0.5)
    assert stall_detector.limit_seconds == FACTOR * 3.0


def test_a_silence_that_goes_on_does_not_move_its_own_limit(stall_detector: StallDetector) -> None:
    see(stall_detector.watch(), *(float(second) for second in range(100)))
    assert stall_detector.limit_seconds == 5.0


def test_silences_of_streams_that_are_gone_or_were_reset_do_not_count(stall_detector: StallDetector) -> None:
    watch = stall_detector.watch()
    watch.look({"dead": 4.0, "other": 0.1})
    watch.look({"other": 0.2})
    see(watch, 4.0)
    watch.reset()
    see(watch, 0.0)
    assert stall_detector.limit_seconds == 5.0


def test_no_silence_makes_the_limit_larger_than_the_largest(stall_detector: StallDetector) -> None:
    see(stall_detector.watch(), 19.0, 0.0)
    assert stall_detector.limit_seconds == 20.0


def test_streams_teach_each_other_and_later_averages_until_it_is_long_ago(stall_detector: StallDetector) -> None:
    watch = stall_detector.watch()
    watch.look({"slow": 2.0, "quick": 0.1})
    watch.look({"slow": 0.0, "quick": 0.1})
    for _ in range(WINDOW - 1):
        see(stall_detector.watch(), 0.5, 0.0)
        assert stall_detector.limit_seconds == FACTOR * 2.0
    stall_detector.watch()
    assert stall_detector.limit_seconds == 5.0
