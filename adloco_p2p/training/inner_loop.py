"""The H inner steps of one instance: the hot path."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import torch

from adloco_p2p.core.model.events import InnerResult
from adloco_p2p.core.model.gradient_statistics import HalfBatchStatistics, half_batch_statistics
from adloco_p2p.core.model.instance_plan import HostShare
from adloco_p2p.numerics.batch import Batch
from adloco_p2p.numerics.grad_stats import sum_dtype
from adloco_p2p.numerics.outer_optimizer import is_sound
from adloco_p2p.training.accumulation import StepNoise
from adloco_p2p.training.device import with_room
from adloco_p2p.training.evaluate import checked_mean
from adloco_p2p.training.input_worker import ReadyBatches
from adloco_p2p.training.instance import Instance
from adloco_p2p.training.learning_rate import LearningRateSchedule
from adloco_p2p.training.progress import IsEnough, OnProgress

STATISTICS_PERIOD = 4
"""The period, in inner steps, at which the gradient noise is measured, beginning with the first step of a round, where a batch
test needs it. A measured step costs three inner products and, where the batch is one micro-batch, a split; every fourth keeps
that under 3 % of the training time (benchmarks/statistics_cost.py), and a round still averages H / 4 of these noisy scalars."""

_DOES_NOT_FIT = "does not fit the device's memory, with what it can do without on the host"


class Trainers(Protocol):
    """The devices or processes that train an instance for a round, entered before: a `Team`, or processes that share one model
    (`training/shards`)."""

    @property
    def num_devices(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def gradient(self) -> torch.Tensor: ...

    def accumulate(self, rows: Batch, *, micro_batch: int, is_measured: bool) -> tuple[torch.Tensor, StepNoise | None]: ...

    def clip(self, max_norm: float) -> None: ...

    def finish(self) -> None: ...

    def free_cache(self) -> None: ...


def run_inner_steps(
    team: Trainers,
    instance: Instance,
    batches: ReadyBatches,
    *,
    share: HostShare,
    schedule: LearningRateSchedule,
    micro_batch_limit: int,
    is_measured: bool,
    make_room: Callable[[], None],
    should_stop: Callable[[], bool],
    is_enough: IsEnough,
    on_progress: OnProgress,
) -> InnerResult | None:
    """Do the inner steps of `share`, unless `is_enough` or `should_stop`, which are asked before each step, end them earlier.
    Fewer steps make a smaller but valid contribution, since it is weighted by its samples. None where no step was done.

    `micro_batch_limit` counts per device. `is_measured`: whether the gradient noise is needed. `make_room` frees the device of
    what these steps do not need. Where memory is short in spite of the probed limit, smaller micro-batches come first, on which
    rounding and the statistics of the noise depend. The time that `should_stop` takes does not count as training. Raises
    DeviceError where one sample, or the optimizer's step, does not fit, and ConfigError for a negative mean loss.
    """
    assert share.inner_steps >= 1 and share.effective_batch >= 1, share
    clock = _TrainingClock()
    micro_batch = min(-(-share.micro_batch_size // team.num_devices), micro_batch_limit)
    done = _Done(torch.zeros((), dtype=sum_dtype(team.device), device=team.device), micro_batch, micro_batch_limit)
    while done.steps < share.inner_steps and not is_enough(done.steps) and not clock.without(should_stop):
        instance.mix_in(done.steps)
        batch = batches.take()
        # All rows are moved at once, without waiting; the CPU does nothing more with them.
        rows = with_room(partial(batch.rows.to, team.device), make_room, problem=f"the rows of an inner step {_DOES_NOT_FIT}")
        is_measured_now = is_measured and done.steps % STATISTICS_PERIOD == 0 and rows.num_samples >= 2
        step_loss, noise, fitting = _accumulate_what_fits(
            team, rows, micro_batch=done.micro_batch, is_measured=is_measured_now, make_room=make_room
        )
        team.clip(schedule.inner.clip_norm)
        rate = schedule.learning_rate(done.steps, instance.adoption_steps)
        step = partial(instance.inner_step, team.gradient, rate)
        with_room(step, make_room, problem=f"a step of the inner optimizer {_DOES_NOT_FIT}")
        done.add(step_loss, noise, tokens=batch.num_predicted_tokens, fitting=fitting)
        on_progress(done.steps, step_loss / max(1, batch.num_predicted_tokens), batch.num_predicted_tokens)
    if not done.steps:
        return None
    team.finish()
    return done.result(share, team, instance, clock)


@dataclass(slots=True)
class _Done:
    """The totals of a round's inner steps so far."""

    loss_sum: torch.Tensor
    """The sum over all tokens, on the device."""
    micro_batch: int
    """The largest micro-batch that fits."""
    micro_batch_limit: int
    steps: int = 0
    tokens: int = 0
    measured: list[StepNoise] = field(default_factory=list)

    def add(self, loss: torch.Tensor, noise: StepNoise | None, *, tokens: int, fitting: int) -> None:
        """Add one step, whose micro-batches at last had `fitting` samples."""
        if fitting < self.micro_batch:
            self.micro_batch = self.micro_batch_limit = fitting
        self.measured += [] if noise is None else [noise]
        self.loss_sum += loss
        self.tokens += tokens
        self.steps += 1

    def result(self, share: HostShare, team: Trainers, instance: Instance, clock: "_TrainingClock") -> InnerResult:
        loss = checked_mean(float(self.loss_sum) / max(1, self.tokens))  # waits for the device
        return InnerResult(
            samples=self.steps * share.effective_batch,
            tokens=self.tokens,
            inner_steps=self.steps,
            batch_samples=share.effective_batch,
            accumulation_steps=-(-share.effective_batch // (self.micro_batch * team.num_devices)),
            loss=loss,
            seconds=clock.seconds,
            half_batch=_statistics(self.measured) if math.isfinite(loss) else None,
            micro_batch_limit=self.micro_batch_limit,
            has_diverged=not (math.isfinite(loss) and is_sound(instance.local)),
        )


def _statistics(measured: Sequence[StepNoise]) -> HalfBatchStatistics | None:
    return half_batch_statistics([(products.tolist(), halves) for products, halves in measured])


class _TrainingClock:
    """A clock that leaves out the time spent elsewhere."""

    def __init__(self) -> None:
        self._started = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._started

    def without(self, should_stop: Callable[[], bool]) -> bool:
        asked = time.perf_counter()
        answer = should_stop()
        self._started += time.perf_counter() - asked
        return answer


def _accumulate_what_fits(
    team: Trainers, rows: Batch, *, micro_batch: int, is_measured: bool, make_room: Callable[[], None]
) -> tuple[torch.Tensor, StepNoise | None, int]:
    """Accumulate as `Team.accumulate` does, halving the micro-batch and starting over until it fits the devices. The last try
    is one sample without the statistics, which need memory of their own. Also returns the size that fits. Raises DeviceError
    where one sample does not."""
    while micro_batch > 1 or is_measured:
        try:
            return *team.accumulate(rows, micro_batch=micro_batch, is_measured=is_measured), micro_batch
        except torch.OutOfMemoryError:
            pass
        # outside the handler, which would keep the tensors of the failed attempt alive
        if micro_batch == 1:
            is_measured = False
        micro_batch = max(1, micro_batch // 2)
        team.free_cache()
    accumulate = partial(team.accumulate, rows, micro_batch=1, is_measured=False)
    return *with_room(accumulate, make_room, problem=f"one sample of {rows.input_ids.shape[1]} tokens {_DOES_NOT_FIT}"), 1
