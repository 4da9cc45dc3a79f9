"""Branch states, trained in a history that lost: which claims are accepted, and how they merge into the winning history.

A peer that changes to another history sets aside the states that its own side trained, and names them in its reports. A plan
names those that are accepted; the hosts of the target instance fetch them, and state in their reports that they hold them. Once
all of them do, the next plan orders the merge, weighted by samples since the fork. So nothing waits for a state that may not
come, and everything that is ordered can be done. All of it is a pure function of the ledger and the reports.

With `merge.guard` that plan has the merged point measured first, as for a merge of instances (`round_plan.py`), and the plan
two rounds later merges if most hosts of the target found it no worse than the target. Otherwise the branch state with the
highest loss is dropped, and the others are measured without it, so that one invented state does not take the others with it.

Bounds on claims of strangers: only peers with a seat when the histories parted are accepted. Per branch and instance one state
counts, that of most claimants; per peer one branch, and another only of a fork later than the first one's merge. A branch needs
a certificate, and its states weigh at most the part of the electors that signed it. Claimed samples count up to the number of
the winners'. All states of one fork weigh at most a quarter, over any number of merges, and so do all states that are merged at
once.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from adloco_p2p.core.model.branches import ROUNDS_OPEN, BranchState, PendingBranch
from adloco_p2p.core.model.instance_plan import InstancePlan
from adloco_p2p.core.model.lineage import Fork, Merge, normalized
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.rules import MergeRules
from adloco_p2p.core.model.run_progress import given_after, given_samples, merged_into, merged_weights
from adloco_p2p.core.model.scalars import MAX_INSTANCES, Digest, InstanceId, PeerId, float_sum, shortened
from adloco_p2p.core.planning.branch_verdict import BranchVerdict, verdict_on_branches

LARGEST_SHARE = 0.25
"""Largest weight of all branch states of a fork, and of all that are merged into an instance at once, because others did not
see how they were trained."""
LEAST_SHARE = 1e-9
"""A smaller share counts as zero: it may be a rounding error."""

# --- settling --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """A plan's decisions about branch states."""

    pending: tuple[PendingBranch, ...]
    """Branch states that the plan names, by key."""
    merges: tuple[Merge, ...]
    probe: Merge | None
    """Merge to be measured after the round."""
    reasons: tuple[str, ...]
    """Which branch states were dropped and why, and which are to be fetched."""


def settle(
    previous: RoundPlan,
    received: Mapping[PeerId, Report],
    planned: tuple[Sequence[Fork], Sequence[Merge]],
    staying: Sequence[PeerId],
    new: Sequence[PendingBranch],
    *,
    is_last: bool,
    may_probe: bool,
    rules: MergeRules,
) -> Settlement:
    """Decide about branch states for the next plan.

    `planned` are the forks and merges of that plan apart from these, `staying` the peers on its roster, and `new` the branch
    states accepted for the first time. `may_probe`: the plan measures nothing else, no measurement is pending, and the run
    lasts until the verdict.
    """
    forks, merges = planned
    instances = [*(plan.instance for plan in previous.instances), *(target for fork in forks for target in fork.targets)]
    change = _Change(instances=instances, forks=forks, merges=merges, states=())
    carried = {item.branch_state.key: _carried(item, previous, received, change, staying) for item in previous.branches}
    verdict = verdict_on_branches(previous, received, rules) if rules.guard else None
    held = {key: item for key, item in sorted(carried.items()) if _all_hold(item, previous, received, staying)}
    ripe = _ripe(held.values(), busy={source for merge in merges for source in merge.sources})
    healing = _measured(verdict, ripe) if rules.guard else [_merge_of(target, group) for target, group in ripe.items()]
    done = {source for merge in healing for source in merge.sources}
    why_dropped = {
        key: _refusal(verdict, key) or _why_drop(item, previous.round + 1, is_last=is_last)
        for key, item in sorted(carried.items())
        if key not in done
    }
    reasons = [f"dropped {_branch_words(carried[key])}: {why}" for key, why in why_dropped.items() if why]
    open_ones = [carried[key] for key, why in why_dropped.items() if not why]
    states = [item.branch_state for item in carried.values()]
    healed = replace(change, forks=(), merges=healing, states=states)
    open_ones = [_changed(item, healed) for item in open_ones]
    whole = replace(healed, forks=forks, merges=[*merges, *healing])
    named = [_changed(item, whole) for item in ([] if is_last else new)]
    reasons += [f"{_branch_words(item)} is to be fetched for a merge into instance {item.target}" for item in named]
    return Settlement(
        pending=tuple(sorted([*open_ones, *named], key=lambda item: item.branch_state.key)),
        merges=tuple(healing),
        probe=_next_probe(ripe, open_ones, done) if rules.guard and may_probe else None,
        reasons=tuple(reasons),
    )


def _ripe(held: Iterable[PendingBranch], busy: Collection[InstanceId]) -> dict[InstanceId, list[PendingBranch]]:
    """Return the branch states that can be merged now, by target: those `held` by all its hosts, in order. `busy` targets take
    part in other merges."""
    ripe: dict[InstanceId, list[PendingBranch]] = {}
    for item in held:
        group = ripe.get(item.target, [])
        if item.target not in busy and len(group) < MAX_INSTANCES - 1 and _room(item) > LEAST_SHARE:
            ripe[item.target] = [*group, item]
    return dict(sorted(ripe.items()))


def _refusal(verdict: BranchVerdict | None, key: InstanceId) -> str:
    """Say why the measured merge drops this branch; empty if it does not."""
    is_refused = verdict is not None and not verdict.is_accepted and verdict.worst == key
    return verdict.numbers if verdict is not None and is_refused else ""


def _measured(verdict: BranchVerdict | None, ripe: Mapping[InstanceId, Sequence[PendingBranch]]) -> list[Merge]:
    """Return the merge that was measured and accepted, if it can still be done as it was measured."""
    if verdict is None or not verdict.is_accepted:
        return []
    merge = verdict.merge
    held = {item.branch_state.key: item for item in ripe.get(merge.target, ())}
    if not set(merge.sources).issubset({merge.target, *held}):
        return []
    weights = merged_weights([merge], [item.branch_state for item in held.values()])
    for item in [held[source] for source in merge.sources if source in held]:
        of_branch, of_fork = (weights[merge.target, about] for about in (item.branch_state.branch, item.branch_state.fork))
        if of_branch > _branch_room(item) + LEAST_SHARE or of_fork > _fork_room(item) + LEAST_SHARE:
            return []  # the target has since taken in an instance that had some of the share
    return [replace(merge, reason=shortened(f"{merge.reason}; accepted: {verdict.numbers}"))]


def _next_probe(
    ripe: Mapping[InstanceId, Sequence[PendingBranch]], open_ones: Sequence[PendingBranch], done: Collection[InstanceId]
) -> Merge | None:
    """Return the first merge that could be done and is not measured yet."""
    left = {item.branch_state.key for item in open_ones}
    for target, group in ripe.items():
        items = [item for item in group if item.branch_state.key in left]
        if items and target not in done:
            return _merge_of(target, items)
    return None


def _carried(
    item: PendingBranch,
    previous: RoundPlan,
    received: Mapping[PeerId, Report],
    change: "_Change",
    staying: Sequence[PeerId],
) -> PendingBranch:
    """Return the branch state one round later: the winners have trained on, and other peers hold the state or no longer hold
    it."""
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
        _changed(item, change),
        won_samples=item.won_samples + given_samples(previous, item.target),
        holders=tuple(sorted(peer for peer in staying if held[peer])),
    )


def _all_hold(item: PendingBranch, previous: RoundPlan, received: Mapping[PeerId, Report], staying: Sequence[PeerId]) -> bool:
    """Return whether all hosts of the target that reported and stay hold the state, and there is at least one such host."""
    planned: list[InstancePlan] = [plan for plan in previous.instances if plan.instance == item.target]
    hosts = [share.peer for plan in planned for share in plan.hosts if share.peer in received and share.peer in staying]
    return bool(hosts) and all(peer in item.holders for peer in hosts)


def _why_drop(item: PendingBranch, round: int, *, is_last: bool) -> str:
    if not item.holders:
        return "no peer that holds it is left"
    if is_last:
        return "the run ends before all hosts hold it"
    if _room(item) <= LEAST_SHARE:
        return f"its branch has {item.branch_weight:.2f} of instance {item.target} already, and its fork {item.fork_weight:.2f}"
    if round - item.since >= ROUNDS_OPEN:
        return f"not all hosts of instance {item.target} had it and measured it after {ROUNDS_OPEN} rounds"
    return ""


def _merge_of(target: InstanceId, items: Sequence[PendingBranch]) -> Merge:
    """Merge the target with all its ripe branch states, weighted by samples since the forks."""
    won = max(item.won_samples for item in items)
    amounts = [float(min(item.branch_state.samples, won)) for item in items]
    for share, places in _bounds(items):
        total = float_sum(amounts[place] for place in places)
        scale = min(1.0, share / (1.0 - share) * won / total) if total else 1.0
        amounts = [amount * scale if place in places else amount for place, amount in enumerate(amounts)]
    weights = normalized([float(won), *amounts], survivor=0)
    parts = [f"{_branch_words(item)}: weight {weight:.2f}" for item, weight in zip(items, weights[1:], strict=True)]
    return Merge(
        sources=(target, *(item.branch_state.key for item in items)),
        target=target,
        weights=weights,
        reason=shortened("after a partition, merged " + "; ".join(parts)),
    )


def _bounds(items: Sequence[PendingBranch]) -> list[tuple[float, list[int]]]:
    """Return the shares that the states of each branch, of each fork, and all together may still get, with the places of these
    states."""
    branches: dict[Digest, list[int]] = {}
    forks: dict[Digest, list[int]] = {}
    for place, item in enumerate(items):
        branches.setdefault(item.branch_state.branch, []).append(place)
        forks.setdefault(item.branch_state.fork, []).append(place)
    bounds = [(min(_branch_room(items[place]) for place in places), places) for _, places in sorted(branches.items())]
    bounds += [(min(_fork_room(items[place]) for place in places), places) for _, places in sorted(forks.items())]
    return [*bounds, (LARGEST_SHARE, list(range(len(items))))]


def _room(item: PendingBranch) -> float:
    """Return the share that the branch state alone may still get."""
    return min(_branch_room(item), _fork_room(item))


def _branch_room(item: PendingBranch) -> float:
    return min(item.backing, LARGEST_SHARE) - item.branch_weight


def _fork_room(item: PendingBranch) -> float:
    return LARGEST_SHARE - item.fork_weight


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """Forks and merges of a plan that has these instances; the merges may include these branch states."""

    instances: Sequence[InstanceId]
    forks: Sequence[Fork]
    merges: Sequence[Merge]
    states: Sequence[BranchState]


def _changed(item: PendingBranch, change: _Change) -> PendingBranch:
    """Return the branch state after the change. An instance that ends in another merge passes on the weights that it was
    given."""
    merges, living = change.merges, {merged_into(instance, change.merges) for instance in change.instances}
    given = given_after(item.given, item.branch_state, forks=change.forks, merges=merges, states=change.states)
    return replace(
        item, target=merged_into(item.target, merges), given=tuple(weight for weight in given if weight.instance in living)
    )


def _branch_words(item: PendingBranch) -> str:
    """Describe the branch state by its peers, rounds and samples."""
    branch_state, names = item.branch_state, ", ".join(item.claimants[:3])
    others = f" and {len(item.claimants) - 3} others" if len(item.claimants) > 3 else ""
    return (
        f"what {names}{others} trained apart of instance {branch_state.instance}"
        f" in rounds {branch_state.fork_round}-{branch_state.round - 1} "
        f"({branch_state.samples:,} samples against {item.won_samples:,})"
    )
