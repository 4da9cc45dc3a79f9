"""What was trained in a history that lost: whether it is believed, and how it comes into the history that won.

A peer that changes to another history sets the states aside that its own side trained, and names them in its reports. A plan
names those that are believed; the hosts of what the instance has become fetch them, and say in their reports that they hold
them. The plan that finds that all of them do orders the merge, weighted by samples since the fork. So nothing waits for a
state that may not come, and what is ordered can be done. All of it is a pure function of the ledger and the reports.

Bounds on claims of strangers: only who had a seat when the histories parted is believed; one state per branch and instance,
that of the most claimants; of one peer one branch, and another only of a fork that is later than the first one's merge; the
claimed samples count at most as many as the winners', so that a stray alone weighs at most one half.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from adloco_p2p.core.merge_policy import normalized, shortened
from adloco_p2p.core.messages import LedgerEntry
from adloco_p2p.core.types import (
    MAX_HOSTS,
    MAX_STRAYS,
    Digest,
    InstanceId,
    InstancePlan,
    Merge,
    PeerId,
    PendingStray,
    Report,
    RoundPlan,
    Stray,
)

MAX_ROUNDS_APART = 256
"""What left the history longer ago is not taken in: so many entries are looked through for every claim."""
ROUNDS_OPEN = 16
"""A stray that not all hosts of its target hold by then is dropped."""


class History(Protocol):
    """A ledger, as far as claims are checked against it."""

    position: dict[Digest, int]
    plans: list[RoundPlan]

    def plan(self, position: int) -> RoundPlan: ...

    def between(self, first: int, end: int) -> Iterator[LedgerEntry]: ...


# --- counting --------------------------------------------------------------------------------------------------------


def given_samples(plan: RoundPlan, instance: InstanceId) -> int:
    """What the plan tells the hosts to train."""
    return sum(share.samples for item in plan.instances if item.instance == instance for share in item.hosts)


def trained_samples(fork: RoundPlan, entries: Sequence[LedgerEntry], instance: InstanceId, *, end: int) -> int:
    """Samples that went into the instance's state at the boundary before round `end`, from the round of `fork` on, along with
    what was merged into it. `entries` follow `fork`. Rounds that they have reports of count as these say, each host at
    most what it was given; the last ones, which nobody could report yet, as planned."""
    plans = {plan.round: plan for plan in (fork, *(entry.plan for entry in entries)) if plan.round < end}
    reports = {entry.plan.round - 2: entry.reports for entry in entries}
    total, names = 0, {instance}
    for round in sorted(plans, reverse=True):
        plan = plans[round]
        given = {(item.instance, share.peer): share.samples for item in plan.instances for share in item.hosts}
        if round in reports:
            claims = {(i.instance, s.report.peer): i.samples for s in reports[round] for i in s.report.instances}
            total += sum(min(claims.get(key, 0), samples) for key, samples in given.items() if key[0] in names)
        else:
            total += sum(samples for key, samples in given.items() if key[0] in names)
        names |= {source for merge in plan.merges if merge.target in names for source in merge.sources}
        names |= {copied.source for copied in plan.forks if names.intersection(copied.targets)}
    return total


# --- believing -------------------------------------------------------------------------------------------------------


def believed(history: History, reports: Sequence[Report]) -> tuple[PendingStray, ...]:
    """Strays that these reports name and no plan of the history named before. The history ends with the plan whose successor
    is made from the reports."""
    parent = history.plans[-1]
    pending = {item.stray.key for item in parent.strays}
    claims: dict[InstanceId, list[tuple[PeerId, Stray]]] = {}
    for report in sorted(reports, key=lambda report: report.peer):
        for stray in report.strays:
            if stray.key not in pending and _is_credible(history, report.peer, stray):
                claims.setdefault(stray.key, []).append((report.peer, stray))
    chosen = [_chosen(history, claims[key]) for key in sorted(claims)]
    return tuple(chosen[: MAX_STRAYS - len(pending)])


def _is_credible(history: History, claimant: PeerId, stray: Stray) -> bool:
    """Whether it left this history where the claimant was there, and has something that is not in it yet."""
    position = history.position.get(stray.fork)
    if position is None or stray.branch in history.position or len(history.position) - position > MAX_ROUNDS_APART:
        return False
    fork = history.plan(position)
    was_there = any(seat.peer == claimant for seat in fork.roster)
    if not was_there or fork.round != stray.fork_round or stray.round <= fork.round:
        return False
    for entry in history.between(position + 1, len(history.position)):
        for item in entry.plan.strays:
            if item.stray.key == stray.key or (claimant in item.claimants and item.stray.branch != stray.branch):
                return False
        if any(item.state_digest == stray.state for signed in entry.reports for item in signed.report.instances):
            return False  # it was not trained apart
    return True


def _chosen(history: History, claims: Sequence[tuple[PeerId, Stray]]) -> PendingStray:
    """The state that most claim, of those the newest. A single liar thus cannot displace what several hold."""
    votes = Counter((stray.round, stray.state) for _, stray in claims)
    round, state = max(votes, key=lambda named: (votes[named], named))
    same = [(peer, stray) for peer, stray in claims if (stray.round, stray.state) == (round, state)]
    stray = min((stray for _, stray in same), key=lambda stray: stray.samples)
    parent, position = history.plans[-1], history.position[stray.fork]
    fork, entries = history.plan(position), tuple(history.between(position + 1, len(history.position)))
    target = _heir(stray.instance, entries, parent)
    won = trained_samples(fork, entries, target, end=parent.round + 1)
    peers = tuple(peer for peer, _ in same)
    return PendingStray(
        stray=stray, target=target, won_samples=won, claimants=peers[:MAX_HOSTS], holders=peers, since=parent.round + 1
    )


def _heir(instance: InstanceId, entries: Sequence[LedgerEntry], parent: RoundPlan) -> InstanceId:
    """What the instance was merged into since the fork. One that never was here goes into the first that lives."""
    for entry in entries:
        instance = _moved(instance, entry.plan.merges)
    living = [item.instance for item in parent.instances]
    return instance if instance in living else living[0]


def _moved(instance: InstanceId, merges: Sequence[Merge]) -> InstanceId:
    for merge in merges:
        if instance in merge.sources:
            instance = merge.target
    return instance


# --- settling --------------------------------------------------------------------------------------------------------


def settle(
    previous: RoundPlan,
    heard: Mapping[PeerId, Report],
    merges: Sequence[Merge],
    staying: Sequence[PeerId],
    new: Sequence[PendingStray],
    *,
    is_last: bool,
) -> tuple[tuple[PendingStray, ...], tuple[Merge, ...], list[str]]:
    """The strays that the next plan names, the merges of those that are ripe, and what was dropped and why. `merges` are those
    that the next plan has anyway, `staying` its roster, `new` what is believed for the first time."""
    carried = {item.stray.key: _carried(item, previous, heard, merges, staying) for item in previous.strays}
    busy = {source for merge in merges for source in merge.sources}
    ripe: dict[InstanceId, list[PendingStray]] = {}
    open_ones, whys = [], []
    for _, item in sorted(carried.items()):
        why = _why_drop(item, previous.round + 1, is_last=is_last)
        if item.target not in busy and _all_hold(item, previous, heard, staying):
            ripe.setdefault(item.target, []).append(item)
        elif why:
            whys.append(f"dropped {_told(item)}: {why}")
        else:
            open_ones.append(item)
    named = [replace(item, target=_moved(item.target, merges)) for item in ([] if is_last else new)]
    whys += [f"{_told(item)} is to be fetched for a merge into instance {item.target}" for item in named]
    pending = sorted([*open_ones, *named], key=lambda item: item.stray.key)
    return tuple(pending), tuple(_merge_of(target, ripe[target]) for target in sorted(ripe)), whys


def _carried(
    item: PendingStray, previous: RoundPlan, heard: Mapping[PeerId, Report], merges: Sequence[Merge], staying: Sequence[PeerId]
) -> PendingStray:
    """One round later: the winners have trained on, others hold the state, or hold it no longer."""
    held = {
        peer: any((stray.key, stray.state) == (item.stray.key, item.stray.state) for stray in heard[peer].strays)
        if peer in heard
        else peer in item.holders
        for peer in staying
    }
    return replace(
        item,
        target=_moved(item.target, merges),
        won_samples=item.won_samples + given_samples(previous, item.target),
        holders=tuple(sorted(peer for peer in staying if held[peer])),
    )


def _all_hold(item: PendingStray, previous: RoundPlan, heard: Mapping[PeerId, Report], staying: Sequence[PeerId]) -> bool:
    """All hosts of the target that reported and stay, at least one."""
    planned: list[InstancePlan] = [plan for plan in previous.instances if plan.instance == item.target]
    hosts = [share.peer for plan in planned for share in plan.hosts if share.peer in heard and share.peer in staying]
    return bool(hosts) and all(peer in item.holders for peer in hosts)


def _why_drop(item: PendingStray, round: int, *, is_last: bool) -> str:
    if not item.holders:
        return "nobody who holds it is left"
    if is_last:
        return "the run ends before all hosts hold it"
    if round - item.since >= ROUNDS_OPEN:
        return f"not all hosts of instance {item.target} had it after {ROUNDS_OPEN} rounds"
    return ""


def _merge_of(target: InstanceId, items: Sequence[PendingStray]) -> Merge:
    """The target and all its ripe strays in one merge, weighted by samples since the forks."""
    won = max(item.won_samples for item in items)
    amounts = [float(won), *(float(min(item.stray.samples, won)) for item in items)]
    weights = normalized(amounts, survivor=0)
    parts = [f"{_told(item)}: weight {weight:.2f}" for item, weight in zip(items, weights[1:], strict=True)]
    return Merge(
        sources=(target, *(item.stray.key for item in items)),
        target=target,
        weights=weights,
        reason=shortened("after a partition, merged " + "; ".join(parts)),
    )


def _told(item: PendingStray) -> str:
    """Who trained what apart, in words and numbers."""
    stray, names = item.stray, ", ".join(item.claimants[:3])
    others = f" and {len(item.claimants) - 3} others" if len(item.claimants) > 3 else ""
    return (
        f"what {names}{others} trained apart of instance {stray.instance} in rounds {stray.fork_round}-{stray.round - 1} "
        f"({stray.samples:,} samples against {item.won_samples:,})"
    )
