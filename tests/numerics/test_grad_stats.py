"""Gradient noise: worked numbers, identities, and freedom from bias on a model whose noise is known."""

import math
from math import inf

import pytest
import torch

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.gradient_statistics import HalfBatchStatistics, PseudoGradientStatistics, half_batch_statistics
from adloco_p2p.decode import decode
from adloco_p2p.numerics.grad_stats import half_products, inner_product
from adloco_p2p.numerics.reduction import pseudo_gradient_statistics, statistics_of
from tests.numerics.gradients import gradient_noise

ACCEPTANCE = [torch.tensor(values) for values in ([1.0, 2, -1], [2.0, 1, 0], [0.0, 1, 1], [3.0, 0, 2])]


def test_acceptance_a_equal_batches() -> None:
    """b = 8, M = 4 (docs/mathematics.md, 12 A)."""
    noise = gradient_noise(ACCEPTANCE, [8, 8, 8, 8])
    assert noise.mean_sqnorm == pytest.approx(3.5, abs=1e-12)
    assert noise.covariance_trace == pytest.approx(32.0, abs=1e-12)
    assert noise.true_sqnorm == pytest.approx(2.5, abs=1e-12)
    assert noise.inner_variance == pytest.approx(8 * 2.833333, abs=1e-5)
    assert noise.orthogonal_trace == pytest.approx(8 * 3.190476, abs=1e-5)
    assert noise.covariance_trace / noise.true_sqnorm == pytest.approx(12.8)


def test_acceptance_a_requests() -> None:
    """The column T of docs/mathematics.md, 12 A, follows from the per-sample forms: T = trace / (M eta^2 V), and so on."""
    noise = gradient_noise(ACCEPTANCE, [8] * 4)
    assert noise.covariance_trace / (4 * 0.8**2 * noise.mean_sqnorm) == pytest.approx(3.571429, abs=1e-6)
    assert noise.covariance_trace / (4 * 0.1**2 * noise.true_sqnorm) == pytest.approx(320.0, abs=1e-6)
    assert noise.inner_variance / (4 * 0.9**2 * noise.mean_sqnorm**2) == pytest.approx(0.571093, abs=1e-6)
    assert noise.orthogonal_trace / (4 * 0.3**2 * noise.mean_sqnorm) == pytest.approx(20.256992, abs=1e-6)


def test_unequal_batches_follow_the_formula() -> None:
    """b = (3, 5) (docs/mathematics.md, 12 B): gbar = (18, -4) / 8 and sum b norm2 = 3 * 5 + 5 * 13."""
    noise = gradient_noise([torch.tensor([1.0, 2.0]), torch.tensor([3.0, -2.0])], [3, 5])
    gbar = torch.tensor([18.0, -4.0]) / 8
    v = float(gbar @ gbar)
    trace = 3 * 5 + 5 * 13 - 8 * v
    assert noise.mean_sqnorm == pytest.approx(v)
    assert noise.covariance_trace == pytest.approx(trace)
    assert noise.true_sqnorm == pytest.approx(v - trace / 8)


def test_inner_product_of_long_vectors_is_exact_to_fp64_and_independent_of_threads() -> None:
    generator = torch.Generator().manual_seed(5)
    left, right = (torch.randn((1 << 20) + 12345, generator=generator) for _ in range(2))
    threads = torch.get_num_threads()
    values = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            values.append(float(inner_product(left, right)))
    finally:
        torch.set_num_threads(threads)
    assert values[0] == values[1]
    products = (left.double() * right.double()).tolist()
    assert values[0] == pytest.approx(math.fsum(products), rel=1e-11)


def test_halves_are_the_two_group_case() -> None:
    """The parts of a batch gradient, scaled up, give what the two groups' own means give."""
    generator = torch.Generator().manual_seed(1)
    first, second = (torch.randn(50, generator=generator) for _ in range(2))
    statistics = half_batch_statistics([(half_products(first * 3 / 5, second * 2 / 5).tolist(), (3, 2))])
    assert statistics is not None
    noise = gradient_noise([first, second], [3, 2])
    assert (statistics.num_steps, statistics.batch_samples) == (1, 5)
    assert statistics.covariance_trace == pytest.approx(noise.covariance_trace, rel=1e-5)
    assert statistics.true_sqnorm == pytest.approx(noise.true_sqnorm, rel=1e-4)
    assert statistics.inner_variance == pytest.approx(noise.inner_variance, rel=1e-4)
    assert statistics.orthogonal_trace == pytest.approx(noise.orthogonal_trace, rel=1e-4)


def test_no_measured_step_gives_none() -> None:
    assert half_batch_statistics([]) is None


def test_zero_gradients_have_no_noise() -> None:
    statistics = half_batch_statistics([([0.0, 0.0, 0.0], (1, 1))])
    assert statistics is not None
    assert statistics.covariance_trace == statistics.true_sqnorm == statistics.orthogonal_trace == 0.0


@pytest.mark.parametrize("halves", [(2, 2), (3, 1), (5, 2)])
def test_two_halves_are_unbiased(halves: tuple[int, int]) -> None:
    """A linear model y = x w with noise: per-sample gradients -x (y - x w) at w = 0. Trace and squared norm of the true
    gradient are known from many samples; the mean of many two-halves estimates must meet them."""
    generator = torch.Generator().manual_seed(7)
    dim, batch, repeats = 6, sum(halves), 20_000
    weight = torch.linspace(-0.5, 1.0, dim)
    x = torch.randn(repeats * batch, dim, generator=generator)
    noise = 0.5 * torch.randn(repeats * batch, generator=generator)
    per_sample = (-x * (x @ weight + noise)[:, None]).view(repeats, batch, dim)
    # x standard normal: G = -w; E f_i^2 = |w|^2 + 2 w_i^2 + s^2, so the trace is (d + 1) |w|^2 + d s^2
    w2 = float(weight @ weight)
    true_trace = (dim + 1) * w2 + dim * 0.25
    steps = []
    for group in per_sample:
        first, total = group[: halves[0]].sum(0) / batch, group.mean(0)
        cross = first @ total
        norms = torch.stack([first @ first, cross - first @ first, total @ total - 2 * cross + first @ first])
        steps.append((norms.tolist(), halves))
    statistics = half_batch_statistics(steps)
    assert statistics is not None
    assert statistics.covariance_trace == pytest.approx(true_trace, rel=0.03)
    assert statistics.true_sqnorm == pytest.approx(w2, rel=0.06)
    # the naive squared norm is larger by trace / B: the bias that the estimator removes
    assert statistics.mean_sqnorm == pytest.approx(w2 + true_trace / batch, rel=0.03)


def test_pseudo_gradient_statistics() -> None:
    own, averaged = torch.tensor([1.0, 2.0, -1.0]), torch.tensor([1.5, 1.0, 0.5])
    statistics = pseudo_gradient_statistics(own, averaged)
    assert (statistics.own_sqnorm, statistics.inner_product, statistics.averaged_sqnorm) == (6.0, 3.0, 3.5)


def test_a_host_whose_training_diverges_still_makes_a_report_that_others_can_read() -> None:
    """fp32 holds 1e38: squared norms of it are far beyond what a report may say."""
    own, averaged = torch.full((1000,), 1e25), torch.full((1000,), -1e25)
    told = pseudo_gradient_statistics(own, averaged)
    assert (told.own_sqnorm, told.inner_product, told.averaged_sqnorm) == (1e30, -1e30, 1e30)
    assert decode(PseudoGradientStatistics, canonical.encode(told), max_bytes=1000) == told
    halves = half_batch_statistics([([1e60, -1e60, 1e60], (4, 4)), ([inf, 1.0, inf], (4, 4))])
    assert halves is not None
    assert decode(HalfBatchStatistics, canonical.encode(halves), max_bytes=1000) == halves


def test_statistics_of_parts_are_clamped_as_well() -> None:
    told = statistics_of([(1e300, -1e300, 1e308), (1e300, -1e300, 1e308)])
    assert (told.own_sqnorm, told.inner_product, told.averaged_sqnorm) == (1e30, -1e30, 1e30)
    told = statistics_of([(inf, inf, 1.0), (1.0, -inf, 2.0)])
    assert (told.own_sqnorm, told.averaged_sqnorm) == (1e30, 3.0)
    assert decode(PseudoGradientStatistics, canonical.encode(told), max_bytes=1000) == told
