"""Proofs of work from one peer to the plan of all: newcomers that pay, and a flood of those that pretend to."""

from dataclasses import replace
from itertools import count

import pytest

from adloco_p2p.core.agreement.consensus import MEMBER_CHECKS, STRANGER_CHECKS, STRANGER_CHECKS_PER_SECOND
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
from tests.core.ledger.test_admission import AUTHOR

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
