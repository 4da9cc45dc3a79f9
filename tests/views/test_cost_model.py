"""The estimates against worked numbers (docs/mathematics.md, 11 and 12 K)."""

from dataclasses import replace
from math import ceil, inf

import pytest

from adloco_p2p.config.run_config import AveragingConfig, ModelConfig, RunConfig
from adloco_p2p.views.cost_model import (
    MEASURED_PRICES,
    Link,
    Workload,
    bounds,
    capped_geometric_rounds,
    constant_rounds,
    estimate_of,
    exchange_of,
    geometric_rounds,
    growing_rounds,
    round_bytes,
)

WORK = Workload(num_samples=1e6, num_workers=4, inner_steps=50, initial_batch=4)
LINK = Link(num_parameters=300_000_000, num_workers=4, bytes_per_value=4, megabits_per_second=100)


def test_table() -> None:
    assert constant_rounds(WORK) == pytest.approx(1250)
    assert geometric_rounds(WORK, ratio=1.1) == pytest.approx(50.742554, abs=1e-6)
    assert geometric_rounds(WORK, ratio=1.5625) == pytest.approx(14.692237, abs=1e-6)
    assert capped_geometric_rounds(WORK, ratio=1.1, largest_batch=64) == pytest.approx(97.844124, abs=1e-6)
    assert capped_geometric_rounds(WORK, ratio=1.1, largest_batch=256) == pytest.approx(53.333738, abs=1e-6)


def test_a_cap_that_is_not_reached_changes_nothing() -> None:
    short = Workload(num_samples=1e4, num_workers=4, inner_steps=50, initial_batch=4)
    assert capped_geometric_rounds(short, ratio=1.1, largest_batch=256) == geometric_rounds(short, ratio=1.1)


@pytest.mark.parametrize(("growth", "rounds"), [(1.0, 96.561231), (4.0, 49.502500)])
def test_linear_growth_against_the_formula(growth: float, rounds: float) -> None:
    """Case (a) of docs/mathematics.md, 11.1, in samples of a round of 4 workers and 50 inner steps."""
    assert growing_rounds(1e6, per_round=800, growth=growth * 200, most_per_round=inf) == ceil(rounds)


def test_growth_ends_where_the_batch_may_not_grow() -> None:
    assert growing_rounds(1000, per_round=100, growth=100, most_per_round=300) == 5  # 100, 200, 300, 300, 100
    assert growing_rounds(1000, per_round=100, growth=0, most_per_round=300) == 10
    assert growing_rounds(0, per_round=100, growth=100, most_per_round=300) == 0


@pytest.mark.parametrize(("width", "gigabytes", "seconds"), [(4, 1.8, 144), (2, 0.9, 72), (1, 0.45, 36), (0.5, 0.225, 18)])
def test_bytes_of_a_ring_all_reduce(width: float, gigabytes: float, seconds: float) -> None:
    sent = round_bytes(num_parameters=300_000_000, num_workers=4, bytes_per_value=width)
    assert sent == pytest.approx(gigabytes * 1e9)
    assert sent * 8 / 100e6 == pytest.approx(seconds)
    assert round_bytes(num_parameters=300_000_000, num_workers=1, bytes_per_value=width) == 0


def test_bounds_without_a_growth_that_nobody_measured() -> None:
    """A constant batch is the most; the fewest is what growth cap and largest batch allow."""
    most, fewest = bounds(WORK, LINK, growth_cap=1.1, max_batch=256)
    assert (most.rounds, fewest.rounds) == (1250, 98)  # cases (c) and (d)
    assert most.bytes_per_peer == pytest.approx(1250 * 1.8e9)
    assert fewest.transfer_seconds == pytest.approx(98 * 144)
    assert {most.basis, fewest.basis} == {"derived"}


@pytest.mark.parametrize(("growth_cap", "max_batch"), [(1.0, 256), (1.5, 16), (1.5, 8)])
def test_a_batch_that_cannot_grow_has_one_estimate(growth_cap: float, max_batch: int) -> None:
    (only,) = bounds(WORK, LINK, growth_cap=growth_cap, max_batch=max_batch)
    assert only == estimate_of(only.method, 1250, LINK)


SIGN = RunConfig(averaging=AveragingConfig(preset="sign", codec="sign"))


def test_an_exchange_has_the_price_of_its_preset_or_none() -> None:
    found = exchange_of(SIGN, LINK)
    assert (found.preset, found.codec, found.bytes_per_peer) == ("sign", "sign", pytest.approx(1.8e9))
    assert (found.price_nats, found.price_half_width) == MEASURED_PRICES["sign"][4]
    other = RunConfig(averaging=AveragingConfig(codec="topk2"))
    assert exchange_of(other, LINK).price_nats is None, "measured with other settings only"
    fine_tuned = exchange_of(replace(SIGN, model=ModelConfig(pretrained="a/b")), LINK)
    assert (fine_tuned.price_nats, fine_tuned.price_half_width, fine_tuned.price_hosts) == (None, None, None)


@pytest.mark.parametrize(("hosts", "nearest"), [(1, 4), (2, 4), (5, 4), (6, 8), (8, 8), (11, 8), (64, 16)])
def test_a_price_is_that_of_the_nearest_number_of_hosts_that_was_measured(hosts: int, nearest: int) -> None:
    found = exchange_of(SIGN, replace(LINK, num_workers=hosts))
    assert found.price_hosts == nearest
    assert (found.price_nats, found.price_half_width) == MEASURED_PRICES["sign"][nearest]
