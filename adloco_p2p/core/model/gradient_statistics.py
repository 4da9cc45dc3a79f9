"""Scalars about gradients and pseudo-gradients: what hosts measure and report, what plans pool, and the tests that use them.

The estimators (docs/mathematics.md, 4.1 and 4.2) are arithmetic on inner products, which hosts take of halves of a batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from adloco_p2p.core.model.scalars import Count, Finite, NonNegative, PositiveCount, float_sum, within_scalars

BatchTest = Literal["constant", "schedule", "norm", "inner_product", "augmented"]
"""Names of the conditions on a batch; `core/planning/batch_sizing.py` computes the batch that each asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfBatchStatistics:
    """Gradient noise measured inside one host, from two halves of an inner step's batch (docs/mathematics.md, 4.2), averaged
    over the `num_steps` inner steps that were measured. `batch_samples` is this host's batch per inner step."""

    num_steps: PositiveCount
    batch_samples: PositiveCount
    covariance_trace: Finite
    """Unbiased estimate of the trace of the per-sample gradient covariance."""
    true_sqnorm: Finite
    """Unbiased estimate of the squared norm of the true gradient; may be negative."""
    mean_sqnorm: NonNegative
    """Squared norm of the batch gradient (biased upwards by the noise)."""
    inner_variance: NonNegative
    """Per-sample variance of the inner product with the batch gradient."""
    orthogonal_trace: NonNegative
    """Per-sample trace of the covariance orthogonal to the batch gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PseudoGradientStatistics:
    """Three scalars of one host about the vector it transmitted and the average it received (docs/mathematics.md, 4.3)."""

    own_sqnorm: NonNegative
    """norm2(Delta_m) of the transmitted vector."""
    inner_product: Finite
    """<Delta_m, Delta>."""
    averaged_sqnorm: NonNegative
    """norm2(Delta) of the committed average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseSample:
    """Gradient noise of one instance in one round, pooled over its hosts. Every field is about the mean over the whole
    effective batch `batch_samples`, so that a request is `batch_samples` times a ratio of these fields."""

    round: Count
    source: Literal["pseudo_gradient", "micro_batch"]
    batch_samples: PositiveCount
    mean_sqnorm: NonNegative
    """V: squared norm of the mean."""
    noise: NonNegative
    """Variance of the mean: s2/M, or trSigma/B."""
    signal: Finite
    """V minus noise: squared norm of the true vector, unbiased; may be negative."""
    inner_variance: NonNegative
    """Variance of the inner product with the mean, divided by the number of contributions."""
    orthogonal_noise: NonNegative
    """The part of `noise` that is orthogonal to the mean."""


def noise_from_products(products: Sequence[Sequence[float]], samples: Sequence[int]) -> HalfBatchStatistics:
    """Return the statistics of one step from the inner products [M][M] of M >= 2 mean gradients at a common point; gradient m
    is the mean over `samples[m]` samples."""
    num_groups, total = len(samples), sum(samples)
    assert num_groups >= 2 and all(count >= 1 for count in samples), samples
    # <g_m, gbar>, and norm2(gbar) as its weighted mean
    ips = [float_sum(b * g for b, g in zip(samples, row, strict=True)) / total for row in products]
    mean_sqnorm = max(0.0, float_sum(b * ip for b, ip in zip(samples, ips, strict=True)) / total)
    norms = [products[m][m] for m in range(num_groups)]
    # the sum of b_m norm2(g_m - gbar) (docs/mathematics.md, 4.1)
    spread = float_sum(b * (norm - 2 * ip + mean_sqnorm) for b, norm, ip in zip(samples, norms, ips, strict=True))
    trace = max(0.0, spread / (num_groups - 1))
    inner_variance = float_sum(b * (ip - mean_sqnorm) ** 2 for b, ip in zip(samples, ips, strict=True)) / (num_groups - 1)
    along = inner_variance / mean_sqnorm if mean_sqnorm > 0 else 0.0
    return HalfBatchStatistics(
        num_steps=1,
        batch_samples=total,
        covariance_trace=trace,
        true_sqnorm=mean_sqnorm - trace / total,
        mean_sqnorm=mean_sqnorm,
        inner_variance=inner_variance,
        orthogonal_trace=max(0.0, trace - along),  # the identity of docs/mathematics.md, 3.3
    )


def half_batch_statistics(steps: Sequence[tuple[Sequence[float], tuple[int, int]]]) -> HalfBatchStatistics | None:
    """The mean over the measured inner steps, whose halves may be unequal (docs/mathematics.md, 4.1 and 4.2), clamped to the
    range of a report.

    Each step gives its `half_products` and the samples of its two halves. None where no step was measured.
    """
    if not steps:
        return None
    noises = []
    for (norm_first, cross, norm_second), (count_first, count_second) in steps:
        # each part is a sum over its samples divided by the whole batch, so the mean of its group is larger
        batch = count_first + count_second
        up_first, up_second = batch / count_first, batch / count_second
        products = (
            (norm_first * up_first**2, cross * up_first * up_second),
            (cross * up_first * up_second, norm_second * up_second**2),
        )
        noises.append(noise_from_products(products, (count_first, count_second)))
    count = len(noises)
    return HalfBatchStatistics(
        num_steps=count,
        batch_samples=sum(steps[0][1]),
        covariance_trace=within_scalars(float_sum(noise.covariance_trace for noise in noises) / count),
        true_sqnorm=within_scalars(float_sum(noise.true_sqnorm for noise in noises) / count),
        mean_sqnorm=within_scalars(float_sum(noise.mean_sqnorm for noise in noises) / count),
        inner_variance=within_scalars(float_sum(noise.inner_variance for noise in noises) / count),
        orthogonal_trace=within_scalars(float_sum(noise.orthogonal_trace for noise in noises) / count),
    )
