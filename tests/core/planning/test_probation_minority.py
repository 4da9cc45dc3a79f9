"""Names that have not served their probation decide nothing, however many they are."""

from collections.abc import Collection, Sequence, Set
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
from adloco_p2p.core.model.rules import AdmissionRules, BatchRules, InstanceRules, WorkRules
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.planning.host_backoff import MISSED_AVERAGES_LIMIT
from adloco_p2p.core.planning.placement import without_surplus
from adloco_p2p.core.planning.round_plan import genesis, next_plan
from tests.core.core_values import RUN, capacity, peer
from tests.core.plan_check import check_plan
from tests.core.planning.test_round_plan import ONE, honest_reports

FOUNDERS, SEATED = 5, 40
NAMES = frozenset(peer(number) for number in range(FOUNDERS, FOUNDERS + 8))
SIZE = 10_000_000
INVENTED = canonical.digest("a state that nobody trained")


def reports_of(plan: RoundPlan, *, newest: int, liars: Set[PeerId] = NAMES, slow: Set[PeerId] = frozenset()) -> list[Report]:
    """Return honest reports; those of the liars invent a state and a size, and leave all others out of the average. Some hosts
    have slow links."""
    reports = []
    for report in honest_reports(plan):
        uplink = 1.2e6 if report.peer in slow else 12.5e6
        able = replace(report.capacity, upload_bytes_per_second=uplink, download_bytes_per_second=12.5e6)
        told = replace(report, capacity=replace(able, newest_protocol=newest))
        told = replace(told, instances=tuple(replace(one, vector_bytes=SIZE) for one in told.instances))
        if report.peer in liars and plan.round >= SEATED:
            invented = []
            for one in told.instances:
                hosts = plan.instance(one.instance).peers
                bits = bits_of([host for host in hosts if host in liars], hosts)
                lie = replace(one, contributors=bits, state_digest=INVENTED, digest=INVENTED, vector_bytes=1 << 36)
                invented.append(lie)
            told = replace(told, instances=tuple(invented))
        reports.append(told)
    return reports


def plans_of(
    kind: Literal["open", "tickets"],
    protocol: int,
    *,
    until: int,
    founders: int = FOUNDERS,
    names: Collection[PeerId] = NAMES,
    liars: Set[PeerId] = NAMES,
    slow: Set[PeerId] = frozenset(),
    instances: int = 1,
    batch: int = 40,
) -> list[RoundPlan]:
    """Return the plans of a run in which the names get their seats in plan SEATED."""
    rules = replace(
        ONE,
        work=WorkRules(inner_steps=8, rounds=80),
        batch=BatchRules(initial_batch=batch, test="constant"),
        instances=InstanceRules(count=instances, start="same"),
        admission=AdmissionRules(kind=kind),
    )
    able = replace(capacity(max_instances=instances), newest_protocol=protocol)
    first = [(peer(number), able) for number in range(founders)]
    plans = [genesis(RUN, first, rules, signers=[peer(0)] if kind == "tickets" else [], protocol=protocol)]
    seats = tuple((name, able) for name in sorted(names))
    while plans[-1].round < until:
        change = RosterChange(joined=seats) if plans[-1].round + 1 == SEATED else None
        told = reports_of(plans[-2], newest=protocol, liars=liars, slow=slow) if len(plans) > 1 else []
        plans.append(next_plan(plans[-1], told, rules, roster=change))
        assert check_plan(plans[-1], rules) == []
    return plans


def before_any_votes(plans: Sequence[RoundPlan], names: Set[PeerId]) -> list[RoundPlan]:
    """Return the plans from that of the seats on, as long as no name is an elector."""
    return [plan for plan in plans if plan.round >= SEATED and not names & {*electorate(plan)}]


def working(plan: RoundPlan) -> set[PeerId]:
    return {share.peer for share in plan.instances[0].hosts if share.samples}


def named(*numbers: int) -> frozenset[PeerId]:
    return frozenset(peer(number) for number in numbers)


@pytest.mark.parametrize("kind", ["open", "tickets"])
def test_names_on_probation_train_as_a_minority_and_decide_nothing(kind: Literal["open", "tickets"]) -> None:
    during = before_any_votes(plans_of(kind, PROBATION_LIMITED, until=60), NAMES)
    assert len(during) > 8 and all(len(working(plan) & NAMES) == FOUNDERS - 1 for plan in during)
    for plan in during:
        shares = [share for share in plan.instances[0].hosts if share.peer not in NAMES]
        assert plan.instances[0].state_digest != INVENTED and plan.instances[0].vector_bytes == SIZE
        assert {share.peer for share in shares} <= working(plan)
        assert all(share.missed_averages < MISSED_AVERAGES_LIMIT for share in shares)


@pytest.mark.parametrize("kind", ["open", "tickets"])
@pytest.mark.parametrize("founders", [2, 3, 5])
def test_one_full_member_that_lies_gains_nothing_by_names_on_probation(kind: Literal["open", "tickets"], founders: int) -> None:
    """With four names it were five of nine that train."""
    names = named(*range(founders, 2 * founders - 1))
    liars = names | {peer(founders - 1)}
    plans = plans_of(kind, PROBATION_LIMITED, until=60, founders=founders, names=names, liars=liars)
    during = before_any_votes(plans, names)
    assert len(during) > 8
    for plan in during:
        assert plan.instances[0].state_digest != INVENTED
        if founders > 2:  # of two full members nobody knows which one lies
            assert named(*range(founders - 1)) <= working(plan)


def test_a_lone_founder_goes_on_beside_names_that_report_lies() -> None:
    for count in (1, 3):
        names = named(*range(1, 1 + count))
        during = before_any_votes(plans_of("open", PROBATION_LIMITED, until=60, founders=1, names=names, liars=names), names)
        assert len(during) > 8
        assert all(peer(0) in working(plan) and plan.instances[0].state_digest != INVENTED for plan in during)


def test_names_decide_no_average_in_which_full_members_with_slow_links_have_no_part() -> None:
    names, slow = named(5, 6, 7, 8), named(0, 1)
    plans = plans_of("open", PROBATION_LIMITED, until=60, names=names, liars=names, slow=slow)
    during = before_any_votes(plans, names)
    parts = [names & {*plan.instances[0].contributors(plan.round)} for plan in during]
    fewer = [{*plan.instances[0].contributors(plan.round)} - names for plan in during]
    assert any(len(many) > len(few) for many, few in zip(parts, fewer, strict=True)), "the names are more"
    assert all(plan.instances[0].state_digest != INVENTED for plan in during)
    assert all({share.peer for share in plan.instances[0].hosts} >= named(0, 1, 2, 3, 4) for plan in during)


@pytest.mark.parametrize(("founders", "batch"), [(4, 4), (4, 6), (5, 8), (8, 12), (8, 16)])
@pytest.mark.parametrize("kind", ["open", "tickets"])
def test_names_get_no_instance_for_themselves(kind: Literal["open", "tickets"], founders: int, batch: int) -> None:
    names = named(*range(founders, 2 * founders))
    plans = plans_of(kind, PROBATION_LIMITED, until=60, founders=founders, names=names, liars=names, instances=2, batch=batch)
    for plan in before_any_votes(plans, names):
        for item in plan.instances:
            at_work = {share.peer for share in item.hosts if share.samples}
            assert at_work - names and len(at_work & names) < max(2, len(at_work - names)), (plan.round, item.instance)
            assert item.state_digest != INVENTED


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


@pytest.mark.parametrize("claim", [1e-9, 1e9])
@pytest.mark.parametrize("names", [4, 8])
def test_speeds_that_names_claim_move_neither_the_expected_time_nor_the_shares_of_full_members(
    claim: float, names: int
) -> None:
    """Three founders and the names, of which two train. Names that claim to be slow get less, so the others get more."""
    first = [(peer(number), replace(capacity(), newest_protocol=PROBATION_LIMITED)) for number in range(3 + names)]
    rules = replace(ONE, work=WorkRules(inner_steps=8, rounds=80), batch=BatchRules(initial_batch=64, test="constant"))
    plan = genesis(RUN, first, rules, protocol=PROBATION_LIMITED)

    def following(speed: float) -> RoundPlan:
        seats = [
            replace(entry, speeds=(10.0,) * 3) if entry.peer < peer(3) else replace(entry, speeds=(speed,) * 3, probation=5)
            for entry in plan.roster
        ]
        return next_plan(replace(plan, roster=tuple(seats)), [], rules)

    honest, lied = following(10.0), following(claim)
    own = [share.samples for share in honest.instances[0].hosts if share.peer < peer(3)]
    found = [share.samples for share in lied.instances[0].hosts if share.peer < peer(3)]
    assert sum(share.samples > 0 for share in lied.instances[0].hosts) == 5
    assert all(fewer <= more <= 2 * fewer for fewer, more in zip(own, found, strict=True))
    assert 0.0 < honest.expected_seconds <= lied.expected_seconds <= 2 * honest.expected_seconds
