"""The held-out loss of a model (docs/mathematics.md, 10)."""

import math

import torch

from adloco_p2p.errors import ConfigError, DeviceError
from adloco_p2p.numerics.batch import Batch
from adloco_p2p.numerics.grad_stats import sum_dtype
from adloco_p2p.training.device_shell import Shell
from adloco_p2p.training.loss_rounding import LOSS_ROUNDING, without_rounding


@torch.no_grad()
def heldout_loss(shell: Shell, parameters: torch.Tensor, rows: Batch, *, micro_batch: int) -> float:
    """Return the mean loss over the PREDICTED tokens of all rows, in nats, of parameters [P] on any device; its exponential is
    the perplexity. Infinite where the mean is not finite.

    Raises DeviceError where one row does not fit, ConfigError for a negative mean.
    """
    tokens = rows.num_predicted_tokens
    assert tokens > 0, "nothing to predict"
    with shell.evaluating(parameters.to(shell.device, torch.float32)):
        while True:
            try:
                total = torch.zeros((), dtype=sum_dtype(shell.device), device=shell.device)
                for start in range(0, rows.num_samples, micro_batch):
                    total += shell.token_losses(rows.rows(start, start + micro_batch)).sum(dtype=total.dtype)
                break
            except torch.OutOfMemoryError as error:
                if micro_batch == 1:
                    raise DeviceError(
                        f"one held-out row of {rows.input_ids.shape[1]} tokens does not fit {shell.device}",
                        code="E502",
                    ) from error
            micro_batch = max(1, micro_batch // 2)
            shell.free_cache()
    loss = checked_mean(float(total) / tokens)
    return loss if math.isfinite(loss) else math.inf


def checked_mean(loss: float) -> float:
    """Return a mean loss. Raises ConfigError for a negative one, which only a plugin's loss has and no peer accepts in a
    report."""
    if loss < -LOSS_ROUNDING:
        raise ConfigError(f"model.loss: a mean of {loss:.6g}; accepted: losses of 0 or more", code="E232")
    return without_rounding(loss)


def perplexity(loss: float) -> float:
    """Return the perplexity of a mean loss in nats per predicted token; infinite where no float holds it, as after a divergence
    that left the loss finite."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
