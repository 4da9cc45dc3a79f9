"""How a report names hosts, and how large it may be: what honest peers make is always accepted, anything larger never."""

from dataclasses import replace

import pytest

from adloco_p2p.core.agreement.report_pool import ReportPool
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.branches import MAX_BRANCHES, BranchState
from adloco_p2p.core.model.gradient_statistics import PseudoGradientStatistics
from adloco_p2p.core.model.ledger_entry import SignedReport
from adloco_p2p.core.model.lineage import ProbeVerdict
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.report import InstanceReport, Report
from adloco_p2p.core.model.report_form import (
    MAX_REPORT_BYTES,
    MAX_REPORTS_BYTES,
    bits_of,
    fitted,
    is_short,
    max_bytes,
    named_by,
    report_bytes,
    usable,
)
from adloco_p2p.core.model.scalars import (
    LARGEST_COUNT,
    MAX_HOSTS,
    MAX_INSTANCES,
    MAX_ROSTER,
    Digest,
    InstanceId,
    PeerId,
    within_scalars,
)
from adloco_p2p.decode import decode
from adloco_p2p.errors import RemoteProtocolError
from tests.core.core_values import capacity, half_batch, instance_plan, instance_report, peer
from tests.core.planning.test_liars import checked, signed
from tests.core.planning.test_round_plan import ONE, honest_reports, run

DIGEST = Digest("f" * 64)
NAME = PeerId("12D3KooW" + "x" * 44)
LONGEST = -1.2345678901234567e-300


def longest_item(instance: int = 0) -> InstanceReport:
    """Every number as long as it can be."""
    statistics = PseudoGradientStatistics(own_sqnorm=-LONGEST, inner_product=LONGEST, averaged_sqnorm=-LONGEST)
    half = replace(
        half_batch(batch=LARGEST_COUNT),
        num_steps=LARGEST_COUNT,
        covariance_trace=LONGEST,
        true_sqnorm=LONGEST,
        mean_sqnorm=-LONGEST,
        inner_variance=-LONGEST,
        orthogonal_trace=-LONGEST,
    )
    return InstanceReport(
        instance=InstanceId(instance),
        samples=LARGEST_COUNT,
        tokens=LARGEST_COUNT,
        inner_steps=LARGEST_COUNT,
        batch_samples=LARGEST_COUNT,
        accumulation_steps=LARGEST_COUNT,
        train_seconds=-LONGEST,
        loss=-LONGEST,
        heldout_loss=-LONGEST,
        contributors=(1 << MAX_HOSTS) - 1,
        pseudo_gradient=statistics,
        half_batch=half,
        digest=DIGEST,
        state_digest=DIGEST,
    )


def longest_report(*, num_instances: int, num_branches: int, num_sources: int = 2) -> Report:
    branch_state = BranchState(
        fork=DIGEST,
        fork_round=1,
        branch=DIGEST,
        instance=InstanceId(0),
        round=LARGEST_COUNT,
        state=DIGEST,
        samples=LARGEST_COUNT,
    )
    verdict = ProbeVerdict(
        sources=tuple(InstanceId(1_999_999) for _ in range(num_sources)),
        target=InstanceId(0),
        source_losses=(-LONGEST,) * num_sources,
        merged_loss=-LONGEST,
    )
    return Report(
        peer=NAME,
        round=LARGEST_COUNT,
        plan=DIGEST,
        capacity=replace(capacity(), samples_per_second=-LONGEST, upload_bytes_per_second=-LONGEST),
        instances=tuple(longest_item(number) for number in range(num_instances)),
        verdict=verdict,
        branches=(branch_state,) * num_branches,
    )


def plan_of(num_hosts: int, num_instances: int = 1) -> RoundPlan:
    """Just the hosts."""
    hosts = {PeerId(f"{index:03d}".ljust(52, "x")): 1 for index in range(num_hosts)}
    base = run(ONE, until=0)[0]
    return replace(base, instances=tuple(instance_plan(number, hosts=hosts) for number in range(num_instances)))


# --- hosts as bits ---------------------------------------------------------------------------------------------------


def test_bits_name_the_hosts_of_the_plan_and_others_name_nobody() -> None:
    item = instance_plan(hosts={peer(3): 1, peer(5): 1, peer(8): 1})
    hosts = [share.peer for share in item.hosts]
    assert bits_of([peer(8), peer(3), peer(8)], hosts) == 0b101
    assert named_by(0b101, item) == (peer(3), peer(8))
    assert named_by(0b101 | 1 << 200, item) == (peer(3), peer(8))
    assert named_by(0, item) == ()


def test_a_report_takes_the_same_room_among_four_and_among_256_hosts() -> None:
    few, many = (canonical.size(replace(longest_item(), contributors=(1 << count) - 1)) for count in (4, 256))
    assert many - few < 80


def test_places_follow_a_host_from_plan_to_plan() -> None:
    plans = run(ONE, num_peers=3, until=3)
    assert [share.place_before for share in plans[0].instances[0].hosts] == [None] * 3
    assert [share.place_before for share in plans[1].instances[0].hosts] == [0, 1, 2]


def test_a_report_that_names_hosts_that_the_plan_does_not_have_is_in_no_plan() -> None:
    """And nobody proposes it: both sides apply `usable`."""
    plans = run(ONE, until=2)
    first, *others = honest_reports(plans[0])
    strange = replace(first, instances=tuple(replace(item, contributors=1 << 3) for item in first.instances))
    honest = [signed(report) for report in others]
    wrong = checked([signed(strange), *honest], plans)
    assert wrong == "a report is too large, or names hosts that its plan does not have"
    assert usable([signed(strange), *honest], plans[0]) == honest


# --- size ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_instances", [0, 1, 4, 8, MAX_INSTANCES])
@pytest.mark.parametrize("num_branches", [0, 3, MAX_BRANCHES])
@pytest.mark.parametrize("num_sources", [2, MAX_INSTANCES])
def test_what_an_honest_peer_reports_always_fits(num_instances: int, num_branches: int, num_sources: int) -> None:
    report = fitted(
        longest_report(num_instances=num_instances, num_branches=num_branches, num_sources=num_sources), num_members=4
    )
    assert canonical.size(report) <= max_bytes(num_instances)
    assert [item.instance for item in report.instances] == list(range(num_instances))
    assert report.verdict is not None
    assert is_short(SignedReport(report=report, signature=""))


def test_held_out_losses_on_many_data_sets_keep_no_report_out_of_the_plans() -> None:
    """A peer that hosts an instance of each of 32 data sets, and evaluates all of them: its reports of those rounds were too
    large for any plan, so a peer alone made no further plan."""
    long = longest_report(num_instances=32, num_branches=0)
    whole = replace(long, instances=tuple(replace(item, heldout_losses=(-LONGEST,) * 32) for item in long.instances))
    report = fitted(whole, num_members=1)
    assert canonical.size(whole) > canonical.size(report) <= max_bytes(32)
    assert report.instances[0].heldout_losses and not report.instances[-1].heldout_losses, "as many as fit are kept"
    assert [replace(item, heldout_losses=()) for item in report.instances] == [
        replace(item, pseudo_gradient=None, half_batch=None) for item in long.instances
    ]


def test_a_report_that_fits_is_not_touched() -> None:
    report = longest_report(num_instances=3, num_branches=3)
    assert fitted(report, num_members=4) is report


def test_a_large_report_is_not_kept_and_in_no_plan() -> None:
    plans = run(ONE, until=2)
    first, *others = honest_reports(plans[0])
    large = signed(replace(first, instances=first.instances * 30))
    assert canonical.size(large.report) > MAX_REPORT_BYTES
    assert is_short(large), "a plan could give so much"
    assert usable([large], plans[0]) == [], "this plan did not"
    assert checked([large, *(signed(report) for report in others)], plans).startswith("a report is too large")  # type: ignore[union-attr]
    larger = signed(replace(first, branches=longest_report(num_instances=0, num_branches=MAX_BRANCHES).branches))
    pool = ReportPool(lambda *_: True)
    pool.move(range(3), [first.peer])
    assert not pool.keep(larger)
    assert pool.keep(signed(first))


def test_names_cannot_fill_a_report() -> None:
    """Two members with 600 kB of names each once made an entry that fitted into no message, and nine with half a million
    quotation marks a record that no journal takes. Now a report cannot even hold a name."""
    good = canonical.encode(instance_report())
    for names in (b'["' + b"x" * 600_000 + b'"]', b'["' + b'\\"' * 510_000 + b'"]'):
        with pytest.raises(RemoteProtocolError):
            decode(InstanceReport, good.replace(b'"contributors":0', b'"contributors":' + names), max_bytes=1 << 22)
    with pytest.raises(RemoteProtocolError, match="contributors"):
        decode(
            InstanceReport,
            good.replace(b'"contributors":0', b'"contributors":%d' % (1 << MAX_HOSTS)),
            max_bytes=1 << 22,
        )


def test_reports_of_one_plan_are_bounded_together() -> None:
    plan = plan_of(3)
    report = replace(longest_report(num_instances=4, num_branches=3), plan=canonical.digest(plan))
    report = replace(report, instances=tuple(replace(item, contributors=0) for item in report.instances))
    many = [signed(replace(report, peer=PeerId(f"{index:04d}".ljust(52, "x")))) for index in range(MAX_ROSTER)]
    chosen = usable(many, plan)
    assert chosen == many[: len(chosen)]
    assert sum(canonical.size_once(item.report) for item in chosen) <= MAX_REPORTS_BYTES


@pytest.mark.parametrize("signature", ["", "00ff" * 32, '"\\x7f\n', "x" * 1024])
def test_the_bytes_of_a_report_are_those_without_its_signature(signature: str) -> None:
    report = longest_report(num_instances=2, num_branches=1)
    assert report_bytes(SignedReport(report=report, signature=signature)) == canonical.size(report)


# --- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("measured", "told"), [(1.5, 1.5), (1e31, 1e30), (-1e300, -1e30), (float("inf"), 1e30), (float("nan"), 1e30)]
)
def test_numbers_beyond_what_others_accept_are_cut(measured: float, told: float) -> None:
    assert within_scalars(measured) == told
