"""The guard's rule, by hand: when reports on an outer step are an alarm, a dispute, or nothing."""

from dataclasses import replace

import pytest

from adloco_p2p.core.model.instance_plan import InstancePlan
from adloco_p2p.core.model.measurers import measurers
from adloco_p2p.core.model.report import InstanceReport, StepLosses
from adloco_p2p.core.model.roster_entry import Capacity, RosterEntry
from adloco_p2p.core.model.rules import GuardRules
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.core.planning.guard import judged, kept_apart, left_out_when_strict
from tests.core.core_values import instance_plan, instance_report, peer

PEERS = tuple(peer(index) for index in range(8))
CAPACITY = Capacity(samples_per_second=1.0, micro_batch_limit=4, max_instances=1)
ROSTER = tuple(RosterEntry(peer=peer, joined_round=0, capacity=CAPACITY) for peer in PEERS)
BEFORE, AFTER = Digest("b" * 64), Digest("a" * 64)
ROUND = 9
RULES = GuardRules(enabled=True)


PLAN = replace(
    instance_plan(hosts=dict.fromkeys(PEERS, 1), inner_steps=1, requested=8),
    reason="as before",
    measurers=2,
    measurers_before=2,
    state_digest=BEFORE,
)


def claim(rise: float | None) -> InstanceReport:
    step = None if rise is None else StepLosses(before=3.0, after=3.0 + rise)
    return replace(instance_report(batch=1, inner_steps=1, contributors=PEERS, state=AFTER), step=step)


def next_of(plan: InstancePlan, *rises: float | None) -> InstancePlan:
    """The drawn hosts report these rises, in the order of the lot; everybody else that the loss rose by ten."""
    drawn = measurers(AFTER, PEERS, ROSTER, count=plan.measurers_before)
    claims = {peer: claim(10.0) for peer in PEERS} | {peer: claim(rise) for peer, rise in zip(drawn, rises, strict=False)}
    moved = replace(plan, state_digest=AFTER, measurers_before=plan.measurers)
    return judged(plan, moved, claims, ROSTER, round=ROUND, rules=RULES)[0]


def test_both_see_the_loss_rise() -> None:
    plan = next_of(PLAN, 0.05, 0.04)
    assert plan.rewind == BEFORE and plan.rises == ()
    assert plan.judged_from == plan.strict_before == ROUND + 4, "two rounds are strict and stand"
    assert plan.reason == (
        "2 of 2 hosts measured that round 9 raised the loss of instance 0 by 0.040 or more, 0.020 is tolerated; it goes back to"
        " the state before that round, and 2 rounds are averaged by the stricter rule; as before"
    )


def test_one_alone_is_a_dispute_and_four_measure_the_next_step() -> None:
    plan = next_of(PLAN, 0.05, -0.01)
    assert plan.rewind is None and plan.measurers == 4 and plan.rises == ()
    disputed = replace(PLAN, measurers_before=4)
    assert next_of(disputed, 0.05, 0.05, -0.01, -0.01).rewind is None
    assert next_of(disputed, 0.05, 0.05, 0.05, -0.01).rewind == BEFORE


@pytest.mark.parametrize("rises", [(0.05, None), (None, None), (0.019, 0.019), (-0.1, -0.1)])
def test_no_alarm(rises: tuple[float | None, ...]) -> None:
    assert next_of(PLAN, *rises).rewind is None


def test_the_tolerance_follows_the_largest_rise_of_late_and_a_liar_alone_does_not_widen_it() -> None:
    assert next_of(PLAN, 0.012, 0.019).rises == (pytest.approx(0.012),)
    used = replace(PLAN, rises=(0.0, 0.012))
    assert next_of(used, 0.035, 0.035).rewind is None
    assert next_of(used, 0.037, 0.037).rewind == BEFORE
    assert next_of(replace(PLAN, rises=(0.09,)), 0.11, 0.11).rewind == BEFORE, "never more than 0.1"


def test_what_was_left_behind_is_not_judged() -> None:
    assert next_of(replace(PLAN, judged_from=ROUND + 1), 1.0, 1.0).rewind is None
    assert next_of(replace(PLAN, state_digest=None), 1.0, 1.0).rewind is None, "the state before is not known"
    (apart,) = kept_apart([next_of(PLAN, 1.0, 1.0)], [InstanceId(0)], ROUND + 2)
    assert apart.rewind is None


STRICT = replace(PLAN, strict_before=ROUND + 1)
"""ROUND is the second of two strict rounds."""
PLACES = {peer: place for place, peer in enumerate(PEERS)}


def left_out(plan: InstancePlan, *bits: int, entries: tuple[RosterEntry, ...] = ROSTER, round: int = ROUND) -> set[PeerId]:
    """By these hosts' reports; the others report that nobody was."""
    said = dict(zip(PEERS, bits, strict=False))
    claims = {peer: replace(claim(None), left_out=said.get(peer, 0)) for peer in PEERS}
    return left_out_when_strict(plan, claims, entries, PLACES, round=round)


def test_hosts_that_the_stricter_rule_leaves_out_after_an_alarm_are_put_on_probation_and_no_others() -> None:
    most = (0b1000_0001,) * 5
    assert left_out(STRICT, *most) == {PEERS[0], PEERS[7]}
    assert left_out(STRICT, *most[:4]) == set(), "four of eight"
    assert left_out(STRICT, *(0b1111_0000,) * 8) == set(), "half of them"
    assert [left_out(STRICT, *most, round=ROUND - back) != set() for back in (0, 1, 2)] == [True, True, False]
    assert left_out(replace(STRICT, strict_before=0), *most) == set(), "no alarm"
    new = tuple(replace(entry, probation=3 if place < 3 else 0) for place, entry in enumerate(ROSTER))
    assert left_out(STRICT, *most, entries=new) == set(), "two of five full members"


def test_three_hosts_are_too_few_to_leave_one_out() -> None:
    few = replace(STRICT, hosts=STRICT.hosts[:3])
    assert left_out(few, *(0b1,) * 3) == set()
    assert left_out(replace(STRICT, hosts=STRICT.hosts[:4]), *(0b1,) * 3) == {PEERS[0]}


def test_without_the_guard_nothing_is_judged() -> None:
    claims = {peer: claim(10.0) for peer in PEERS}
    moved = replace(PLAN, state_digest=AFTER)
    assert judged(PLAN, moved, claims, ROSTER, round=ROUND, rules=GuardRules()) == (moved, "")


def test_the_lot_changes_with_the_state_and_prefers_full_members() -> None:
    pairs = {measurers(Digest(f"{index:064x}"), PEERS, ROSTER, count=2) for index in range(200)}
    assert len(pairs) > 40, "of 56"
    young = [replace(entry, probation=int(entry.peer in PEERS[:5])) for entry in ROSTER]
    assert {peer for index in range(50) for peer in measurers(Digest(str(index)), PEERS, young, count=2)} == {*PEERS[5:]}
    assert measurers(AFTER, PEERS[:1], young, count=2) == PEERS[:1], "where there is no full member, those that are there"
