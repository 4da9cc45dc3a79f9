"""The verdict of hosts on a possible merge with branch states. Pure.

A branch state may be anything, because only its claimants saw how it was trained. Therefore the merged point must be no worse
than the target as it is, while a merge of two instances of one history is compared with the worse of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from adloco_p2p.core.model.branches import FIRST_BRANCH_ID
from adloco_p2p.core.model.electorate import is_majority
from adloco_p2p.core.model.lineage import Merge
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.rules import MergeRules
from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.core.planning.merge_policy import measured


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchVerdict:
    """The verdict of more than half of the target's hosts that reported."""

    merge: Merge
    """The merge that was measured."""
    is_accepted: bool
    numbers: str
    worst: InstanceId
    """The branch state with the highest loss."""


def is_of_branches(merge: Merge | None) -> bool:
    """Return whether the merge, or the probe, includes branch states."""
    return merge is not None and any(source >= FIRST_BRANCH_ID for source in merge.sources)


def verdict_on_branches(previous: RoundPlan, received: Mapping[PeerId, Report], rules: MergeRules) -> BranchVerdict | None:
    """Return the verdict on the merge that the plan before `previous` had measured, by medians over the verdicts, one per peer.
    None if there was no such merge, or too few hosts measured it; then it is measured again."""
    probe = previous.pending
    if probe is None or not is_of_branches(probe):
        return None
    planned = previous.find(probe.target)
    hosts = planned.peers if planned is not None else ()
    reporting = [report for peer, report in received.items() if peer in hosts]
    wanted = probe.sources, probe.target, len(probe.sources)
    verdicts = [report.verdict for report in reporting if report.verdict is not None]
    valid = [verdict for verdict in verdicts if (verdict.sources, verdict.target, len(verdict.source_losses)) == wanted]
    if not is_majority(len(valid), len(reporting)):
        return None
    losses = {source: median(verdict.source_losses[place] for verdict in valid) for place, source in enumerate(probe.sources)}
    merged, target = median(verdict.merged_loss for verdict in valid), losses[probe.target]
    return BranchVerdict(
        merge=probe,
        is_accepted=merged <= target + rules.guard_tolerance,
        numbers=measured(merged, target, "without it", rules.guard_tolerance, len(valid)),
        worst=max((source for source in probe.sources if source >= FIRST_BRANCH_ID), key=lambda key: (losses[key], key)),
    )
