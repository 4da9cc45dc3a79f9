"""The outer step on flat fp32 buffers (method section 9)."""

from typing import Literal

import torch

LARGEST_PARAMETER = 1e6
"""A model with a larger parameter has diverged: trained weights stay below a thousand, and the sums of a forward pass above
overflow in bfloat16 and float32 alike."""
_CHUNK = 1 << 18
"""Elements stepped at a time: bounds the fp64 scratch, which stays in the processor's cache."""


@torch.no_grad()
def outer_step_(
    outer: torch.Tensor,
    momentum: torch.Tensor,
    averaged: torch.Tensor,
    *,
    kind: Literal["nesterov", "sgd", "average"],
    learning_rate: float,
    momentum_factor: float,
) -> None:
    """Apply an averaged pseudo-gradient [P] to outer parameters [P] and outer momentum [P] in place.

    nesterov: buf <- mu buf + Delta; x <- x - lr (Delta + mu buf). A momentum of zeros is the first step's buf = Delta.
    sgd: x <- x - lr Delta. average: x <- x - Delta, the mean of the models; both leave the momentum alone.

    Every host must come to the same bytes, so the result may not depend on the machine. `Tensor.add(alpha=)` rounds once or
    twice, as the processor has fused multiply-add or not. `_plus_scaled` goes through fp64 instead, which every machine does
    alike, and so equals `torch.optim.SGD` on processors that have the fused instruction.
    """
    assert outer.shape == momentum.shape == averaged.shape and outer.ndim == 1, (outer.shape, momentum.shape, averaged.shape)
    assert outer.dtype == momentum.dtype == averaged.dtype == torch.float32
    for x, buf, delta in zip(*(torch.split(vector, _CHUNK) for vector in (outer, momentum, averaged)), strict=True):
        match kind:
            case "nesterov":
                buf.mul_(momentum_factor).add_(delta)
                x.copy_(_plus_scaled(x, _plus_scaled(delta, buf, momentum_factor), -learning_rate))
            case "sgd":
                x.copy_(_plus_scaled(x, delta, -learning_rate))
            case "average":
                x.sub_(delta)


def is_sound(*vectors: torch.Tensor) -> bool:
    """Whether every value is finite and at most LARGEST_PARAMETER: parameters that training can go on from. The same answer on
    every machine for equal bytes."""
    for vector in vectors:
        least, most = torch.aminmax(vector)
        if not (float(least) >= -LARGEST_PARAMETER and float(most) <= LARGEST_PARAMETER):  # also where one is not a number
            return False
    return True


def _plus_scaled(base: torch.Tensor, other: torch.Tensor, scale: float) -> torch.Tensor:
    """base + scale * other in fp64, where the product of two fp32 numbers is exact, then rounded to fp32."""
    scale_fp32 = float(torch.tensor(scale, dtype=torch.float32))
    return base.double().add_(other.double().mul_(scale_fp32)).float()
