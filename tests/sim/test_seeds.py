"""The agreement alone in small swarms under every kind of fault: no promise is ever broken, and every run comes to its end.

Whole peers: `test_world.py`.
"""

import pytest

from adloco_p2p.sim.agreement_world import AgreementWorld
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.simulate import agreement_seed, play, summary

BLOCK = 100


def failures(seeds: range) -> list[str]:
    results = [agreement_seed(seed) for seed in seeds]
    return [summary([result]) for result in results if result.violation is not None]


@pytest.mark.parametrize("block", range(10))
def test_a_thousand_seeds(block: int) -> None:
    failed = failures(range(block * BLOCK, (block + 1) * BLOCK))
    assert not failed, failed[0]


@pytest.mark.heavy
@pytest.mark.parametrize("block", range(10, 500))
def test_fifty_thousand_seeds(block: int) -> None:
    failed = failures(range(block * BLOCK, (block + 1) * BLOCK))
    assert not failed, failed[0]


def played(seed: int, *, peers: int, rounds: int, faults: Faults, round_seconds: float = 2.0) -> AgreementWorld:
    world = AgreementWorld(seed, peers=peers, rounds=rounds, faults=faults, round_seconds=round_seconds, is_traced=True)
    world.run()
    return world


def test_a_seed_tells_the_same_story_twice() -> None:
    faults = Faults(loss=0.1, crash_targets=0.05, faults_end_at=10.0)
    stories = [played(seed, peers=5, rounds=3, faults=faults).trace for seed in (3, 3, 4)]
    assert stories[0] == stories[1] != stories[2]


def test_a_healthy_swarm_decides_within_two_round_trips() -> None:
    delay = 0.05
    faults = Faults(delay_seconds=(delay, delay), faults_end_at=0.0)
    result = play(1, lambda *, is_traced: AgreementWorld(1, peers=8, rounds=6, faults=faults, is_traced=is_traced))
    assert result.violation is None and result.reorgs == 0
    # the last report travels one way, then proposal, acks and votes one each
    assert max(item.last_seconds for item in result.rounds[1:]) < 4 * delay + 0.01


@pytest.mark.parametrize("seed", range(5))
def test_nine_tenths_vanish_and_plans_keep_coming(seed: int) -> None:
    world = played(seed, peers=10, rounds=6, faults=Faults(vanish_at=3.0, vanish_share=0.9, faults_end_at=3.0))
    assert sorted(world.decided) == [1, 2, 3, 4, 5, 6]
    assert [len(world.decided[round]) for round in (5, 6)] == [1, 1]


@pytest.mark.parametrize("seed", range(5))
def test_two_halves_go_on_and_become_one_ledger(seed: int) -> None:
    faults = Faults(partition_at=3.0, partition_seconds=30.0, faults_end_at=33.0)
    world = played(seed, peers=8, rounds=12, faults=faults, round_seconds=4.0)
    assert world.switches >= 3  # every peer of one side
    heads = {machine.agreement.ledger.head.digest for machine in world.machines.values() if machine.agreement}
    assert len(heads) == 1
    healed = world.switched_at[-1] - 33.0
    assert healed < 10 * world.timing.heartbeat_seconds


@pytest.mark.parametrize("seed", range(3))
def test_a_swarm_that_passes_messages_on_agrees_too(seed: int) -> None:
    played(seed, peers=30, rounds=4, faults=Faults(loss=0.02, crash_targets=0.001, faults_end_at=10.0), round_seconds=4.0)


def test_the_messages_of_a_peer_do_not_grow_with_the_swarm() -> None:
    per_peer = {}
    for peers in (32, 64):
        world = played(1, peers=peers, rounds=2, faults=Faults(faults_end_at=0.0), round_seconds=10.0)
        per_peer[peers] = sum(messages for messages, _ in world.traffic) / peers / world.time
    assert per_peer[64] < 1.2 * per_peer[32]
