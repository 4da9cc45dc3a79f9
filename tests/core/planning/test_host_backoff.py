"""Hosts that miss averages: when they back off, for how long, and that no instance is left without a host."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from adloco_p2p.core.model.instance_plan import HostShare
from adloco_p2p.core.model.plan import RosterChange, RoundPlan
from adloco_p2p.core.model.report import InstanceReport, Report
from adloco_p2p.core.model.report_form import bits_of, named_by
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.planning.host_backoff import backed_off, backoff_rounds, update_miss_counts
from tests.core.core_values import instance_plan, instance_report, peer
from tests.core.plan_check import check_plan
from tests.core.planning.test_round_plan import ONE, honest_reports, run

A, B, C = peer(0), peer(1), peer(2)
JOINED = {A: 0, B: 3, C: 0}


def claims(contributors: Mapping[PeerId, Sequence[PeerId]]) -> dict[PeerId, InstanceReport]:
    return {name: instance_report(contributors=named) for name, named in contributors.items()}


def shares(**changes: Any) -> tuple[HostShare, ...]:
    """Shares of A, B and C; the changes are C's."""
    *others, last = instance_plan(hosts={A: 4, B: 4, C: 4}).hosts
    return (*others, replace(last, **changes))


def test_backoffs_double_up_to_a_limit() -> None:
    assert [backoff_rounds(missed_averages) for missed_averages in (0, 2, 3, 4, 5, 6, 7, 8, 10**9)] == [
        0,
        0,
        4,
        8,
        16,
        16,
        16,
        16,
        16,
    ]


@pytest.mark.parametrize(
    ("said", "missed_averages"),
    [
        ({A: (A, B), B: (A, B)}, 2),
        ({A: (A, B), B: (A, B), C: (A, B, C)}, 2),
        ({A: (A, B, C), B: (A, B, C), C: (A, B)}, 0),
        ({A: (A, B), C: (A, C)}, 1),
        ({}, 1),
    ],
)
def test_more_than_half_of_the_reports_say_who_was_left_out(
    said: Mapping[PeerId, Sequence[PeerId]], missed_averages: int
) -> None:
    *_, share = update_miss_counts(shares(missed_averages=1), claims(said), joined=JOINED, round=5, next_round=7)
    assert (share.missed_averages, share.works_from) == (missed_averages, 0)


def test_after_three_missed_averages_a_host_backs_off_four_rounds_and_the_others_do_not() -> None:
    said = claims({A: (A, B), B: (A, B)})
    first, second, share = update_miss_counts(shares(missed_averages=2), said, joined=JOINED, round=5, next_round=7)
    assert (share.missed_averages, share.works_from) == (3, 11)
    assert (first.missed_averages, second.missed_averages) == (0, 0)


def test_who_had_no_work_is_not_judged() -> None:
    said = claims({A: (A, B), B: (A, B)})
    *_, share = update_miss_counts(shares(missed_averages=3, works_from=6), said, joined=JOINED, round=5, next_round=7)
    assert (share.missed_averages, share.works_from) == (3, 6)
    *_, share = update_miss_counts(shares(missed_averages=3, works_from=5), said, joined=JOINED, round=5, next_round=7)
    assert (share.missed_averages, share.works_from) == (4, 15)


def test_where_all_candidates_rest_all_work() -> None:
    hosts = shares(missed_averages=3, works_from=9)
    assert backed_off([A, B, C], hosts, 8) == [A, B]
    assert backed_off([A, B, C], hosts, 9) == [A, B, C]
    assert backed_off([C], hosts, 8) == [C]


# --- in plans --------------------------------------------------------------------------------------------------------


def without_host(item: InstanceReport, done: RoundPlan, bad: PeerId) -> int:
    plan = done.instance(item.instance)
    return bits_of([name for name in named_by(item.contributors, plan) if name != bad], [host.peer for host in plan.hosts])


def without(bad: PeerId, *, until: int) -> Any:
    """Honest reports of averages that `bad` is not in, in the rounds before `until`."""

    def say(done: RoundPlan) -> list[Report]:
        reports = honest_reports(done)
        if done.round >= until:
            return reports
        heard = []
        for report in reports:
            items = tuple(replace(item, contributors=without_host(item, done, bad)) for item in report.instances)
            heard.append(replace(report, instances=items))
        return heard

    return say


def worked_rounds(plans: Sequence[RoundPlan], name: PeerId) -> list[int]:
    return [plan.round for plan in plans for share in plan.instances[0].hosts if share.peer == name and share.batch_samples > 0]


LONG = replace(ONE, work=replace(ONE.work, rounds=48))


def test_a_host_that_is_never_in_an_average_works_less_and_less_and_the_plan_says_why() -> None:
    """Misses rounds 0, 1, 2, known in plan 4: backs off in rounds 4 to 7. Works in 8 and 9; the reports of 8 are in plan 10:
    8 rounds, 10 to 17. Works in 18, 19; 16 rounds, 20 to 35. Works in 36, 37; 16 rounds again from 38 on."""
    plans = run(LONG, until=47, say=without(C, until=100))
    assert worked_rounds(plans, C) == [0, 1, 2, 3, 8, 9, 18, 19, 36, 37]
    assert worked_rounds(plans, A) == worked_rounds(plans, B) == list(range(48))
    assert plans[4].instances[0].reason.startswith(f"no work for {C} before round 8 (missed 3 averages); ")
    assert "no work" not in plans[8].instances[0].reason


def test_a_host_that_is_in_an_average_again_is_like_any_other() -> None:
    plans = run(LONG, until=30, say=without(C, until=8))
    assert worked_rounds(plans, C) == [0, 1, 2, 3, *range(8, 31)]
    assert plans[10].instances[0].hosts[2].missed_averages == 0


def test_an_instance_whose_other_hosts_depart_is_trained_by_the_one_in_backoff() -> None:
    plans = run(LONG, until=9, say=without(C, until=100), joins={6: RosterChange(departed=(A, B))})
    assert worked_rounds(plans, C) == [0, 1, 2, 3, 6, 7, 8, 9]


def test_the_check_finds_work_of_a_host_in_backoff() -> None:
    plan = run(LONG, until=5, say=without(C, until=100))[-1]
    item = plan.instances[0]
    wrong = replace(plan, instances=(replace(item, hosts=tuple(replace(s, works_from=0) for s in item.hosts)),))
    assert check_plan(wrong, LONG) == [f"instance {item.instance}: work before its time, or none when it has come"]
