"""The pure parts of `python -m benchmarks.uneven_swarms`."""

from math import exp, log

import pytest

from adloco_p2p.config.load import load_run
from benchmarks.method.run import BASE, settings_of
from benchmarks.uneven_swarms import (
    EVEN,
    FACTORS,
    HOSTS,
    farthest_round,
    follows,
    key,
    log_ratios,
    ratio_shown,
    row_of,
    samples_of,
    start_of,
    table,
)


@pytest.mark.parametrize("hosts", HOSTS)
def test_swarms_of_one_size_differ_in_their_speeds_alone(hosts: int) -> None:
    for factor in (EVEN, *FACTORS):
        row = row_of(hosts, factor)
        assert len(row.speeds) == hosts and row.speeds[-1] / row.speeds[0] == pytest.approx(factor)
        run = load_run(BASE, settings_of(row, 1, samples=samples_of(hosts))).value
        assert run.batch.initial_batch == start_of(hosts) >= hosts
        assert run.batch.eta**2 * start_of(hosts) == pytest.approx(1.7**2 * 8, rel=1e-3)
        assert run.work.share == ("equal" if factor == EVEN else "speed")
        assert run.work.samples is not None and run.work.samples / start_of(hosts) == 1024


def record(requests: list[int], *, seed: int = 1, loss: float = 2.0) -> dict[str, object]:
    return {"seed": seed, "loss": loss, "log": [[[request, 2, 40, 8]] for request in requests]}


def test_requests_are_compared_in_the_rounds_that_both_have() -> None:
    found = log_ratios(record([8, 12, 20, 30]), record([8, 16, 16]))
    assert [exp(one) for one in found] == pytest.approx([1.0, 0.75, 1.25])


def test_the_farthest_round_is_that_of_the_mean_over_the_seeds() -> None:
    """Means 0, -0.2 and 0.1; the third round of the first seed is farther, and the second one lacks the fourth."""
    assert farthest_round([[0.0, -0.1, 0.3, 9.0], [0.0, -0.3, -0.1]]) == pytest.approx(-0.2)


def test_the_mean_ratio_is_geometric() -> None:
    """Ratios of 1.1 and 1 / 1.1: their mean is 1, and one standard error log 1.1; Student's t with one degree is 12.706."""
    assert ratio_shown([log(1.1), -log(1.1)]) == f"1.00, {1.1**-12.706:.2f} to {1.1**12.706:.2f}"
    assert ratio_shown([log(2)]) == "2.00"


def test_batches_follow_where_the_interval_and_every_round_are_within_a_fifth() -> None:
    assert follows([[0.0, 0.10], [0.0, 0.10], [0.0, 0.10]])
    assert not follows([[0.0, 0.19], [0.0, 0.19], [0.0, 0.19]])  # log 1.2 is 0.182
    assert not follows([[0.0, 0.0], [0.0, 0.1], [0.1, 0.0]])  # Student's t for eight comparisons is wide
    assert not follows([[-0.19, 0.15], [-0.19, 0.15], [-0.19, 0.15]])


def test_a_row_of_the_table_is_paired_with_the_even_swarm_of_its_size() -> None:
    records = {key(8, EVEN, seed): record([8, 10], seed=seed) for seed in (1, 2)}
    records |= {key(8, 8.0, seed): record([8, 10], seed=seed, loss=2.5) for seed in (2, 3)}
    assert table(records)[2:] == ["| 8 | 8 | 1 | 10 | 10 | 40 | 1.00 | 1.00 | 1.00 | yes | 0.500 |"]
