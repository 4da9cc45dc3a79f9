"""A run whose seats cost computing, at a price of six attempts: newcomers that pay are let in, and nobody else is."""

from collections import Counter
from dataclasses import replace
from itertools import count

import pytest

from adloco_p2p.core.ledger.proof_of_work import PROOF_ROUNDS, Puzzle
from adloco_p2p.core.model.ledger_entry import ProofOfWork
from adloco_p2p.core.model.plan import roster_of
from adloco_p2p.core.model.rules import AdmissionRules
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.identities import RUN
from adloco_p2p.sim.world import Parts, World, rules_of_one, small_rules
from benchmarks.adversary.invitations import knocking
from benchmarks.adversary.strangers import Aim, Strangers

CHEAP = AdmissionRules(kind="work", price_minutes=0.001, probation_rounds=0)
PLAYED_ROUNDS = PROOF_ROUNDS + 8


def puzzle_of(at: Aim, *, back: int = 0, peer: PeerId | None = None) -> Puzzle:
    """Of the newest plan that the stranger has, or of so many before it."""
    digests = at.ledger.digests
    back = min(back, len(digests) - 1)
    return Puzzle(run=RUN, peer=peer or at.me, plan=digests[-1 - back], round=at.plan.round - back, price=CHEAP.price)


def proof(puzzle: Puzzle, own: Puzzle) -> ProofOfWork:
    """A solution of the puzzle that is none of the own one."""
    is_own = puzzle == own
    nonce = next(n for n in count() if puzzle.attempt(n) and (is_own or not own.attempt(n)))
    return ProofOfWork(round=own.round, nonce=nonce)


def none_at_all(_at: Aim) -> None:
    return None


def forged(at: Aim) -> ProofOfWork:
    own = puzzle_of(at)
    return ProofOfWork(round=own.round, nonce=next(nonce for nonce in count() if not own.attempt(nonce)))


def foreign(at: Aim) -> ProofOfWork:
    return proof(puzzle_of(at, peer=next(name for name in at.port.names if name != at.me)), puzzle_of(at))


def precomputed(at: Aim) -> ProofOfWork:
    """For a plan of the same round that is not the one that was agreed on."""
    own = puzzle_of(at)
    return proof(replace(own, plan=at.ledger.digests[0]), own) if own.round else forged(at)


def of_a_round_to_come(at: Aim) -> ProofOfWork:
    return replace(forged(at), round=at.plan.round + 1)


@pytest.mark.parametrize("seed", range(2))
def test_proofs_that_are_none_let_nobody_in(seed: int) -> None:
    lies = (none_at_all, forged, foreign, precomputed, of_a_round_to_come)
    liars = Strangers(deeds=[knocking(lie) for lie in lies])
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


def replayed(at: Aim) -> ProofOfWork:
    """Found for the first plan, and shown for as long as the run lasts."""
    first = puzzle_of(at, back=len(at.ledger.digests) - 1)
    return proof(first, first)


def test_a_proof_is_worth_nothing_after_its_rounds() -> None:
    """It gives seats until then: whether the peer behind it does anything is another matter."""
    liars = Strangers(deeds=[knocking(replayed)])
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
