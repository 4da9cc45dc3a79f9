"""Branch states, trained in a history that lost: which claims are accepted, and how they merge into the winning history.

A peer that changes to another history sets the states aside that its own side trained, and names them in its reports. A plan
names those that are accepted; the hosts of the target instance fetch them, and state in their reports that they hold
them. The plan that finds that all of them do orders the merge, weighted by samples since the fork. So nothing waits for a
state that may not come, and what is ordered can be done. All of it is a pure function of the ledger and the reports.

Bounds on claims of strangers: only peers with a seat when the histories parted are accepted; one state per branch and instance,
that of the most claimants; of one peer one branch, and another only of a fork that is later than the first one's merge; a
branch needs a certificate and weighs at most the part of the electors that signed it; the claimed samples count at most as many
as the winners', and all that are merged at once weigh at most a quarter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from adloco_p2p.core.model.run_progress import _moved, given_samples
from adloco_p2p.core.model.types import (
    ROUNDS_OPEN,
    InstanceId,
    InstancePlan,
    Merge,
    PeerId,
    PendingBranch,
    Report,
    RoundPlan,
    normalized,
    shortened,
)

LARGEST_SHARE = 0.25
"""All branch states that are merged into an instance at once weigh at most so much: nobody saw their side train."""

# --- settling --------------------------------------------------------------------------------------------------------


def settle(
    previous: RoundPlan,
    received: Mapping[PeerId, Report],
    merges: Sequence[Merge],
    staying: Sequence[PeerId],
    new: Sequence[PendingBranch],
    *,
    is_last: bool,
) -> tuple[tuple[PendingBranch, ...], tuple[Merge, ...], list[str]]:
    """The branch states that the next plan names, the merges of those that are ripe, and what was dropped and why. `merges` are
    those that the next plan has anyway, `staying` its roster, `new` those accepted for the first time."""
    carried = {item.branch_state.key: _carried(item, previous, received, merges, staying) for item in previous.branches}
    busy = {source for merge in merges for source in merge.sources}
    ripe: dict[InstanceId, list[PendingBranch]] = {}
    open_ones, whys = [], []
    for _, item in sorted(carried.items()):
        why = _why_drop(item, previous.round + 1, is_last=is_last)
        if item.target not in busy and _all_hold(item, previous, received, staying):
            ripe.setdefault(item.target, []).append(item)
        elif why:
            whys.append(f"dropped {_told(item)}: {why}")
        else:
            open_ones.append(item)
    named = [replace(item, target=_moved(item.target, merges)) for item in ([] if is_last else new)]
    whys += [f"{_told(item)} is to be fetched for a merge into instance {item.target}" for item in named]
    pending = sorted([*open_ones, *named], key=lambda item: item.branch_state.key)
    return tuple(pending), tuple(_merge_of(target, ripe[target]) for target in sorted(ripe)), whys


def _carried(
    item: PendingBranch,
    previous: RoundPlan,
    received: Mapping[PeerId, Report],
    merges: Sequence[Merge],
    staying: Sequence[PeerId],
) -> PendingBranch:
    """One round later: the winners have trained on, others hold the state, or hold it no longer."""
    held = {
        peer: any(
            (branch_state.key, branch_state.state) == (item.branch_state.key, item.branch_state.state)
            for branch_state in received[peer].branches
        )
        if peer in received
        else peer in item.holders
        for peer in staying
    }
    return replace(
        item,
        target=_moved(item.target, merges),
        won_samples=item.won_samples + given_samples(previous, item.target),
        holders=tuple(sorted(peer for peer in staying if held[peer])),
    )


def _all_hold(item: PendingBranch, previous: RoundPlan, received: Mapping[PeerId, Report], staying: Sequence[PeerId]) -> bool:
    """All hosts of the target that reported and stay, at least one."""
    planned: list[InstancePlan] = [plan for plan in previous.instances if plan.instance == item.target]
    hosts = [share.peer for plan in planned for share in plan.hosts if share.peer in received and share.peer in staying]
    return bool(hosts) and all(peer in item.holders for peer in hosts)


def _why_drop(item: PendingBranch, round: int, *, is_last: bool) -> str:
    if not item.holders:
        return "no peer that holds it is left"
    if is_last:
        return "the run ends before all hosts hold it"
    if round - item.since >= ROUNDS_OPEN:
        return f"not all hosts of instance {item.target} had it after {ROUNDS_OPEN} rounds"
    return ""


def _merge_of(target: InstanceId, items: Sequence[PendingBranch]) -> Merge:
    """The target and all its ripe branch states in one merge, weighted by samples since the forks."""
    won = max(item.won_samples for item in items)
    lost = [_amount(item, won) for item in items]
    share = sum(lost) / (sum(lost) + won) if won else 0.0
    scale = 1.0 if share <= LARGEST_SHARE else LARGEST_SHARE * won / ((1.0 - LARGEST_SHARE) * sum(lost))
    weights = normalized([float(won), *(amount * scale for amount in lost)], survivor=0)
    parts = [f"{_told(item)}: weight {weight:.2f}" for item, weight in zip(items, weights[1:], strict=True)]
    return Merge(
        sources=(target, *(item.branch_state.key for item in items)),
        target=target,
        weights=weights,
        reason=shortened("after a partition, merged " + "; ".join(parts)),
    )


def _amount(item: PendingBranch, won: int) -> float:
    """The samples that count for a branch state, against `won` of the target: alone it weighs at most its backing."""
    claimed = float(min(item.branch_state.samples, won))
    return claimed if item.backing >= LARGEST_SHARE else min(claimed, won * item.backing / (1.0 - item.backing))


def _told(item: PendingBranch) -> str:
    """The peers and samples of the branches, in words."""
    branch_state, names = item.branch_state, ", ".join(item.claimants[:3])
    others = f" and {len(item.claimants) - 3} others" if len(item.claimants) > 3 else ""
    return (
        f"what {names}{others} trained apart of instance {branch_state.instance}"
        f" in rounds {branch_state.fork_round}-{branch_state.round - 1} "
        f"({branch_state.samples:,} samples against {item.won_samples:,})"
    )
