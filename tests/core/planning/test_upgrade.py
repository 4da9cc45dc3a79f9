"""When a run goes over to the next protocol, by hand."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from adloco_p2p.core.ledger.admission import Admissions, Door
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.electorate import electorate
from adloco_p2p.core.model.ledger_entry import JoinRequest
from adloco_p2p.core.model.plan import RosterChange, RoundPlan
from adloco_p2p.core.model.protocol import FIRST_UPGRADABLE
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.roster_entry import FULL_STANDING, Capacity, FormerMember
from adloco_p2p.core.model.rules import InstanceRules, Rules, WorkRules
from adloco_p2p.core.model.scalars import Digest
from adloco_p2p.core.planning.round_plan import genesis, next_plan
from adloco_p2p.core.planning.upgrade import NOTICE_ROUNDS, ROUNDS_LEFT
from tests.core.core_values import RUN, capacity, peer

PLAN = Digest("0" * 64)
OLD, NEW = FIRST_UPGRADABLE, FIRST_UPGRADABLE + 1
RULES = Rules(instances=InstanceRules(count=1), work=WorkRules(rounds=40, inner_steps=4))


def offer(protocol: int) -> Capacity:
    return replace(capacity(), newest_protocol=protocol)


def first_plan(peers: int = 3, *, protocol: int = OLD) -> RoundPlan:
    return genesis(RUN, [(peer(index), capacity()) for index in range(peers)], RULES, protocol=protocol)


def after(plan: RoundPlan, *protocols: int, rounds: int = 1, change: RosterChange | None = None) -> RoundPlan:
    """The plan so many rounds later, where peers 0, 1, ... announce these protocols with each report."""
    for _ in range(rounds):
        reports = [
            Report(peer=peer(index), round=plan.round - 1, plan=PLAN, capacity=offer(protocol))
            for index, protocol in enumerate(protocols)
        ]
        plan, change = next_plan(plan, reports, RULES, roster=change), None
    return plan


def course(plans: Sequence[RoundPlan]) -> list[tuple[int, int | None]]:
    return [(plan.protocol, plan.upgrade_round) for plan in plans]


def test_where_nobody_announces_a_newer_protocol_the_plan_names_none() -> None:
    plan = after(first_plan(), OLD, OLD, OLD, rounds=3)
    assert b"protocol" not in canonical.encode(plan) and b"upgrade" not in canonical.encode(plan)
    assert "protocol" not in plan.reason


def test_once_all_electors_announce_it_the_run_goes_over_four_rounds_later_and_only_once() -> None:
    before = after(first_plan(), OLD, NEW, NEW)
    assert course([before]) == [(OLD, None)]
    assert f"2 of 3 electors can follow protocol 22, not {peer(0)}" in before.reason
    crowd = after(first_plan(6), OLD, OLD, OLD, OLD, NEW, NEW).reason
    assert f"2 of 6 electors can follow protocol 22, not {peer(0)}, {peer(1)}, {peer(2)} and others" in crowd
    all_named = after(first_plan(6), OLD, OLD, OLD, NEW, NEW, NEW).reason
    assert f"not {peer(0)}, {peer(1)}, {peer(2)}" in all_named and "and others" not in all_named
    plans = [after(before, NEW, NEW, NEW, rounds=number) for number in range(1, 8)]
    assert NOTICE_ROUNDS == 4
    assert course(plans) == [(OLD, 6), (OLD, 6), (OLD, 6), (OLD, 6), (NEW, None), (NEW, None), (NEW, None)]
    assert "protocol 22 from round 6 on" in plans[0].reason
    assert "protocol 22 from this round on" in plans[4].reason and "protocol" not in plans[5].reason


def test_an_elector_that_cannot_follow_withdraws_what_was_agreed_before_it_takes_effect() -> None:
    agreed = after(first_plan(), NEW, NEW, NEW, rounds=4)
    assert agreed.upgrade_round == 5
    withdrawn = after(agreed, NEW, NEW, OLD)
    assert course([withdrawn, after(withdrawn, NEW, NEW, NEW)]) == [(OLD, None), (OLD, 10)]


def test_a_run_never_goes_back_and_skips_no_protocol() -> None:
    plan = after(first_plan(), NEW + 1, NEW + 1, NEW + 1, rounds=5)
    assert plan.protocol == NEW
    plans = [after(plan, NEW + 1, NEW + 1, NEW + 1, rounds=number) for number in range(1, 7)]
    assert [made.protocol for made in plans] == [NEW, NEW, NEW, NEW, NEW + 1, NEW + 1]
    assert after(plan, OLD, OLD, OLD, rounds=8).protocol == NEW


@pytest.mark.parametrize("claimed", [0, OLD - 1, NEW + 100, 1 << 40])
def test_one_member_that_announces_nonsense_moves_no_run(claimed: int) -> None:
    assert course([after(first_plan(), claimed, OLD, OLD, rounds=8)]) == [(OLD, None)]
    highest = after(first_plan(), claimed, NEW, NEW, rounds=8).protocol
    assert highest == (NEW if claimed > OLD else OLD), "one that never announces it holds the others up, no more"


def test_an_elector_that_goes_or_falls_silent_is_not_waited_for() -> None:
    assert after(first_plan(), OLD, NEW, NEW, rounds=12).protocol == OLD
    gone = after(first_plan(), OLD, NEW, NEW, change=RosterChange(departed=(peer(0),)))
    assert gone.upgrade_round == 5
    silent = first_plan()
    for _ in range(5):
        reports = [Report(peer=peer(i), round=silent.round - 1, plan=PLAN, capacity=offer(NEW)) for i in (1, 2)]
        silent = next_plan(silent, reports, RULES)
    assert electorate(silent) == (peer(1), peer(2)) and silent.upgrade_round is not None


def test_a_member_on_probation_that_cannot_follow_loses_its_work_and_no_seat() -> None:
    newcomer = RosterChange(joined=((peer(3), capacity()),))
    plan = after(after(first_plan(), NEW, NEW, NEW), NEW, NEW, NEW, rounds=8)
    assert plan.protocol == NEW
    agreed = after(after(first_plan(), OLD, OLD, OLD, rounds=9), NEW, NEW, NEW, change=newcomer)
    before = after(agreed, NEW, NEW, NEW, OLD, rounds=3)
    assert before.protocol == OLD and peer(3) in {share.peer for share in before.instances[0].hosts}
    plan = after(before, NEW, NEW, NEW, OLD)
    assert plan.protocol == NEW
    assert peer(3) not in {share.peer for share in plan.instances[0].hosts}
    assert next(entry for entry in plan.roster if entry.peer == peer(3)).capacity.is_leaving
    back = after(plan, NEW, NEW, NEW, NEW)
    assert peer(3) in {share.peer for share in back.instances[0].hosts}, "it has upgraded and reports"


def test_no_run_goes_over_in_its_last_rounds() -> None:
    assert {plan.protocol for plan in run_of(5 + ROUNDS_LEFT - 1)} == {OLD}
    assert {plan.upgrade_round for plan in run_of(5 + ROUNDS_LEFT - 1)} == {None}
    plans = run_of(5 + ROUNDS_LEFT)
    first = next(plan for plan in plans if plan.protocol == NEW)
    assert plans[-1].is_last and plans[-1].round - first.round == ROUNDS_LEFT


def test_an_order_that_ends_the_run_soon_withdraws_what_was_agreed() -> None:
    agreed = after(first_plan(), NEW, NEW, NEW)
    assert agreed.upgrade_round == 5
    ordered = RosterChange(course=replace(agreed.course, last_round=5 + ROUNDS_LEFT - 2))
    assert after(agreed, NEW, NEW, NEW, change=ordered).upgrade_round is None
    later = RosterChange(course=replace(agreed.course, last_round=5 + ROUNDS_LEFT - 1))
    assert after(agreed, NEW, NEW, NEW, change=later).upgrade_round == 5


def run_of(rounds: int) -> list[RoundPlan]:
    """All can follow the next protocol from the first report on."""
    short = replace(RULES, work=WorkRules(rounds=rounds, inner_steps=4))
    plans = [first_plan()]
    while not plans[-1].is_last:
        reports = [Report(peer=peer(i), round=plans[-1].round - 1, plan=PLAN, capacity=offer(NEW)) for i in range(3)]
        plans.append(next_plan(plans[-1], reports, short))
    return plans


def test_a_run_may_begin_with_a_newer_protocol() -> None:
    plan = first_plan(protocol=NEW)
    assert b'"protocol":22' in canonical.encode(plan)
    assert after(plan, NEW, NEW, NEW, rounds=6).protocol == NEW
    assert all(share.samples for share in plan.instances[0].hosts)


def door_after(plan: RoundPlan) -> Door:
    return Door(parent=plan, admissions=Admissions(), members=frozenset(), digests=(), statements=(), verify=lambda *_: True)


REQUEST = JoinRequest(run=RUN, peer=peer(5), beat=1, round=0, capacity=offer(OLD), signature="")


def test_a_newcomer_that_cannot_follow_gets_no_seat_in_the_plan_that_goes_over_or_later() -> None:
    for plan in (first_plan(protocol=NEW), after(first_plan(), NEW, NEW, NEW, rounds=NOTICE_ROUNDS)):
        door = door_after(plan)
        assert door.problem(REQUEST) == f"{peer(5)} can follow protocol 21 at most, and the run needs 22"
        assert door.problem(replace(REQUEST, capacity=offer(NEW))) == ""


def test_until_then_it_gets_one_and_withdraws_the_upgrade_once_it_is_an_elector() -> None:
    plans = [after(first_plan(), NEW, NEW, NEW, rounds=rounds) for rounds in range(1, NOTICE_ROUNDS)]
    assert all(plan.upgrade_round == 5 and door_after(plan).problem(REQUEST) == "" for plan in plans)
    away = replace(plans[0], former=(FormerMember(peer=peer(3), left_round=1, standing=FULL_STANDING),))
    back = after(away, NEW, NEW, NEW, change=RosterChange(joined=((peer(3), offer(OLD)),)))
    reporting = after(back, NEW, NEW, NEW, OLD, rounds=2)
    assert course([back, reporting]) == [(OLD, 5), (OLD, None)]
