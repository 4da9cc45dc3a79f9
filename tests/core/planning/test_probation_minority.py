"""Names that have not served their probation decide nothing, however many they are."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import pytest

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.electorate import electorate
from adloco_p2p.core.model.instance_plan import HostShare
from adloco_p2p.core.model.plan import RosterChange, RoundPlan
from adloco_p2p.core.model.protocol import PROBATION_LIMITED
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.report_form import bits_of
from adloco_p2p.core.model.roster_entry import RosterEntry
from adloco_p2p.core.model.rules import AdmissionRules, BatchRules, WorkRules
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.planning.host_backoff import MISSED_AVERAGES_LIMIT
from adloco_p2p.core.planning.placement import without_surplus
from adloco_p2p.core.planning.round_plan import genesis, next_plan
from tests.core.core_values import RUN, capacity, peer
from tests.core.plan_check import check_plan
from tests.core.planning.test_round_plan import ONE, honest_reports

FOUNDERS, SEATED = 5, 40
NAMES = frozenset(peer(number) for number in range(FOUNDERS, FOUNDERS + 8))
INVENTED = canonical.digest("a state that nobody trained")


def reports_of(plan: RoundPlan, *, newest: int) -> list[Report]:
    """Return honest reports of the founders; those of the names invent a state, and leave the founders out of the average."""
    reports = []
    for report in honest_reports(plan):
        told = replace(report, capacity=replace(report.capacity, newest_protocol=newest))
        if report.peer in NAMES:
            hosts = [share.peer for share in plan.instances[0].hosts]
            bits = bits_of([host for host in hosts if host in NAMES], hosts)
            invented = [replace(one, contributors=bits, state_digest=INVENTED, digest=INVENTED) for one in told.instances]
            told = replace(told, instances=tuple(invented))
        reports.append(told)
    return reports


def plans_of(kind: Literal["open", "tickets"], protocol: int, *, until: int) -> list[RoundPlan]:
    rules = replace(
        ONE,
        work=WorkRules(inner_steps=8, rounds=80),
        batch=BatchRules(initial_batch=40, test="constant"),
        admission=AdmissionRules(kind=kind),
    )
    founders = [(peer(number), capacity()) for number in range(FOUNDERS)]
    plans = [genesis(RUN, founders, rules, signers=[peer(0)] if kind == "tickets" else [], protocol=protocol)]
    seats = tuple((name, replace(capacity(), newest_protocol=protocol)) for name in sorted(NAMES))
    while plans[-1].round < until:
        change = RosterChange(joined=seats) if plans[-1].round + 1 == SEATED else None
        plans.append(
            next_plan(plans[-1], reports_of(plans[-2], newest=protocol) if len(plans) > 1 else [], rules, roster=change)
        )
        assert check_plan(plans[-1], rules) == []
    return plans


def working(plan: RoundPlan) -> set[PeerId]:
    return {share.peer for share in plan.instances[0].hosts if share.samples}


@pytest.mark.parametrize("kind", ["open", "tickets"])
def test_names_on_probation_train_as_a_minority_and_decide_nothing(kind: Literal["open", "tickets"]) -> None:
    during = [
        plan for plan in plans_of(kind, PROBATION_LIMITED, until=60) if plan.round >= SEATED and not NAMES & {*electorate(plan)}
    ]
    assert len(during) > 8 and all(len(working(plan) & NAMES) == FOUNDERS - 1 for plan in during)
    for plan in during:
        shares = [share for share in plan.instances[0].hosts if share.peer not in NAMES]
        assert plan.instances[0].state_digest != INVENTED
        assert {share.peer for share in shares} <= working(plan)
        assert all(share.missed_averages < MISSED_AVERAGES_LIMIT for share in shares)


def test_the_protocol_before_let_them_decide_after_one_report_each() -> None:
    """Why the rule is there; runs of the older protocol keep their rule."""
    plans = plans_of("open", PROBATION_LIMITED - 1, until=SEATED + 5)
    assert plans[-1].instances[0].state_digest == INVENTED and not working(plans[-1]) - NAMES
    assert not NAMES & {*electorate(plans[-1])}


def roster_of_seats(*probations: int) -> list[RosterEntry]:
    """Return seats in the order of joining."""
    return [
        RosterEntry(peer=peer(number), joined_round=number, capacity=capacity(), probation=probation)
        for number, probation in enumerate(probations)
    ]


@pytest.mark.parametrize(
    ("probations", "trains"),
    [
        ((0, 3), [0, 1]),
        ((0, 3, 3, 3), [0, 1]),
        ((0, 3, 0, 3), [0, 1, 2]),
        ((3, 0, 3, 0, 3, 0), [0, 1, 2, 3, 5]),
        ((3, 3, 3), [0, 1, 2]),
        ((0, 0, 0), [0, 1, 2]),
    ],
)
def test_full_members_are_more_than_half_of_those_that_train_and_the_first_newcomers_go_first(
    probations: Sequence[int], trains: Sequence[int]
) -> None:
    roster = roster_of_seats(*probations)
    assert without_surplus([entry.peer for entry in roster], roster) == [peer(number) for number in trains]


def test_candidates_alone_count() -> None:
    roster = roster_of_seats(0, 0, 0, 3, 3)
    assert without_surplus([peer(4), peer(0), peer(3)], roster) == [peer(0), peer(3)]


def test_hosts_without_work_do_not_judge_who_missed_an_average() -> None:
    plan = plans_of("open", PROBATION_LIMITED, until=SEATED + 4)[-1]
    idle: list[HostShare] = [share for share in plan.instances[0].hosts if share.peer in NAMES - working(plan)]
    assert idle, "some names only receive the averages"
    assert not any(share.missed_averages for share in plan.instances[0].hosts if share.peer not in NAMES)
