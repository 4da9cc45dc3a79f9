"""Branch states that no plan names: a peer forgets them after so many reports, however often somebody looks."""

from adloco_p2p.core.model.events import ReleaseState, StateKept
from adloco_p2p.core.model.ledger_entry import Reorg
from adloco_p2p.core.model.types import ROUNDS_OPEN, InstanceId
from adloco_p2p.core.peer.branch_store import BranchStore
from adloco_p2p.core.planning.round_plan import genesis, next_plan
from adloco_p2p.sim.device import hashed
from adloco_p2p.sim.identities import RUN
from tests.core.peer.story import PEER0, rules
from tests.core.peer.test_peer_churn import CAPACITY, _entry


def store_with_a_branch() -> tuple[BranchStore, InstanceId]:
    fork = genesis(RUN, [(PEER0, CAPACITY)], rules())
    store = BranchStore()
    switched = Reorg(fork=fork, lost=(_entry(next_plan(fork, (), rules())),), won=())
    (copy,) = store.set_aside(switched, InstanceId(0), 1)
    store.kept(StateKept(instance=copy.copy, round=1, digest=hashed("apart")))  # type: ignore[union-attr]
    return store, copy.copy  # type: ignore[union-attr]


def test_looking_at_the_claims_does_not_count_as_a_report() -> None:
    store, key = store_with_a_branch()
    for _ in range(2 * ROUNDS_OPEN):
        assert [claim.key for claim in store.claims()] == [key]
    assert store.tidy(0) == []


def test_a_branch_that_no_plan_names_is_forgotten_after_so_many_reports() -> None:
    store, key = store_with_a_branch()
    for _ in range(ROUNDS_OPEN):
        assert store.tidy(0) == []
        store.claimed(store.claims())
    assert ReleaseState(instance=key) in store.tidy(0)
    assert store.claims() == ()
