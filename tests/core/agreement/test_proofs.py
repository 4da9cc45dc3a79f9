"""Proofs of work from one peer to the plan of all: newcomers that pay, and a flood of those that pretend to."""

from dataclasses import replace
from itertools import count

import pytest

from adloco_p2p.core.agreement.consensus import (
    MEMBER_CHECKS,
    MEMBER_CHECKS_PER_SECOND,
    STRANGER_CHECKS,
    STRANGER_CHECKS_PER_SECOND,
)
from adloco_p2p.core.agreement.gossip_agreement import GossipAgreement
from adloco_p2p.core.ledger.proof_of_work import PROOF_ROUNDS, Puzzle
from adloco_p2p.core.ledger.validation import check_entry, verify_ledger
from adloco_p2p.core.model.ledger_entry import JoinRequest, ProofOfWork
from adloco_p2p.core.model.messages import Heartbeat
from adloco_p2p.core.model.rules import AdmissionRules
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.planning.round_plan import genesis
from adloco_p2p.sim.identities import signed_by, verify
from tests.core.agreement.test_consensus import RULES, agreement, decide
from tests.core.agreement.test_statements import TicketedSwarm
from tests.core.core_values import RUN, capacity, peer
from tests.core.ledger.test_admission import AUTHOR, statement

CHEAP = AdmissionRules(kind="work", price_minutes=0.001)


class PaidSwarm(TicketedSwarm):
    """Of the author, and newcomers that meet it."""

    def __init__(self, admission: AdmissionRules = CHEAP) -> None:
        super().__init__()
        self.genesis = genesis(RUN, [(AUTHOR, capacity())], replace(RULES, admission=admission), signers=[AUTHOR])
        self.mail.clear()
        self.peers.clear()
        self.add(AUTHOR)

    @property
    def author(self) -> GossipAgreement:
        return self.peers[AUTHOR]


def pay(newcomer: GossipAgreement) -> ProofOfWork:
    puzzle = newcomer.puzzle()
    assert puzzle is not None
    proof = ProofOfWork(round=puzzle.round, nonce=next(nonce for nonce in count() if puzzle.attempt(nonce)))
    newcomer.show(proof)
    return proof


def test_a_newcomer_that_pays_gets_a_seat_and_one_that_does_not_is_not_refused_for_good() -> None:
    swarm = PaidSwarm()
    payer, idler = swarm.add(peer(1)), swarm.add(peer(2))
    pay(payer)
    assert payer.puzzle() is None, "there is nothing more to solve"
    for name in (peer(1), peer(2)):
        swarm.visit(name)
    assert [request.peer for request in swarm.author.members.candidates(swarm.now)] == [peer(1)]
    swarm.play(3)
    assert swarm.roster == (AUTHOR, peer(1))
    assert payer.puzzle() is None and swarm.author.puzzle() is None, "members owe nothing"
    assert idler.refusal() == "" and idler.puzzle() is not None, "it may compute yet"
    assert verify_ledger(swarm.genesis, swarm.author.ledger.entries, decide, verify) == []


def test_a_proof_is_renewed_in_time_by_the_newest_plan() -> None:
    swarm = PaidSwarm()
    swarm.play(PROOF_ROUNDS)
    waiting = agreement(peer(1), swarm.genesis)
    waiting.start((swarm.genesis,), (), swarm.now)
    proof = pay(waiting)
    for entry in swarm.author.ledger.since(1):
        waiting.consensus._append(entry, swarm.now)
        is_young = entry.plan.round - proof.round < PROOF_ROUNDS // 2
        assert (waiting.puzzle() is None) == is_young, entry.plan.round
    puzzle = waiting.puzzle()
    assert puzzle is not None and puzzle.plan == swarm.author.ledger.digests[-1]
    assert waiting.refusal() == "", "the old one counts no more, and the next is to come"


def test_a_proof_that_no_longer_counts_is_replaced_though_it_is_young() -> None:
    """It was found on the side of a fork that lost, or lies in the directory since another run."""
    swarm = PaidSwarm()
    newcomer = swarm.add(peer(1))
    puzzle = newcomer.puzzle()
    assert puzzle is not None
    newcomer.show(ProofOfWork(round=0, nonce=next(nonce for nonce in count() if not puzzle.attempt(nonce))))
    assert newcomer.puzzle() == puzzle


def test_banned_peers_passive_peers_and_those_of_a_run_that_is_over_compute_nothing() -> None:
    swarm = PaidSwarm()
    newcomer = swarm.add(peer(1))
    assert newcomer.puzzle() is not None
    newcomer.members.is_passive = True
    assert newcomer.puzzle() is None, "it leaves"
    newcomer.members.is_passive = False
    assert swarm.author.state(statement("ban", peer(1))) == ""
    swarm.play(2)
    assert peer(1) in newcomer.ledger.admissions.bans() and not newcomer.ledger.plans[-1].is_last
    assert newcomer.puzzle() is None, "banned"
    assert swarm.author.state(statement("stop", PeerId(""), serial=1)) == ""
    swarm.play(2)
    other = agreement(peer(2), swarm.genesis)
    other.start((swarm.genesis,), (), swarm.now)
    for entry in swarm.author.ledger.since(1):
        assert other.puzzle() is not None
        other.consensus._append(entry, swarm.now)
    assert other.ledger.plans[-1].is_last and other.puzzle() is None


def asking(name: PeerId, nonce: int, *, beat: int = 1) -> JoinRequest:
    shown = ProofOfWork(round=0, nonce=nonce)
    return signed_by(name, JoinRequest(peer=name, run=RUN, capacity=capacity(), beat=beat, round=0, ticket=shown, signature=""))


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Nonces for which a hash was computed."""
    made: list[int] = []
    attempt = Puzzle.attempt

    def counted(self: Puzzle, nonce: int) -> bool:
        made.append(nonce)
        return attempt(self, nonce)

    monkeypatch.setattr(Puzzle, "attempt", counted)
    return made


def test_a_flood_of_false_proofs_costs_a_bounded_part_of_a_peer_and_keeps_out_nobody_that_a_member_knows(
    attempts: list[int],
) -> None:
    """The price is one that no nonce of the flood pays."""
    swarm = PaidSwarm(AdmissionRules(kind="work", price_minutes=0.02))
    author, flood = swarm.author, PeerId("flood")
    honest = swarm.add(peer(1))
    pay(honest)
    attempts.clear()
    beat = honest.members.heartbeat(swarm.now)
    for number in range(200):
        false = replace(beat, joins=(asking(PeerId(f"x{number}"), number),))
        author.receive(flood, false, swarm.now)
    assert len(attempts) == STRANGER_CHECKS
    author.receive(flood, replace(beat, joins=(asking(PeerId("x0"), 0, beat=2),)), swarm.now)
    assert len(attempts) == STRANGER_CHECKS, "what was found false is known"
    swarm.visit(peer(1))
    assert not author.members.candidates(swarm.now), "nothing is left of the budget of strangers"
    told = author.members.heartbeat(swarm.now)
    assert isinstance(told, Heartbeat)
    author.receive(AUTHOR, replace(told, joins=(honest.members.join_request(),)), swarm.now)
    assert [request.peer for request in author.members.candidates(swarm.now)] == [peer(1)], "as a member passes it on"
    swarm.now += 1.0
    for number in range(200, 300):
        author.receive(flood, replace(beat, joins=(asking(PeerId(f"x{number}"), number),)), swarm.now)
    assert len(attempts) == STRANGER_CHECKS + 1 + STRANGER_CHECKS_PER_SECOND
    swarm.visit(peer(1))
    assert len(attempts) == STRANGER_CHECKS + 1 + STRANGER_CHECKS_PER_SECOND, "a proof is checked once"
    assert MEMBER_CHECKS >= STRANGER_CHECKS


def test_a_member_that_passes_on_false_proofs_keeps_nobody_from_those_that_hear_of_a_newcomer_by_another(
    attempts: list[int],
) -> None:
    swarm = PaidSwarm(AdmissionRules(kind="work", price_minutes=0.02))
    author, liar, honest = swarm.author, swarm.add(peer(1)), swarm.add(peer(2))
    pay(liar)
    swarm.visit(peer(1))
    swarm.play(3)
    assert swarm.roster == (AUTHOR, peer(1))
    pay(honest)
    beat = author.members.heartbeat(swarm.now)
    attempts.clear()
    for number in range(200):
        author.receive(peer(1), replace(beat, joins=(asking(PeerId(f"y{number}"), number),)), swarm.now)
    assert len(attempts) == 1 + STRANGER_CHECKS, "one as a member"
    author.receive(AUTHOR, replace(beat, joins=(honest.members.join_request(),)), swarm.now)
    assert [request.peer for request in author.members.candidates(swarm.now)] == [peer(2)]
    swarm.play(1)
    attempts.clear()
    swarm.now += 60.0
    for number in range(200, 400):
        author.receive(peer(1), replace(beat, joins=(asking(PeerId(f"y{number}"), number),)), swarm.now)
    assert len(attempts) == 1 + STRANGER_CHECKS, "each plan anew: a member on a losing side is not mistrusted for good"


def test_what_members_pass_on_is_checked_within_a_bound_too(attempts: list[int]) -> None:
    """At a price that every nonce pays, so that no member misleads."""
    swarm = PaidSwarm(AdmissionRules(kind="work", price_minutes=0.0001))
    author = swarm.author
    beat = author.members.heartbeat(swarm.now)

    def flood(names: range) -> int:
        attempts.clear()
        for number in names:
            author.receive(AUTHOR, replace(beat, joins=(asking(PeerId(f"z{number}"), number),)), swarm.now)
        return len(attempts)

    assert flood(range(200)) == MEMBER_CHECKS
    swarm.now += 2.0
    assert flood(range(200, 300)) == 2 * MEMBER_CHECKS_PER_SECOND


def test_an_entry_that_nobody_voted_for_is_refused_before_its_proofs_are_checked(attempts: list[int]) -> None:
    swarm = PaidSwarm()
    pay(swarm.add(peer(1)))
    swarm.visit(peer(1))
    swarm.play(2)
    entries = swarm.author.ledger.entries
    entry = next(entry for entry in entries if entry.value.joined)
    ledger = swarm.author.ledger.truncated(entry.value.parent)
    false = replace(entry.value, joined=(asking(peer(2), 10**6),))
    assert check_entry(entry, ledger=ledger, decide=decide, verify=verify) == ""
    attempts.clear()
    wrong = check_entry(replace(entry, value=false), ledger=ledger, decide=decide, verify=verify)
    assert wrong == "the vote of p000 is not signed by that peer"
    assert attempts == []
