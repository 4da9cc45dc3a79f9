"""Weighted means of flat buffers: of pseudo-gradients in a round, of instances in a merge (docs/mathematics.md, 2.2 and 6)."""

import math
from collections.abc import Sequence

import numpy as np
import torch

from adloco_p2p.core.model.gradient_statistics import PseudoGradientStatistics
from adloco_p2p.core.model.hash_tree import slice_values
from adloco_p2p.core.model.scalars import float_sum, within_scalars
from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.numerics.aggregation.per_place import per_place_mean
from adloco_p2p.numerics.codecs import fits
from adloco_p2p.numerics.grad_stats import inner_product
from adloco_p2p.numerics.tensor_codec import Buffer, TensorCodec

_CHUNK = 1 << 20
"""Elements averaged at a time; bounds the fp64 scratch memory."""


@torch.no_grad()
def weighted_average(vectors: Sequence[torch.Tensor], weights: Sequence[float]) -> torch.Tensor:
    """Return sum_m w_m v_m / sum_m w_m of fp32 CPU vectors [P], as a new vector.

    The sum is formed in fp64 in the given order and rounded to fp32 once: the bytes are the same on every machine, and the mean
    of equal vectors is that vector, bit for bit. A vector of weight 0 is ignored, NaNs included. The weights must be
    non-negative and their sum positive.
    """
    assert len(vectors) == len(weights) and all(weight >= 0 for weight in weights), weights
    total = float_sum(weights)
    assert total > 0, "every weight is zero"
    taken = [(vector, float(weight)) for vector, weight in zip(vectors, weights, strict=True) if weight > 0]
    assert all(vector.shape == taken[0][0].shape and vector.dtype == torch.float32 for vector, _ in taken)
    result = torch.empty_like(taken[0][0])
    if len(taken) == 1:
        return result.copy_(taken[0][0])
    for start in range(0, result.numel(), _CHUNK):
        part = slice(start, start + _CHUNK)
        summed = torch.zeros(result[part].shape, dtype=torch.float64)
        for vector, weight in taken:
            summed.add_(vector[part].double().mul_(weight))
        result[part] = summed.div_(total)
    return result


def pseudo_gradient_statistics(own: torch.Tensor, averaged: torch.Tensor) -> PseudoGradientStatistics:
    """Return the squared norms and the inner product of the transmitted vector and the average, both [P]
    (docs/mathematics.md, 4.3), clamped to the range of a report."""
    return PseudoGradientStatistics(
        own_sqnorm=within_scalars(float(inner_product(own, own))),
        inner_product=within_scalars(float(inner_product(own, averaged))),
        averaged_sqnorm=within_scalars(float(inner_product(averaged, averaged))),
    )


_STATISTICS_BLOCK = 8192  # values; fits the cache, and is too short for a BLAS to split it over threads
_MEAN_BLOCK = 32768  # values; fits the cache while the contributions are added


class BadPart(RemoteProtocolError):
    """A part whose values no honest peer would send. `member` is the index of its sender."""

    def __init__(self, member: int, why: str) -> None:
        super().__init__(why)
        self.member = member


def decoded_parts(codec: TensorCodec, contributions: Sequence[tuple[int, Buffer]], size: int) -> list[np.ndarray]:
    """Decode parts of `size` values, each (member, bytes), to float32 [size] arrays.

    Raises BadPart for a contribution that is not finite, exceeds the range of the codec or has another size.
    """
    vectors: list[np.ndarray] = []
    for member, data in contributions:
        try:
            values = codec.decode(data)
        except RemoteProtocolError as error:
            raise BadPart(member, str(error)) from None
        if len(values) != size or not fits(codec, values):
            raise BadPart(member, "values that are not finite, or too few")
        vectors.append(values.numpy())
    return vectors


def combination(
    codec: TensorCodec,
    contributions: Sequence[tuple[int, Buffer]],
    coefficients: Sequence[float],
    size: int,
    *,
    divisors: Sequence[float] = (),
) -> torch.Tensor:
    """Return sum_i c_i v_i, float32 [size], of encoded parts of `size` values, each (member, bytes), in the given order; with
    divisors, the mean per place (`aggregation/per_place.py`).

    Each coefficient, product and sum is rounded to float32 (no fused operation). A part with the coefficient 0 is not read.
    Raises BadPart as `decoded_parts` does.
    """
    taken = [place for place, coefficient in enumerate(coefficients) if coefficient != 0]
    vectors = decoded_parts(codec, [contributions[place] for place in taken], size)
    of_taken = [divisors[place] for place in taken if divisors]
    return combined(codec, vectors, [coefficients[place] for place in taken], size, divisors=of_taken)


def combined(
    codec: TensorCodec, vectors: Sequence[np.ndarray], coefficients: Sequence[float], size: int, *, divisors: Sequence[float]
) -> torch.Tensor:
    """Return the `combination` of parts that are already decoded, with coefficients that are not 0."""
    if not divisors or not vectors:
        return weighted_sum(vectors, coefficients, size)
    return per_place_mean(vectors, coefficients, divisors, slice_values(codec.group))


def weighted_sum(vectors: Sequence[np.ndarray], coefficients: Sequence[float], size: int) -> torch.Tensor:
    """Return sum_i c_i v_i, float32 [size], of decoded parts, float32 [size] each, rounded as `combination` rounds."""
    result = np.zeros(size, dtype=np.float32)
    taken = [(vector, np.float32(c)) for vector, c in zip(vectors, coefficients, strict=True) if c != 0]
    if not taken:
        return torch.from_numpy(result)
    (leading, leading_factor), *others = taken
    product = np.empty(_MEAN_BLOCK, dtype=np.float32)
    for first in range(0, size, _MEAN_BLOCK):
        block = result[first : first + _MEAN_BLOCK]
        np.multiply(leading[first : first + _MEAN_BLOCK], leading_factor, out=block)
        for vector, factor in others:
            block += np.multiply(vector[first : first + _MEAN_BLOCK], factor, out=product[: len(block)])
    return torch.from_numpy(result)


def part_statistics(own: torch.Tensor | None, averaged: torch.Tensor) -> tuple[float, float, float]:
    """Return norm2(own), <own, averaged> and norm2(averaged) of one part, in float64; the first two are 0 if `own` is None."""
    sums = np.zeros(3)
    for first in range(0, averaged.numel(), _STATISTICS_BLOCK):
        mean = averaged[first : first + _STATISTICS_BLOCK].numpy().astype(np.float64)
        sums[2] += mean @ mean
        if own is not None:
            mine = own[first : first + _STATISTICS_BLOCK].numpy().astype(np.float64)
            sums[0] += mine @ mine
            sums[1] += mine @ mean
    return float(sums[0]), float(sums[1]), float(sums[2])


def statistics_of(parts: Sequence[tuple[float, float, float]]) -> PseudoGradientStatistics:
    """Sum the three scalars of the parts to those of the whole vector (docs/mathematics.md, 4.3), clamped to the range of a
    report, because a host whose training diverges still reports."""
    own, inner, averaged = (within_scalars(_sum(column)) for column in zip(*parts, strict=True))
    return PseudoGradientStatistics(own_sqnorm=own, inner_product=inner, averaged_sqnorm=averaged)


def _sum(numbers: Sequence[float]) -> float:
    """Return the correctly rounded sum, or infinity where `fsum` raises because of an overflow or opposite infinities."""
    try:
        return math.fsum(numbers)
    except (OverflowError, ValueError):
        return math.inf
