"""The branch states of one peer: states of lost histories that it set aside or fetched, until the plans have settled them."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from adloco_p2p.core.model import canonical, telemetry
from adloco_p2p.core.model.branches import FIRST_BRANCH_ID, MAX_BRANCHES, ROUNDS_OPEN, BranchState, PendingBranch
from adloco_p2p.core.model.certificate import BranchProof
from adloco_p2p.core.model.effects import Effect, ReleaseState, SnapshotState
from adloco_p2p.core.model.events import StateKept
from adloco_p2p.core.model.ledger_entry import Reorg
from adloco_p2p.core.model.lineage import Merge, normalized
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.run_progress import trained_samples
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId

NUM_PROVERS = 4
"""Voters of a certificate that show it with their claims. One is enough, and the reports of a large roster stay small."""
CLAIMS_BEFORE_PROOF = 2
"""Reports without effect on the plans after which every claimant shows the certificate."""
ROUNDS_SERVED = 3
"""Rounds for which a branch state is still served after its merge or its end, because some host may be late."""


class BranchStore:
    """Holds the branch states. Call `set_aside` when the history changes, `note` for every plan, `fetched` for a state that was
    `missing`, and `tidy` now and then."""

    def __init__(self) -> None:
        self._pending: dict[InstanceId, PendingBranch] = {}
        """Branch states as the newest plan that names them has them."""
        self._settled: dict[InstanceId, int] = {}
        """Branch states that were merged or dropped, with the round of the plan that did so."""
        self._copying: dict[InstanceId, BranchState] = {}
        """Branch states that the device is copying or is about to serve; then they are held."""
        self._held: dict[InstanceId, BranchState] = {}
        self._proofs: dict[Digest, BranchProof] = {}
        """Certificates of the branches in which this peer took part, by branch."""
        self._num_claims: Counter[InstanceId] = Counter()
        """Reports of this peer that named a branch state while no plan did, by branch state."""
        self._given_up: dict[InstanceId, None] = {}

    def claims(self) -> tuple[BranchState, ...]:
        """Return the branch states that the next report names, by key."""
        return tuple(self._held[key] for key in sorted(self._held) if key not in self._settled)[:MAX_BRANCHES]

    def proof(self, me: PeerId) -> BranchProof | None:
        """Return the proof of a branch that no plan names for the next report, if it is this peer's turn to show it."""
        for claim in self.claims():
            proof = self._proofs.get(claim.branch)
            if proof is None or claim.key in self._pending:
                continue
            voters = [cast.peer for cast in proof.certificate.votes if not cast.abstains]
            if me in voters[:NUM_PROVERS] or self._num_claims[claim.key] >= CLAIMS_BEFORE_PROOF:
                return proof
        return None

    def claimed(self, claims: Sequence[BranchState]) -> None:
        """Count a report that names these branch states."""
        self._num_claims.update(claim.key for claim in claims if claim.key not in self._pending)

    def is_ready(self, key: InstanceId) -> bool:
        """Return whether a merge with the branch state need not wait for it: this peer holds it, or has given it up."""
        return key in self._held or key in self._given_up

    def holds(self, key: InstanceId) -> bool:
        return key in self._held

    # --- what happens ------------------------------------------------------------------------------------------------

    def set_aside(self, switched: Reorg, instance: InstanceId, boundary: int) -> list[Effect]:
        """Keep a copy of the instance, which is at this boundary of the lost history, if it was trained apart there."""
        fork = switched.fork
        if not switched.lost or boundary <= fork.round:
            return []
        first = switched.lost[0]
        branch = canonical.digest_once(first.value)
        self._proofs[branch] = BranchProof(branch=branch, certificate=first.certificate)
        branch_state = BranchState(
            fork=canonical.digest_once(fork),
            fork_round=fork.round,
            branch=branch,
            instance=instance,
            round=boundary,
            state=Digest(""),  # known once the device has made the copy
            samples=trained_samples(fork, switched.lost, instance, end=boundary),
        )
        self._copying[branch_state.key] = branch_state
        return [SnapshotState(instance=instance, copy=branch_state.key, round=boundary)]

    def on_reorg(self, switched: Reorg) -> None:
        """Forget what plans of the lost history settled, so that branch states which it had not merged are claimed again. A
        branch that had split off from the lost history cannot be proven to the winning one, which lacks the plan that its
        certificate follows."""
        fork = switched.fork
        self._settled = {key: round for key, round in self._settled.items() if round <= fork.round}
        self._pending = {item.branch_state.key: item for item in fork.branches}
        self._given_up = {}
        self._num_claims.clear()

    def kept(self, event: StateKept) -> None:
        branch_state = self._copying.pop(event.instance, None)
        if branch_state is not None:
            self._held[event.instance] = replace(branch_state, state=event.digest)

    def fetched(self, key: InstanceId) -> list[Effect]:
        """Serve the fetched state to others."""
        item = self._pending.get(key)
        if item is None:
            return []
        self._copying[key] = item.branch_state
        return [SnapshotState(instance=key, copy=key, round=item.branch_state.round)]

    def note(self, plan: RoundPlan) -> None:
        """Note a final plan: branch states that it no longer names are settled."""
        named = {item.branch_state.key: item for item in plan.branches}
        for key in self._pending:
            if key not in named:
                self._settled.setdefault(key, plan.round)
        self._pending.update(named)

    def merged(self, plan: RoundPlan, mine: Sequence[InstanceId]) -> None:
        """Forget what the transition before the plan has merged here."""
        for merge in plan.merges:
            for source in merge.sources:
                if merge.target in mine:
                    self._held.pop(source, None)
                self._given_up.pop(source, None)

    def tidy(self, opened: int) -> list[Effect]:
        """Drop branch states that are settled, and those that no plan names. `opened` is the round that this peer has
        reached."""
        over = [key for key, round in self._settled.items() if opened >= round + ROUNDS_SERVED]
        refused = [key for key, times in self._num_claims.items() if key not in self._pending and times >= ROUNDS_OPEN]
        displaced = [
            key
            for key, branch_state in self._held.items()
            if key in self._pending and (branch_state.round, branch_state.state) != _named(self._pending[key])
        ]
        effects: list[Effect] = []
        for key in refused:
            message = f"training apart from the others was in {ROUNDS_OPEN} reports and no plan merges it; it is dropped"
            effects.append(telemetry.Warning(key=f"branch {key}", message=message, active=False))  # nothing is left to do
        for key in sorted({*over, *refused, *displaced}):
            effects.append(ReleaseState(instance=key))
            self._held.pop(key, None)
            self._copying.pop(key, None)
            self._num_claims.pop(key, None)
        held = {branch_state.branch for branch_state in (*self._held.values(), *self._copying.values())}
        self._proofs = {branch: proof for branch, proof in self._proofs.items() if branch in held}
        for key in over:
            del self._settled[key]
            self._pending.pop(key, None)
        return effects

    # --- what is asked -----------------------------------------------------------------------------------------------

    def missing(self, targets: Sequence[InstanceId], needed: Sequence[InstanceId]) -> list[InstanceId]:
        """Return the branch states that this peer should have and lacks: those for the instances that it hosts, and those that
        the next transition needs."""
        for_mine = [key for key, item in self._pending.items() if item.target in targets and key not in self._settled]
        wanted = {*for_mine, *(key for key in needed if key >= FIRST_BRANCH_ID)}
        return sorted(key for key in wanted if not self.is_ready(key) and key not in self._copying)

    def pending(self, key: InstanceId) -> PendingBranch | None:
        return self._pending.get(key)

    def give_up(self, key: InstanceId) -> None:
        """Give up a state that no living peer has: the merge is done without it. If others merged it, their result counts."""
        self._given_up[key] = None

    def doable(self, merge: Merge, lost: Collection[InstanceId]) -> Merge:
        """Return the merge without branch states that were given up and without lost instances."""
        missing = {source for source in merge.sources if source in self._given_up or source in lost} - {merge.target}
        if not missing:
            return merge
        weighed = zip(merge.sources, merge.weights, strict=True)
        sources, weights = zip(*((s, w) for s, w in weighed if s not in missing), strict=True)
        return replace(merge, sources=sources, weights=normalized(weights, survivor=sources.index(merge.target)))


def _named(item: PendingBranch) -> tuple[int, Digest]:
    return item.branch_state.round, item.branch_state.state
