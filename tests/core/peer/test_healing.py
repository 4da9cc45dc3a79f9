"""Two sides of a partition become one again, with what both have trained: whole peers that agree for themselves."""

import re
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from adloco_p2p.core.agreement.gossip_agreement import GossipAgreement
from adloco_p2p.core.ledger.validation import verify_ledger
from adloco_p2p.core.model.events import Effect
from adloco_p2p.core.model.rules import BatchRules
from adloco_p2p.core.model.telemetry import Log
from adloco_p2p.core.model.types import InstanceId, PeerId
from tests.core.agreement.test_consensus import verify
from tests.core.partitioned_world import PartitionedWorld, cut, healed
from tests.core.peer.test_peer import PEER0, PEER1, PEER2, PEER3, finished, rules
from tests.core.world import hashed


def killed_once_named(world: PartitionedWorld, names: Sequence[PeerId]) -> None:
    """They die when the first plan names what they trained apart: before anybody else has it."""

    def watch(peer: PeerId, effect: Effect) -> None:
        is_named = isinstance(effect, Log) and effect.event == "plan" and "is to be fetched" in str(effect.reason)
        if is_named and all(world.hosts[name].is_alive for name in names):
            for name in names:
                world.hosts[name].is_alive = False

    world.on_effect = watch


def one_end(world: PartitionedWorld, names: Sequence[PeerId]) -> None:
    """They finished with one state, after plans that verify and the same outer steps since the last merge of a stray."""
    assert all(finished(world.hosts[name]) for name in names)
    agreement = world.hosts[names[0]].peer._agreement
    assert isinstance(agreement, GossipAgreement)
    (survivor,) = agreement.ledger.plans[-1].instances
    assert len({world.hosts[name].states[survivor.instance] for name in names}) == 1
    assert verify_ledger(world.genesis, list(agreement.ledger.since(1)), world.decide, verify) == []
    last = max((round for merges in world.merges.values() for round, merge, _, _ in merges), default=0)
    applied = [
        {key: state for key, state in world.hosts[name].applied.items() if key[0] >= max(last, agreement.ledger.head.round - 5)}
        for name in names
    ]
    assert all(states == applied[0] != {} for states in applied)


def test_what_the_losing_side_trained_is_merged_in_weighted_by_samples() -> None:
    world = PartitionedWorld(rules=rules(rounds=45), num_peers=4, speeds=(10.0, 10.0, 10.0, 8.0))
    cut(world, at=20.0, seconds=60.0, side=(PEER2, PEER3))
    world.run(until=1000.0)
    everybody = (PEER0, PEER1, PEER2, PEER3)
    one_end(world, everybody)
    (merge,) = healed(world)
    done = [world.merges[name] for name in everybody]
    assert all(merges == done[0] and len(merges) == 1 for merges in done)
    ((round, _, went_in, came_out),) = done[0]
    first, last = map(int, re.findall(r"in rounds (\d+)-(\d+) ", merge.reason)[0])
    # In the round of the last common plan each side gives 2 x 8 samples, in every later one 2 x 16 or 4 x 8.
    lost, won = 16 + (last - first) * 32, 16 + (round - 1 - first) * 32
    assert 400 < lost < won
    assert lost / (lost + won) > 0.25
    assert merge.weights == pytest.approx((0.75, 0.25))
    assert merge.reason == (
        f"after a partition, merged what peer2, peer3 trained apart of instance 0 in rounds {first}-{last} "
        f"({lost:,} samples against {won:,}): weight 0.25"
    )
    assert went_in == [world.hosts[PEER0].applied[round - 1, InstanceId(0)], world.lost_state[PEER2]]
    assert came_out == hashed(*zip(went_in, merge.weights, strict=True))


@pytest.mark.parametrize("victims", [(PEER3,), (PEER2, PEER3)])
def test_claimants_that_die_hold_nobody_up(victims: tuple[PeerId, ...]) -> None:
    world = PartitionedWorld(rules=rules(rounds=45), num_peers=4, speeds=(10.0, 10.0, 10.0, 8.0))
    cut(world, at=20.0, seconds=60.0, side=(PEER2, PEER3))
    killed_once_named(world, victims)
    world.run(until=1000.0)
    living = [name for name in world.hosts if name not in victims]
    one_end(world, living)
    assert len(healed(world)) == 2 - len(victims)
    if PEER2 in victims:
        reasons = [str(log.reason) for log in world.hosts[PEER0].logs if log.event == "plan"]
        (dropped,) = [reason for reason in reasons if "dropped what peer2, peer3 trained apart" in reason]
        assert "no peer that holds it is left" in dropped


def test_three_sides_become_one() -> None:
    world = PartitionedWorld(rules=rules(rounds=60), num_peers=4, speeds=(10.0, 10.0, 9.0, 8.0))
    cut(world, at=20.0, seconds=60.0, side=(PEER2,))
    world.at(20.0, lambda: world.sides.update({PEER3: 2}))
    world.run(until=1000.0)
    one_end(world, list(world.hosts))
    assert sum(len(merge.sources) - 1 for merge in healed(world)) == 2


def test_an_instance_that_the_winners_merged_away_goes_where_it_went() -> None:
    world = PartitionedWorld(rules=rules(rounds=60, count=2, period=18), num_peers=4, speeds=(20.0, 20.0, 1.0, 1.0))
    cut(world, at=10.0, seconds=60.0, side=(PEER2, PEER3))
    world.run(until=1000.0)
    one_end(world, list(world.hosts))
    (merge,) = healed(world)
    assert sorted(re.findall(r"trained apart of instance (\d)", merge.reason)) == ["0", "1"]
    assert merge.target == 1 and len(merge.sources) == 3


@pytest.mark.parametrize("seed", range(6))
def test_whatever_the_cut_all_end_as_one(seed: int) -> None:
    cut_at_random(seed)


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(6, 60))
def test_whatever_the_cut_all_end_as_one_at_length(seed: int) -> None:
    cut_at_random(seed)


def cut_at_random(seed: int) -> None:
    random = Random(f"cut {seed}")
    size, count = random.randint(3, 6), random.choice((1, 2, 3))
    speeds = tuple(random.choice((5.0, 10.0, 20.0)) for _ in range(size))
    loss = random.choice((0.0, 0.05))
    steady = replace(rules(rounds=70, count=count, period=7), batch=BatchRules(test="constant", initial_batch=16))
    world = PartitionedWorld(rules=steady, num_peers=size, speeds=speeds, seed=seed, loss=loss)
    names = list(world.hosts)
    for start in random.sample((10.0, 60.0), random.randint(1, 2)):
        cut(world, at=start + random.uniform(0.0, 5.0), seconds=random.uniform(5.0, 40.0), side=random.sample(names, size // 2))
    world.run(until=1000.0)
    one_end(world, names)
