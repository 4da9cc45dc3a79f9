"""The gradient of a batch on one device, micro-batch by micro-batch."""

import itertools

import torch

from adloco_p2p.numerics.batch import IGNORED_LABEL, Batch
from adloco_p2p.numerics.grad_stats import sum_dtype
from adloco_p2p.training.shell import ModelShell

StepNoise = tuple[torch.Tensor, tuple[int, int]]
"""The `half_products` of a measured inner step, on the device, and the number of samples in each of its two groups."""


def accumulate_gradient(
    shell: ModelShell, rows: Batch, *, micro_batch: int, is_measured: bool
) -> tuple[torch.Tensor, StepNoise | None]:
    """Set `shell.gradient` to the mean of the rows' gradients, whatever the size of the micro-batches.

    The loss of a row is the mean over its predicted tokens. A measured step compares two groups: the last micro-batch, and
    those before it; a single micro-batch is split in two. Any split serves the estimates equally well: with Gaussian noise
    their variance does not depend on it (docs/mathematics.md, 4.2). Returns the sum of the token losses (fp64, on the device)
    and, of a measured step, its noise. A second call starts over.
    """
    rows = rows.to(shell.device)
    num_samples = rows.num_samples
    starts = list(range(0, num_samples, micro_batch))
    if is_measured and len(starts) == 1:
        starts.append((num_samples + 1) // 2)
    predicted = (rows.labels[:, 1:] != IGNORED_LABEL).sum(dim=1, keepdim=True).clamp(min=1)  # [n, 1]
    loss_sum = torch.zeros((), dtype=sum_dtype(shell.device), device=shell.device)
    weights = (1.0 / (num_samples * predicted.to(loss_sum.dtype))).float()  # [n, 1]

    def run(start: int, stop: int) -> None:
        loss, losses = shell.weighted_loss(rows.rows(start, stop), weights[start:stop])
        torch.autograd.backward(loss)
        loss_sum.add_(losses.sum(dtype=loss_sum.dtype))

    shell.gradient.zero_()
    last = starts[-1]
    with shell.casting_once():
        for start, stop in itertools.pairwise(starts):
            run(start, stop)
        if not is_measured:
            run(last, num_samples)
            return loss_sum, None
        with shell.measuring() as products:
            run(last, num_samples)
    return loss_sum, (products, (last, num_samples - last))
