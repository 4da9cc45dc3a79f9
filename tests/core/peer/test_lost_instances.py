"""Instances whose hosts all die: others who have it go on; what nobody has ends, and the run does not wait for it."""

from dataclasses import replace

import pytest

from adloco_p2p.core.agreement.gossip_agreement import GossipAgreement
from adloco_p2p.core.model.types import Capacity, InstanceId, PeerId
from adloco_p2p.core.peer.plan_book import PlanBook
from tests.core.partitioned_world import PartitionedWorld
from tests.core.peer.test_peer import PEER0, finished, rules
from tests.core.planning.test_round_plan import ONE, honest_reports, start

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


def test_a_host_that_reports_a_later_round_without_the_state_has_none_to_wait_for() -> None:
    """It was given an instance that no peer has, and skipped the round for which it waited for it: no report on that round will
    ever come. The others would wait for it as long as it lives."""
    plans = [replace(start(ONE), round=number) for number in range(3)]
    (item,) = plans[0].instances
    me, skipping, silent = (share.peer for share in item.hosts)
    book = PlanBook(me)
    for plan in plans:
        book.remember(plan)

    def may_come(*gone: PeerId) -> bool:
        return book.may_come(item.instance, 1, gone)

    def report(peer: PeerId, number: int, *, has_state: bool) -> None:
        (made,) = (report for report in honest_reports(plans[number]) if report.peer == peer)
        book.note_states(made if has_state else replace(made, instances=()))

    assert may_come(silent) and not may_come(silent, skipping)
    report(skipping, 1, has_state=True)
    assert may_come(silent), "it trains it: its report on the round before is on its way"
    report(skipping, 2, has_state=False)
    assert not may_come(silent)
    assert may_come(), "the other one may still come"
    report(skipping, 0, has_state=True)
    assert may_come(silent), "what was reported late is state all the same"
