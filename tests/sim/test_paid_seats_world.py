"""A run whose seats cost computing, at a price of six attempts: newcomers that pay are let in, and nobody else is."""

from collections import Counter
from dataclasses import replace

import pytest

from adloco_p2p.core.ledger.proof_of_work import PROOF_ROUNDS
from adloco_p2p.core.model.ledger_entry import ProofOfWork
from adloco_p2p.core.model.plan import roster_of
from adloco_p2p.core.model.rules import AdmissionRules
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.world import Parts, World, rules_of_one, small_rules
from benchmarks.adversary.invitations import knocking
from benchmarks.adversary.paid_seats import LIES, saved_up
from benchmarks.adversary.strangers import Strangers

CHEAP = AdmissionRules(kind="work", price_minutes=0.001, probation_rounds=0)
PLAYED_ROUNDS = PROOF_ROUNDS + 8


@pytest.mark.parametrize("seed", range(2))
def test_proofs_that_are_none_let_nobody_in(seed: int) -> None:
    liars = Strangers(deeds=[knocking(lie) for lie in LIES])
    world = World(
        seed,
        peers=5,
        rounds=8,
        rules=replace(small_rules(5, 8), admission=CHEAP),
        faults=Faults(loss=0.02, faults_end_at=10.0),
        round_seconds=1.2,
        parts=Parts(adversary=liars),
    )
    world.run()
    assert liars.num_sent > 20
    assert {roster_of(entry.plan) for entry in world.ledger()} == {roster_of(world.genesis)}, f"seed {seed}"


def test_a_proof_is_worth_nothing_after_its_rounds() -> None:
    """It gives seats until then: whether the peer behind it does anything is another matter."""
    liars = Strangers(deeds=[knocking(saved_up)])
    rules = replace(rules_of_one(PLAYED_ROUNDS), admission=CHEAP)
    world = World(0, peers=3, rounds=PLAYED_ROUNDS, rules=rules, faults=Faults(faults_end_at=5.0), parts=Parts(adversary=liars))
    world.run()
    joined = [(join.peer, entry.plan.round) for entry in world.ledger() for join in entry.value.joined]
    assert joined and max(round for _, round in joined) <= PROOF_ROUNDS


@pytest.mark.parametrize("seed", range(3))
def test_newcomers_that_pay_get_a_seat_and_their_work_counts(seed: int) -> None:
    """The world judges the promise to newcomers, and its checker verifies the ledger of the end."""
    rules = replace(rules_of_one(16), admission=CHEAP)
    world = World(seed, peers=3, rounds=16, faults=Faults(loss=0.02, faults_end_at=3.0), rules=rules)
    for at in (4.0, 5.0, 9.0):
        world.queue.at(at, world._join)
    world.run()
    newcomers = [*world.machines][3:]
    joins = Counter(join.peer for entry in world.ledger() for join in entry.value.joined)
    assert set(newcomers) <= {*roster_of(world.ledger()[-1].plan)} and set(joins) == set(newcomers)
    shown = [join.ticket for entry in world.ledger() for join in entry.value.joined]
    assert all(isinstance(ticket, ProofOfWork) for ticket in shown)
