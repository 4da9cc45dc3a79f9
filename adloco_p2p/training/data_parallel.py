"""Several devices on one instance: each computes the gradient of its part of every batch, and the first one steps."""

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Self

import torch

from adloco_p2p.numerics.batch import Batch
from adloco_p2p.numerics.grad_stats import half_products, sum_dtype
from adloco_p2p.training.accumulation import StepNoise, accumulate_gradient
from adloco_p2p.training.shell import ModelShell

_PIECE = 1 << 22
"""Values of a gradient that come to the first device at a time, which bounds the memory that it needs for them."""


class Team:
    """The shells of the devices that train one instance for a round, used in a `with`. The first one is bound to the local
    parameters. With one device the team is no more than `accumulate_gradient`."""

    def __init__(self, shells: Sequence[ModelShell], local: torch.Tensor) -> None:
        """`local` [P] lies on the first device; the others compute with copies of it."""
        self._first, *self._others = shells
        self._local = local
        self._copies: list[torch.Tensor] = []
        self._ending = ExitStack()

    @property
    def num_devices(self) -> int:
        return 1 + len(self._others)

    @property
    def device(self) -> torch.device:
        """The device of the rows and the sums."""
        return self._first.device

    @property
    def gradient(self) -> torch.Tensor:
        """The gradient [P] that `accumulate` and `clip` leave."""
        return self._first.gradient

    def clip(self, max_norm: float) -> None:
        """Scale the gradient down to this norm, if its norm is larger."""
        torch.nn.utils.clip_grad_norm_(self._first.parameters, max_norm)

    def finish(self) -> None:
        """Do nothing after the last step: the local parameters never left their vector."""

    def __enter__(self) -> Self:
        self._first.bind(self._local)
        self._first.module.train()
        self._copies = [torch.empty_like(self._local, device=shell.device) for shell in self._others]
        for shell, copy in zip(self._others, self._copies, strict=True):
            shell.bind(copy)
            shell.module.train()
            self._ending.callback(shell.unbind)
        if self._others:
            self._threads = self._ending.enter_context(ThreadPoolExecutor(len(self._others), thread_name_prefix="part"))
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()
        self._copies = []

    def free_cache(self) -> None:
        for shell in (self._first, *self._others):
            shell.free_cache()

    def accumulate(self, rows: Batch, *, micro_batch: int, is_measured: bool) -> tuple[torch.Tensor, StepNoise | None]:
        """Set the first device's gradient as `accumulate_gradient` does, summed in the order of the devices. In a measured step
        the part of the last device is one group, and all others are the other.

        `micro_batch` counts per device. Raises torch.OutOfMemoryError where one of them is short of memory; a second call
        starts over.
        """
        parts = _parts(rows.num_samples, self.num_devices)
        if len(parts) == 1:
            return accumulate_gradient(self._first, rows, micro_batch=micro_batch, is_measured=is_measured)
        asked: list[Callable[[], torch.Tensor]] = [partial(_gradient, self._first, rows.rows(*parts[0]), micro_batch)]
        for shell, copy, part in zip(self._others, self._copies, parts[1:], strict=False):
            copy.copy_(self._local)
            asked.append(self._threads.submit(_gradient, shell, rows.rows(*part), micro_batch).result)
        losses, failures = [], []
        for loss_sum in asked:
            try:
                losses.append(loss_sum().to(self._first.device))
            except torch.OutOfMemoryError as error:
                failures.append(error)
        if failures:  # only now: no device is at work any more
            raise failures[0]
        return torch.stack(losses).sum(), self._reduce(parts, is_measured=is_measured)

    def _reduce(self, parts: Sequence[tuple[int, int]], *, is_measured: bool) -> StepNoise | None:
        """Set the first shell's gradient to the sum of all gradients, each weighted by its part of the rows."""
        *_, (final_start, count) = parts
        shares = [(stop - start) / count for start, stop in parts]
        *helpers, last = self._others[: len(parts) - 1]
        total, device = self._first.gradient, self._first.device
        products = torch.zeros(3, dtype=sum_dtype(device), device=device)
        for begin in range(0, total.numel(), _PIECE):
            piece = slice(begin, begin + _PIECE)
            so_far = total[piece].mul_(shares[0])
            for shell, share in zip(helpers, shares[1:-1], strict=True):
                so_far.add_(shell.gradient[piece].to(device), alpha=share)
            coming = last.gradient[piece].to(device, copy=True).mul_(shares[-1])
            if is_measured:
                products.add_(half_products(so_far, coming))
            so_far.add_(coming)
        return (products, (final_start, count - final_start)) if is_measured else None


def _gradient(shell: ModelShell, rows: Batch, micro_batch: int) -> torch.Tensor:
    """Accumulate the gradient in the shell and return the sum of the token losses."""
    loss_sum, _ = accumulate_gradient(shell, rows, micro_batch=micro_batch, is_measured=False)
    return loss_sum


def _parts(num_samples: int, num_devices: int) -> list[tuple[int, int]]:
    """Return the first and last row of each device: the first devices get one row more, and devices without a row are left
    out."""
    bounds = [-(-num_samples * index // num_devices) for index in range(num_devices + 1)]
    return [(start, stop) for start, stop in itertools.pairwise(bounds) if stop > start]
