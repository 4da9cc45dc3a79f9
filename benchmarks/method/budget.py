"""A run that ends after a number of samples, so that methods compare at equal data.

A shipped run ends after `work.rounds` rounds. Here the rule of the next plan is asked with the number of rounds that the
samples left over will take, round by round; the last round is cut to what is left. All else about a plan stays the product's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil

from adloco_p2p.core import canonical
from adloco_p2p.core.round_plan import next_plan
from adloco_p2p.core.rules import Rules
from adloco_p2p.core.types import Digest, Report, RoundPlan


def planned_samples(plan: RoundPlan) -> int:
    """Samples that all hosts of all instances train in the round."""
    return 0 if plan.is_last else sum(share.samples for item in plan.instances for share in item.hosts)


def grown_inner_steps(batch: float, rules: Rules, *, exponent: float, most: int) -> int:
    """H of a round whose mean requested batch is `batch`: H0 (B / B0)^exponent, at most `most`.

    An idea tried here, not a setting of the product: one statistic, the batch test's, pulls both levers.
    """
    grown: float = rules.work.inner_steps * (batch / rules.batch.initial_batch) ** exponent
    return max(1, min(round(grown), max(most, rules.work.inner_steps)))


@dataclass(slots=True)
class SampleBudget:
    """The rule of the next plan for a run of `total` samples; shared by the peers of one process, for it is a function."""

    total: int
    rules: Rules
    steps_exponent: float = 0.0
    most_steps: int = 1 << 20
    _before: dict[Digest, int] = field(default_factory=dict)
    """Plan -> samples of the rounds before it."""

    def done_before(self, plan: RoundPlan) -> int:
        """Samples that the run was given before this plan's round. The plan was made here, or is the first."""
        return self._before.get(canonical.digest(plan), 0)

    def decide(self, previous: RoundPlan, reports: Sequence[Report]) -> RoundPlan:
        done = self.done_before(previous) + planned_samples(previous)
        plan = self._next(previous, reports, left=self.total - done)
        self._before[canonical.digest(plan)] = done
        return plan

    def _next(self, previous: RoundPlan, reports: Sequence[Report], *, left: int) -> RoundPlan:
        round, steps = previous.round + 1, self.rules.work.inner_steps
        rounds = round + ceil(max(0, left) / max(1, planned_samples(previous)))
        plan = next_plan(previous, reports, self._rules(rounds=rounds, inner_steps=steps))
        if self.steps_exponent and not plan.is_last:
            batch = sum(item.requested_batch for item in plan.instances) / len(plan.instances)
            steps = grown_inner_steps(batch, self.rules, exponent=self.steps_exponent, most=self.most_steps)
            plan = next_plan(previous, reports, self._rules(rounds=rounds, inner_steps=steps))
        if planned_samples(plan) <= left or plan.is_last:
            return plan
        per_step = planned_samples(plan) / steps
        if left < per_step:  # not even one step
            return next_plan(previous, reports, self._rules(rounds=round, inner_steps=steps))
        return next_plan(previous, reports, self._rules(rounds=round + 1, inner_steps=int(left / per_step)))

    def _rules(self, *, rounds: int, inner_steps: int) -> Rules:
        return replace(self.rules, work=replace(self.rules.work, rounds=rounds, inner_steps=inner_steps))
