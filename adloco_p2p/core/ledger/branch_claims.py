"""The check of claims about the states of a losing branch.

A claim counts if reports show a certificate of its side: votes by which electors of the last common plan made the first value
of the branch final. Their number limits the weight of its states (`core/planning/branch_merge.py`). A vote counts only if its
elector was apart, as this history shows: a plan since the fork took it off the roster, and it did not report the first plan
after the fork. (A vote for that plan would tell as much as a report, but each peer keeps only the votes that it saw.) A peer
that was cut off alone has no vote but its own, so one that pretends to have been cut off has to give up its seat. The state
itself is only a claim, which no votes name.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

from adloco_p2p.core.ledger.certificates import backing
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.branches import MAX_BRANCHES, BranchState, GivenWeight, PendingBranch
from adloco_p2p.core.model.certificate import BranchProof
from adloco_p2p.core.model.ledger_entry import LedgerEntry, Verify
from adloco_p2p.core.model.plan import REPORT_LAG, RoundPlan, roster_of
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.run_progress import given_after, merged_into, trained_samples
from adloco_p2p.core.model.scalars import MAX_HOSTS, Digest, InstanceId, PeerId

MAX_ROUNDS_APART = 256
"""The number of rounds after which a branch that parted is not taken in, because every claim is checked against all entries
since."""


class History(Protocol):
    """The part of a ledger against which claims are checked."""

    position: dict[Digest, int]
    plans: list[RoundPlan]

    def plan(self, position: int) -> RoundPlan: ...

    def between(self, first: int, end: int) -> Iterator[LedgerEntry]: ...

    def lost_seats(self, position: int) -> frozenset[PeerId]: ...


class _ReadOnce:
    """A history that reads and decodes no entry twice: entries from the journal take milliseconds each, and every claim of
    every report may ask for hundreds."""

    def __init__(self, history: History) -> None:
        self.position, self.plans, self.lost_seats = history.position, history.plans, history.lost_seats
        self._history = history
        self._entries: dict[int, LedgerEntry] = {}

    def plan(self, position: int) -> RoundPlan:
        return self._entry(position).plan if position else self._history.plan(0)

    def between(self, first: int, end: int) -> Iterator[LedgerEntry]:
        return (self._entry(position) for position in range(first, min(end, len(self.position))))

    def _entry(self, position: int) -> LedgerEntry:
        if position not in self._entries:
            (self._entries[position],) = self._history.between(position, position + 1)
        return self._entries[position]


# --- which claims count ----------------------------------------------------------------------------------------------


def accepted_claims(history: History, reports: Sequence[Report], verify: Verify) -> tuple[PendingBranch, ...]:
    """Return the credible branch states that these reports name and no plan of the history names yet. The history ends with the
    plan whose successor is made from the reports."""
    history = _ReadOnce(history)
    parent = history.plans[-1]
    pending = {item.branch_state.key for item in parent.branches}
    proofs = _Proofs(history, reports, verify)
    claims: dict[InstanceId, list[tuple[PeerId, BranchState]]] = {}
    for report in sorted(reports, key=lambda report: report.peer):
        for branch_state in _of_one_branch(history, report, pending, proofs):
            claims.setdefault(branch_state.key, []).append((report.peer, branch_state))
    chosen = [_chosen(history, claims[key], proofs) for key in sorted(claims)]
    return tuple(chosen[: MAX_BRANCHES - len(pending)])


class _Proofs:
    """The certificates that the reports of one round show."""

    def __init__(self, history: History, reports: Sequence[Report], verify: Verify) -> None:
        self._history = history
        self._reports = reports
        self._verify = verify
        self._shown: dict[Digest, dict[BranchProof, None]] = {}
        for report in reports:
            if report.proof is not None:
                self._shown.setdefault(report.proof.branch, {})[report.proof] = None
        self._backing: dict[tuple[Digest, Digest], float] = {}

    def backing(self, branch_state: BranchState) -> float:
        """Return the largest part of the fork's electors that one of the certificates shows behind the branch, or 0. The fork
        is a plan of the history."""
        about = (branch_state.branch, branch_state.fork)
        if about not in self._backing:
            shown = self._shown.get(branch_state.branch, {})
            apart = self._apart_since(branch_state.fork) if shown else ()
            fork = self._history.plan(self._history.position[branch_state.fork])
            found = [
                backing(proof, fork=fork, fork_digest=branch_state.fork, apart=apart, verify=self._verify)
                for proof in shown
                if apart
            ]
            self._backing[about] = max(found, default=0.0)
        return self._backing[about]

    def _apart_since(self, fork: Digest) -> frozenset[PeerId]:
        """Return the members that lost their seats since the fork and did not report the plan after it; none while they still
        may report."""
        first, end = self._history.position[fork] + 1, len(self._history.position)
        if first + REPORT_LAG > end:
            return frozenset()
        apart = self._history.lost_seats(first - 1).intersection(roster_of(self._history.plan(first - 1)))
        later = self._history.between(first + REPORT_LAG, first + REPORT_LAG + 1)
        reporting = next(([item.report for item in entry.reports] for entry in later), self._reports)
        return apart.difference(report.peer for report in reporting)


def _of_one_branch(history: History, report: Report, pending: Collection[InstanceId], proofs: _Proofs) -> list[BranchState]:
    """Return the credible new claims of a report, for the branch of the first one only: a peer was on one side of a fork, and a
    liar could name as many branches as a report holds."""
    branches = sorted(report.branches, key=lambda branch_state: branch_state.key)
    credible: list[BranchState] = []
    for branch_state in branches:
        is_other = bool(credible) and branch_state.branch != credible[0].branch
        if branch_state.key in pending or is_other or not _was_there(history, report.peer, branch_state):
            continue
        if proofs.backing(branch_state) > 0.0 and _is_new(history, report.peer, branch_state):  # the dearest check last
            credible.append(branch_state)
    return credible


def _was_there(history: History, claimant: PeerId, branch_state: BranchState) -> bool:
    """Return whether the branch left this history at a plan in which the claimant had a seat."""
    position = history.position.get(branch_state.fork)
    if position is None or len(history.position) - position > MAX_ROUNDS_APART:
        return False
    fork = history.plan(position)
    had_seat = any(roster_entry.peer == claimant for roster_entry in fork.roster)
    return had_seat and fork.round == branch_state.fork_round and branch_state.round > fork.round


def _is_new(history: History, claimant: PeerId, branch_state: BranchState) -> bool:
    """Return whether no entry since the fork has the branch, its state or another branch of the claimant."""
    for entry in history.between(history.position[branch_state.fork] + 1, len(history.position)):
        if entry.value.parent == branch_state.fork and canonical.digest_once(entry.value) == branch_state.branch:
            return False  # the branch is this history itself
        for item in entry.plan.branches:
            if item.branch_state.key == branch_state.key or (
                claimant in item.claimants and item.branch_state.branch != branch_state.branch
            ):
                return False
        if any(item.state_digest == branch_state.state for signed in entry.reports for item in signed.report.instances):
            return False  # the state was not trained apart
    return True


def _chosen(history: History, claims: Sequence[tuple[PeerId, BranchState]], proofs: _Proofs) -> PendingBranch:
    """Return the state that most peers claim, the newest one in a tie, so that a single liar cannot displace what several
    hold."""
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
        backing=proofs.backing(branch_state),
        claimants=peers[:MAX_HOSTS],
        holders=peers,
        since=parent.round + 1,
        given=_given_before(branch_state, fork, entries),
    )


def _given_before(branch_state: BranchState, fork: RoundPlan, entries: Sequence[LedgerEntry]) -> tuple[GivenWeight, ...]:
    """Return the weights that the entries after the fork gave to states of the same branch, and of the same fork."""
    given, plan = tuple[GivenWeight, ...](), fork
    for entry in entries:
        states = [item.branch_state for item in plan.branches]
        given = given_after(given, branch_state, forks=entry.plan.forks, merges=entry.plan.merges, states=states)
        plan = entry.plan
    return given


def _successor_instance(instance: InstanceId, entries: Sequence[LedgerEntry], parent: RoundPlan) -> InstanceId:
    """Return the instance into which this one was merged since the fork, if any. An instance unknown here goes into the first
    living one."""
    for entry in entries:
        instance = merged_into(instance, entry.plan.merges)
    living = [item.instance for item in parent.instances]
    return instance if instance in living else living[0]
