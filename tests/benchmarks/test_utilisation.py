"""The arithmetic of `python -m benchmarks.utilisation`, by hand and against a clock that ticks through the rounds."""

from dataclasses import replace

import pytest

from benchmarks.utilisation import Plan, by_state_machines, bytes_per_value, delayed, fewest_steps, in_turn, pipelined

PLAN = Plan(
    num_parameters=1000,
    num_hosts=2,
    num_instances=1,
    inner_steps=10,
    step_seconds=0.7,
    bytes_per_value=4.0,
    bits_per_second=16000.0,
    efficiency=0.8,
    latency_seconds=0.1,
)


def test_by_hand() -> None:
    assert PLAN.bytes_per_round == 4000  # 2 (n - 1) / n of 4,000 bytes
    assert PLAN.averaging_seconds == pytest.approx(2.8)  # 32,000 bits at 12,800 a second, and three delays
    assert in_turn(PLAN) == pytest.approx(7 / 9.8)
    assert delayed(PLAN) == 1.0
    assert delayed(replace(PLAN, inner_steps=2)) == pytest.approx(1.4 / 2.8)
    assert pipelined(PLAN) == in_turn(PLAN)
    assert pipelined(replace(PLAN, num_instances=2)) == 1.0


def test_fewest_steps_is_where_the_target_is_first_met() -> None:
    steps = fewest_steps(PLAN, target=0.91)
    assert in_turn(replace(PLAN, inner_steps=steps)) >= 0.91 > in_turn(replace(PLAN, inner_steps=steps - 1))


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("steps", [1, 3, 4, 6, 10])
def test_a_pipeline_against_a_clock(count: int, steps: int) -> None:
    """Instances in turn: the device computes one at a time, the link averages one at a time; rounds long enough to settle."""
    plan = replace(PLAN, num_instances=count, inner_steps=steps)
    rounds = 400
    ready, device, link, busy = [0.0] * count, 0.0, 0.0, 0.0
    for _ in range(rounds):
        for instance in range(count):
            device = max(device, ready[instance]) + plan.computing_seconds
            busy += plan.computing_seconds
            link = max(link, device) + plan.averaging_seconds
            ready[instance] = link
    assert busy / max(ready) == pytest.approx(pipelined(plan), rel=0.01)


def test_the_nodes_state_machines_against_the_arithmetic() -> None:
    """Of three rounds of 7 s, averaged in 2.8 s: nothing hidden; all but the last; halves, and the whole after the last."""
    plain = by_state_machines(PLAN, num_rounds=3)
    assert plain == pytest.approx(in_turn(PLAN))
    hidden = by_state_machines(PLAN, "outer.overlap=delayed", num_rounds=3)
    assert hidden == pytest.approx(21 / 23.8)
    halves = by_state_machines(PLAN, "averaging.fragments=2", num_rounds=3)
    assert halves == pytest.approx(21 / (21 + 1.55 + 1.55 + 2.8), rel=1e-3)


def test_what_a_value_costs_is_what_the_codec_makes_of_it() -> None:
    assert bytes_per_value("float32", 4) == 4.0
    assert bytes_per_value("bfloat16", 4) == 2.0
    assert bytes_per_value("topk2", 2) < bytes_per_value("topk2", 8) < 0.5  # a mean has what any of its hosts named
