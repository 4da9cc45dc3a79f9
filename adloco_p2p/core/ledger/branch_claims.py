"""Which claims about the state of a losing branch are credible."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

from adloco_p2p.core.model.ledger_entry import LedgerEntry
from adloco_p2p.core.model.run_progress import _moved, trained_samples
from adloco_p2p.core.model.types import (
    MAX_BRANCHES,
    MAX_HOSTS,
    BranchState,
    Digest,
    InstanceId,
    PeerId,
    PendingBranch,
    Report,
    RoundPlan,
)

MAX_ROUNDS_APART = 256
"""Branches that parted longer ago are not taken in: so many entries are looked through for every claim."""


class History(Protocol):
    """A ledger, as far as claims are checked against it."""

    position: dict[Digest, int]
    plans: list[RoundPlan]

    def plan(self, position: int) -> RoundPlan: ...

    def between(self, first: int, end: int) -> Iterator[LedgerEntry]: ...


# --- believing -------------------------------------------------------------------------------------------------------


def accepted_claims(history: History, reports: Sequence[Report]) -> tuple[PendingBranch, ...]:
    """Branch states that these reports name and no plan of the history named before. The history ends with the plan whose
    successor is made from the reports."""
    parent = history.plans[-1]
    pending = {item.branch_state.key for item in parent.branches}
    claims: dict[InstanceId, list[tuple[PeerId, BranchState]]] = {}
    for report in sorted(reports, key=lambda report: report.peer):
        for branch_state in _of_one_branch(history, report, pending):
            claims.setdefault(branch_state.key, []).append((report.peer, branch_state))
    chosen = [_chosen(history, claims[key]) for key in sorted(claims)]
    return tuple(chosen[: MAX_BRANCHES - len(pending)])


def _of_one_branch(history: History, report: Report, pending: Collection[InstanceId]) -> list[BranchState]:
    """The credible new claims of a report: of the branch of the first one only. A peer was on one side of a fork, and a liar
    could invent as many branches as a report holds."""
    branches = sorted(report.branches, key=lambda branch_state: branch_state.key)
    credible: list[BranchState] = []
    for branch_state in branches:
        is_other = bool(credible) and branch_state.branch != credible[0].branch
        if branch_state.key not in pending and not is_other and _is_credible(history, report.peer, branch_state):
            credible.append(branch_state)
    return credible


def _is_credible(history: History, claimant: PeerId, branch_state: BranchState) -> bool:
    """Whether it left this history where the claimant was there, and has something that is not in it yet."""
    position = history.position.get(branch_state.fork)
    if position is None or branch_state.branch in history.position or len(history.position) - position > MAX_ROUNDS_APART:
        return False
    fork = history.plan(position)
    was_there = any(roster_entry.peer == claimant for roster_entry in fork.roster)
    if not was_there or fork.round != branch_state.fork_round or branch_state.round <= fork.round:
        return False
    for entry in history.between(position + 1, len(history.position)):
        for item in entry.plan.branches:
            if item.branch_state.key == branch_state.key or (
                claimant in item.claimants and item.branch_state.branch != branch_state.branch
            ):
                return False
        if any(item.state_digest == branch_state.state for signed in entry.reports for item in signed.report.instances):
            return False  # it was not trained apart
    return True


def _chosen(history: History, claims: Sequence[tuple[PeerId, BranchState]]) -> PendingBranch:
    """The state that most claim, of those the newest. A single liar thus cannot displace what several hold."""
    votes = Counter((branch_state.round, branch_state.state) for _, branch_state in claims)
    round, state = max(votes, key=lambda named: (votes[named], named))
    same = [(peer, branch_state) for peer, branch_state in claims if (branch_state.round, branch_state.state) == (round, state)]
    branch_state = min((branch_state for _, branch_state in same), key=lambda branch_state: branch_state.samples)
    parent, position = history.plans[-1], history.position[branch_state.fork]
    fork, entries = history.plan(position), tuple(history.between(position + 1, len(history.position)))
    target = _successor_instance(branch_state.instance, entries, parent)
    won = trained_samples(fork, entries, target, end=parent.round + 1)
    peers = tuple(peer for peer, _ in same)
    return PendingBranch(
        branch_state=branch_state,
        target=target,
        won_samples=won,
        claimants=peers[:MAX_HOSTS],
        holders=peers,
        since=parent.round + 1,
    )


def _successor_instance(instance: InstanceId, entries: Sequence[LedgerEntry], parent: RoundPlan) -> InstanceId:
    """The instance that it was merged into since the fork. One that never was here goes into the first that lives."""
    for entry in entries:
        instance = _moved(instance, entry.plan.merges)
    living = [item.instance for item in parent.instances]
    return instance if instance in living else living[0]
