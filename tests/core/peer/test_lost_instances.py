"""Instances whose hosts all die: others who have it go on; what nobody has ends, and the run does not wait for it."""

import pytest

from adloco_p2p.core.agreement.gossip_agreement import GossipAgreement
from adloco_p2p.core.model.types import Capacity, InstanceId, PeerId
from tests.core.partitioned_world import PartitionedWorld
from tests.core.peer.test_peer import PEER0, finished, rules

ONE_EACH = Capacity(samples_per_second=0.0, micro_batch_limit=8, max_instances=1)


def sole_host(world: PartitionedWorld) -> tuple[PeerId, InstanceId]:
    """A peer that alone has an instance, now."""
    plan = world.hosts[PEER0].peer._book.newest
    return next((item.hosts[0].peer, item.instance) for item in plan.instances if len(item.hosts) == 1)


@pytest.mark.parametrize("guard", [False, True])
def test_an_instance_that_died_with_its_only_host_is_ended_and_the_run_goes_on(guard: bool) -> None:
    world = PartitionedWorld(rules=rules(rounds=40, count=2, period=30, guard=guard), num_peers=3, capacity=ONE_EACH)
    victims: list[tuple[PeerId, InstanceId]] = []

    def strike() -> None:
        victims.append(sole_host(world))
        world.hosts[victims[0][0]].is_alive = False

    world.at(12.0, strike)
    world.run(until=1000.0)
    ((victim, instance),) = victims
    living = [name for name in world.hosts if name != victim]
    assert all(finished(world.hosts[name]) for name in living)
    agreement = world.hosts[living[0]].peer._agreement
    assert isinstance(agreement, GossipAgreement)
    (end,) = [merge for entry in agreement.ledger.since(1) for merge in entry.plan.merges]
    assert dict(zip(end.sources, end.weights, strict=True))[instance] == 0.0
    assert end.reason == f"instance {instance} ends: its hosts reported 3 rounds without it, or never, so its state is lost"


def test_a_host_that_stands_still_for_less_than_its_lease_keeps_its_instance() -> None:
    world = PartitionedWorld(rules=rules(rounds=40, count=2, period=30), num_peers=3, capacity=ONE_EACH)
    world.at(12.0, lambda: world.freeze(sole_host(world)[0], 6.0))
    world.run(until=1000.0)
    assert all(finished(host) for host in world.hosts.values())
    agreement = world.hosts[PEER0].peer._agreement
    assert isinstance(agreement, GossipAgreement)
    merges = [merge for entry in agreement.ledger.since(1) for merge in entry.plan.merges]
    assert merges and all(min(merge.weights) > 0.0 for merge in merges)
