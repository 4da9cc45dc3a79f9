"""Weighted means of flat buffers: of pseudo-gradients in a round (method section 2), of instances in a merge (section 6)."""

from collections.abc import Sequence

import torch

_CHUNK = 1 << 20
"""Elements averaged at a time: bounds the fp64 scratch."""


@torch.no_grad()
def weighted_average(
    vectors: Sequence[torch.Tensor], weights: Sequence[float], *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """sum_m w_m v_m / sum_m w_m of fp32 CPU vectors [P], into `out` [P] (it may be one of them) or a new vector.

    Summed in the order given, in fp64, and rounded to fp32 once: the same bytes on every machine, and equal vectors come out
    as they went in, bit for bit. A weight of 0 takes nothing, not even a NaN. The weights' sum must be positive.
    """
    assert len(vectors) == len(weights) and all(weight >= 0 for weight in weights), weights
    total = float(sum(weights))
    assert total > 0, "every weight is zero"
    taken = [(vector, float(weight)) for vector, weight in zip(vectors, weights, strict=True) if weight > 0]
    assert all(vector.shape == taken[0][0].shape and vector.dtype == torch.float32 for vector, _ in taken)
    result = torch.empty_like(taken[0][0]) if out is None else out
    if len(taken) == 1:
        return result.copy_(taken[0][0])
    for start in range(0, result.numel(), _CHUNK):
        part = slice(start, start + _CHUNK)
        summed = torch.zeros(result[part].shape, dtype=torch.float64)
        for vector, weight in taken:
            summed.add_(vector[part].double().mul_(weight))
        result[part] = summed.div_(total)
    return result


def merge_(target: torch.Tensor, sources: Sequence[torch.Tensor], weights: Sequence[float]) -> None:
    """target [P] <- weighted mean of the sources [P], in place; a zero total leaves the target as it is (method section 6)."""
    if sum(weights) > 0:
        weighted_average(sources, weights, out=target)
