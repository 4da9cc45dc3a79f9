"""Machines that have room for one instance: what becomes of an instance whose only host dies or stands still, and how hosts
measure a merge with an instance that they lack."""

from dataclasses import replace

import pytest

from adloco_p2p.core.model.lineage import Merge
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.rules import InstanceRules, MergeRules, Rules
from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.core.model.telemetry import Log, Probe
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.synthetic_reports import CAPACITY
from adloco_p2p.sim.world import Parts, World, small_rules

ONE_EACH = replace(CAPACITY, max_instances=1)


def rules(peers: int, rounds: int, *, guard: bool = False, period: int) -> Rules:
    return replace(
        small_rules(peers, rounds),
        instances=InstanceRules(count=2, start="fork", fork_round=1),
        merge=MergeRules(policy="worst_with_worst", period_rounds=period, first_round=period, guard=guard),
    )


def world_of_three(*, guard: bool = False) -> World:
    """Instances fork in round 1 and could merge in round 16; rounds of two seconds."""
    chosen = rules(3, 20, guard=guard, period=16)
    return World(0, peers=3, rounds=20, faults=Faults(faults_end_at=20.0), rules=chosen, parts=Parts(capacity=ONE_EACH))


def newest_plan(world: World) -> RoundPlan:
    process = next(machine.process for machine in world.machines.values() if machine.process is not None)
    return process.agreement.ledger.plans[-1]


def sole_host(world: World) -> tuple[PeerId, InstanceId]:
    """A peer that alone has an instance, now."""
    return next((item.hosts[0].peer, item.instance) for item in newest_plan(world).instances if len(item.hosts) == 1)


def merges(world: World) -> list[Merge]:
    process = next(machine.process for machine in world.machines.values() if machine.process is not None)
    return [merge for entry in process.agreement.ledger.since(1) for merge in entry.plan.merges]


@pytest.mark.parametrize("guard", [False, True])
def test_an_instance_that_died_with_its_only_host_is_ended_and_the_run_goes_on(guard: bool) -> None:
    world = world_of_three(guard=guard)
    lost: list[InstanceId] = []

    def strike() -> None:
        victim, instance = sole_host(world)
        lost.append(instance)
        world.machines[victim].is_gone = True
        world.machines[victim].crash("for good")

    world.queue.at(10.0, strike)
    world.run()
    (instance,) = lost
    (end,) = merges(world)
    assert dict(zip(end.sources, end.weights, strict=True))[instance] == 0.0
    assert end.reason == f"instance {instance} ends: its hosts reported 3 rounds without it, or never, so its state is lost"


def test_a_host_that_stands_still_for_less_than_its_lease_keeps_its_instance() -> None:
    world = world_of_three()

    def freeze() -> None:
        world.machines[sole_host(world)[0]].frozen_until = world.time + 6.0

    world.queue.at(10.0, freeze)
    world.run()
    assert merges(world) and all(min(merge.weights) > 0.0 for merge in merges(world))


@pytest.mark.parametrize("seed", range(2))
def test_hosts_of_one_instance_each_measure_and_merge(seed: int) -> None:
    """They fetch the source that they lack: the device measures only where all are at hand."""
    world = World(
        seed,
        peers=4,
        rounds=10,
        faults=Faults(faults_end_at=0.0),
        rules=rules(4, 10, guard=True, period=4),
        parts=Parts(capacity=ONE_EACH),
    )
    measured: dict[PeerId, list[int]] = {}
    logged = world.checkers.logged

    def note(peer: PeerId, log: Log) -> None:
        logged(peer, log)
        if isinstance(log, Probe):
            measured.setdefault(peer, []).append(log.round)

    world.checkers.logged = note  # type: ignore[method-assign]
    world.run()
    assert min(merges(world)[0].weights) > 0.0
    assert measured, "by hosts of the target"
