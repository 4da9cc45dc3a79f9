"""The outer step on flat buffers of fp32 or bf16 (docs/mathematics.md, 9.2)."""

from collections.abc import Callable
from typing import Literal

import torch

from adloco_p2p.numerics.stochastic_rounding import round_into_

LARGEST_PARAMETER = 1e6
"""A model with a larger parameter has diverged: trained weights stay below a thousand, and beyond this limit the sums of a
forward pass overflow in bfloat16 and float32 alike."""
_CHUNK = 1 << 20
"""Elements stepped at a time: few enough that the scratch is small (20 MB), and many enough that the threads of torch, which
wait for each other after every operation, do so rarely."""


@torch.no_grad()
def outer_step_(
    outer: torch.Tensor,
    momentum: torch.Tensor,
    averaged: torch.Tensor,
    *,
    kind: Literal["nesterov", "sgd", "average"],
    learning_rate: float,
    momentum_factor: float,
    into: tuple[torch.Tensor, torch.Tensor] | None = None,
    rounding_seed: int = 0,
    on_written: Callable[[int], None] | None = None,
) -> None:
    """Apply an averaged pseudo-gradient [P] to outer parameters [P] and outer momentum [P].

    The step is in place, or writes its results `into` two other vectors [P]. It makes one pass, and calls `on_written` with the
    number of values of both vectors that are final so far.

    nesterov: buf <- mu buf + Delta; x <- x - lr (Delta + mu buf). With a momentum of zeros, the first step has buf = Delta.
    sgd: x <- x - lr Delta. average: x <- x - Delta, the mean of the models. Both leave the momentum unchanged.

    Every host must come to the same bytes, so the result may not depend on the machine. `Tensor.add(alpha=)` of fp32 rounds
    once or twice, depending on whether the processor has fused multiply-add. `_plus_scaled_` goes through fp64 instead, which
    is the same on every machine, and so equals `torch.optim.SGD` on processors with the fused instruction. Vectors kept in
    bf16 are stepped in fp32 and rounded stochastically with `rounding_seed`.
    """
    assert outer.shape == momentum.shape == averaged.shape and outer.ndim == 1, (outer.shape, momentum.shape, averaged.shape)
    assert {outer.dtype, momentum.dtype} <= {torch.float32, torch.bfloat16} and averaged.dtype == torch.float32
    vectors = (outer, momentum, averaged, *(into or (outer, momentum)))
    size = min(_CHUNK, len(outer))
    x, buf, sum32 = (torch.empty(size) for _ in range(3))
    sum64 = torch.empty(size, dtype=torch.float64)
    pieces = zip(*(torch.split(vector, _CHUNK) for vector in vectors), strict=True)
    for number, (old_x, old_buf, delta, new_x, new_buf) in enumerate(pieces):
        if len(delta) < size:
            x, buf, sum32, sum64 = (scratch[: len(delta)] for scratch in (x, buf, sum32, sum64))
        x.copy_(old_x)
        if kind == "nesterov":
            buf.copy_(old_buf).mul_(momentum_factor).add_(delta)
            _plus_scaled_(sum32.copy_(delta), buf, momentum_factor, sum64)
            _plus_scaled_(x, sum32, -learning_rate, sum64)
            _store_(new_buf, buf, seed=rounding_seed + 1, first=number * _CHUNK)
        else:
            if kind == "sgd":
                _plus_scaled_(x, delta, -learning_rate, sum64)
            else:
                x.sub_(delta)
            new_buf.copy_(old_buf)
        _store_(new_x, x, seed=rounding_seed, first=number * _CHUNK)
        if on_written is not None:
            on_written(number * _CHUNK + len(delta))


def is_sound(*vectors: torch.Tensor) -> bool:
    """Return whether training can continue from these parameters: every value is finite and at most LARGEST_PARAMETER in
    magnitude. Equal bytes give the same answer on every machine."""
    for vector in vectors:
        least, most = torch.aminmax(vector)
        if not (float(least) >= -LARGEST_PARAMETER and float(most) <= LARGEST_PARAMETER):  # a NaN fails the comparison, too
            return False
    return True


def _plus_scaled_(base: torch.Tensor, other: torch.Tensor, scale: float, scratch: torch.Tensor) -> None:
    """base <- base + scale * other in fp64, where the product of two fp32 numbers is exact, then rounded to fp32."""
    scale_fp32 = float(torch.tensor(scale, dtype=torch.float32))
    base.copy_(scratch.copy_(base).add_(other, alpha=scale_fp32))


def _store_(target: torch.Tensor, values: torch.Tensor, *, seed: int, first: int) -> None:
    if target.dtype == torch.float32:
        target.copy_(values)
    else:
        round_into_(target, values, seed=seed, first=first)
