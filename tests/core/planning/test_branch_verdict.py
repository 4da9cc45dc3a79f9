"""A merge with states of a lost history is measured first, and done only where most hosts found it no worse."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.lineage import Merge, ProbeVerdict
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.rules import MergeRules
from adloco_p2p.core.model.scalars import Digest, InstanceId
from adloco_p2p.core.planning.round_plan import next_plan
from tests.core.core_values import peer
from tests.core.ledger.test_branches import INSTANCE, accepted, branch_state, bringing, history
from tests.core.plan_check import check_plan
from tests.core.planning.test_round_plan import ONE, honest_reports

GUARDED = replace(ONE, merge=MergeRules(policy="none", guard=True, guard_tolerance=0.02))


def named(num_branches: int = 1) -> RoundPlan:
    """A plan that names branch states of as many histories, by three peers."""
    ledger = history(5)
    claims = [branch_state(ledger, branch=Digest(f"{number + 1:064x}")) for number in range(num_branches)]
    items = [accepted(ledger, bringing(ledger, (0, claim)))[0] for claim in claims]
    return replace(ledger.plans[-1], branches=tuple(sorted(items, key=lambda item: item.branch_state.key)))


def after(plan: RoundPlan, done: RoundPlan, verdicts: Sequence[ProbeVerdict | None] = (), *, holders: int = 3) -> RoundPlan:
    """The next plan, from reports on `done`; the first `holders` peers hold what `plan` names."""
    states = tuple(item.branch_state for item in plan.branches)
    reports: list[Report] = [
        replace(
            report,
            round=plan.round - 1,
            branches=states if place < holders else (),
            verdict=verdicts[place] if place < len(verdicts) else None,
        )
        for place, report in enumerate(honest_reports(done))
    ]
    made = next_plan(plan, reports, GUARDED)
    assert check_plan(made, GUARDED) == []
    return made


def said(probe: Merge, target: float, merged: float, *branches: float) -> ProbeVerdict:
    losses = (target, *(branches or (3.0,)))
    return ProbeVerdict(sources=probe.sources, target=probe.target, source_losses=losses, merged_loss=merged)


def measured(num_branches: int = 1) -> tuple[RoundPlan, Merge]:
    """The plan whose successor finds the verdicts, and what they are about."""
    first = named(num_branches)
    probing = after(first, first)
    assert probing.merges == () and probing.probe is not None and len(probing.branches) == num_branches
    waiting = after(probing, first)
    assert waiting.merges == () and waiting.probe is None and waiting.pending == probing.probe
    return waiting, probing.probe


@pytest.mark.parametrize("merged", [1.5, 2.01])
def test_a_branch_state_is_merged_as_it_was_measured(merged: float) -> None:
    waiting, probe = measured()
    plan = after(waiting, waiting, [said(probe, 2.0, merged)] * 3)
    (merge,) = plan.merges
    assert (merge.sources, merge.target, merge.weights) == (probe.sources, INSTANCE, probe.weights)
    assert plan.branches == () and plan.probe is None
    assert f"accepted: 3 peers measured a loss of {merged:.4f} merged and 2.0000 without it" in merge.reason


def test_one_that_makes_the_instance_worse_is_dropped_however_bad_the_source_is() -> None:
    """The worse source, by which instances of one history are judged, would let anything through."""
    waiting, probe = measured()
    plan = after(waiting, waiting, [said(probe, 2.0, 2.03, 9.0)] * 3)
    assert plan.merges == () and plan.branches == () and plan.probe is None
    assert "dropped what p000" in plan.reason and "measured a loss of 2.0300 merged and 2.0000 without it" in plan.reason


def test_of_several_the_worst_is_dropped_and_the_others_are_measured_again() -> None:
    waiting, probe = measured(num_branches=2)
    (_, good, bad) = probe.sources
    plan = after(waiting, waiting, [said(probe, 2.0, 5.0, 2.1, 9.0)] * 3)
    assert [item.branch_state.key for item in plan.branches] == [good] and plan.merges == ()
    assert plan.probe is not None and plan.probe.sources == (INSTANCE, good)
    assert bad not in plan.probe.sources


@pytest.mark.parametrize("merged", [0.1, 9.0])
def test_one_host_of_three_decides_neither_way(merged: float) -> None:
    waiting, probe = measured()
    honest = said(probe, 2.0, 2.0)
    plan = after(waiting, waiting, [said(probe, 2.0, merged), honest, honest])
    assert len(plan.merges) == 1
    alone = after(waiting, waiting, [said(probe, 2.0, merged), None, None])
    assert alone.merges == () and alone.probe is not None and len(alone.branches) == 1, "it is measured again"


def test_verdicts_on_something_else_count_for_nothing() -> None:
    waiting, probe = measured()
    for wrong in (
        said(replace(probe, sources=(INSTANCE, InstanceId(probe.sources[1] + 1))), 2.0, 1.0),
        said(replace(probe, target=probe.sources[1]), 2.0, 1.0),
        said(probe, 2.0, 1.0, 1.0, 1.0),
    ):
        assert after(waiting, waiting, [wrong] * 3).merges == ()


def test_what_a_host_lost_since_it_was_measured_is_not_merged_yet() -> None:
    waiting, probe = measured()
    plan = after(waiting, waiting, [said(probe, 2.0, 1.0)] * 3, holders=2)
    assert plan.merges == () and plan.probe is None and len(plan.branches) == 1
    assert peer(2) not in plan.branches[0].holders


def test_near_the_end_of_the_run_nothing_is_measured() -> None:
    assert GUARDED.work.rounds is not None
    first = named()
    for until_end, is_probed in ((4, True), (3, False)):
        rules = replace(GUARDED, work=replace(GUARDED.work, rounds=first.round + 1 + until_end))
        states = tuple(item.branch_state for item in first.branches)
        reports = [replace(report, round=first.round - 1, branches=states) for report in honest_reports(first)]
        assert (next_plan(first, reports, rules).probe is not None) == is_probed


def test_the_digest_of_a_plan_does_not_depend_on_the_order_of_the_verdicts() -> None:
    waiting, probe = measured()
    verdicts = [said(probe, 2.0, 1.0), said(probe, 2.1, 2.0), said(probe, 1.9, 3.0)]
    one, other = (after(waiting, waiting, order) for order in (verdicts, verdicts[::-1]))
    assert [m.weights for m in one.merges] == [m.weights for m in other.merges]
    assert canonical.digest(one.merges) == canonical.digest(other.merges)
