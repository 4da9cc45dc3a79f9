"""Seats that only exist: they never report, hold nothing, and are more than the peers that train."""

from dataclasses import replace

import pytest

from adloco_p2p.core.model.plan import RosterChange, RoundPlan
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.roster_entry import Capacity, RosterEntry
from adloco_p2p.core.model.rules import InstanceRules, MergeRules
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.core.planning.placement import outvoted
from tests.core.core_values import capacity, peer
from tests.core.plan_check import check_plan
from tests.core.planning.test_round_plan import ONE, THREE, honest_reports, run

NUM_FOUNDERS, NUM_GHOSTS = 3, 5
GHOSTS = {peer(index) for index in range(NUM_FOUNDERS, NUM_FOUNDERS + NUM_GHOSTS)}
SEATED = {2: RosterChange(joined=tuple((ghost, capacity(max_instances=1)) for ghost in sorted(GHOSTS)))}
TWO = replace(THREE, instances=InstanceRules(count=2, start="fork", fork_round=2), merge=MergeRules(guard=True))


def silent_ghosts(done: RoundPlan) -> list[Report]:
    return [report for report in honest_reports(done) if report.peer not in GHOSTS]


def test_an_instance_that_only_silent_seats_hold_ends_while_they_keep_their_seats() -> None:
    plans = run(TWO, num_peers=NUM_FOUNDERS, until=10, say=silent_ghosts, joins=SEATED, max_instances=1)
    forked = plans[2]
    (held_by_none,) = (item for item in forked.instances if {share.peer for share in item.hosts} <= GHOSTS)
    assert len(forked.instances) == 2
    assert [item.instance for item in plans[10].instances] == [1 - held_by_none.instance]
    assert {entry.peer for entry in plans[10].roster} >= GHOSTS


def test_an_instance_whose_hosts_reported_once_waits_for_them() -> None:
    """Their state may come back with them, as long as they have their seats."""

    def say(done: RoundPlan) -> list[Report]:
        return honest_reports(done) if done.round < 3 else silent_ghosts(done)

    plans = run(TWO, num_peers=NUM_FOUNDERS, until=11, say=say, joins=SEATED, max_instances=1)
    assert any({share.peer for share in item.hosts} <= GHOSTS for item in plans[4].instances)
    assert len(plans[11].instances) == 2


def test_hosts_that_report_are_more_than_half_of_those_that_train() -> None:
    """From the plan on that could have used the first reports of the others."""
    plans = run(ONE, num_peers=NUM_FOUNDERS, until=12, say=silent_ghosts, joins=SEATED)
    for plan in plans[4:]:
        working = {share.peer for share in plan.instances[0].hosts if share.samples > 0}
        assert len(working - GHOSTS) == NUM_FOUNDERS > len(working & GHOSTS), plan.round


def test_newcomers_without_a_report_have_no_work_until_it_comes() -> None:
    """Their states may take long to arrive, and nobody waits for them."""

    def say(done: RoundPlan) -> list[Report]:
        return silent_ghosts(done) if done.round < 6 else honest_reports(done)

    plans = run(ONE, num_peers=NUM_FOUNDERS, until=10, say=say, joins=SEATED)
    working = [{share.peer for share in plan.instances[0].hosts if share.samples > 0} & GHOSTS for plan in plans]
    seated = next(number for number, plan in enumerate(plans) if len(plan.roster) > NUM_FOUNDERS)
    assert [bool(ghosts) for ghosts in working[seated : seated + 2]] == [True, True], "no report could be there yet"
    assert not any(working[seated + 2 : 8])
    assert working[8] == GHOSTS, "made from the reports on round 6"


def test_newcomers_that_report_train_from_their_second_round_on() -> None:
    plans = run(ONE, num_peers=NUM_FOUNDERS, until=6, joins=SEATED)
    for plan in plans[3:]:
        assert all(share.samples > 0 for share in plan.instances[0].hosts)
        assert len(plan.instances[0].hosts) == NUM_FOUNDERS + NUM_GHOSTS


def test_one_host_that_reports_trains_alone_and_all_do_where_none_reports() -> None:
    offer = Capacity(samples_per_second=1.0, micro_batch_limit=1, max_instances=1, is_leaving=False)
    roster = [RosterEntry(peer=peer(0), joined_round=0, capacity=offer, last_report=3)]
    roster += [RosterEntry(peer=peer(index), joined_round=3, capacity=offer) for index in (1, 2)]
    everybody = [entry.peer for entry in roster]
    assert outvoted(everybody, roster, 4) == everybody, "no report of theirs could be there yet"
    assert outvoted(everybody, roster, 5) == [peer(0)]
    assert outvoted(everybody[1:], roster, 5) == everybody[1:]


def test_in_an_open_run_newcomers_are_a_minority_until_their_first_reports() -> None:
    """Others may follow them for ever, so that each plan would have new ones that cannot have reported."""
    offer = Capacity(samples_per_second=1.0, micro_batch_limit=1, max_instances=1, is_leaving=False)
    roster = [RosterEntry(peer=peer(index), joined_round=0, capacity=offer, last_report=8) for index in range(3)]
    roster += [RosterEntry(peer=peer(index), joined_round=9, capacity=offer) for index in range(3, 9)]
    everybody = [entry.peer for entry in roster]
    assert outvoted(everybody, roster, 10) == everybody
    assert outvoted(everybody, roster, 10, is_open=True) == everybody[:5]


@pytest.mark.parametrize("guard", [True, False])
def test_at_the_end_the_instance_that_hosts_report_stays_and_not_the_one_of_silent_seats(guard: bool) -> None:
    """Nobody has the state of the other one: as the last model it would be none, and no peer would come to the end."""

    def say(done: RoundPlan) -> list[Report]:
        return honest_reports(done) if done.round < 3 else silent_ghosts(done)

    rules = replace(TWO, merge=MergeRules(policy="none", guard=guard))
    plans = run(rules, num_peers=NUM_FOUNDERS, say=say, joins=SEATED, max_instances=1)
    of_ghosts, (last,) = ghosts_instance(plans[-2]), plans[-1].instances
    assert plans[-1].is_last and len(plans[-2].instances) == 2
    assert last.instance != of_ghosts
    (merge,) = plans[-1].merges
    assert dict(zip(merge.sources, merge.weights, strict=True)) == {last.instance: 1.0, of_ghosts: 0.0}
    assert check_plan(plans[-1], rules) == []


def test_a_merge_in_the_middle_of_a_run_leaves_out_what_nobody_reports() -> None:
    def say(done: RoundPlan) -> list[Report]:
        return honest_reports(done) if done.round < 3 else silent_ghosts(done)

    rules = replace(TWO, merge=MergeRules(guard=False, period_rounds=1, first_round=6))
    plans = run(rules, num_peers=NUM_FOUNDERS, until=9, say=say, joins=SEATED, max_instances=1)
    assert not any(plan.merges for plan in plans) and len(plans[-1].instances) == 2


def ghosts_instance(plan: RoundPlan) -> InstanceId:
    (found,) = (item.instance for item in plan.instances if {share.peer for share in item.hosts} <= GHOSTS)
    return found
