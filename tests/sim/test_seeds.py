"""Small swarms under every kind of fault: no promise is ever broken, and afterwards every run comes to its end."""

import pytest

from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.simulate import random_seed, run_seed, simulate, summary
from adloco_p2p.sim.world import World

BLOCK = 100


def failures(seeds: range) -> list[str]:
    results = [random_seed(seed) for seed in seeds]
    return [summary([result]) for result in results if result.violation is not None]


@pytest.mark.parametrize("block", range(20))
def test_two_thousand_seeds(block: int) -> None:
    failed = failures(range(block * BLOCK, (block + 1) * BLOCK))
    assert not failed, failed[0]


@pytest.mark.heavy
@pytest.mark.parametrize("block", range(20, 500))
def test_fifty_thousand_seeds(block: int) -> None:
    failed = failures(range(block * BLOCK, (block + 1) * BLOCK))
    assert not failed, failed[0]


def story(seed: int) -> list[str]:
    world = World(seed, peers=5, rounds=3, faults=Faults(loss=0.1, crash_targets=0.05, faults_end_at=10.0), is_traced=True)
    world.run()
    assert world.trace is not None
    return world.trace


def test_a_seed_tells_the_same_story_twice() -> None:
    assert story(3) == story(3)
    assert story(3) != story(4)


def test_a_peer_alone_waits_for_nothing() -> None:
    (result,) = simulate(peers=1, rounds=5, seeds=[0], round_seconds=3.0)
    assert result.violation is None
    assert [item.last_seconds for item in result.rounds[1:]] == [0.0] * 4
    assert result.messages_per_peer == 0


def test_a_healthy_swarm_decides_within_two_round_trips() -> None:
    delay = 0.05
    faults = Faults(delay_seconds=(delay, delay), faults_end_at=0.0)
    result = run_seed(1, peers=8, rounds=6, faults=faults, round_seconds=2.0)
    assert result.violation is None and result.reorgs == 0
    # the last report travels one way, then proposal, acks and votes one each
    assert max(item.last_seconds for item in result.rounds[1:]) < 4 * delay + 0.01


@pytest.mark.parametrize("seed", range(5))
def test_nine_tenths_vanish_and_plans_keep_coming(seed: int) -> None:
    faults = Faults(vanish_at=3.0, vanish_share=0.9, faults_end_at=3.0)
    result = run_seed(seed, peers=10, rounds=6, faults=faults, round_seconds=2.0)
    assert result.violation is None
    assert [item.round for item in result.rounds] == [1, 2, 3, 4, 5, 6]
    assert [item.peers for item in result.rounds[-2:]] == [1, 1]


@pytest.mark.parametrize("seed", range(5))
def test_two_halves_go_on_and_become_one_ledger(seed: int) -> None:
    faults = Faults(partition_at=3.0, partition_seconds=30.0, faults_end_at=33.0)
    world = World(seed, peers=8, rounds=12, faults=faults, round_seconds=4.0)
    world.run()
    assert world.switches >= 3  # every peer of one side
    heads = {machine.agreement.ledger.head.digest for machine in world.machines.values() if machine.agreement}
    assert len(heads) == 1
    healed = world.switched_at[-1] - 33.0
    assert healed < 10 * world.timing.heartbeat_seconds


@pytest.mark.parametrize("seed", range(3))
def test_a_swarm_that_passes_messages_on_agrees_too(seed: int) -> None:
    faults = Faults(loss=0.02, crash_targets=0.001, faults_end_at=10.0)
    result = run_seed(seed, peers=30, rounds=4, faults=faults, round_seconds=4.0, measures_bytes=False)
    assert result.violation is None, summary([result])


def test_the_messages_of_a_peer_do_not_grow_with_the_swarm() -> None:
    per_peer = {}
    for peers in (32, 64):
        (result,) = simulate(peers=peers, rounds=2, seeds=[1], round_seconds=10.0)
        assert result.violation is None
        per_peer[peers] = result.messages_per_peer_and_second
    assert per_peer[64] < 1.2 * per_peer[32]


def test_the_summary_has_a_line_per_size_and_one_per_round() -> None:
    results = list(simulate(peers=4, rounds=2, seeds=range(2), round_seconds=2.0))
    lines = summary(results).splitlines()
    assert lines[0] == "2 of 2 runs kept every promise"
    numbers = [line.split() for line in lines[1:] if line.strip() and line.split()[0].isdigit()]
    assert [line[:2] for line in numbers] == [["4", "4"], ["1", "4"], ["2", "4"]]
    assert all(set(line[4]) == {"#"} for line in numbers[1:])
