"""Which instances become one, with which weights, and whether the measured result is good enough (docs/mathematics.md, 6).

A merge is a value. A probe has the same form and is only measured; `judge` turns the measurements into the merge that is done.
"""

from collections.abc import Sequence
from statistics import median, median_high, median_low

from adloco_p2p.core.model.electorate import is_majority
from adloco_p2p.core.model.instance_plan import InstancePlan
from adloco_p2p.core.model.lineage import Merge, ProbeVerdict, normalized
from adloco_p2p.core.model.rules import MergeRules
from adloco_p2p.core.model.scalars import InstanceId, shortened
from adloco_p2p.core.model.words import listed, plural


def choose_merge(instances: Sequence[InstancePlan], *, round: int, rules: MergeRules) -> tuple[Merge | None, str]:
    """Return the merge that is due before round `round`, or None, and why. Ties go by instance id."""
    if rules.policy == "none":
        return None, "merging is off"
    if len(instances) < 2:
        return None, "one instance, nothing to merge"
    if round < max(1, rules.first_round) or round % rules.period_rounds != 0:
        return None, f"no merge is due before round {round}"
    ranked = _ranked(instances)
    groups = {
        "worst_with_worst": ranked[:2],
        "best_with_worst": [ranked[0], ranked[-1]],
        "worst_group": ranked[: rules.group_size],
    }
    group = groups[rules.policy]
    reason = _in_words(group, extremes=rules.policy == "best_with_worst" and len(ranked) > 2)
    return _merge_of(group, rules=rules, reason=reason), reason


def final_merge(instances: Sequence[InstancePlan], *, rules: MergeRules) -> Merge:
    """Merge all remaining instances, at least two, into the one with the largest request."""
    return _merge_of(_ranked(instances), rules=rules, reason=f"end of the run: all {len(instances)} instances become one")


def keep_only(survivor: InstanceId, instances: Sequence[InstanceId], *, reason: str) -> Merge:
    """End all instances but one, without taking anything from them."""
    assert survivor in instances
    sources = tuple(sorted(instances))
    return Merge(sources=sources, target=survivor, weights=tuple(1.0 if i == survivor else 0.0 for i in sources), reason=reason)


def judge(
    probe: Merge, verdicts: Sequence[ProbeVerdict], *, rules: MergeRules, num_deciding: int | None = None
) -> Merge | None:
    """Return the merge to do after a probe; None if there is no verdict on it.

    Losses are medians over the verdicts, one per peer. A merged point that is worse than the worst source by more than the
    tolerance is refused: the best source stays as it is, and the others end. `num_deciding`: how many hosts were to measure it.
    More than half of them have to, and of two halves that differ neither decides, so that fewer than half never do. None before
    protocol 22, when any verdict sufficed.
    """
    wanted = (probe.sources, probe.target, len(probe.sources))
    valid = [verdict for verdict in verdicts if (verdict.sources, verdict.target, len(verdict.source_losses)) == wanted]
    if not valid:
        return None
    if num_deciding is not None and not (is_majority(len(valid), num_deciding) and _do_halves_agree(probe, valid, rules)):
        return None
    losses = [median(column) for column in zip(*(verdict.source_losses for verdict in valid), strict=True)]
    merged, worst = median(verdict.merged_loss for verdict in valid), max(losses)
    numbers = measured(merged, worst, "of the worst of them alone", rules.guard_tolerance, len(valid))
    if (best := _best(probe, losses, merged, rules)) is None:
        reason = f"{probe.reason}; accepted: {numbers}"
        return Merge(sources=probe.sources, target=probe.target, weights=probe.weights, reason=shortened(reason))
    return keep_only(
        best,
        probe.sources,
        reason=shortened(f"refused: {numbers}; instance {best} has the lowest loss and stays, the others end"),
    )


def _best(probe: Merge, losses: Sequence[float], merged: float, rules: MergeRules) -> InstanceId | None:
    """Return the source that stays where the merge is refused; None where it is accepted."""
    if merged <= max(losses) + rules.guard_tolerance:
        return None
    ranked = sorted(zip(losses, probe.sources, strict=True), key=lambda pair: (pair[0], pair[1] != probe.target, pair[1]))
    return ranked[0][1]


def _do_halves_agree(probe: Merge, verdicts: Sequence[ProbeVerdict], rules: MergeRules) -> bool:
    """Return whether the outcome is the same for either median of an even number of verdicts, the lower and the upper one."""
    columns = [*zip(*(verdict.source_losses for verdict in verdicts), strict=True)]
    merged = [verdict.merged_loss for verdict in verdicts]
    outcomes = {
        _best(probe, [of_sources(column) for column in columns], of_merged(merged), rules)
        for of_sources, of_merged in ((median_low, median_high), (median_high, median_low), (median, median))
    }
    return len(outcomes) == 1


def merged_batch(merge: Merge, instances: Sequence[InstancePlan], *, rules: MergeRules, max_batch: int) -> int:
    """Return the global request of the merged instance. Sources that end without a weight do not count."""
    requests = {plan.instance: plan.requested_batch for plan in instances}
    taken = [requests[i] for i, weight in zip(merge.sources, merge.weights, strict=True) if weight > 0.0]
    after = {"survivor": requests[merge.target], "max": max(taken), "sum": min(sum(taken), max_batch)}
    return after[rules.batch_after]


def measured(merged: float, without: float, what: str, tolerance: float, num_verdicts: int) -> str:
    """Describe the losses by which a merge is judged; `what` names the model whose loss `without` is."""
    peers = plural(num_verdicts, "peer")
    return f"{peers} measured a loss of {merged:.4f} merged and {without:.4f} {what}, {tolerance:g} more is tolerated"


def _in_words(group: Sequence[InstancePlan], *, extremes: bool) -> str:
    """Say which instances become one and why these; `group` is sorted by requested batch, the smallest first."""
    *ending, target = group
    batches = sorted({plan.requested_batch for plan in group})
    which = "the smallest and the largest batch" if extremes else "the smallest batches"
    names = listed([plan.instance for plan in ending])
    each = f"{batches[0]} each" if len(batches) == 1 else listed([plan.requested_batch for plan in group])
    verb = "goes" if len(ending) == 1 else "go"
    return shortened(f"instance{'s' * (len(ending) > 1)} {names} {verb} into {target.instance}: they ask for {which} ({each})")


def _ranked(instances: Sequence[InstancePlan]) -> list[InstancePlan]:
    """Sort by request, the smallest first."""
    return sorted(instances, key=lambda plan: (plan.requested_batch, plan.instance))


def _merge_of(ranked: Sequence[InstancePlan], *, rules: MergeRules, reason: str) -> Merge:
    """Merge all of `ranked` into the last one."""
    target = ranked[-1].instance
    group = sorted(ranked, key=lambda plan: plan.instance)
    sources = tuple(plan.instance for plan in group)
    weights = normalized([_amount(plan, rules) for plan in group], survivor=sources.index(target))
    return Merge(sources=sources, target=target, weights=weights, reason=reason)


def _amount(plan: InstancePlan, rules: MergeRules) -> float:
    """Return the unnormalized weight: the request per worker, b = B / M, in the paper; workers times that, B, in the public
    code; or one."""
    if rules.weights == "equal":
        return 1.0
    if rules.weights == "hosts_times_batch":
        return float(plan.requested_batch)
    num_hosts = sum(1 for host in plan.hosts if host.batch_samples > 0)
    return plan.requested_batch / max(1, num_hosts)
