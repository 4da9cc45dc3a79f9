"""How the instances left at the end of a run become one, and which of them a merge may involve. Pure.

A verdict on a measured merge comes two plans after the probe, so the last merge is measured two rounds before the end. The end
of a run that counts samples comes nearer as batches grow. Where the last round had p samples and the next ones may have g and
g * g times as many, the next plan is early enough if more than 2 g p samples are left, and one in two rounds if more than
(g + 2 g g) p are. With n rounds left, all like the last, more than (n - 1) p samples are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from adloco_p2p.core.model.instance_plan import InstancePlan
from adloco_p2p.core.model.lineage import Merge
from adloco_p2p.core.model.protocol import PROBED_IN_TIME
from adloco_p2p.core.model.rules import MergeRules, Rules
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.core.planning.claims import Claims
from adloco_p2p.core.planning.merge_policy import final_merge, keep_only

SCHEDULED_GROWTH = {"linear": 1.5, "doubling": 2.0, "seesaw": 1.5}
"""The most by which a scheduled batch grows in a round, by `batch.ramp`, unless a round is a large part of the ramp. Of other
batches `batch.growth_cap` is the limit."""


def reported_on(plans: Sequence[InstancePlan], claims: Mapping[InstanceId, Claims]) -> list[InstancePlan]:
    """Return the instances whose state a host reported; all if there is no such report. An instance whose hosts never report is
    in no merge: perhaps no peer has its state, and as a target it would take the others with it."""
    return [plan for plan in plans if claims.get(plan.instance)] or list(plans)


def growth_to_come(plans: Sequence[InstancePlan], rules: Rules, protocol: int) -> float:
    """Return the largest factor by which the samples of a round may exceed those of the round before; 1 where that brings the
    end no nearer. `protocol`: that of the plan before."""
    batch = rules.batch
    is_over = batch.test == "constant" or all(plan.requested_batch >= batch.max_batch for plan in plans)
    if protocol < PROBED_IN_TIME or rules.work.samples is None or is_over:
        return 1.0
    return SCHEDULED_GROWTH[batch.ramp] if batch.test == "schedule" else batch.growth_cap


def is_probed_for_the_end(rounds_left: int, num_instances: int, rules: MergeRules, *, growth: float = 1.0) -> bool:
    """Return whether a plan probes the last merge: the next one might be too late. `rounds_left`: from the plan to the end."""
    return rules.guard and num_instances > 1 and 2 <= rounds_left < 2 * growth + 1


def has_time_before_the_end(rounds_left: int, *, growth: float = 1.0) -> bool:
    """Return whether a merge that a plan probes has its verdict before the last merge has to be probed."""
    return rounds_left - 1 >= growth + 2 * growth**2


def last_merge(plans: Sequence[InstancePlan], claims: Mapping[InstanceId, Claims], rules: MergeRules) -> Merge:
    """Merge all instances, at least two, into one of those that were reported on."""
    held = reported_on(plans, claims)
    if len(held) == 1:
        kept = held[0].instance
        reason = f"end of the run: no peer reported another instance than {kept}"
        return keep_only(kept, [plan.instance for plan in plans], reason=reason)
    merge = _without_verdict(held, claims) if rules.guard else final_merge(held, rules=rules)
    weights = dict.fromkeys((plan.instance for plan in plans), 0.0) | dict(zip(merge.sources, merge.weights, strict=True))
    sources = tuple(sorted(weights))
    return replace(merge, sources=sources, weights=tuple(weights[source] for source in sources))


def _without_verdict(plans: Sequence[InstancePlan], claims: Mapping[InstanceId, Claims]) -> Merge:
    """End a guarded run whose last probe no host measured: keep one instance, because an average that was not measured is never
    used."""
    instances = [plan.instance for plan in plans]
    first = claims.get(instances[0])
    if first and all(claims.get(instance) == first for instance in instances):  # of fresh copies: those about their source
        why = f"instance {min(instances)} stays: the instances were not measured since they were forked"
        return keep_only(min(instances), instances, reason=f"end of the run: {why}")
    reports = {instance: list(claims.get(instance, {}).values()) for instance in instances}
    heldout = {i: [c.heldout_loss for c in reports[i] if c.heldout_loss is not None] for i in instances}
    training = {i: [c.loss for c in reports[i] if c.loss is not None] for i in instances}
    for name, losses in (("held-out", heldout), ("training", training)):
        if all(losses.values()):
            medians = {instance: median(losses[instance]) for instance in instances}
            best = min(instances, key=lambda i: (medians[i], i))
            why = f"instance {best} stays, its {name} loss {medians[best]:.4f} is lowest"
            return keep_only(best, instances, reason=f"end of the run, and there is no verdict on the merge: {why}")
    best = max(plans, key=lambda plan: (plan.requested_batch, plan.instance)).instance
    why = f"instance {best} stays, it asks for the largest batch"
    return keep_only(best, instances, reason=f"end of the run, and there is no verdict on the merge, nor a loss: {why}")
