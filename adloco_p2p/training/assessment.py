"""Looks at another host's contribution: losses with and without it, of rows that its host was given and of rows that no host
saw.

A look takes a few rows at a time, between other jobs of the device, and leaves the device as it was: it trains nothing, draws
no random number, and binds the shell again to the vector that it found there.
"""

from collections.abc import Callable, Generator, Iterator, Sequence

import numpy as np
import torch

from adloco_p2p.numerics.assessment import Floats, Marks, assessment_score
from adloco_p2p.numerics.batch import IGNORED_LABEL, Batch
from adloco_p2p.numerics.grad_stats import sum_dtype
from adloco_p2p.training.device_shell import Shell

ROWS_AT_ONCE = 16
"""The most rows of one forward pass: other jobs of the device wait that long."""
Steps = Iterator[float | None]
"""A look, step by step: each forward pass gives None, and the last step gives the score."""
RowLosses = Callable[[torch.Tensor, Batch], torch.Tensor]
"""`row_losses` with its shell: parameters [P] on the CPU and rows -> the loss of each row."""


@torch.no_grad()
def row_losses(shell: Shell, parameters: torch.Tensor, rows: Batch) -> torch.Tensor:
    """Return the mean loss of each row over its predicted tokens, in nats: [rows], float64 on the CPU. `parameters`: [P] on any
    device."""
    with shell.evaluating(parameters.to(shell.device, torch.float32)):
        losses = shell.token_losses(rows)
    predicted = (rows.labels[:, 1:] != IGNORED_LABEL).sum(dim=1).clamp(min=1)
    return losses.sum(dim=1, dtype=sum_dtype(shell.device)).cpu().double() / predicted


def assessed(
    before: torch.Tensor,
    contribution: torch.Tensor,
    others: torch.Tensor,
    *,
    given: Batch,
    unseen: Batch,
    micro_batch: int,
    losses: RowLosses,
) -> Steps:
    """Compute the `assessment_score` of a contribution [P], step by step.

    `before`: the parameters [P], of any type, before the outer step. `given`: rows that the plan gave to the contribution's
    host; `unseen`: rows that it gave to nobody. `others`: the mean of the other contributions [P]. Overwrites `contribution`
    and `others`.
    """
    sets = [(rows, start) for rows in (given, unseen) for start in range(0, rows.num_samples, micro_batch)]
    falls = list[Floats]()
    at_start = yield from _all_losses(before, sets, micro_batch, losses)
    for vector in (contribution, others):
        after = torch.sub(before, vector, out=vector) if before.dtype == vector.dtype else vector.neg_().add_(before)
        falls.append(at_start - (yield from _all_losses(after, sets, micro_batch, losses)))
    is_given: Marks = np.arange(len(at_start)) < given.num_samples
    yield assessment_score(falls[0], falls[1], is_given)


def _all_losses(
    parameters: torch.Tensor, sets: Sequence[tuple[Batch, int]], micro_batch: int, losses: RowLosses
) -> Generator[None, None, Floats]:
    found = []
    for rows, start in sets:
        found.append(losses(parameters, rows.rows(start, start + micro_batch)))
        yield
    every: Floats = torch.cat(found).numpy()
    return every
