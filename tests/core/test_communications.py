"""The estimates of method section 12 against its table."""

import pytest

from adloco_p2p.core.communications import (
    Workload,
    capped_geometric_rounds,
    constant_rounds,
    estimate,
    geometric_rounds,
    linear_rounds,
    linear_rounds_bound,
    round_bytes,
)

WORK = Workload(num_samples=1e6, num_workers=4, inner_steps=50, initial_batch=4)


def test_table() -> None:
    assert constant_rounds(WORK) == pytest.approx(1250)
    assert geometric_rounds(WORK, ratio=1.1) == pytest.approx(50.742554, abs=1e-6)
    assert geometric_rounds(WORK, ratio=1.5625) == pytest.approx(14.692237, abs=1e-6)
    assert capped_geometric_rounds(WORK, ratio=1.1, largest_batch=64) == pytest.approx(97.844124, abs=1e-6)
    assert capped_geometric_rounds(WORK, ratio=1.1, largest_batch=256) == pytest.approx(53.333738, abs=1e-6)
    assert linear_rounds(WORK, growth=1) == pytest.approx(96.561231, abs=1e-6)
    assert linear_rounds(WORK, growth=4) == pytest.approx(49.502500, abs=1e-6)


def test_a_cap_that_is_not_reached_changes_nothing() -> None:
    short = Workload(num_samples=1e4, num_workers=4, inner_steps=50, initial_batch=4)
    assert capped_geometric_rounds(short, ratio=1.1, largest_batch=256) == geometric_rounds(short, ratio=1.1)


@pytest.mark.parametrize("growth", [0.5, 1.0, 4.0])
def test_linear_growth_adds_up_to_the_samples(growth: float) -> None:
    """K rounds of b0 + c k, k from 0, are the samples of the run."""
    rounds = linear_rounds(WORK, growth=growth)
    batches = WORK.initial_batch * rounds + growth * rounds * (rounds - 1) / 2
    assert batches == pytest.approx(WORK.batches_per_worker)
    assert rounds <= linear_rounds_bound(WORK, growth=growth)


@pytest.mark.parametrize(("width", "gigabytes", "seconds"), [(4, 1.8, 144), (2, 0.9, 72), (1, 0.45, 36), (0.5, 0.225, 18)])
def test_bytes_of_a_ring_all_reduce(width: float, gigabytes: float, seconds: float) -> None:
    sent = round_bytes(num_parameters=300_000_000, num_workers=4, bytes_per_value=width)
    assert sent == pytest.approx(gigabytes * 1e9)
    assert sent * 8 / 100e6 == pytest.approx(seconds)
    assert round_bytes(num_parameters=300_000_000, num_workers=1, bytes_per_value=width) == 0


def test_estimate_sets_both_ways_beside_each_other() -> None:
    adloco, constant = estimate(WORK, num_parameters=300_000_000, bytes_per_value=4, megabits_per_second=100)
    assert (adloco.rounds, constant.rounds) == (97, 1250)
    assert constant.bytes_per_peer == pytest.approx(1250 * 1.8e9)
    assert adloco.transfer_seconds == pytest.approx(97 * 144)
    assert {adloco.basis, constant.basis} == {"derived"}
    faster, _ = estimate(WORK, num_parameters=300_000_000, bytes_per_value=4, megabits_per_second=100, growth=4.0)
    assert faster.rounds == 50
