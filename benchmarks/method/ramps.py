"""Controls for the batch test, not settings of the product: the batch follows a schedule of the samples, without statistics."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.rules import Rules
from adloco_p2p.core.model.run_progress import samples_after
from adloco_p2p.core.model.types import Report, RoundPlan
from adloco_p2p.core.planning.round_plan import next_plan

Ramp = Literal["none", "linear", "seesaw"]
"""`linear`: the batch grows linearly with the samples. `seesaw`: the batch is the initial batch over the learning rate's decay
(arXiv 2510.14717); with `inner.batch_scaling=sqrt` the rate is then the peak rate times the root of the decay."""


def scheduled_batch(ramp: Ramp, progress: float, *, initial: int, most: int, final_fraction: float) -> int:
    """The global batch at `progress` (0 to 1) of the run's samples. `linear` ends at `most`, `seesaw` is capped there.
    `final_fraction`: part of the peak learning rate at which the cosine ends."""
    if ramp == "linear":
        return round(initial + (most - initial) * progress)
    assert ramp == "seesaw", ramp
    decay = final_fraction + (1 - final_fraction) * 0.5 * (1 + math.cos(math.pi * progress))
    return round(min(most, initial / decay))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledBatch:
    """The product's rule of the next plan with a constant batch, applied to a plan that already requests the scheduled one."""

    rules: Rules
    """Of a run that counts samples."""
    ramp: Ramp
    most: int
    final_fraction: float

    def decide(self, previous: RoundPlan, reports: Sequence[Report]) -> RoundPlan:
        assert self.rules.work.samples is not None
        batch = max(item.requested_batch for item in previous.instances)
        middle = samples_after(previous) + self.rules.work.inner_steps * batch / 2  # of the round to plan
        wanted = scheduled_batch(
            self.ramp,
            min(1.0, middle / self.rules.work.samples),
            initial=self.rules.batch.initial_batch,
            most=self.most,
            final_fraction=self.final_fraction,
        )
        asked = replace(previous, instances=tuple(replace(item, requested_batch=wanted) for item in previous.instances))
        rules = replace(self.rules, batch=replace(self.rules.batch, test="constant"))
        return replace(next_plan(asked, reports, rules), parent=canonical.digest(previous))
