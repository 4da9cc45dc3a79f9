"""What peers that lie in their reports can move, and by how much at most."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.ledger.validation import check_value
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.certificate import Ballot, Certificate
from adloco_p2p.core.model.ledger_entry import LedgerEntry, SignedReport, Value
from adloco_p2p.core.model.plan import RosterChange, RoundPlan
from adloco_p2p.core.model.report import InstanceReport, Report
from adloco_p2p.core.model.rules import BatchRules, Rules
from adloco_p2p.core.model.run_progress import proven_samples
from adloco_p2p.core.model.scalars import Digest
from adloco_p2p.core.planning.apportionment import FASTEST_CLAIM, SLOWEST_CLAIM, credible_speeds
from adloco_p2p.core.planning.pseudo_gradient_noise import OUTLIER_FACTOR
from adloco_p2p.core.planning.round_plan import next_plan
from adloco_p2p.decode import decode
from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.sim.identities import sign, signed_by
from tests.core.core_values import capacity, half_batch, peer
from tests.core.planning.test_round_plan import ONE, honest_reports, run

LIAR = peer(0)
LARGE = replace(ONE, batch=BatchRules(initial_batch=400, test="constant"))
TESTED = replace(ONE, batch=BatchRules(initial_batch=40))


# --- speeds ----------------------------------------------------------------------------------------------------------


def claiming(speed: float) -> Callable[[RoundPlan], list[Report]]:
    def say(done: RoundPlan) -> list[Report]:
        lie = capacity(speed=speed)
        return [replace(report, capacity=lie) if report.peer == LIAR else report for report in honest_reports(done)]

    return say


def test_speeds_that_differ_as_machines_do_are_taken() -> None:
    speeds = [10.0, 0.0, 40.0, 150.0, 2.0]
    assert credible_speeds(speeds) == speeds
    assert credible_speeds([0.0, 0.0]) == [0.0, 0.0]
    assert credible_speeds([1e30]) == [1e30]


@pytest.mark.parametrize("honest", [[10.0], [10.0, 12.0], [8.0, 10.0, 12.0], [8.0, 9.0, 10.0, 12.0, 14.0]], ids=len)
@pytest.mark.parametrize("lie", [1e30, 1e-30])
def test_one_absurd_speed_is_bounded_and_moves_no_honest_one(honest: list[float], lie: float) -> None:
    *others, liar = credible_speeds([*honest, lie])
    if len(honest) >= 2:
        assert others == honest
    assert SLOWEST_CLAIM * min(honest) / max(honest) <= liar / max(others) <= FASTEST_CLAIM


def test_a_peer_that_claims_absurd_speed_does_not_take_the_whole_batch() -> None:
    plan = run(LARGE, num_peers=4, until=4, say=claiming(1e30))[-1]
    assert next(roster_entry for roster_entry in plan.roster if roster_entry.peer == LIAR).speeds[-1] == 1e30
    batches = {share.peer: share.batch_samples for share in plan.instances[0].hosts}
    assert sum(batches.values()) == 400
    assert batches[LIAR] <= 400 * FASTEST_CLAIM / (FASTEST_CLAIM + 3) + 1
    assert min(batches.values()) >= 400 / (FASTEST_CLAIM + 3) - 1
    assert plan.expected_seconds >= 8 * min(batches.values()) / 10.0


@pytest.mark.parametrize(("share", "factor"), [("speed", 2.0), ("capped", 16.0), ("equal", 16.0)])
def test_a_peer_that_claims_to_stand_still_does_not_make_the_swarm_expect_an_endless_round(share: Any, factor: float) -> None:
    rules = replace(LARGE, work=replace(LARGE.work, share=share))
    honest = run(rules, num_peers=4, until=4)[-1].expected_seconds
    assert honest < run(rules, num_peers=4, until=4, say=claiming(1e-30))[-1].expected_seconds <= factor * honest


# --- statistics ------------------------------------------------------------------------------------------------------


def scalars(item: InstanceReport, **changes: float) -> InstanceReport:
    assert item.pseudo_gradient is not None
    return replace(item, pseudo_gradient=replace(item.pseudo_gradient, **changes))


LIES: dict[str, Callable[[InstanceReport], InstanceReport]] = {
    "huge own norm": lambda item: scalars(item, own_sqnorm=1e30),
    "no own norm": lambda item: scalars(item, own_sqnorm=0.0),
    "huge inner product": lambda item: scalars(item, inner_product=1e30),
    "opposed inner product": lambda item: scalars(item, inner_product=-1e30),
    "huge average": lambda item: scalars(item, averaged_sqnorm=1e30),
    "vanishing average": lambda item: scalars(item, averaged_sqnorm=1e-30),
    "absurd samples": lambda item: replace(item, samples=10**400, batch_samples=10**400),
    "other steps": lambda item: replace(item, inner_steps=10**400),
    "strange contributors": lambda item: replace(item, contributors=3 << 200),
    "absurd halves": lambda item: replace(
        item, pseudo_gradient=None, half_batch=half_batch(trace=1e30, signal=-1e30, num_steps=10**400)
    ),
}


def lying(lie: Callable[[InstanceReport], InstanceReport], *, liars: int) -> Callable[[RoundPlan], list[Report]]:
    def say(done: RoundPlan) -> list[Report]:
        return [
            replace(report, instances=tuple(map(lie, report.instances))) if index < liars else report
            for index, report in enumerate(honest_reports(done, noise=40.0))
        ]

    return say


@pytest.mark.parametrize("test", ["norm", "inner_product", "augmented"])
@pytest.mark.parametrize("liars", [1, 5])
@pytest.mark.parametrize("name", sorted(LIES))
def test_no_lie_moves_a_request_beyond_the_growth_cap(name: str, liars: int, test: Any) -> None:
    rules = replace(TESTED, batch=replace(TESTED.batch, test=test))
    requests = [plan.instances[0].requested_batch for plan in run(rules, num_peers=5, say=lying(LIES[name], liars=liars))]
    for before, after in pairwise(requests):
        assert before <= after <= min(int(rules.batch.growth_cap * before), rules.batch.max_batch)


def demands(rules: Rules, say: Callable[[RoundPlan], list[Report]]) -> float:
    """Noise over signal of the newest statistics of a short run: what the norm test acts on."""
    newest = run(rules, num_peers=5, until=4, say=say)[-1].instances[0].history[-1]
    return newest.noise / newest.mean_sqnorm


@pytest.mark.parametrize("name", ["huge own norm", "huge average", "vanishing average", "opposed inner product"])
def test_one_liar_of_five_moves_the_measured_noise_by_a_small_factor(name: str) -> None:
    honest = demands(TESTED, lying(lambda item: item, liars=0))
    lied = demands(TESTED, lying(LIES[name], liars=1))
    assert honest / OUTLIER_FACTOR <= lied <= OUTLIER_FACTOR * honest


def combined(chance: random.Random) -> Callable[[InstanceReport], InstanceReport]:
    """A lie about all that one report says of its update, drawn once."""
    batch, steps = chance.choice((0.1, 0.5, 1, 2, 8, 1e6)), chance.choice((0.0, 0.125, 0.25, 0.5, 1, 2, 1e6))
    norm, product = chance.choice((0.0, 0.5, 1, 2, 4, 1e9)), chance.choice((-1e9, -1, 0.0, 0.5, 1, 2, 1e9))

    def lie(item: InstanceReport) -> InstanceReport:
        known = item.pseudo_gradient
        assert known is not None
        counts = (int(item.batch_samples * batch) or 1, int(item.inner_steps * steps))
        item = replace(item, batch_samples=counts[0], inner_steps=counts[1], samples=counts[0] * max(1, counts[1]))
        return scalars(item, own_sqnorm=norm * known.own_sqnorm, inner_product=product * known.inner_product)

    return lie


@pytest.mark.parametrize("seed", range(40))
def test_all_lies_of_one_report_together_move_the_batch_that_is_asked_for_by_a_small_factor(seed: int) -> None:
    """Whether the liar alone would have the batch grow to the largest one, or have nothing measured for ever."""

    def noise_per_sample(say: Callable[[RoundPlan], list[Report]]) -> float:
        newest = run(TESTED, num_peers=8, until=4, say=say)[-1].instances[0].history[-1]
        assert newest.source == "pseudo_gradient"
        return newest.noise * newest.batch_samples

    honest = noise_per_sample(lying(lambda item: item, liars=0))
    lied = noise_per_sample(lying(combined(random.Random(seed)), liars=1))
    assert honest / OUTLIER_FACTOR <= lied <= OUTLIER_FACTOR * honest


@pytest.mark.parametrize("field", ["own_sqnorm", "averaged_sqnorm"])
@pytest.mark.parametrize("number", ["-1.0", "NaN", "Infinity", "1e31"])
def test_what_is_no_squared_norm_is_not_even_read(field: str, number: str) -> None:
    report = next(report for report in honest_reports(run(ONE, until=1)[0]) if report.instances)
    item = scalars(report.instances[0], **{field: 0.125})
    data = canonical.encode(replace(report, instances=(item,)))
    assert decode(Report, data, max_bytes=1 << 20).instances == (item,)
    forged = data.replace(f'"{field}":0.125'.encode(), f'"{field}":{number}'.encode())
    assert forged != data
    with pytest.raises(RemoteProtocolError):
        decode(Report, forged, max_bytes=1 << 20)


# --- whose report, of which round ------------------------------------------------------------------------------------


def signed(report: Report) -> SignedReport:
    return signed_by(report.peer, SignedReport(report=report, signature=""))


def ledger_of(plans: Sequence[RoundPlan]) -> Ledger:
    """The first two of the plans."""
    first, second = plans[:2]
    ledger = Ledger(first, recall=dict[Digest, LedgerEntry]().__getitem__)
    value = Value(round=1, parent=second.parent, reports=(), joined=(), departed=(), plan=canonical.digest(second))
    certificate = Certificate(ballot=Ballot(attempt=0, peer=peer(0)), absent=(), votes=())
    ledger.append(LedgerEntry(plan=second, value=value, reports=(), certificate=certificate))
    return ledger


def checked(reports: Sequence[SignedReport], plans: Sequence[RoundPlan]) -> RoundPlan | str:
    """What a peer makes of a proposal that uses these reports, after plans 0 and 1."""

    def decide(parent: RoundPlan, reports: Sequence[Report], change: RosterChange) -> RoundPlan:
        return next_plan(parent, reports, ONE, roster=change)

    plan = decide(plans[1], [item.report for item in reports], RosterChange())
    value = Value(
        round=2,
        parent=canonical.digest(plans[1]),
        reports=tuple(canonical.digest(item) for item in reports),
        joined=(),
        departed=(),
        plan=canonical.digest(plan),
    )
    return check_value(
        value,
        reports,
        ledger=ledger_of(plans),
        decide=decide,
        verify=lambda author, payload, signature: signature == sign(author, payload),
    )


def test_replayed_and_forged_reports_are_in_no_plan() -> None:
    plans = run(ONE, until=2)
    first, *others = honest_reports(plans[0])
    honest = [signed(report) for report in others]
    assert isinstance(checked([signed(first), *honest], plans), RoundPlan)
    of_another_round = signed(honest_reports(plans[1])[0])
    of_another_plan = signed(replace(first, plan=canonical.digest(plans[1])))
    changed_later = replace(signed(first), report=replace(first, capacity=capacity(speed=99.0)))
    for forged, text in (
        (of_another_round, "is not about round 0 of this run"),
        (of_another_plan, "is not about round 0 of this run"),
        (changed_later, "is not signed by that peer"),
    ):
        wrong = checked([forged, *honest], plans)
        assert isinstance(wrong, str) and text in wrong
    assert checked([signed(first), signed(first), *honest], plans) == "reports are not sorted by peer, one each"


def test_samples_are_proven_once_and_only_as_many_as_were_given() -> None:
    plan = run(ONE, until=1)[0]
    honest = [signed(report) for report in honest_reports(plan)]
    proven = proven_samples(plan, honest)
    assert proven == sum(share.samples for share in plan.instances[0].hosts) > 0
    first = honest[0].report
    boasts = replace(first, instances=tuple(replace(item, samples=10**9) for item in first.instances * 64))
    assert proven_samples(plan, [signed(boasts), *honest[1:]]) == proven
