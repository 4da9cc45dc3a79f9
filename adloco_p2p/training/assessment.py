"""Looking at another host's contribution: the losses of rows that it was given, and of rows that no host saw, with and without
it.

Done a few rows at a time, between other jobs of the device, which it leaves as they were: nothing is trained, no chance is
drawn, and the shell is bound again to what it was bound to.
"""

from collections.abc import Callable, Generator, Iterator, Sequence

import numpy as np
import torch

from adloco_p2p.numerics.assessment import Floats, Marks, assessment_score
from adloco_p2p.numerics.batch import IGNORED_LABEL, Batch
from adloco_p2p.numerics.grad_stats import sum_dtype
from adloco_p2p.training.device_shell import Shell

ROWS_AT_ONCE = 16
"""At most: other jobs of the device wait so long."""
Steps = Iterator[float | None]
"""A forward pass each, which gives None, and the score at the end."""
RowLosses = Callable[[torch.Tensor, Batch], torch.Tensor]
"""Of parameters [P] on the CPU: see `row_losses`."""


@torch.no_grad()
def row_losses(shell: Shell, parameters: torch.Tensor, rows: Batch) -> torch.Tensor:
    """[rows], float64 on the CPU: the mean loss over the predicted tokens of each, in nats. `parameters`: [P] on any device."""
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
    """The `assessment_score` of a contribution [P] to the outer step from parameters `before` [P], of any type, by rows that
    the plan gave its host and rows that it gave to nobody. `others` [P]: the mean of the other contributions. Both are written
    over."""
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
