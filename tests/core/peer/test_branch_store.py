"""Branch states that no plan names: a peer forgets them after so many reports, however often somebody looks."""

from dataclasses import replace

from adloco_p2p.core.model import canonical, telemetry
from adloco_p2p.core.model.branches import ROUNDS_OPEN
from adloco_p2p.core.model.certificate import CastVote
from adloco_p2p.core.model.effects import ReleaseState
from adloco_p2p.core.model.events import StateKept
from adloco_p2p.core.model.ledger_entry import LedgerEntry, Reorg
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.core.peer.branch_store import CLAIMS_BEFORE_PROOF, NUM_PROVERS, BranchStore
from adloco_p2p.core.planning.round_plan import genesis, next_plan
from adloco_p2p.sim.device import hashed
from adloco_p2p.sim.identities import RUN
from tests.core.core_values import peer
from tests.core.peer.story import PEER0, rules
from tests.core.peer.test_peer_churn import CAPACITY, _entry

NAMES = tuple(peer(index) for index in range(NUM_PROVERS + 3))


def lost_entry() -> LedgerEntry:
    """Voted for by all but the first, which abstained."""
    entry = _entry(next_plan(genesis(RUN, [(PEER0, CAPACITY)], rules()), (), rules()))
    votes = tuple(CastVote(peer=name, abstains=name == NAMES[0], signature="") for name in NAMES)
    return replace(entry, certificate=replace(entry.certificate, votes=votes))


def store_with_a_branch() -> tuple[BranchStore, InstanceId]:
    fork = genesis(RUN, [(PEER0, CAPACITY)], rules())
    store = BranchStore()
    switched = Reorg(fork=fork, lost=(lost_entry(),), won=())
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
    effects = store.tidy(0)
    assert ReleaseState(instance=key) in effects
    (notice,) = (effect for effect in effects if isinstance(effect, telemetry.Warning))
    assert "no plan merges it" in notice.message and not notice.active, "a condition that nobody can end would stay for good"
    assert store.claims() == ()


def test_a_few_voters_show_the_certificate_of_a_branch_and_where_none_was_seen_everybody_does() -> None:
    store, key = store_with_a_branch()
    entry = lost_entry()
    showing = [name for name in NAMES if store.proof(name) is not None]
    assert showing == list(NAMES[1 : NUM_PROVERS + 1])
    proof = store.proof(NAMES[1])
    assert proof is not None and proof.certificate == entry.certificate
    assert [claim.branch for claim in store.claims()] == [proof.branch] == [canonical.digest(entry.value)]
    for _ in range(CLAIMS_BEFORE_PROOF):
        store.claimed(store.claims())
    assert all(store.proof(name) == proof for name in NAMES)
    while key in [claim.key for claim in store.claims()]:
        store.claimed(store.claims())
        store.tidy(0)
    assert store.proof(NAMES[1]) is None
