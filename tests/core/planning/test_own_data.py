"""Instances with data of their own: which data an instance trains on from its start or fork to the end of the run.

`check_plan`, which looks at every plan here, asks that no data set is without a reader and none has two.
"""

from dataclasses import replace

from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.rules import InstanceRules, Rules
from tests.core.planning.test_round_plan import THREE, probing, run

OWN = ("code.txt", "prose.txt", "tables.txt")
SAME = replace(THREE, instances=InstanceRules(count=3, start="same", data=OWN))
GUARDED = replace(SAME, merge=replace(SAME.merge, guard=True))


def reads(plan: RoundPlan) -> list[tuple[int, ...]]:
    return [item.reads for item in plan.instances]


def rules_of(rules: Rules, **merge: object) -> Rules:
    return replace(rules, merge=replace(rules.merge, **merge))  # type: ignore[arg-type]


def test_instances_that_start_together_read_their_own_data_from_the_first_round_on() -> None:
    plans = run(SAME)
    assert reads(plans[0]) == [(0,), (1,), (2,)]


def test_the_instance_that_warms_up_reads_all_data_until_its_copies_are_made() -> None:
    forking = InstanceRules(count=3, start="fork", fork_round=4, data=OWN)
    plans = run(rules_of(replace(SAME, instances=forking), policy="none"))
    assert [reads(plan) for plan in plans[:5]] == [[()]] * 4 + [[(0,), (1,), (2,)]]
    assert reads(plans[11]) == [(0,), (1,), (2,)] and reads(plans[12]) == [()]


def test_merged_instances_read_what_their_sources_read() -> None:
    plans = run(rules_of(SAME, period_rounds=4))
    joined = {plan.round: reads(plan) for plan in plans if plan.merges}
    assert joined[4] == [(0, 1), (2,)] or joined[4] == [(0,), (1, 2)]
    assert joined[8] == [()]


def test_the_data_of_an_instance_that_ends_without_a_weight_goes_to_the_one_that_stays() -> None:
    plans = run(GUARDED, say=probing(merged_loss=9.0))
    ended = next(plan for plan in plans if plan.merges)
    assert 0.0 in ended.merges[0].weights and not ended.is_last
    assert sorted(map(len, reads(ended))) == [1, 2]


def test_without_data_of_their_own_all_read_everything() -> None:
    assert all(found == () for plan in run(THREE) for found in reads(plan))
