"""Newcomers work before they decide: probation, rising standing, and what a peer that comes back keeps."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from adloco_p2p.core.model.electorate import electorate
from adloco_p2p.core.model.plan import RosterChange, RoundPlan
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.roster_entry import FULL_STANDING, RosterEntry
from adloco_p2p.core.model.rules import AdmissionRules, Rules, WorkRules
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.core.planning.round_plan import genesis, next_plan
from adloco_p2p.core.planning.standing import FIRST_STANDING, REMEMBERED_ROUNDS, RISE_ROUNDS, YOUNG_ROUNDS
from tests.core.core_values import RUN, capacity, peer
from tests.core.planning.test_round_plan import ONE, honest_reports, run


def rules(**settings: object) -> Rules:
    return Rules(work=WorkRules(rounds=1000), admission=AdmissionRules(**settings))  # type: ignore[arg-type]


def played_to(round: int, made: Rules) -> RoundPlan:
    """The plan of that round of a run of two founders that report every round."""
    plan = genesis(RUN, [(peer(0), capacity()), (peer(1), capacity())], made, signers=[peer(0), peer(7)])
    while plan.round < round:
        plan = following(plan, made, reporting=(peer(0), peer(1)))
    return plan


def following(
    plan: RoundPlan,
    made: Rules,
    *,
    reporting: Sequence[PeerId],
    joined: Sequence[PeerId] = (),
    departed: Sequence[PeerId] = (),
) -> RoundPlan:
    reports = [
        Report(peer=name, round=plan.round - 1, plan=Digest("b" * 64), capacity=capacity()) for name in sorted(reporting)
    ]
    change = RosterChange(joined=tuple((name, capacity()) for name in joined), departed=tuple(departed))
    return next_plan(plan, reports if plan.round else (), made, roster=change)


def seat(plan: RoundPlan, name: PeerId) -> RosterEntry:
    return next(entry for entry in plan.roster if entry.peer == name)


def test_a_newcomer_serves_eight_reports_and_then_rises_over_eight_more() -> None:
    made = rules()
    plan = following(played_to(20, made), made, reporting=(peer(0), peer(1)), joined=[peer(2)])
    assert (seat(plan, peer(2)).probation, seat(plan, peer(2)).standing) == (8, 64)
    for owed in range(7, -1, -1):
        plan = following(plan, made, reporting=(peer(0), peer(1), peer(2)))
        assert (seat(plan, peer(2)).probation, seat(plan, peer(2)).standing) == (owed, 64)
        assert (peer(2) in electorate(plan)) is (owed == 0)
    for risen in range(1, RISE_ROUNDS + 1):
        plan = following(plan, made, reporting=(peer(0), peer(1), peer(2)))
        assert seat(plan, peer(2)).standing == 64 + 24 * risen
    plan = following(plan, made, reporting=(peer(0), peer(1), peer(2)))
    assert seat(plan, peer(2)).standing == FULL_STANDING


def test_a_round_without_a_report_is_not_served() -> None:
    made = rules()
    plan = following(played_to(20, made), made, reporting=(peer(0), peer(1)), joined=[peer(2)])
    for _ in range(10):
        plan = following(plan, made, reporting=(peer(0), peer(1)))
    assert seat(plan, peer(2)).probation == 8
    assert electorate(plan) == (peer(0), peer(1))


def test_a_member_without_an_instance_serves_nothing_by_its_report() -> None:
    """As one whose link is too slow: a false uplink would earn a full seat."""
    made = rules()
    plan = following(played_to(20, made), made, reporting=(peer(0), peer(1)), joined=[peer(2)])
    others = [replace(item, hosts=tuple(share for share in item.hosts if share.peer != peer(2))) for item in plan.instances]
    plan = following(replace(plan, instances=tuple(others)), made, reporting=(peer(0), peer(1), peer(2)))
    assert seat(plan, peer(2)).last_report == plan.round - 2
    assert seat(plan, peer(2)).probation == 8


@pytest.mark.parametrize(
    ("settings", "round", "name", "probation", "standing"),
    [
        ({}, YOUNG_ROUNDS - 1, peer(2), 0, FULL_STANDING),
        ({}, YOUNG_ROUNDS, peer(2), 8, 64),
        ({}, 500, peer(7), 0, FULL_STANDING),  # a signer
        ({"probation_rounds": 0}, 500, peer(2), 0, FULL_STANDING),
        ({"kind": "open"}, 3, peer(2), 0, FULL_STANDING),
        ({"kind": "open"}, 20, peer(2), 5, 1),  # a quarter of the run so far
        ({"kind": "open"}, 500, peer(2), 8, 1),
    ],
)
def test_the_first_seat_of_a_newcomer(
    settings: dict[str, object], round: int, name: PeerId, probation: int, standing: int
) -> None:
    made = rules(**settings)
    before = replace(played_to(1, made), round=round - 1)
    newcomer = seat(following(before, made, reporting=(), joined=[name]), name)
    assert (newcomer.probation, newcomer.standing) == (probation, standing)


def test_an_open_run_lets_the_standing_rise_to_the_full_one() -> None:
    made = rules(kind="open")
    plan = following(played_to(40, made), made, reporting=(peer(0), peer(1)), joined=[peer(2)])
    standings = []
    for _ in range(8 + RISE_ROUNDS):
        plan = following(plan, made, reporting=(peer(0), peer(1), peer(2)))
        standings.append(seat(plan, peer(2)).standing)
    assert standings == [1] * 8 + [33, 65, 97, 129, 161, 193, 225, FULL_STANDING]


def test_a_served_probation_is_kept_for_a_while() -> None:
    made = rules()
    founders = (peer(0), peer(1))
    plan = following(played_to(20, made), made, reporting=founders, joined=[peer(2), peer(3)])
    for _ in range(10):
        plan = following(plan, made, reporting=(*founders, peer(2)))
    plan = following(plan, made, reporting=founders, departed=[peer(2), peer(3)])
    assert [former.peer for former in plan.former] == [peer(2)], "the other one never reported"
    left_round = plan.round
    soon = following(plan, made, reporting=founders, joined=[peer(2), peer(3)])
    assert (seat(soon, peer(2)).probation, seat(soon, peer(2)).standing) == (0, 112)
    assert seat(soon, peer(3)).probation == 8
    assert soon.former == (), "it has a seat again"
    public = rules(kind="open")
    soon = following(plan, public, reporting=founders, joined=[peer(2)])
    assert soon.former == plan.former, "its seat is no first seat"
    assert following(soon, public, reporting=founders, departed=[peer(2)]).former == plan.former
    assert following(soon, public, reporting=(*founders, peer(2))).former == ()
    while plan.round < left_round + REMEMBERED_ROUNDS:
        plan = following(plan, made, reporting=founders)
    assert plan.former
    plan = following(plan, made, reporting=founders)
    assert plan.former == ()
    assert seat(following(plan, made, reporting=founders, joined=[peer(2)]), peer(2)).probation == 8


def test_a_host_that_the_stricter_rule_left_out_begins_its_probation_anew() -> None:
    previous = run(ONE, num_peers=5, until=6)[-1]
    [item] = previous.instances
    before = replace(previous, instances=(replace(item, strict_before=previous.round),))
    reports = [
        replace(report, instances=tuple(replace(made, left_out=0b00100) for made in report.instances))
        for report in honest_reports(replace(before, round=before.round - 1))
    ]
    plan = next_plan(before, reports, ONE)
    seats = {entry.peer: entry for entry in plan.roster}
    assert seats[peer(2)].probation == ONE.admission.probation_rounds > 0
    assert seats[peer(2)].standing == FIRST_STANDING[ONE.admission.kind]
    assert [name for name, entry in seats.items() if entry.probation] == [peer(2)]
    assert f"on probation, left out by the stricter rule: {peer(2)}" in plan.reason
    swarm = replace(ONE, admission=replace(ONE.admission, probation_rounds=0))
    assert not any(entry.probation for entry in next_plan(before, reports, swarm).roster)
