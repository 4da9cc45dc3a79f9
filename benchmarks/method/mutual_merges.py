"""An idea tried here, not a setting of the product: after every so many rounds all instances get their mean, and go on
apart."""

from dataclasses import replace

from adloco_p2p.core.model.lineage import Merge, normalized
from adloco_p2p.core.model.plan import RoundPlan


def with_mutual_merges(plan: RoundPlan, *, every: int) -> RoundPlan:
    """Return the plan, where a multiple of `every` rounds is done, with a merge of all instances into each of them. Each
    instance then has the mean, by requests, of outer parameters and momentum, and keeps its inner state and its order of
    samples."""
    if not every or plan.round % every or plan.is_last or len(plan.instances) < 2:
        return plan
    sources = tuple(item.instance for item in plan.instances)
    weights = normalized([float(item.requested_batch) for item in plan.instances], survivor=0)
    merges = tuple(
        Merge(sources=sources, target=target, weights=weights, reason=f"every {every} rounds, for instance {target}")
        for target in sources
    )
    return replace(plan, merges=merges)
