"""Whole peers in virtual time, under everyday faults: no promise is broken, and every run ends with one state."""

import pytest

from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.simulate import everyday_seed, simulate, summary
from adloco_p2p.sim.world import World

BLOCK = 20
EVERYDAY_BLOCKS = 3
HEAVY_SEEDS = 20_000


def failures(seeds: range) -> list[str]:
    results = [everyday_seed(seed) for seed in seeds]
    return [summary([result]) for result in results if result.violation is not None]


@pytest.mark.parametrize("block", range(EVERYDAY_BLOCKS))
def test_everyday_seeds(block: int) -> None:
    failed = failures(range(block * BLOCK, (block + 1) * BLOCK))
    assert not failed, failed[0]


@pytest.mark.heavy
@pytest.mark.parametrize("block", range(EVERYDAY_BLOCKS, HEAVY_SEEDS // BLOCK))
def test_twenty_thousand_seeds(block: int) -> None:
    failed = failures(range(block * BLOCK, (block + 1) * BLOCK))
    assert not failed, failed[0]


def played(seed: int, *, peers: int, rounds: int, faults: Faults) -> World:
    world = World(seed, peers=peers, rounds=rounds, faults=faults, is_traced=True)
    world.run()
    return world


def test_a_seed_tells_the_same_story_twice() -> None:
    faults = Faults(loss=0.1, crashes=2, joins=1, faults_end_at=10.0)
    stories = [played(seed, peers=4, rounds=4, faults=faults).trace for seed in (3, 3, 4)]
    assert stories[0] == stories[1] != stories[2]


def test_honest_peers_end_the_run_in_the_time_of_its_rounds() -> None:
    world = played(1, peers=5, rounds=8, faults=Faults(faults_end_at=0.0))
    assert sorted(world.decided) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert all(len(times) == 5 for times in world.decided.values())
    assert world.time < 8 * 2.0 * 1.2 * 2  # two instances share each device
    assert world.switches == 0


def test_a_machine_that_dies_goes_on_from_its_journal_and_checkpoint() -> None:
    world = played(2, peers=5, rounds=8, faults=Faults(crashes=3, faults_end_at=12.0))
    lives = [machine.life for machine in world.machines.values()]
    assert sum(lives) > 5
    restarted = next(machine for machine in world.machines.values() if machine.life > 1)
    assert restarted.process is not None and restarted.process.stop is not None and restarted.process.stop.is_finished


def test_a_partition_leads_to_two_histories_and_back_to_one() -> None:
    world = played(3, peers=6, rounds=12, faults=Faults(partition_at=3.0, partition_seconds=15.0, faults_end_at=18.0))
    assert world.switches >= 1


def test_a_peer_alone_waits_for_nothing() -> None:
    (result,) = simulate(peers=1, rounds=5, seeds=[0], round_seconds=3.0)
    assert result.violation is None
    assert [item.last_seconds for item in result.rounds[1:]] == [0.0] * 4
    assert result.messages_per_peer == 0


def test_the_summary_has_a_line_per_size_and_one_per_round() -> None:
    results = list(simulate(peers=4, rounds=2, seeds=range(2), round_seconds=2.0))
    lines = summary(results).splitlines()
    assert lines[0] == "2 of 2 runs kept every promise"
    numbers = [line.split() for line in lines[1:] if line.strip() and line.split()[0].isdigit()]
    assert [line[:2] for line in numbers] == [["4", "4"], ["1", "4"], ["2", "4"]]
    assert all(set(line[4]) == {"#"} for line in numbers[1:])
