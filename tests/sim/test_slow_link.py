"""A host behind a slow link among fast ones: what it costs them, and that nothing breaks. Whole peers in virtual time."""

from dataclasses import replace
from functools import cache
from random import Random

import pytest

from adloco_p2p.core.model.rules import BatchRules, InstanceRules, WorkRules
from adloco_p2p.sim.faults import Faults, everyday_faults
from adloco_p2p.sim.identities import name_of
from adloco_p2p.sim.links import VECTOR_BYTES, Links
from adloco_p2p.sim.world import Parts, World, small_rules
from benchmarks.slow_link import Links as RatedLinks
from benchmarks.slow_link import Pace, pace_with_slow_link


@cache
def alone_in_short_rounds() -> Pace:
    return pace_with_slow_link(0, rounds=16, compute_seconds=12.0, links=RatedLinks(slow_seconds=None))


def test_where_its_exchange_takes_longer_than_the_round_it_is_benched_and_costs_the_others_at_most_a_tenth() -> None:
    """45 MB at 2 MB/s among hosts with 12, in rounds of 12 s: in every average it halves their pace. One try is counted."""
    alone = alone_in_short_rounds()
    sparing = pace_with_slow_link(0, rounds=36, compute_seconds=12.0, links=RatedLinks())
    waiting = pace_with_slow_link(0, rounds=16, compute_seconds=12.0, links=RatedLinks(), tolerance=None)
    assert sparing.samples_per_second >= 0.9 * alone.samples_per_second
    assert waiting.samples_per_second <= 0.5 * alone.samples_per_second
    assert sparing.slow_in_average == 1 and "is benched" in sparing.reason
    assert waiting.slow_in_average == waiting.num_rounds and not waiting.reason


def test_without_link_periods_averages_end_without_it_once_its_link_is_known() -> None:
    leaving = pace_with_slow_link(0, rounds=16, compute_seconds=12.0, links=RatedLinks(), tolerance=None, quorum=0.7)
    assert leaving.samples_per_second >= 0.75 * alone_in_short_rounds().samples_per_second


def test_in_long_rounds_it_is_in_every_fourth_average() -> None:
    links = RatedLinks(fast_seconds=1.875, slow_seconds=11.25)
    alone = pace_with_slow_link(0, rounds=12, compute_seconds=36.0, links=replace(links, slow_seconds=None))
    sparing = pace_with_slow_link(0, rounds=16, compute_seconds=36.0, links=links)
    assert sparing.samples_per_second >= 0.9 * alone.samples_per_second
    assert sparing.slow_in_average == sparing.num_rounds // 4 and "is in every 4th average" in sparing.reason


@pytest.mark.parametrize("seed", range(2))
def test_link_periods_stand_crashes_joins_and_loss(seed: int) -> None:
    """Rounds of 10 s in which a vector takes half a second, or 5 s on the link of one host. The world's checkers judge."""
    world = slow_world(seed)
    world.run()


def test_leaving_stragglers_out_stands_crashes_joins_and_loss() -> None:
    """A vector takes 20 s on the link of one host."""
    world = slow_world(1, slow_seconds=20.0, tolerance=None)
    world.run()
    assert world.trace is not None and any("left out of round" in line for line in world.trace)


def slow_world(seed: int, *, slow_seconds: float = 5.0, tolerance: float | None = 0.25) -> World:
    rules = replace(
        small_rules(5, 12),
        work=WorkRules(rounds=12, inner_steps=4, link_tolerance=tolerance),
        instances=InstanceRules(count=1),
        batch=BatchRules(initial_batch=16, test="constant"),
    )
    faults = replace(everyday_faults(Random(seed)), faults_end_at=80.0)
    rates = {index: VECTOR_BYTES / (slow_seconds if index == 4 else 0.5) for index in range(5)}
    world = World(
        seed, peers=5, rounds=12, faults=faults, round_seconds=10.0, rules=rules, parts=Parts(rates=rates), is_traced=True
    )
    world.limit_seconds = 1500.0
    return world


class HomeLinks(Links):
    """600 MB, 150M parameters in float32, behind 20 Mbit/s: an average takes more than five minutes."""

    vector_bytes = 600_000_000


def test_the_first_average_of_a_large_model_behind_home_links_needs_one_attempt() -> None:
    rules = replace(small_rules(3, 2), instances=InstanceRules(count=1), batch=BatchRules(initial_batch=8, test="constant"))
    rates = {name_of(index): 2.5e6 for index in range(3)}
    parts = Parts(links=lambda _: HomeLinks(uplink=2.5e6, rates=rates, random=Random(0)))
    world = World(0, peers=3, rounds=2, faults=replace(Faults(), faults_end_at=0.0), rules=rules, parts=parts, is_traced=True)
    world.limit_seconds = 3600.0
    world.run()
    assert world.trace is not None
    assert not any("AttemptFailed" in line for line in world.trace)
    assert world.time < 60.0 + 2 * 2 * 600e6 * 2 / 3 / 2.5e6
