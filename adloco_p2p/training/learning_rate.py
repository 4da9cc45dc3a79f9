"""The learning rate of an inner step: a pure function of where the step stands in the run (method section 9)."""

import math
from dataclasses import dataclass

from adloco_p2p.config.run_config import InnerConfig
from adloco_p2p.core.model.events import RunInner


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRateSchedule:
    """The inputs of the learning rates in one round of one instance."""

    inner: InnerConfig
    steps_before: int
    """Inner steps that the lineage has behind it."""
    num_steps: int
    """Inner steps that this host was given."""
    progress_start: float
    progress_end: float
    """Part of the run behind the first inner step, and behind the round."""
    batch_ratio: float
    """Effective over initial global batch of the instance."""
    factor: float = 1.0
    """That signers of the run ordered."""

    def learning_rate(self, step: int, adoption_steps: int | None) -> float:
        """Of inner step `step` (from 0) of the round; `adoption_steps` since foreign parameters were adopted, if ever."""
        inner = self.inner
        rate = self.factor * inner.learning_rate * self._decay(step)
        rate *= _warmup(self.steps_before + step, inner.warmup_steps)
        if adoption_steps is not None:
            rate *= _warmup(adoption_steps, inner.adoption_warmup_steps)
        if inner.batch_scaling == "sqrt":
            rate *= min(inner.batch_scaling_cap, math.sqrt(self.batch_ratio))
        return rate

    def _decay(self, step: int) -> float:
        if self.inner.schedule == "constant":
            return 1.0
        # interpolated inside the round, so that the rate is continuous at its boundaries
        progress = self.progress_start + (self.progress_end - self.progress_start) * step / self.num_steps
        floor = self.inner.final_fraction
        return floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))


def learning_rate_schedule(effect: RunInner, *, inner: InnerConfig, initial_batch: int) -> LearningRateSchedule:
    """The schedule of the round that a plan asks for."""
    return LearningRateSchedule(
        inner=inner,
        steps_before=effect.plan.inner_steps_before,
        num_steps=effect.share.inner_steps,
        progress_start=effect.progress_start,
        progress_end=effect.progress_end,
        batch_ratio=effect.plan.effective_batch / initial_batch,
        factor=effect.learning_rate_factor,
    )


def _warmup(steps_done: int, warmup_steps: int) -> float:
    """Rises linearly over `warmup_steps` steps; the first is not zero."""
    return 1.0 if steps_done >= warmup_steps else (steps_done + 1) / warmup_steps
