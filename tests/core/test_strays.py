"""What is believed of lost histories, and what it weighs."""

from dataclasses import replace

import pytest
from core_values import capacity, peer
from test_round_plan import ONE, honest_reports, start

from adloco_p2p.core import canonical
from adloco_p2p.core.ledger import Ledger
from adloco_p2p.core.messages import Ballot, Certificate, LedgerEntry, SignedReport, Value
from adloco_p2p.core.round_plan import next_plan
from adloco_p2p.core.strays import ROUNDS_OPEN, believed, given_samples, trained_samples
from adloco_p2p.core.types import Digest, InstanceId, PendingStray, Report, RosterChange, RoundPlan, Stray
from tests.core.plan_check import check_plan

INSTANCE = InstanceId(0)


def history(rounds: int) -> Ledger:
    """Plans that follow each other, each from honest reports."""
    ledger = Ledger(start(ONE), recall={}.__getitem__)
    for _ in range(rounds):
        parent, reported = ledger.plans[-1], ledger.reported
        reports = honest_reports(reported) if reported is not None else []
        grow(ledger, next_plan(parent, reports, ONE), reports)
    return ledger


def grow(ledger: Ledger, plan: RoundPlan, reports: list[Report]) -> None:
    value = Value(round=plan.round, parent=plan.parent, reports=(), joined=(), departed=(), plan=canonical.digest(plan))
    certificate = Certificate(ballot=Ballot(attempt=0, peer=peer(0)), absent=(), votes=())
    signed = tuple(SignedReport(report=report, signature="") for report in reports)
    ledger.append(LedgerEntry(plan=plan, value=value, reports=signed, certificate=certificate))


def stray(ledger: Ledger, *, fork: int = 2, samples: int = 100, **changes: object) -> Stray:
    known = Stray(
        fork=ledger.digests[fork],
        fork_round=fork,
        branch=Digest("e" * 64),
        instance=INSTANCE,
        round=fork + 3,
        state=Digest("f" * 64),
        samples=samples,
    )
    return replace(known, **changes)  # type: ignore[arg-type]


def bringing(ledger: Ledger, *claims: tuple[int, Stray]) -> list[Report]:
    """The reports that decide the next plan; some of them bring strays."""
    assert ledger.reported is not None
    brought = {peer(index): item for index, item in claims}
    return [
        replace(report, strays=(brought[report.peer],) if report.peer in brought else ())
        for report in honest_reports(ledger.reported)
    ]


def test_a_claim_is_believed_only_of_who_was_there() -> None:
    ledger = history(5)
    good = stray(ledger)
    (item,) = believed(ledger, bringing(ledger, (0, good)))
    assert (item.stray, item.target, item.claimants, item.since) == (good, INSTANCE, (peer(0),), 6)
    newcomer = Report(peer=peer(77), round=4, plan=ledger.digests[4], capacity=capacity(), strays=(good,))
    own_state = ledger.entries[-1].reports[0].report.instances[0].state_digest
    assert believed(ledger, [newcomer]) == ()
    for wrong in (
        stray(ledger, fork_round=1),
        stray(ledger, round=2),
        stray(ledger, branch=ledger.digests[3]),
        replace(good, fork=Digest("9" * 64)),
        stray(ledger, state=own_state),
    ):
        assert believed(ledger, bringing(ledger, (0, wrong))) == ()


def test_a_branch_is_believed_once_and_of_one_peer_one_branch() -> None:
    ledger = history(5)
    good = stray(ledger)
    reports = bringing(ledger, (0, good))
    grow(ledger, next_plan(ledger.plans[-1], reports, ONE, roster=RosterChange(strays=believed(ledger, reports))), reports)
    assert [item.stray for item in ledger.plans[-1].strays] == [good]
    assert believed(ledger, bringing(ledger, (1, good))) == ()
    invented = replace(good, branch=Digest("d" * 64))
    assert believed(ledger, bringing(ledger, (0, invented))) == ()
    assert len(believed(ledger, bringing(ledger, (1, invented)))) == 1


def test_what_most_claim_counts_and_of_their_samples_the_fewest() -> None:
    ledger = history(5)
    two, lie = stray(ledger), stray(ledger, round=9, state=Digest("9" * 64))
    (item,) = believed(ledger, bringing(ledger, (0, lie), (1, replace(two, samples=90)), (2, two)))
    assert (item.stray.round, item.stray.samples, item.claimants) == (two.round, 90, (peer(1), peer(2)))


def test_samples_are_those_of_reports_and_at_the_end_those_of_plans() -> None:
    ledger = history(6)
    fork, entries = ledger.plans[2], ledger.entries[2:]
    rounds = {number: given_samples(ledger.plans[number], INSTANCE) for number in range(2, 7)}
    assert trained_samples(fork, entries, INSTANCE, end=7) == sum(rounds.values())
    assert trained_samples(fork, entries, INSTANCE, end=4) == rounds[2] + rounds[3]


def merged(ledger: Ledger, item: PendingStray, *, holders: range, round_later: int = 1) -> RoundPlan:
    """The plan after one that names the stray, when these peers report that they hold it."""
    named = replace(ledger.plans[-1], strays=(replace(item, since=ledger.plans[-1].round + 1 - round_later),))
    reports = bringing(ledger, *((index, item.stray) for index in holders))
    return next_plan(named, reports, ONE)


@pytest.mark.parametrize(("samples", "weight"), [(100, None), (10**9, 0.5)])
def test_the_merge_is_ordered_once_all_hosts_hold_it_and_weighs_by_samples(samples: int, weight: float | None) -> None:
    ledger = history(5)
    (item,) = believed(ledger, bringing(ledger, (0, stray(ledger, samples=samples))))
    size = len(ledger.plans[-1].roster)
    waiting = merged(ledger, item, holders=range(size - 1))
    assert waiting.merges == () and len(waiting.strays) == 1
    plan = merged(ledger, item, holders=range(size))
    (merge,) = plan.merges
    won = item.won_samples + given_samples(ledger.plans[-1], INSTANCE)
    assert merge.weights[1] == pytest.approx(weight or 100 / (100 + won))
    assert merge.sources == (INSTANCE, item.stray.key) and plan.strays == ()
    assert check_plan(plan, ONE) == []


def test_a_stray_that_nobody_holds_or_that_takes_too_long_is_dropped_with_a_reason() -> None:
    ledger = history(5)
    (item,) = believed(ledger, bringing(ledger, (0, stray(ledger))))
    lonely = merged(ledger, item, holders=range(0))
    assert lonely.strays == lonely.merges == () and "nobody who holds it is left" in lonely.reason
    late = merged(ledger, item, holders=range(1), round_later=ROUNDS_OPEN + 1)
    assert late.strays == late.merges == () and f"after {ROUNDS_OPEN} rounds" in late.reason
