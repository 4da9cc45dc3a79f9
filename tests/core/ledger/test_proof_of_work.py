"""Seats that cost computing: what a proof of work is, for whom and how long it counts, and who needs none."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest

from adloco_p2p.core.ledger import proof_of_work
from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.ledger.proof_of_work import PROOF_ROUNDS, CheckBudget, Puzzle
from adloco_p2p.core.ledger.validation import door_of, verify_ledger
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.certificate import Ballot
from adloco_p2p.core.model.ledger_entry import JoinRequest, LedgerEntry, ProofOfWork
from adloco_p2p.core.model.plan import RoundPlan, roster_of
from adloco_p2p.core.model.rules import ATTEMPTS_PER_MINUTE, AdmissionRules
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.core.planning.round_plan import genesis
from adloco_p2p.core.planning.standing import after_report, seated
from adloco_p2p.decode import decode
from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.sim.identities import signed_by, verify
from adloco_p2p.sim.synthetic_reports import certificate_of
from tests.core.agreement.test_consensus import recall_from
from tests.core.core_values import RUN, capacity, peer
from tests.core.ledger.test_admission import (
    AUTHOR,
    RULES,
    agree,
    decide,
    invited,
    statement,
    ticketed_ledger,
    verdict,
)

CHEAP = AdmissionRules(kind="work", price_minutes=0.001)
PLAN = Digest("ab" * 32)


def paid_ledger() -> Ledger:
    return ticketed_ledger(rules=replace(RULES, admission=CHEAP))


def solved(puzzle: Puzzle, *, first: int = 0) -> int:
    return next(nonce for nonce in count(first) if puzzle.attempt(nonce))


def failed(puzzle: Puzzle) -> int:
    return next(nonce for nonce in count() if not puzzle.attempt(nonce))


def puzzle_at(ledger: Ledger, name: PeerId) -> Puzzle:
    """That of the newest plan."""
    found = door_of(ledger, verify).puzzle(name, round=ledger.plans[-1].round)
    assert found is not None
    return found


def asking(name: PeerId, shown: ProofOfWork | None, *, round: int = 0) -> JoinRequest:
    unsigned = JoinRequest(peer=name, run=RUN, capacity=capacity(), beat=1, round=round, ticket=shown, signature="")
    return signed_by(name, unsigned)


def paid(ledger: Ledger, name: PeerId, *, puzzle: Puzzle | None = None) -> JoinRequest:
    """A request with a proof for the newest plan, or for another puzzle."""
    puzzle = puzzle or puzzle_at(ledger, name)
    return asking(name, ProofOfWork(round=puzzle.round, nonce=solved(puzzle)), round=ledger.plans[-1].round)


def pass_rounds(ledger: Ledger, number: int) -> None:
    for _ in range(number):
        agree(ledger)


# --- the puzzle ------------------------------------------------------------------------------------------------------


def test_a_proof_is_a_nonce_whose_scrypt_hash_is_below_the_target() -> None:
    puzzle = Puzzle(run=RUN, peer=peer(1), plan=PLAN, round=3, price=4)
    for nonce in range(8):
        text = f"{RUN} {PLAN} {nonce}".encode()
        hashed = hashlib.scrypt(text, salt=str(peer(1)).encode(), n=4096, r=8, p=1, dklen=32)
        assert puzzle.attempt(nonce) == puzzle.is_solved_by(nonce) == (int.from_bytes(hashed) < 2**254)


def test_a_price_is_the_number_of_attempts_on_average() -> None:
    assert AdmissionRules(kind="work", price_minutes=2.0).price == 2 * ATTEMPTS_PER_MINUTE
    assert AdmissionRules(kind="open", price_minutes=2.0).price == AdmissionRules(kind="tickets").price == 0
    every = Puzzle(run=RUN, peer=peer(1), plan=PLAN, round=3, price=1)
    assert all(every.attempt(nonce) for nonce in range(4))
    fourth = replace(every, price=4)
    assert 5 <= sum(fourth.attempt(nonce) for nonce in range(64)) <= 29, "16 on average, within 3.7 deviations"


@pytest.mark.parametrize(
    "other",
    [
        {"run": Digest("12" * 32)},
        {"peer": peer(2)},
        {"plan": Digest("cd" * 32)},
    ],
)
def test_a_nonce_serves_one_name_in_one_run_after_one_plan(other: dict[str, str]) -> None:
    puzzle = Puzzle(run=RUN, peer=peer(1), plan=PLAN, round=3, price=64)
    nonce = solved(puzzle)
    assert not replace(puzzle, **other).attempt(nonce)  # type: ignore[arg-type]


def test_a_check_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    puzzle = Puzzle(run=RUN, peer=peer(1), plan=Digest("ef" * 32), round=3, price=2)
    assert not puzzle.is_checked(7)
    found = puzzle.is_solved_by(7)
    assert puzzle.is_checked(7)
    monkeypatch.setattr(hashlib, "scrypt", None)
    assert puzzle.is_solved_by(7) == found


def test_what_was_checked_is_remembered_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof_of_work, "MAX_CHECKED", 2)
    monkeypatch.setattr(proof_of_work, "_checked", type(proof_of_work._checked)())
    puzzle = Puzzle(run=RUN, peer=peer(1), plan=PLAN, round=3, price=2)
    for nonce in range(3):
        puzzle.is_solved_by(nonce)
    assert [puzzle.is_checked(nonce) for nonce in range(3)] == [False, True, True]


def test_a_budget_is_for_bursts_and_comes_back_with_time() -> None:
    budget = CheckBudget(2.0, burst=3.0)
    assert [budget.try_take(0.0) for _ in range(4)] == [True, True, True, False]
    assert [budget.try_take(0.5), budget.try_take(0.5), budget.try_take(0.9), budget.try_take(1.1)] == [
        True,
        False,
        False,
        True,
    ]
    assert [budget.try_take(100.0) for _ in range(4)] == [True, True, True, False]


# --- the form --------------------------------------------------------------------------------------------------------


def test_a_run_without_a_price_has_the_bytes_that_it_had_before_there_were_prices() -> None:
    genesis = ticketed_ledger().plans[0]
    assert genesis.price == 0 and b'"price"' not in canonical.encode(genesis)
    assert paid_ledger().plans[0].price == 6 and b'"price":6' in canonical.encode(paid_ledger().plans[0])
    assert b'"price_minutes":0.001' in canonical.encode(CHEAP)


def test_a_price_of_nothing_that_is_spelled_out_is_not_canonical() -> None:
    genesis = ticketed_ledger().plans[0]
    plain = canonical.encode(genesis)
    assert decode(RoundPlan, plain, max_bytes=10_000) == genesis
    spelled = json.dumps(json.loads(plain) | {"price": 0}, sort_keys=True, separators=(",", ":")).encode()
    with pytest.raises(RemoteProtocolError, match="canonical"):
        decode(RoundPlan, spelled, max_bytes=10_000)


def test_a_request_with_a_proof_comes_through_the_border_as_it_is() -> None:
    shown = asking(peer(1), ProofOfWork(round=3, nonce=5))
    assert decode(JoinRequest, canonical.encode(shown), max_bytes=10_000) == shown
    assert decode(JoinRequest, canonical.encode(invited(peer(1))), max_bytes=10_000) == invited(peer(1))


# --- the door --------------------------------------------------------------------------------------------------------


def test_a_seat_that_was_paid_for_is_worth_what_one_in_an_open_run_is() -> None:
    ledger = paid_ledger()
    pass_rounds(ledger, 40)
    paid_seat, open_seat = (
        seated(peer(1), capacity(), ledger.plans[-1], AdmissionRules(kind=kind)) for kind in ("work", "open")
    )
    assert paid_seat == open_seat and (paid_seat.probation, paid_seat.standing) == (8, 1)
    assert after_report(replace(paid_seat, probation=0), CHEAP).standing == 33
    many = [paid(ledger, peer(index)) for index in range(1, 10)]
    assert verdict(ledger, joined=many) == "9 newcomers, and there are 8 first seats"


def test_a_proof_counts_for_some_rounds_after_its_plan() -> None:
    ledger = paid_ledger()
    proof = paid(ledger, peer(1)).ticket
    assert isinstance(proof, ProofOfWork)
    pass_rounds(ledger, PROOF_ROUNDS - 1)
    assert verdict(ledger, joined=[asking(peer(1), proof, round=ledger.plans[-1].round)]) == ""
    pass_rounds(ledger, 1)
    old = verdict(ledger, joined=[asking(peer(1), proof, round=ledger.plans[-1].round)])
    assert old == f"the proof of work of p001 is of round 0, and this is round {PROOF_ROUNDS}"


def of_another_name(ledger: Ledger) -> JoinRequest:
    return asking(peer(1), ProofOfWork(round=4, nonce=foreign(puzzle_at(ledger, peer(2)), puzzle_at(ledger, peer(1)))), round=4)


def of_another_run(ledger: Ledger) -> JoinRequest:
    own = puzzle_at(ledger, peer(1))
    return asking(peer(1), ProofOfWork(round=4, nonce=foreign(replace(own, run=Digest("12" * 32)), own)), round=4)


def of_an_older_plan(ledger: Ledger) -> JoinRequest:
    own = puzzle_at(ledger, peer(1))
    return asking(peer(1), ProofOfWork(round=4, nonce=foreign(replace(own, plan=ledger.digests[2]), own)), round=4)


def of_a_plan_to_come(ledger: Ledger) -> JoinRequest:
    return asking(peer(1), ProofOfWork(round=5, nonce=0), round=4)


def of_a_cheaper_price(ledger: Ledger) -> JoinRequest:
    own = puzzle_at(ledger, peer(1))
    return asking(peer(1), ProofOfWork(round=4, nonce=foreign(replace(own, price=1), own)), round=4)


def foreign(theirs: Puzzle, own: Puzzle) -> int:
    """A solution of theirs that is none of the own one."""
    return next(nonce for nonce in count() if theirs.attempt(nonce) and not own.attempt(nonce))


@pytest.mark.parametrize(
    "make", [of_another_name, of_another_run, of_an_older_plan, of_a_cheaper_price], ids=lambda make: make.__name__
)
def test_a_foreign_or_precomputed_nonce_gives_no_seat(make: Callable[[Ledger], JoinRequest]) -> None:
    ledger = paid_ledger()
    pass_rounds(ledger, 4)
    asked = make(ledger)
    assert isinstance(asked.ticket, ProofOfWork)
    assert verdict(ledger, joined=[asked]) == f"the nonce {asked.ticket.nonce} is no proof of work of p001 for round 4"


def test_a_run_without_a_price_takes_no_proof() -> None:
    for rules in (RULES, replace(RULES, admission=AdmissionRules(kind="open"))):
        shown = asking(peer(1), ProofOfWork(round=0, nonce=0))
        wrong = verdict(ticketed_ledger(rules=rules), joined=[shown])
        assert wrong == "p001 shows a proof of work, and no seat of this run costs one"


def test_what_is_no_proof_gives_no_seat() -> None:
    ledger = paid_ledger()
    pass_rounds(ledger, 4)
    assert verdict(ledger, joined=[asking(peer(1), None)]) == "p001 has no proof of work"
    assert verdict(ledger, joined=[invited(peer(1))]) == "p001 has no proof of work", "an invitation"
    early = of_a_plan_to_come(ledger)
    assert verdict(ledger, joined=[early]) == "the proof of work of p001 is of round 5, and this is round 4"
    forged = replace(paid(ledger, peer(1)), peer=peer(2))
    assert verdict(ledger, joined=[forged]) == "the join request of p002 is not signed by that peer for this run"


def test_any_holder_of_the_ledger_sees_a_seat_that_was_not_paid() -> None:
    ledger = paid_ledger()
    entries = [agree(ledger), agree(ledger, joined=[paid(ledger, peer(1))])]
    assert verify_ledger(ledger.plans[0], entries, decide, verify) == []
    nonce = failed(puzzle_at(ledger.truncated(ledger.digests[1]), peer(1)))
    unpaid = asking(peer(1), ProofOfWork(round=1, nonce=nonce), round=1)
    value = replace(entries[1].value, joined=(unpaid,))
    certificate = certificate_of(
        [AUTHOR], (value.parent, canonical.digest(value)), ballot=Ballot(attempt=0, peer=AUTHOR), absent=()
    )
    forged = LedgerEntry(plan=entries[1].plan, value=value, reports=(), certificate=certificate)
    (problem, *_) = verify_ledger(ledger.plans[0], [entries[0], forged], decide, verify)
    assert f"the nonce {nonce} is no proof of work of p001 for round 1" in problem


# --- members that come back ------------------------------------------------------------------------------------------


def test_a_peer_that_has_not_reported_pays_for_each_seat() -> None:
    ledger = paid_ledger()
    first = paid(ledger, peer(1))
    agree(ledger, joined=[first])
    agree(ledger, departed=[peer(1)])
    assert verdict(ledger, joined=[asking(peer(1), None, round=2)]) == "p001 has no proof of work"
    assert verdict(ledger, joined=[first]) == "", "within the rounds of its proof it need not find another"
    pass_rounds(ledger, PROOF_ROUNDS)
    assert "is of round 0" in verdict(ledger, joined=[asking(peer(1), first.ticket, round=ledger.plans[-1].round)])  # type: ignore[arg-type]


def as_reported(ledger: Ledger, name: PeerId) -> None:
    """The newest plan shows a report of the peer: these ledgers have none."""
    plan = ledger.plans[-1]
    roster = tuple(replace(seat, last_report=plan.round) if seat.peer == name else seat for seat in plan.roster)
    ledger.plans[-1] = replace(plan, roster=roster)


def test_a_peer_that_has_reported_comes_back_for_nothing_also_after_a_seat_without_a_report() -> None:
    ledger, back = paid_ledger(), asking(peer(1), None, round=3)
    agree(ledger, joined=[paid(ledger, peer(1))])
    as_reported(ledger, peer(1))
    agree(ledger, departed=[peer(1)])
    assert verdict(ledger, joined=[back]) == ""
    agree(ledger, joined=[back])
    seat = next(seat for seat in ledger.plans[-1].roster if seat.peer == peer(1))
    assert seat.last_report is None, "it has not reported in this seat"
    agree(ledger, departed=[peer(1)])
    assert verdict(ledger, joined=[back]) == "", "as a laptop that is opened twice"
    assert ledger.admissions.truncated(3).has_reported(peer(1))
    assert not ledger.admissions.truncated(2).has_reported(peer(1)), "before it lost the first seat"


def test_founders_and_signers_need_no_proof() -> None:
    founders = [(AUTHOR, capacity()), (peer(2), capacity())]
    ledger = Ledger(genesis(RUN, founders, replace(RULES, admission=CHEAP), signers=[AUTHOR]), recall=recall_from(()))
    agree(ledger, departed=[peer(2)])
    door = door_of(ledger, verify)
    assert not door.must_pay(AUTHOR) and door.must_pay(peer(1))
    assert verdict(ledger, joined=[asking(peer(2), None, round=1)]) == "", "a founder, though it never reported"
    agree(ledger, statements=[statement("add_signer", peer(1))])
    assert not door_of(ledger, verify).must_pay(peer(1))
    agree(ledger, statements=[statement("ban", peer(2), serial=1)])
    agree(ledger, statements=[statement("unban", peer(2), serial=2)])
    assert door_of(ledger, verify).must_pay(peer(2)), "a ban ends what a founder has before others"


def test_after_a_ban_that_was_lifted_a_name_pays_again() -> None:
    ledger = paid_ledger()
    early = paid(ledger, peer(1))
    agree(ledger, joined=[early])
    seat = next(seat for seat in ledger.plans[-1].roster if seat.peer == peer(1))
    entry = agree(ledger, statements=[statement("ban", peer(1))])
    assert peer(1) not in roster_of(entry.plan)
    ledger.admissions.note_ended([replace(seat, last_report=1)], position=2)  # as if it had reported before
    assert verdict(ledger, joined=[early]) == "p001 is banned from this run"
    agree(ledger, statements=[statement("unban", peer(1), serial=1)])
    assert "is of round 0, and this is round 3" in verdict(ledger, joined=[early]), "paid before the ban ended"
    assert verdict(ledger, joined=[paid(ledger, peer(1))]) == ""
