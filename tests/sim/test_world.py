"""Whole peers in virtual time: under everyday faults no promise is broken, and every run ends with one state."""

import pytest

from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.simulate import everyday_seed, play, simulate, summary
from adloco_p2p.sim.world import World

BLOCK = 20
EVERYDAY_BLOCKS = 25
HEAVY_SEEDS = 20_000


def failures(seeds: range) -> list[str]:
    results = [everyday_seed(seed) for seed in seeds]
    return [summary([result]) for result in results if result.violation is not None]


@pytest.mark.parametrize("block", range(EVERYDAY_BLOCKS))
def test_everyday_seeds(block: int) -> None:
    failed = failures(range(block * BLOCK, (block + 1) * BLOCK))
    assert not failed, failed[0]


def test_nobody_waits_for_a_state_that_nobody_has() -> None:
    """Two hosts that were cut off had reported a void round from a state of their own when they took the agreed one. The others
    gave that one up for theirs, which nobody had any more, and the run took 174 s."""
    result = everyday_seed(98)
    assert result.violation is None and result.virtual_seconds < 100.0


@pytest.mark.heavy
@pytest.mark.parametrize("block", range(EVERYDAY_BLOCKS, HEAVY_SEEDS // BLOCK))
def test_twenty_thousand_seeds(block: int) -> None:
    failed = failures(range(block * BLOCK, (block + 1) * BLOCK))
    assert not failed, failed[0]


def played(seed: int, *, peers: int, rounds: int, faults: Faults, round_seconds: float = 2.0) -> World:
    world = World(seed, peers=peers, rounds=rounds, faults=faults, round_seconds=round_seconds, is_traced=True)
    world.run()
    return world


def test_a_seed_has_the_same_trace_twice() -> None:
    faults = Faults(loss=0.1, crashes=2, joins=1, faults_end_at=10.0)
    stories = [played(seed, peers=4, rounds=4, faults=faults).trace for seed in (3, 3, 4)]
    assert stories[0] == stories[1] != stories[2]


def test_honest_peers_end_the_run_in_the_time_of_its_rounds() -> None:
    world = played(1, peers=5, rounds=8, faults=Faults(faults_end_at=0.0))
    assert sorted(world.decided) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert all(len(times) == 5 for times in world.decided.values())
    assert world.time < 8 * 2.0 * 1.2 * 2  # two instances share each device
    assert world.switches == 0


def test_a_healthy_swarm_decides_within_two_round_trips() -> None:
    delay = 0.05
    faults = Faults(delay_seconds=(delay, delay), faults_end_at=0.0)
    result = play(1, lambda *, is_traced: World(1, peers=8, rounds=6, faults=faults, is_traced=is_traced))
    assert result.violation is None and result.reorgs == 0
    # the last report travels one way, then proposal, acks and votes one each; the uplink takes milliseconds for the largest
    assert max(item.last_seconds for item in result.rounds[1:]) < 4 * delay + 0.01


@pytest.mark.parametrize("seed", range(5))
def test_nine_tenths_vanish_and_plans_keep_coming(seed: int) -> None:
    world = played(seed, peers=10, rounds=6, faults=Faults(vanish_at=3.0, vanish_share=0.9, faults_end_at=3.0))
    assert sorted(world.decided) == [1, 2, 3, 4, 5, 6]
    assert [len(world.decided[round]) for round in (5, 6)] == [1, 1]


def test_a_machine_that_dies_goes_on_from_its_journal_and_checkpoint() -> None:
    world = played(2, peers=5, rounds=8, faults=Faults(crashes=3, faults_end_at=12.0))
    lives = [machine.life for machine in world.machines.values()]
    assert sum(lives) > 5
    restarted = next(machine for machine in world.machines.values() if machine.life > 1)
    assert restarted.process is not None and restarted.process.stop is not None and restarted.process.stop.is_finished


@pytest.mark.parametrize("seed", range(5))
def test_a_partition_leads_to_two_histories_and_back_to_one(seed: int) -> None:
    faults = Faults(partition_at=3.0, partition_seconds=30.0, faults_end_at=33.0)
    world = played(seed, peers=8, rounds=12, faults=faults, round_seconds=4.0)
    assert world.switches >= 2
    assert world.switched_at[-1] - 33.0 < 10 * world.timing.heartbeat_seconds


def test_a_swarm_that_passes_messages_on_agrees_and_ends_with_the_states_of_all() -> None:
    """More members than exchange messages directly. The instances merge at the end: every host needs a state that others have,
    and learns of it from reports that no plan brings any more."""
    faults = Faults(loss=0.02, crash_targets=0.001, faults_end_at=10.0)
    world = played(0, peers=30, rounds=4, faults=faults, round_seconds=4.0)
    assert world.timing.direct_limit < 30


def test_the_agreement_knows_which_rounds_its_peer_is_at() -> None:
    world = World(1, peers=3, rounds=3, faults=Faults(faults_end_at=0.0))

    def working() -> list[list[int]]:
        processes = [machine.process for machine in world.machines.values()]
        return [list(process.agreement.consensus._context.working) for process in processes if process is not None]

    while world.time < 1.5:
        world.queue.step()
    assert working() == [[0]] * 3
    world.run()
    assert working() == [[]] * 3


def test_the_messages_of_a_peer_do_not_grow_with_the_swarm() -> None:
    """Up to the last plan: at the end each says once to all others that it leaves."""
    per_peer = {}
    for peers in (32, 64):
        world = World(1, peers=peers, rounds=2, faults=Faults(faults_end_at=0.0), round_seconds=10.0)
        while len(world.decided.get(2, ())) < peers:
            world.queue.step()
        per_peer[peers] = sum(messages for messages, _ in world.traffic) / peers / world.time
    assert per_peer[64] < 1.2 * per_peer[32]


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
