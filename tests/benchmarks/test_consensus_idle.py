"""How long a device waited for a plan, from event files written by hand."""

import pytest

from benchmarks.consensus_idle import counted_rounds, idleness
from benchmarks.nodes import Event


def plan(at: float, number: int, *roster: str) -> Event:
    return {"event": "plan", "time": at, "round": number, "roster": [{"peer": peer} for peer in roster]}


def ended(at: float, number: int, samples: int = 8) -> Event:
    return {"event": "round", "time": at, "round": number, "samples": samples, "peer": "a"}


EVENTS = [
    {"event": "started", "time": 0.0, "peer": "a"},
    plan(0.0, 0, "a"),
    plan(3.0, 1, "a", "b"),
    ended(10.0, 0),
    plan(12.0, 2, "a", "b"),
    ended(20.0, 1),
    ended(30.0, 2),
    plan(30.5, 3, "a", "b"),  # half a second late
    ended(41.0, 3),
]


def test_counted_is_what_everybody_trained_after_a_common_round() -> None:
    late = [event for event in EVENTS if event != ended(20.0, 1)] + [ended(20.0, 1, samples=0)]  # it only received round 1
    assert list(counted_rounds([EVENTS, EVENTS])) == [2, 3]
    assert list(counted_rounds([EVENTS, late])) == [3]
    assert list(counted_rounds([EVENTS[:2], EVENTS[:2]])) == []


def test_idle_is_the_time_from_the_end_of_a_round_to_the_next_plan() -> None:
    found = idleness(EVENTS, range(2, 4))
    assert found.idle_seconds == [0.0, 0.5]
    assert found.plan_lead_seconds == pytest.approx((8.0 - 0.5) / 2)
    assert found.round_seconds == pytest.approx((10.0 + 11.0) / 2)
    assert found.share == pytest.approx(0.5 / 21.0)
