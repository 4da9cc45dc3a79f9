"""The invariants about branch states, which come from training apart during a partition.

1. A plan names a branch state for the first time only under four conditions: a peer reports it that had a seat when the
   histories parted; a report shows a certificate of its branch, by an elector that lost its seat here since and did not report
   the plan after the fork; it is the first of its branch and instance; and it is not in the history anyway. The plan names
   every such branch state, with the largest part of the electors that a certificate shows.
2. The branch states of one merge together weigh at most a quarter. So do all branch states of one fork, over all merges into an
   instance and into those that were merged into it, and those of one branch weigh at most its part of the electors.
3. A machine's branch state is in its reports as long as it lives, until a plan merges it or drops it for a reason; or until it
   was in as many reports as a plan would wait for it, and no plan named it.

The first is implemented anew, from the persisted entries; nothing here reads a peer's own conclusions.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.branches import FIRST_BRANCH_ID, ROUNDS_OPEN, BranchState, PendingBranch
from adloco_p2p.core.model.ledger_entry import LedgerEntry, Reorg, Verify
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.sim.votes import counted_of, electors_of, votes_of


@dataclass(frozen=True, slots=True, kw_only=True)
class _Apart:
    """A state that a machine trained in a history that it gave up."""

    branch: Digest
    instance: InstanceId
    state: Digest


class Healing:
    """The checks of branch states. The checkers pass on the events; `broken` and `forgotten` return the first violation."""

    def __init__(self, genesis: RoundPlan, *, verify: Verify) -> None:
        first = canonical.digest_once(genesis)
        self._verify = verify
        self._first = first
        self._apart: dict[PeerId, list[_Apart]] = {}
        """The states that each peer, since its last start, trained in histories that it gave up."""
        self._num_reports: Counter[tuple[PeerId, Digest, InstanceId]] = Counter()
        """The number of reports of a peer that named the state of a branch and instance."""
        self._last: dict[PeerId, Report] = {}
        """The newest report of each peer since its last start."""
        self._heads: dict[PeerId, Digest] = {}
        """The newest plan of each peer."""
        self._plans: dict[Digest, RoundPlan] = {first: genesis}
        self._entries: dict[Digest, LedgerEntry] = {}

    # --- what happens ------------------------------------------------------------------------------------------------

    def booted(self, peer: PeerId) -> None:
        """Note a new process, which has none of the branch states of the one before it."""
        self._heads.setdefault(peer, self._first)
        self.died(peer)

    def died(self, peer: PeerId) -> None:
        self._apart.pop(peer, None)
        self._last.pop(peer, None)

    def decided(self, peer: PeerId, plan: RoundPlan) -> None:
        self._heads[peer] = canonical.digest_once(plan)

    def switched(self, peer: PeerId, switched: Reorg) -> None:
        """Note the states of the peer's last report as trained apart, if they are of the lost history and the peer has hosted
        them ever since: a peer that is no host for a round drops the state."""
        lost, last = {entry.value.plan for entry in switched.lost}, self._last.get(peer)
        self._apart[peer] = []
        if last is not None and last.plan in lost:
            since = [_mine(peer, entry.plan) for entry in switched.lost if entry.plan.round > last.round]
            self._apart[peer] = [
                _Apart(branch=canonical.digest_once(switched.lost[0].value), instance=item.instance, state=item.state_digest)
                for item in last.instances
                if all(item.instance in hosted for hosted in since)
            ]
        self._heads[peer] = switched.won[-1].value.plan

    # --- promises ----------------------------------------------------------------------------------------------------

    def newly_named(self, entry: LedgerEntry) -> tuple[PendingBranch, ...]:
        """Return the branch states that the entry's plan names for the first time."""
        before = {item.branch_state.key for item in self._plans[entry.value.parent].branches}
        return tuple(item for item in entry.plan.branches if item.branch_state.key not in before)

    def broken(self, entry: LedgerEntry) -> str:
        """Return what a new entry, whose parent is known, violates; empty if nothing."""
        parent = entry.value.parent
        reports = [signed.report for signed in entry.reports]
        pending = {item.branch_state.key for item in self._plans[parent].branches}
        credible = {
            branch_state.key: self._backing(parent, branch_state, reports)
            for report in reports
            for branch_state in report.branches
            if branch_state.key not in pending and self._is_credible(parent, report.peer, branch_state, reports)
            if branch_state.branch == self._first_branch(parent, report, pending, reports)
        }
        self._plans[entry.value.plan], self._entries[entry.value.plan] = entry.plan, entry
        named = {item.branch_state.key: item.backing for item in entry.plan.branches if item.branch_state.key not in pending}
        if named != credible and not entry.plan.is_last:
            return f"round {entry.plan.round} names {named} of lost histories, credible are {credible}"
        merged = {source for merge in entry.plan.merges for source in merge.sources}
        for item in [item for item in self._plans[parent].branches if item.branch_state.key in merged]:
            state, target = item.branch_state, _target_of(item, entry.plan)
            of_branch, of_fork = self._given(entry.value.plan, target, state)
            if of_branch > item.backing + 1e-9 or of_fork > 0.25 + 1e-9:
                return f"by round {entry.plan.round} a lost history has {of_branch} of {item.backing}, its fork {of_fork}"
        for merge in entry.plan.merges:
            weighed = dict(zip(merge.sources, merge.weights, strict=True))
            weights = [weight for source, weight in weighed.items() if source >= FIRST_BRANCH_ID]
            if weights and not 0.0 <= sum(weights) <= 0.25 + 1e-9:
                return f"round {entry.plan.round} gives lost histories the weights {weights}"
        for key in sorted(pending - {item.branch_state.key for item in entry.plan.branches}):
            is_merged = any(key in merge.sources for merge in entry.plan.merges)
            if not is_merged and "dropped what" not in entry.plan.reason:
                return f"round {entry.plan.round} neither names nor merges {key} any more, without a reason"
        return ""

    def forgotten(self, peer: PeerId, report: Report) -> str:
        """Return the branch state that a report leaves out wrongly, in words; empty if there is none."""
        reported = {(branch_state.branch, branch_state.instance) for branch_state in report.branches}
        self._last[peer] = report
        self._num_reports.update((peer, *named) for named in reported)
        for apart in self._apart.get(peer, ()):
            history = self._history(self._heads[peer])
            known = {(item.branch_state.branch, item.branch_state.instance) for _, plan, _ in history for item in plan.branches}
            is_in = any(apart.state == state for _, _, states in history for state in states)
            is_refused = self._num_reports[peer, apart.branch, apart.instance] >= ROUNDS_OPEN
            if (apart.branch, apart.instance) not in {*reported, *known} and not (is_in or is_refused):
                return f"{peer} forgets what it trained apart of instance {apart.instance}"
        return ""

    def _history(self, head: Digest) -> list[tuple[Digest, RoundPlan, Sequence[Digest]]]:
        """Return the plans from this one back to the first, each with the states that the reports of its entry name."""
        found: list[tuple[Digest, RoundPlan, Sequence[Digest]]] = []
        digest = head
        while digest in self._plans:
            entry = self._entries.get(digest)
            reports = [signed.report for signed in entry.reports] if entry is not None else []
            states = [item.state_digest for report in reports for item in report.instances]
            found.append((digest, self._plans[digest], states))
            digest = self._plans[digest].parent
        return found

    def _given(self, head: Digest, target: InstanceId, state: BranchState) -> tuple[float, float]:
        """Return the weights that the merges up to this plan gave to states of the same branch, and of the same fork: in the
        instance, in those that were merged into it, and in those of which they are copies."""
        of_branch, of_fork, lineage = 0.0, 0.0, {target}
        for _, plan, _ in self._history(head):
            before = self._plans.get(plan.parent)
            known = {item.branch_state.key: item.branch_state for item in before.branches} if before is not None else {}
            for merge in plan.merges:
                if merge.target in lineage:
                    weighed = [(known[key], w) for key, w in zip(merge.sources, merge.weights, strict=True) if key in known]
                    of_branch += sum(weight for other, weight in weighed if other.branch == state.branch)
                    of_fork += sum(weight for other, weight in weighed if other.fork == state.fork)
                    lineage.update(source for source in merge.sources if source < FIRST_BRANCH_ID)
            lineage.update(copied.source for copied in plan.forks if lineage.intersection(copied.targets))
        return of_branch, of_fork

    def _first_branch(
        self, parent: Digest, report: Report, pending: Collection[InstanceId], reports: Sequence[Report]
    ) -> Digest | None:
        """Return the one branch of a report that counts: that of the first credible claim, by key."""
        new = [item for item in report.branches if item.key not in pending]
        credible = [item for item in new if self._is_credible(parent, report.peer, item, reports)]
        return min(credible, key=lambda item: item.key).branch if credible else None

    def _is_credible(self, parent: Digest, claimant: PeerId, branch_state: BranchState, reports: Sequence[Report]) -> bool:
        history = self._history(parent)
        digests = [digest for digest, _, _ in history]
        if branch_state.fork not in digests:
            return False
        since = history[: digests.index(branch_state.fork)]
        fork = self._plans[branch_state.fork]
        named = [item for _, plan, _ in since for item in plan.branches]
        return (
            branch_state.fork_round == fork.round < branch_state.round
            and claimant in [roster_entry.peer for roster_entry in fork.roster]
            and all(canonical.digest_once(self._entries[digest].value) != branch_state.branch for digest, _, _ in since)
            and all(item.branch_state.key != branch_state.key for item in named)
            and all(item.branch_state.branch == branch_state.branch or claimant not in item.claimants for item in named)
            and all(branch_state.state not in states for _, _, states in since)
            and self._backing(parent, branch_state, reports) > 0.0
        )

    def _backing(self, parent: Digest, branch_state: BranchState, reports: Sequence[Report]) -> float:
        """Return the largest part of the fork's electors that voted for the branch by one of these reports' certificates. Those
        do not count that kept their seats, or reported the plan after the fork, in the history up to `parent` or here."""
        fork, parts = self._plans[branch_state.fork], [0.0]
        digests = [digest for digest, _, _ in self._history(parent)]
        since = digests[: digests.index(branch_state.fork)]
        if len(since) < 2:
            return 0.0
        used = reports if len(since) == 2 else [signed.report for signed in self._entries[since[-3]].reports]
        here = {report.peer for report in used}
        always = set.intersection(*({seat.peer for seat in self._plans[digest].roster} for digest in since))
        for proof in [report.proof for report in reports if report.proof is not None]:
            counted = counted_of(fork, proof.certificate)
            about = branch_state.fork, branch_state.branch
            votes, abstained = votes_of(proof.certificate, about=about, counted=counted, verify=self._verify)
            if proof.branch == branch_state.branch and 2 * len(votes) > len(counted) - len(abstained):
                parts.append(len((votes - here - always).intersection(electors_of(fork))) / len(electors_of(fork)))
        return max(parts)


def _target_of(item: PendingBranch, plan: RoundPlan) -> InstanceId:
    """Return the instance into which the plan's merges lead the target."""
    return next((merge.target for merge in plan.merges if item.target in merge.sources), item.target)


def _mine(peer: PeerId, plan: RoundPlan) -> list[InstanceId]:
    return [item.instance for item in plan.instances if any(share.peer == peer for share in item.hosts)]
