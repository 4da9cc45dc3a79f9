"""Parts of benchmarks that merge: the instances before the last merge, and other weights for it, which cost no training."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

import torch

from adloco_p2p.core.model.instance_plan import InstancePlan
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.scalars import InstanceId
from benchmarks.method.world import World


@dataclass(slots=True)
class Watch:
    """Keeps the newest outer parameters of every instance, and measures the final ones."""

    outers: dict[InstanceId, torch.Tensor] = field(default_factory=dict)
    plans: tuple[InstancePlan, ...] = ()
    final: torch.Tensor | None = None
    requests: list[list[int]] = field(default_factory=list)

    def applied(self, world: World, plan: RoundPlan, instance: InstanceId, outer: torch.Tensor) -> None:
        del world
        if plan.is_last:
            self.final = outer
            return
        if plan.instances != self.plans:
            self.plans = plan.instances
            self.requests.append([item.requested_batch for item in plan.instances])
            self.outers = {item.instance: self.outers[item.instance] for item in self.plans if item.instance in self.outers}
        self.outers[instance] = outer


def merge_weights(plans: Sequence[InstancePlan]) -> dict[str, list[float]]:
    """Return ways to weigh the instances of the last round, each summing to one. Noise: the trace of the covariance of one
    sample's gradient, over the rounds that the plan remembers."""
    amounts = {
        "request": [float(plan.requested_batch) for plan in plans],
        "equal": [1.0 for _ in plans],
        "samples": [float(plan.lineage_samples) for plan in plans],
        "inverse noise": [1.0 / fmean(item.batch_samples * item.noise for item in plan.history) for plan in plans],
    }
    return {way: [amount / sum(found) for amount in found] for way, found in amounts.items()}
