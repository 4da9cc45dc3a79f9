"""A newcomer in virtual time: its work counts two rounds after it came, and nobody waits for it."""

from dataclasses import dataclass, replace

import pytest

from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.rules import Rules
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.peer.finishing import NOT_THE_MODEL
from adloco_p2p.sim import links
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.world import World, rules_of_one

ROUND_SECONDS = 10.0
ROUNDS = 7
RULES = rules_of_one(ROUNDS, probation_rounds=0)


@dataclass(frozen=True, kw_only=True)
class Joined:
    """What a newcomer did in a world of three, to the end of the run."""

    came_in: int
    """The round under way when its process started."""
    first_work: int
    """The first round whose plan gives it work, ..."""
    counted_in: int
    """... and the first whose committed average has its work in it."""
    longest_seconds: float
    """From the first report of a round to the first report of the next one, at most."""


def joined(
    seed: int, *, at: float, rules: Rules = RULES, round_seconds: float = ROUND_SECONDS, is_delayed: bool = False
) -> Joined:
    faults, rounds = Faults(faults_end_at=at + 1.0), rules.work.rounds or 0
    world = World(seed, peers=3, rounds=rounds, faults=faults, round_seconds=round_seconds, rules=rules, is_delayed=is_delayed)
    world.limit_seconds = 4 * rounds * round_seconds
    world.queue.at(at, world._join)
    world.run()
    *_, newcomer = world.machines
    begun = world.machines[newcomer].booted_at
    process = next(iter(world.machines.values())).process
    assert process is not None
    ledger = list(process.agreement.ledger.since(1))
    ends = {number: min(times) for number, times in world.reported.items()}
    plans = {entry.plan.round: entry.plan for entry in ledger}
    counted = [
        signed.report.round
        for entry in ledger
        for signed in entry.reports
        if signed.report.peer == newcomer and any(item.samples for item in signed.report.instances)
    ]
    return Joined(
        came_in=min(number for number, end in ends.items() if end > begun),
        first_work=min(number for number, plan in plans.items() if has_work(plan, newcomer)),
        counted_in=min(counted),
        longest_seconds=max(ends[number] - ends[number - 1] for number in range(1, max(ends) + 1)),
    )


def has_work(plan: RoundPlan, peer: PeerId) -> bool:
    return any(share.peer == peer and share.samples > 0 for item in plan.instances for share in item.hosts)


MOMENTS = [(seed, 20.0 + 4.0 * seed) for seed in range(3)]
"""Seeds, and when the newcomer comes: all parts of a round."""


@pytest.mark.parametrize(("seed", "at"), MOMENTS)
def test_a_newcomer_counts_two_rounds_after_it_came(seed: int, at: float) -> None:
    story = joined(seed, at=at)
    assert story.first_work == story.counted_in == story.came_in + 2, story
    assert story.longest_seconds < 1.4 * ROUND_SECONDS, story


@pytest.mark.parametrize(("seed", "at"), MOMENTS)
def test_nobody_waits_for_a_newcomer_whose_state_comes_late(seed: int, at: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes half a round to arrive: the newcomer withdraws from its first round and counts in the next one."""
    monkeypatch.setattr(links, "STATE_BYTES", round(0.5 * ROUND_SECONDS * Faults().uplink_bytes_per_second))
    story = joined(seed, at=at)
    assert (story.first_work, story.counted_in) == (story.came_in + 2, story.came_in + 3), story
    assert story.longest_seconds < 1.4 * ROUND_SECONDS, story


@pytest.mark.parametrize("round_seconds", [10.0, 60.0])
@pytest.mark.parametrize(("seed", "at"), MOMENTS)
def test_a_newcomer_goes_through_the_rounds_that_its_state_came_late_for(
    seed: int, at: float, round_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state takes 3.5 rounds to arrive, and more than the minute for which a peer waits that hears of no progress. The
    others serve the averages of as many rounds. It has no work until it has reported, so no average waits for it meanwhile. A
    plan waits for its report as long as the round under way is expected to take, which is too long where that takes less:
    rounds last up to 1.9 times as long in two of ten seeds."""
    rules = replace(RULES, work=replace(RULES.work, rounds=14, rounds_kept=5))
    monkeypatch.setattr(links, "STATE_BYTES", round(3.5 * round_seconds * Faults().uplink_bytes_per_second))
    story = joined(seed, at=at, rules=rules, round_seconds=round_seconds)
    assert story.counted_in <= story.first_work + 5, story
    assert story.longest_seconds < 2.0 * round_seconds, story


def test_a_newcomer_withdraws_where_the_state_exists_late() -> None:
    """With delayed updates the state before its first round comes when the others are well into that round."""
    story = joined(0, at=20.0, is_delayed=True)
    assert (story.first_work, story.counted_in) == (story.came_in + 2, story.came_in + 3), story
    assert story.longest_seconds < 1.4 * ROUND_SECONDS, story


def test_a_newcomer_that_comes_after_the_last_plan_ends_without_the_model() -> None:
    """Nobody gives it a seat any more. It stopped as finished, with nothing."""
    world = World(1, peers=3, rounds=3, faults=Faults(faults_end_at=0.0), rules=rules_of_one(3))
    while len(world.decided.get(3, ())) < 3:
        world.queue.step()
    world._join()
    world.run()
    *members, newcomer = [machine.process.stop for machine in world.machines.values() if machine.process is not None]
    assert all(stop is not None and stop.is_finished for stop in members)
    assert newcomer is not None and (newcomer.error, newcomer.is_finished) == (NOT_THE_MODEL, False)
