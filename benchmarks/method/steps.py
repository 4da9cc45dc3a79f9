"""An idea tried here, not a setting of the product: H follows the batch, so that one statistic controls both."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from adloco_p2p.core.model.plan import RosterChange, RoundPlan
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.rules import Rules
from adloco_p2p.core.planning.round_plan import next_plan


def grown_inner_steps(batch: float, rules: Rules, *, exponent: float, most: int) -> int:
    """Return H of a round whose mean requested batch is `batch`: H0 (B / B0)^exponent, at most `most`."""
    grown: float = rules.work.inner_steps * (batch / rules.batch.initial_batch) ** exponent
    return max(1, min(round(grown), max(most, rules.work.inner_steps)))


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowingSteps:
    """The product's rule of the next plan, applied a second time with the H that follows from the batch of its first plan."""

    rules: Rules
    exponent: float
    """The power of the batch; 0: H stays."""
    most: int

    def decide(self, previous: RoundPlan, reports: Sequence[Report], change: RosterChange) -> RoundPlan:
        plan = next_plan(previous, reports, self.rules, roster=change)
        if not self.exponent or plan.is_last:
            return plan
        batch = sum(item.requested_batch for item in plan.instances) / len(plan.instances)
        steps = grown_inner_steps(batch, self.rules, exponent=self.exponent, most=self.most)
        rules = replace(self.rules, work=replace(self.rules.work, inner_steps=steps))
        return next_plan(previous, reports, rules, roster=change)
