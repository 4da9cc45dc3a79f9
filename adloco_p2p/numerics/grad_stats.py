"""Gradient noise from a few gradients: the estimators of method sections 3.3, 4.1 and 4.2, and the scalars of 4.3.

Everything follows from inner products, which are taken in fp64 in a fixed order; the rest is arithmetic on Python floats.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from adloco_p2p.core.model.gradient_statistics import HalfBatchStatistics
from adloco_p2p.core.model.scalars import within_scalars

_CHUNK = 1 << 20
"""Elements converted to fp64 at a time: bounds the scratch memory to a few times 8 MiB."""
_HOT_CHUNK_CPU, _HOT_CHUNK = 1 << 16, 1 << 22
"""The same in the inner loop: on a CPU what fits its cache, elsewhere few kernels."""
_ROW = 1 << 12
"""Elements of one partial sum. Rows are summed one by one, so the result does not depend on the number of threads."""


def sum_dtype(device: torch.device) -> torch.dtype:
    """Of sums of many fp32 values: fp64, which Apple's GPUs do not have."""
    return torch.float32 if device.type == "mps" else torch.float64


def inner_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """<left, right> of two flat vectors [P] as a fp64 scalar on their device; no synchronisation."""
    total = torch.zeros((), dtype=torch.float64, device=left.device)
    for x, y in zip(torch.split(left, _CHUNK), torch.split(right, _CHUNK), strict=True):
        products = x.double() * y.double()  # exact for fp32 factors
        whole = products.numel() // _ROW * _ROW
        total += products[:whole].view(-1, _ROW).sum(dim=1).sum() + products[whole:].sum()
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientNoise:
    """Per-sample noise of the mean gradient over all samples (method sections 3.3 and 4.1)."""

    covariance_trace: float
    """trSigma^: unbiased for the trace of the per-sample covariance."""
    true_sqnorm: float
    """G2^: unbiased for the squared norm of the true gradient; may be negative."""
    mean_sqnorm: float
    """V."""
    inner_variance: float
    """Per-sample variance of the inner product with the mean gradient: b Var_m(ip)."""
    orthogonal_trace: float
    """Per-sample trace of the covariance orthogonal to the mean gradient: b s2_or."""


def noise_from_products(products: Sequence[Sequence[float]], samples: Sequence[int]) -> GradientNoise:
    """Noise from the inner products [M][M] of M >= 2 mean gradients, of `samples[m]` samples each, at a common point."""
    num_groups, total = len(samples), sum(samples)
    assert num_groups >= 2 and all(count >= 1 for count in samples), samples
    # <g_m, gbar>, and norm2(gbar) as its weighted mean
    ips = [sum(b * g for b, g in zip(samples, row, strict=True)) / total for row in products]
    mean_sqnorm = max(0.0, sum(b * ip for b, ip in zip(samples, ips, strict=True)) / total)
    norms = [products[m][m] for m in range(num_groups)]
    # sum of b_m norm2(g_m - gbar), which is 4.1's difference of sums
    trace = sum(b * (norm - 2 * ip + mean_sqnorm) for b, norm, ip in zip(samples, norms, ips, strict=True)) / (num_groups - 1)
    trace = max(0.0, trace)
    inner_variance = sum(b * (ip - mean_sqnorm) ** 2 for b, ip in zip(samples, ips, strict=True)) / (num_groups - 1)
    along = inner_variance / mean_sqnorm if mean_sqnorm > 0 else 0.0
    return GradientNoise(
        covariance_trace=trace,
        true_sqnorm=mean_sqnorm - trace / total,
        mean_sqnorm=mean_sqnorm,
        inner_variance=inner_variance,
        orthogonal_trace=max(0.0, trace - along),  # identity of method section 3.3
    )


def half_products(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """The scalars from which the noise of one inner step follows, as [3] fp64 on the device: norm2(first), <first, second>,
    norm2(second).

    `first` and `second` [P] are the parts of the batch gradient that two groups of its samples gave. Those of pieces of the
    two vectors add up to those of the whole.
    """
    # dots rather than `inner_product`: five times faster, which the inner loop needs, and reproducible enough for it
    chunk = _HOT_CHUNK_CPU if first.device.type == "cpu" else _HOT_CHUNK
    dtype = sum_dtype(first.device)
    dots = torch.zeros(3, dtype=dtype, device=first.device)
    for x, y in zip(torch.split(first, chunk), torch.split(second, chunk), strict=True):
        wide_x, wide_y = x.to(dtype), y.to(dtype)
        dots += torch.stack([wide_x.dot(wide_x), wide_x.dot(wide_y), wide_y.dot(wide_y)])
    return dots


def half_batch_statistics(steps: Sequence[tuple[Sequence[float], tuple[int, int]]]) -> HalfBatchStatistics | None:
    """The mean over the measured inner steps (method section 4.2 with J = 2, unequal halves as in 4.1), clamped to the range of
    a report.

    Each step gives its `half_products` and the samples of its two halves. None where no step was measured.
    """
    if not steps:
        return None
    noises = []
    for (norm_first, cross, norm_second), (count_first, count_second) in steps:
        # the parts are sums over samples divided by the whole batch; the groups' own means are larger
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
        covariance_trace=within_scalars(sum(noise.covariance_trace for noise in noises) / count),
        true_sqnorm=within_scalars(sum(noise.true_sqnorm for noise in noises) / count),
        mean_sqnorm=within_scalars(sum(noise.mean_sqnorm for noise in noises) / count),
        inner_variance=within_scalars(sum(noise.inner_variance for noise in noises) / count),
        orthogonal_trace=within_scalars(sum(noise.orthogonal_trace for noise in noises) / count),
    )
