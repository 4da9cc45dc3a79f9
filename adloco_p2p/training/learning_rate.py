"""The learning rate of an inner step: a pure function of the step's place in the run (docs/mathematics.md, 9.1)."""

import math
from dataclasses import dataclass

from adloco_p2p.config.run_config import InnerConfig
from adloco_p2p.core.model.effects import RunInner

DEFAULT_WARMUP_STEPS = 64
"""Inner steps of warm-up where the run gives neither steps nor samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRateSchedule:
    """The inputs of the learning rates in one round of one instance."""

    inner: InnerConfig
    steps_before: int
    """Inner steps of the lineage before this round."""
    num_steps: int
    """Inner steps that this host was given."""
    progress_start: float
    progress_end: float
    """The part of the run that is done before the first inner step, and after the round."""
    batch_ratio: float
    """The effective batch of the instance, relative to the initial global batch."""
    samples_before: int = 0
    """Samples of the lineage before this round."""
    num_samples: int = 0
    """Samples of this round, over all hosts."""
    factor: float = 1.0
    """The factor that signers of the run ordered."""

    def learning_rate(self, step: int, adoption_steps: int | None) -> float:
        """Return the rate of inner step `step` (from 0) of the round. `adoption_steps`: inner steps since foreign parameters
        were adopted; None: never."""
        inner = self.inner
        rate = self.factor * inner.learning_rate * self._decay(step)
        rate *= self._warmup(step)
        if adoption_steps is not None:
            rate *= _warmup(adoption_steps, inner.adoption_warmup_steps)
        if inner.batch_scaling == "sqrt":
            rate *= min(inner.batch_scaling_cap, math.sqrt(self.batch_ratio))
        return rate

    def _warmup(self, step: int) -> float:
        """Return the warm-up factor. Where the run counts samples, those up to the end of the step count, as if all hosts did
        theirs alike."""
        if self.inner.warmup_samples is None:
            warmup_steps = DEFAULT_WARMUP_STEPS if self.inner.warmup_steps is None else self.inner.warmup_steps
            return _warmup(self.steps_before + step, warmup_steps)
        samples = self.samples_before + self.num_samples * (step + 1) / self.num_steps
        return min(1.0, samples / self.inner.warmup_samples) if self.inner.warmup_samples else 1.0

    def _decay(self, step: int) -> float:
        if self.inner.schedule == "constant":
            return 1.0
        # Interpolated inside the round, so that the rate is continuous at its boundaries.
        progress = self.progress_start + (self.progress_end - self.progress_start) * step / self.num_steps
        floor = self.inner.final_fraction
        return floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))


def learning_rate_schedule(effect: RunInner, *, inner: InnerConfig, initial_batch: int) -> LearningRateSchedule:
    """Return the schedule of the round that a plan asks for."""
    return LearningRateSchedule(
        inner=inner,
        steps_before=effect.plan.inner_steps_before,
        num_steps=effect.share.inner_steps,
        progress_start=effect.progress_start,
        progress_end=effect.progress_end,
        batch_ratio=effect.plan.effective_batch / initial_batch,
        samples_before=effect.plan.lineage_samples,
        num_samples=sum(share.samples for share in effect.plan.hosts),
        factor=effect.learning_rate_factor,
    )


def _warmup(steps_done: int, warmup_steps: int) -> float:
    """Return a factor that rises linearly over `warmup_steps` steps; the first is not zero."""
    return 1.0 if steps_done >= warmup_steps else (steps_done + 1) / warmup_steps
