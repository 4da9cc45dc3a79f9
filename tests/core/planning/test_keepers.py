"""Keepers in plans: they host without work, decide nothing, serve no probation, and are never alone."""

from dataclasses import replace

from adloco_p2p.core.ledger.validation import is_trained_after
from adloco_p2p.core.model.electorate import electorate
from adloco_p2p.core.model.plan import RosterChange, RoundPlan
from adloco_p2p.core.model.roster_entry import RosterEntry
from adloco_p2p.core.model.rules import AdmissionRules, InstanceRules, Rules
from adloco_p2p.core.planning.round_plan import genesis, next_plan
from adloco_p2p.core.planning.standing import after_report
from tests.core.core_values import RUN, capacity, peer

KEEPER = peer(2)
OFFER = replace(capacity(), is_keeper=True, max_instances=2)
RULES = Rules(instances=InstanceRules(count=3, start="same"))


def first_plan() -> RoundPlan:
    return genesis(RUN, [(peer(0), capacity()), (peer(1), capacity()), (KEEPER, OFFER)], RULES)


def work_of_keeper(plan: RoundPlan) -> list[int | None]:
    """Its samples in each instance; None where it is no host."""
    found = [[share.samples for share in item.hosts if share.peer == KEEPER] for item in plan.instances]
    return [shares[0] if shares else None for shares in found]


def test_a_keeper_hosts_as_many_instances_as_it_holds_and_trains_none() -> None:
    plan = first_plan()
    assert work_of_keeper(plan) == [0, 0, None]
    assert work_of_keeper(next_plan(plan, (), RULES)) == [0, 0, None]
    assert all(any(share.samples for share in item.hosts) for item in plan.instances)


def test_a_keeper_that_leaves_is_no_host() -> None:
    leaving = replace(OFFER, is_leaving=True)
    plan = genesis(RUN, [(peer(0), capacity()), (KEEPER, leaving)], RULES)
    assert work_of_keeper(plan) == [None, None, None]


def test_a_keeper_is_no_elector_and_serves_no_probation() -> None:
    assert electorate(first_plan()) == (peer(0), peer(1))
    seat = RosterEntry(peer=KEEPER, joined_round=3, capacity=OFFER, probation=8, standing=64)
    assert after_report(seat, AdmissionRules()) == seat
    assert after_report(replace(seat, capacity=capacity()), AdmissionRules()).probation == 7


def test_a_run_needs_a_member_that_trains() -> None:
    plan = first_plan()
    assert is_trained_after(plan, [peer(0)], [])
    assert not is_trained_after(plan, [peer(0), peer(1)], [OFFER])
    assert is_trained_after(plan, [peer(0), peer(1)], [capacity()])


def test_silent_trainers_stay_where_only_a_keeper_would_be_left() -> None:
    plan = first_plan()
    for _ in range(20):
        plan = next_plan(plan, (), RULES, roster=RosterChange())
    assert {entry.peer for entry in plan.roster} >= {peer(0), peer(1)}
