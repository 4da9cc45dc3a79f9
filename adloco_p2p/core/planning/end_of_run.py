"""How the instances left at the end of a run become one, and which of them a merge may involve. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from adloco_p2p.core.model.instance_plan import InstancePlan
from adloco_p2p.core.model.lineage import Merge
from adloco_p2p.core.model.rules import MergeRules
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.core.planning.claims import Claims
from adloco_p2p.core.planning.merge_policy import final_merge, keep_only


def reported_on(plans: Sequence[InstancePlan], claims: Mapping[InstanceId, Claims]) -> list[InstancePlan]:
    """Return the instances whose state a host reported; all if there is no such report. An instance whose hosts never report is
    in no merge: perhaps no peer has its state, and as a target it would take the others with it."""
    return [plan for plan in plans if claims.get(plan.instance)] or list(plans)


def is_probed_for_the_end(round: int, num_instances: int, end: int, rules: MergeRules) -> bool:
    """Return whether the plan of this round probes the last merge; the verdict comes two plans later."""
    return rules.guard and num_instances > 1 and round == end - 2


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
            return keep_only(best, instances, reason=f"end of the run, and no peer measured the merge: {why}")
    best = max(plans, key=lambda plan: (plan.requested_batch, plan.instance)).instance
    why = f"instance {best} stays, it asks for the largest batch"
    return keep_only(best, instances, reason=f"end of the run, and no peer measured the merge or a loss: {why}")
