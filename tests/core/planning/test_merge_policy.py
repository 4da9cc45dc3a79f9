"""Which instances merge, with which weights, and what a measurement does to it."""

from typing import Any

import pytest

from adloco_p2p.core.model.instance_plan import InstancePlan
from adloco_p2p.core.model.lineage import Merge, ProbeVerdict, normalized
from adloco_p2p.core.model.rules import MergeRules
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.core.planning.merge_policy import choose_merge, final_merge, judge, merged_batch
from tests.core.core_values import instance_plan, peer


def plans(*requests: int) -> list[InstancePlan]:
    return [instance_plan(i, requested=request) for i, request in enumerate(requests)]


def chosen(instances: list[InstancePlan], *, round: int = 4, **rules: object) -> Merge:
    merge, why = choose_merge(instances, round=round, rules=MergeRules(**rules))  # type: ignore[arg-type]
    assert merge is not None and why
    return merge


def blend(merge: Merge, points: list[tuple[float, float]]) -> tuple[float, ...]:
    return tuple(sum(w * p[axis] for w, p in zip(merge.weights, points, strict=True)) for axis in range(2))


def test_acceptance_f() -> None:
    points = [(1.0, 2.0), (5.0, -2.0)]
    one_host_each = [instance_plan(0, requested=3), instance_plan(1, requested=5)]
    assert blend(chosen(one_host_each), points) == pytest.approx((3.5, -0.5), abs=1e-6)
    # b = (3, 5) per host with (2, 1) hosts: global requests 6 and 5.
    unequal = [instance_plan(0, requested=6, hosts={peer(0): 3, peer(1): 3}), instance_plan(1, requested=5)]
    assert blend(chosen(unequal, weights="batch"), points) == pytest.approx((3.5, -0.5), abs=1e-6)
    assert blend(chosen(unequal, weights="hosts_times_batch"), points) == pytest.approx((2.818182, 0.181818), abs=1e-6)
    assert blend(chosen(unequal, weights="equal"), points) == pytest.approx((3.0, 0.0), abs=1e-6)


def test_worst_with_worst_folds_the_smallest_into_the_next() -> None:
    merge = chosen(plans(9, 4, 6, 20))
    assert (merge.sources, merge.target) == ((1, 2), 2)
    assert merge.weights == pytest.approx((0.4, 0.6))


def test_best_with_worst_folds_the_smallest_into_the_largest() -> None:
    merge = chosen(plans(9, 4, 6, 20), policy="best_with_worst")
    assert (merge.sources, merge.target) == ((1, 3), 3)


def test_worst_group_folds_several() -> None:
    merge = chosen(plans(9, 4, 6, 20), policy="worst_group", group_size=3)
    assert (merge.sources, merge.target) == ((0, 1, 2), 0)
    assert sum(merge.weights) == pytest.approx(1.0)
    assert chosen(plans(9, 4), policy="worst_group", group_size=9).sources == (0, 1)


@pytest.mark.parametrize(
    ("requests", "rules", "words"),
    [
        ((9, 4, 6, 20), {}, "instance 1 goes into 2: they ask for the smallest batches (4 and 6)"),
        ((32, 32), {}, "instance 0 goes into 1: they ask for the smallest batches (32 each)"),
        (
            (9, 4, 6, 20),
            {"policy": "best_with_worst"},
            "instance 1 goes into 3: they ask for the smallest and the largest batch (4 and 20)",
        ),
        (
            (9, 4, 6, 20),
            {"policy": "worst_group", "group_size": 3},
            "instances 1 and 2 go into 0: they ask for the smallest batches (4, 6 and 9)",
        ),
    ],
)
def test_a_newcomer_can_read_why_instances_are_merged(requests: tuple[int, ...], rules: dict[str, Any], words: str) -> None:
    assert chosen(plans(*requests), **rules).reason == words


def test_ties_go_by_instance_id() -> None:
    assert (chosen(plans(4, 4, 4)).sources, chosen(plans(4, 4, 4)).target) == ((0, 1), 1)


@pytest.mark.parametrize(
    ("requests", "round", "rules"),
    [
        ((4, 4), 3, {}),
        ((4, 4), 0, {}),
        ((4, 4), 4, {"first_round": 5}),
        ((4,), 4, {}),
        ((4, 4), 4, {"policy": "none"}),
    ],
)
def test_no_merge_off_the_period_before_the_first_round_or_alone(
    requests: tuple[int, ...], round: int, rules: dict[str, object]
) -> None:
    merge, why = choose_merge(plans(*requests), round=round, rules=MergeRules(**rules))  # type: ignore[arg-type]
    assert merge is None and why


def test_a_host_that_only_receives_does_not_dilute_the_request() -> None:
    instances = [instance_plan(0, requested=8, hosts={peer(0): 8, peer(1): 0}), instance_plan(1, requested=8)]
    assert chosen(instances).weights == (0.5, 0.5)


def test_zero_total_leaves_the_survivor_as_it_is() -> None:
    assert normalized([0.0, 0.0, 0.0], survivor=1) == (0.0, 1.0, 0.0)


def test_final_merge_takes_all_into_the_largest_request() -> None:
    merge = final_merge(plans(4, 20, 6), rules=MergeRules())
    assert (merge.sources, merge.target) == ((0, 1, 2), 1)
    assert merge.weights == pytest.approx((4 / 30, 20 / 30, 6 / 30))


@pytest.mark.parametrize(("after", "expected"), [("max", 20), ("survivor", 6), ("sum", 26)])
def test_batch_after_a_merge(after: str, expected: int) -> None:
    merge = Merge(sources=(InstanceId(0), InstanceId(1)), target=InstanceId(0), weights=(0.3, 0.7), reason="")
    rules = MergeRules(batch_after=after)  # type: ignore[arg-type]
    assert merged_batch(merge, plans(6, 20, 50), rules=rules, max_batch=100) == expected
    assert merged_batch(merge, plans(6, 20, 50), rules=rules, max_batch=22) == min(expected, 22)


def verdict(*losses: float, merged: float, sources: tuple[int, ...] = (0, 1), target: int = 1) -> ProbeVerdict:
    ids = tuple(InstanceId(source) for source in sources)
    return ProbeVerdict(sources=ids, target=InstanceId(target), source_losses=losses, merged_loss=merged)


PROBE = Merge(sources=(InstanceId(0), InstanceId(1)), target=InstanceId(1), weights=(0.4, 0.6), reason="test")


def test_a_merged_point_no_worse_than_the_worse_source_is_accepted() -> None:
    merge = judge(PROBE, [verdict(2.0, 2.1, merged=2.11)], rules=MergeRules(guard_tolerance=0.02))
    assert merge is not None
    assert (merge.sources, merge.target, merge.weights) == (PROBE.sources, PROBE.target, PROBE.weights)


def test_a_worse_merged_point_is_refused_and_the_worse_instance_ends() -> None:
    merge = judge(PROBE, [verdict(2.0, 2.1, merged=2.13)], rules=MergeRules(guard_tolerance=0.02))
    assert merge is not None
    assert (merge.target, merge.weights) == (0, (1.0, 0.0))
    assert "refused" in merge.reason
    assert merged_batch(merge, plans(6, 20), rules=MergeRules(), max_batch=100) == 6
    tie = judge(PROBE, [verdict(2.0, 2.0, merged=9.0)], rules=MergeRules())
    assert tie is not None and tie.target == PROBE.target


def test_the_median_of_the_verdicts_decides() -> None:
    lies = [verdict(2.0, 2.0, merged=90.0), verdict(2.0, 2.0, merged=1.9), verdict(2.0, 2.0, merged=1.95)]
    merge = judge(PROBE, lies, rules=MergeRules())
    assert merge is not None and merge.weights == PROBE.weights


def test_less_than_a_majority_of_those_that_were_to_measure_is_no_verdict() -> None:
    good = verdict(3.0, 2.0, merged=2.1)
    assert judge(PROBE, [good], rules=MergeRules(), num_deciding=2) is None
    assert judge(PROBE, [good], rules=MergeRules()) is not None, "before protocol 22"
    for num_deciding in (2, 3):
        accepted = judge(PROBE, [good, good], rules=MergeRules(), num_deciding=num_deciding)
        assert accepted is not None and accepted.weights == PROBE.weights


@pytest.mark.parametrize(
    "lie",
    [verdict(1e6, 1e6, merged=2.0), verdict(0.0, 1e6, merged=2e6)],
    ids=["a useless merge is good", "the better source is the worse one"],
)
@pytest.mark.parametrize("merged", [2.1, 9.0])
def test_half_of_the_verdicts_decide_nothing(lie: ProbeVerdict, merged: float) -> None:
    """Source 1 is a nat better. One of two lies: nothing is decided, but what both agree on; of three, it decides nothing."""
    honest = verdict(3.0, 2.0, merged=merged)
    alone = judge(PROBE, [honest], rules=MergeRules())
    of_two = judge(PROBE, [honest, lie], rules=MergeRules(), num_deciding=2)
    of_three = judge(PROBE, [honest, lie, honest], rules=MergeRules(), num_deciding=3)
    assert alone is not None and of_three is not None
    assert of_two is None or of_two.weights == alone.weights
    assert of_three.weights == alone.weights


def test_verdicts_on_something_else_do_not_count() -> None:
    others = [
        verdict(2.0, 2.0, merged=1.0, target=0),
        verdict(2.0, merged=1.0),
        verdict(2.0, 2.0, merged=1.0, sources=(0, 2)),
    ]
    assert judge(PROBE, others, rules=MergeRules()) is None
