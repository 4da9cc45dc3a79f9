"""Batches by schedule: against hand-worked numbers, and whole runs whose batches are those of the formula."""

from dataclasses import replace
from itertools import pairwise
from math import cos, pi

import pytest

from adloco_p2p.core.model.rules import BatchRules, InstanceRules, Rules, SwitchRules, WorkRules
from adloco_p2p.core.model.run_progress import samples_after
from adloco_p2p.core.planning.batch_ramp import half_cosine, num_doublings, ramp_batches, ramped_batch
from tests.core.planning.test_round_plan import THREE, honest_reports, run

RAMP = BatchRules(test="schedule", initial_batch=8, max_batch=32)
COUNTED = Rules(
    work=WorkRules(inner_steps=8, rounds=None, samples=3200, share="equal"), instances=InstanceRules(count=1), batch=RAMP
)


@pytest.mark.parametrize(
    ("ramp", "most", "parts", "batches"),
    [
        ("linear", 26, (0.0, 0.25, 0.5, 1.0), (8, 12, 17, 26)),  # 12.5 is rounded to the even number
        ("doubling", 32, (0.0, 0.33, 1 / 3, 0.66, 2 / 3, 1.0), (8, 8, 16, 16, 32, 32)),
        ("doubling", 26, (0.0, 0.5, 1.0), (8, 16, 26)),  # the last doubling is cut
        # decays 1, 0.1 + 0.9 * 0.75, 0.1 + 0.9 * 0.5, 0.1 + 0.9 * 0.25, 0.1
        ("seesaw", 64, (0.0, 1 / 3, 0.5, 2 / 3, 1.0), (8, 10, 15, 25, 64)),
        ("seesaw", 32, (0.9, 1.0), (32, 32)),
    ],
)
def test_ramps_by_hand(ramp: str, most: int, parts: tuple[float, ...], batches: tuple[int, ...]) -> None:
    rules = replace(RAMP, ramp=ramp, max_batch=most)  # type: ignore[arg-type]
    assert tuple(ramped_batch(rules, part, final_fraction=0.1) for part in parts) == batches


def test_a_rate_that_decays_to_nothing_asks_for_the_largest_batch() -> None:
    rules = replace(RAMP, ramp="seesaw")
    assert ramped_batch(rules, 1.0, final_fraction=0.0) == 32


def test_the_cosine_of_the_ramp_is_that_of_the_learning_rate() -> None:
    for step in range(101):
        assert half_cosine(step / 100) == pytest.approx(0.5 * (1 + cos(pi * step / 100)), abs=1e-15)


@pytest.mark.parametrize(("most", "count"), [(8, 0), (9, 1), (16, 1), (17, 2), (32, 2), (8 * 2**40, 40)])
def test_doublings_are_counted(most: int, count: int) -> None:
    assert num_doublings(replace(RAMP, max_batch=most)) == count


@pytest.mark.parametrize("ramp", ["linear", "doubling", "seesaw"])
def test_a_run_follows_its_ramp_whatever_hosts_report(ramp: str) -> None:
    """Every plan's batch is that of the samples before it; a growth cap and a noise that would ask for more change nothing."""
    rules = replace(COUNTED, batch=replace(RAMP, ramp=ramp, growth_cap=1.01))  # type: ignore[arg-type]
    quiet, noisy = (
        run(rules, num_peers=2, until=12, say=lambda done, noise=noise: honest_reports(done, noise=noise))
        for noise in (0.0, 1e9)
    )
    batches = [plan.instances[0].requested_batch for plan in quiet]
    assert batches == [plan.instances[0].requested_batch for plan in noisy]
    for plan, batch in zip(quiet, batches, strict=True):
        assert batch == ramped_batch(rules.batch, plan.samples_before / 3200, final_fraction=0.1)
    expected = ramp_batches(rules.batch, samples=3200, inner_steps=8, final_fraction=0.1)
    assert batches == expected[: len(batches)]
    assert f"{ramp} schedule" in quiet[-1].instances[0].reason


def test_the_ramp_of_rounds_ends_with_them() -> None:
    rules = replace(COUNTED, work=WorkRules(inner_steps=8, rounds=10, share="equal"))
    assert [plan.instances[0].requested_batch for plan in run(rules, num_peers=2)][:10] == [
        round(8 + 24 * done / 10) for done in range(10)
    ]


def test_a_ramp_may_end_before_the_run() -> None:
    rules = replace(COUNTED, batch=replace(RAMP, ramp_samples=800))
    plans = run(rules, num_peers=2, until=10)
    batches = [plan.instances[0].requested_batch for plan in plans]
    assert all(batch == 32 for plan, batch in zip(plans, batches, strict=True) if plan.samples_before >= 800)
    assert batches[0] == 8 and all(before <= after for before, after in pairwise(batches))


def test_the_switch_decides_what_a_device_does_with_the_request() -> None:
    """A device holds 4: up to twice that its batch stays, beyond it accumulates; the request itself is the ramp's."""
    rules = replace(
        COUNTED, switch=SwitchRules(policy="exact", multiple=2.0), batch=replace(RAMP, max_batch=40, ramp_samples=1200)
    )
    plans = run(rules, num_peers=2, until=12, say=lambda done: [small(report) for report in honest_reports(done)])
    seen = {(item.requested_batch, item.effective_batch, item.mode) for plan in plans[2:] for item in plan.instances}
    assert all(effective == 8 for requested, effective, mode in seen if mode == "capped")
    assert {mode for _, _, mode in seen} >= {"capped", "accumulate"}
    assert (40, 40, "accumulate") in seen


def small(report):  # type: ignore[no-untyped-def]
    return replace(report, capacity=replace(report.capacity, micro_batch_limit=4))


def test_instances_share_one_ramp() -> None:
    rules = replace(THREE, batch=replace(RAMP, ramp="doubling"), work=WorkRules(inner_steps=8, rounds=None, samples=9600))
    for plan in run(rules, until=6):
        wanted = ramped_batch(rules.batch, min(1.0, plan.samples_before / 9600), final_fraction=0.1)
        assert {item.requested_batch for item in plan.instances if not plan.merges} <= {wanted}
    assert samples_after(plan) > 0
