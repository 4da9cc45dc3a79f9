"""Seeds of messages that are out of their time, or wrong. `python -m tests.sim.half_valid` plays thousands."""

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.adversary.arena import Result
from tests.sim.half_valid import LEAST_SENT, SENDERS, problem_of

SEEDS = 5


@pytest.mark.parametrize("seed", range(SEEDS))
def test_half_valid_messages_of_strangers(seed: int) -> None:
    assert problem_of(*SENDERS["strangers"](seed)) == ""


@pytest.mark.parametrize("seed", range(SEEDS))
def test_half_valid_messages_of_a_member(seed: int) -> None:
    assert problem_of(*SENDERS["member"](seed)) == ""


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"violation": "handle raised"}, "handle raised"),
        ({"pace": 0.49}, "plans came at 49% of the pace without it"),
        ({"void": 0.51}, "51% of the rounds were void"),
        ({"longest_eviction": 31.0}, "an honest peer had no seat for 31 s, 30 s are allowed"),
    ],
)
def test_each_promise_can_be_broken(wrong: dict[str, Any], problem: str) -> None:
    kept: dict[str, Any] = {"violation": "", "seconds": 24.0, "pace": 0.5, "longest_eviction": 30.0, "void": 0.5}
    arena: Any = SimpleNamespace(longest_allowed_eviction=30.0, num_wrong_steps=0)
    assert problem_of(Result(arena=arena, **kept), LEAST_SENT) == ""
    assert problem_of(Result(arena=arena, **(kept | wrong)), LEAST_SENT) == problem
    assert problem_of(Result(arena=arena, **kept), LEAST_SENT - 1) == f"{LEAST_SENT - 1} messages were sent"
    arena.num_wrong_steps = 1
    assert problem_of(Result(arena=arena, **kept), LEAST_SENT) == "steps with an average that no honest host computed: 1"
