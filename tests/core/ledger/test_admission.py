"""Invitations, bans and revocations: what the ledger lets in, checked by anybody from the entries alone."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from adloco_p2p.core.ledger.admission import seated_first
from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.ledger.validation import change_of, check_value, verify_ledger
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.certificate import Ballot
from adloco_p2p.core.model.first_seats import FIRST_SEAT_ROUNDS, FIRST_SEATS, displaced, free_first_seats
from adloco_p2p.core.model.ledger_entry import (
    JOIN_ROUNDS,
    Invitation,
    JoinRequest,
    LedgerEntry,
    ProofOfWork,
    Statement,
    Ticket,
    Value,
)
from adloco_p2p.core.model.plan import RosterChange, RoundPlan, roster_of
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.roster_entry import FULL_STANDING, FormerMember
from adloco_p2p.core.model.rules import AdmissionRules, Rules, WorkRules
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.core.planning.round_plan import genesis, next_plan
from adloco_p2p.sim.identities import sign, signed_by, verify
from adloco_p2p.sim.synthetic_reports import certificate_of
from tests.core.agreement.test_consensus import recall_from
from tests.core.core_values import RUN, capacity, peer

AUTHOR = peer(0)
KEY = PeerId("key of an invitation")
RULES = Rules(work=WorkRules(rounds=100))


def decide(parent: RoundPlan, reports: Sequence[Report], change: RosterChange) -> RoundPlan:
    return next_plan(parent, reports, RULES, roster=change)


def ticketed_ledger(*, rules: Rules = RULES) -> Ledger:
    return Ledger(genesis(RUN, [(AUTHOR, capacity())], rules, signers=[AUTHOR]), recall=recall_from(()))


def invitation(
    *, seats: int = 2, last_round: int = 50, signer: PeerId = AUTHOR, key: PeerId = KEY, run: Digest = RUN
) -> Invitation:
    return signed_by(signer, Invitation(run=run, signer=signer, key=key, seats=seats, last_round=last_round, signature=""))


def ticket(holder: PeerId, invited: Invitation, *, key: PeerId | None = None) -> Ticket:
    unsigned = Ticket(invitation=invited, signature="")
    return replace(unsigned, signature=sign(key or invited.key, unsigned.payload(holder)))


def request(name: PeerId, shown: Ticket | ProofOfWork | None = None, *, round: int = 0) -> JoinRequest:
    unsigned = JoinRequest(peer=name, run=RUN, capacity=capacity(), beat=1, round=round, ticket=shown, signature="")
    return signed_by(name, unsigned)


def invited(name: PeerId, by: Invitation | None = None) -> JoinRequest:
    return request(name, ticket(name, by or invitation()))


def statement(action: str, subject: PeerId, *, serial: int = 0, signer: PeerId = AUTHOR, run: Digest = RUN) -> Statement:
    unsigned = Statement(run=run, signer=signer, serial=serial, action=action, subject=subject, signature="")  # type: ignore[arg-type]
    return signed_by(signer, unsigned)


def value_of(
    ledger: Ledger,
    *,
    joined: Sequence[JoinRequest] = (),
    departed: Sequence[PeerId] = (),
    statements: Sequence[Statement] = (),
) -> Value:
    unplanned = Value(
        round=ledger.plans[-1].round + 1,
        parent=ledger.digests[-1],
        reports=(),
        joined=tuple(joined),
        departed=tuple(departed),
        plan=Digest(""),
        statements=tuple(statements),
    )
    plan = decide(ledger.plans[-1], (), change_of(unplanned, (), ledger, verify))
    return replace(unplanned, plan=canonical.digest(plan))


def verdict(ledger: Ledger, **parts: Sequence[object]) -> str:
    """What is wrong with the value; empty where it may be accepted."""
    value = value_of(ledger, **parts)  # type: ignore[arg-type]
    checked = check_value(value, (), ledger=ledger, decide=decide, verify=verify)
    return checked if isinstance(checked, str) else ""


def agree(ledger: Ledger, **parts: Sequence[object]) -> LedgerEntry:
    """The author alone makes the value final."""
    value = value_of(ledger, **parts)  # type: ignore[arg-type]
    plan = check_value(value, (), ledger=ledger, decide=decide, verify=verify)
    assert isinstance(plan, RoundPlan), plan
    ballot = Ballot(attempt=0, peer=AUTHOR)
    absent = tuple(name for name in roster_of(ledger.plans[-1]) if name != AUTHOR)
    certificate = certificate_of([AUTHOR], (value.parent, canonical.digest(value)), ballot=ballot, absent=absent)
    entry = LedgerEntry(plan=plan, value=value, reports=(), certificate=certificate)
    ledger.append(entry)
    return entry


def test_an_invitation_lets_in_as_many_as_it_has_seats() -> None:
    ledger = ticketed_ledger()
    agree(ledger, joined=[invited(peer(1))])
    assert verdict(ledger, joined=[invited(peer(2)), invited(peer(3))]) == "no seat of the invitation is left: it has 2"
    agree(ledger, joined=[invited(peer(2))])
    assert verdict(ledger, joined=[invited(peer(3))]) == "no seat of the invitation is left: it has 2"
    other = invitation(key=PeerId("another key"))
    agree(ledger, joined=[invited(peer(3), other)])
    assert roster_of(ledger.plans[-1]) == tuple(peer(index) for index in range(4))


def test_a_peer_that_left_comes_back_without_a_ticket_and_takes_no_second_seat() -> None:
    ledger = ticketed_ledger()
    agree(ledger, joined=[invited(peer(1))])
    agree(ledger, departed=[peer(1)], statements=[statement("revoke", KEY)])
    agree(ledger, joined=[request(peer(1))])
    assert ledger.admissions.seats_taken() == {KEY: 1}
    assert verdict(ledger, joined=[invited(peer(2))]) == "the invitation was revoked"


def test_a_request_that_somebody_kept_gives_no_seat_later() -> None:
    ledger = ticketed_ledger()
    kept = request(peer(1), ticket(peer(1), invitation()), round=0)
    for _ in range(JOIN_ROUNDS):
        agree(ledger)
    assert verdict(ledger, joined=[kept]) == ""
    agree(ledger)
    assert verdict(ledger, joined=[kept]) == f"the request of {peer(1)} is of round 0, and this is round {JOIN_ROUNDS + 1}"
    altered = replace(kept, round=ledger.plans[-1].round)
    assert verdict(ledger, joined=[altered]), "the round is signed"
    assert verdict(ledger, joined=[request(peer(1), kept.ticket, round=ledger.plans[-1].round)]) == ""


def forged_chain() -> JoinRequest:
    return invited(peer(1), replace(invitation(), signature=sign(peer(9), invitation().payload)))


def of_another_run() -> JoinRequest:
    return invited(peer(1), invitation(run=Digest("f" * 64)))


def more_seats_than_signed() -> JoinRequest:
    return invited(peer(1), replace(invitation(), seats=400))


@pytest.mark.parametrize(
    ("asking", "problem"),
    [
        (lambda: request(peer(1)), "p001 has no invitation"),
        (forged_chain, "the invitation is not signed by its signer"),
        (more_seats_than_signed, "the invitation is not signed by its signer"),
        (of_another_run, "the invitation is not by a signer of this run"),
        (lambda: invited(peer(1), invitation(signer=peer(9))), "the invitation is not by a signer of this run"),
        (lambda: invited(peer(1), invitation(last_round=0)), "the invitation was good until round 0, and this is round 1"),
        (
            lambda: request(peer(1), ticket(peer(2), invitation())),
            "the ticket is not made out to p001 by the key of its invitation",
        ),
        (
            lambda: request(peer(1), ticket(peer(1), invitation(), key=peer(1))),
            "the ticket is not made out to p001 by the key of its invitation",
        ),
    ],
)
def test_what_is_no_ticket_lets_nobody_in(asking: Callable[[], JoinRequest], problem: str) -> None:
    ledger = ticketed_ledger()
    assert verdict(ledger, joined=[asking()]) == problem
    assert verdict(ledger, joined=[invited(peer(1))]) == ""


def test_the_last_round_of_an_invitation_counts() -> None:
    ledger = ticketed_ledger()
    agree(ledger)
    assert verdict(ledger, joined=[invited(peer(1), invitation(last_round=2))]) == ""
    agree(ledger)
    assert "good until round 2" in verdict(ledger, joined=[invited(peer(1), invitation(last_round=2))])


def test_an_open_run_and_one_without_signers_ask_for_no_ticket() -> None:
    open_run = open_ledger()
    assert not open_run.plans[0].is_ticketed
    assert verdict(open_run, joined=[request(peer(1))]) == ""
    without = Ledger(genesis(RUN, [(AUTHOR, capacity())], RULES), recall=recall_from(()))
    assert verdict(without, joined=[request(peer(1))]) == ""


def open_ledger() -> Ledger:
    return ticketed_ledger(rules=replace(RULES, admission=AdmissionRules(kind="open")))


def test_an_open_run_has_few_seats_for_names_that_have_shown_nothing() -> None:
    """Names cost nothing: of 64 newcomers among one to five members the plan makes hosts."""
    ledger = open_ledger()
    names = [peer(index) for index in range(1, FIRST_SEATS + 2)]
    joined = [request(name) for name in names]
    assert verdict(ledger, joined=joined) == "9 newcomers, and there are 8 first seats"
    agree(ledger, joined=joined[:5])
    assert verdict(ledger, joined=joined[5:]) == "4 newcomers, and there are 3 first seats", "five have not reported yet"
    agree(ledger, departed=names[:5])
    assert verdict(ledger, joined=joined[1:]) == "", "their seats are free again"
    assert verdict(ticketed_ledger(), joined=[invited(name, invitation(seats=9)) for name in names]) == "", "invited"


def test_an_open_run_grows_by_as_many_as_have_reported() -> None:
    ledger = open_ledger()
    plan = ledger.plans[-1]
    seats = [replace(plan.roster[0], peer=peer(index), joined_round=1, last_report=3) for index in range(20)]
    assert free_first_seats(replace(plan, roster=tuple(seats)), ()) == 20
    silent = [replace(seat, last_report=None) for seat in seats[:12]]
    crowded = replace(plan, roster=(*silent, *seats[12:]))
    assert free_first_seats(crowded, ()) == 0
    assert free_first_seats(replace(plan, roster=(*silent[:4], *seats[4:])), ()) == 12
    back = tuple(FormerMember(peer=seat.peer, left_round=2, standing=FULL_STANDING) for seat in silent)
    assert free_first_seats(replace(crowded, former=back), ()) == 20, "they are back, and served their probation before"
    assert free_first_seats(crowded, {seat.peer for seat in silent[:9]}) == 5, "3 of 11 are left"


def test_a_first_seat_without_a_report_goes_to_a_newcomer_that_asks() -> None:
    """Eight names that never report. A founder, whose reports are all missing here, keeps its seat."""
    ledger = open_ledger()
    silent = [peer(index) for index in range(1, FIRST_SEATS + 1)]
    agree(ledger, joined=[request(name) for name in silent])
    others = [peer(index) for index in range(20, 29)]
    while free_first_seats(ledger.plans[-1], ()) == 0:
        assert verdict(ledger, joined=[request(others[0])]) == "1 newcomers, and there are 0 first seats"
        agree(ledger)
    assert ledger.plans[-1].round == 1 + FIRST_SEAT_ROUNDS, "the plan after this one could have used four reports"
    assert verdict(ledger, joined=[request(name) for name in others]) == "9 newcomers, and there are 8 first seats"
    agree(ledger, joined=[request(name) for name in others[:3]])
    roster = roster_of(ledger.plans[-1])
    assert {AUTHOR, *others[:3]} < {*roster} and len(roster) == 1 + FIRST_SEATS
    assert free_first_seats(ledger.plans[-1], ()) == FIRST_SEATS - 3
    agree(ledger)
    assert roster_of(ledger.plans[-1]) == roster, "nobody asks, so nobody has to go"


def test_of_first_seats_the_longest_silent_go_and_none_that_reports() -> None:
    plan = replace(open_ledger().plans[-1], round=9)
    seat = replace(plan.roster[0], joined_round=5, last_report=None)
    late = [replace(seat, peer=peer(index)) for index in range(1, 5)]
    later = [replace(seat, peer=peer(index), joined_round=6) for index in range(5, 8)]
    young = replace(seat, peer=peer(8), joined_round=8)
    staying = [plan.roster[0], *late, *later, young]
    assert displaced(staying, [], plan) == frozenset()
    assert len(displaced(staying, [peer(20)], plan)) == 1 and displaced(staying, [peer(20)], plan) < {s.peer for s in late}
    assert displaced(staying, [peer(20 + index) for index in range(8)], plan) == {s.peer for s in late}
    reporting = [plan.roster[0], replace(late[0], last_report=7), *late[1:], *later, young]
    assert displaced(reporting, [peer(20)], plan) == frozenset(), "its first report is in this plan: a seat is free"


def test_seats_that_died_with_the_roster_keep_no_former_member_out() -> None:
    """Of a run whose members all died: one that was there long ago goes on alone."""
    ledger = open_ledger()
    agree(ledger, joined=[request(peer(20))])
    agree(ledger, departed=[peer(20)])
    silent = [peer(index) for index in range(1, FIRST_SEATS + 1)]
    agree(ledger, joined=[request(name) for name in silent])
    assert verdict(ledger, joined=[request(peer(20))]) == "1 newcomers, and there are 0 first seats"
    assert verdict(ledger, joined=[request(peer(20))], departed=[AUTHOR, *silent]) == ""


def test_former_members_are_seated_before_names_and_names_by_lot() -> None:
    """By name all others would come first; former members that served need no first seat."""
    former, once = PeerId("z" * 8), PeerId("y" * 8)
    asking = [*(request(peer(index)) for index in range(40)), request(former), request(once)]
    plan = replace(open_ledger().plans[-1], former=(FormerMember(peer=former, left_round=1, standing=FULL_STANDING),))
    judged: list[PeerId] = []

    def seated(lot: str, *, room: int = 64, refused: Sequence[PeerId] = ()) -> list[PeerId]:
        def problem(request: JoinRequest) -> str:
            judged.append(request.peer)
            return "refused" if request.peer in refused else ""

        members = {former, once}
        chosen = seated_first(asking, parent=plan, gone=(), members=members, room=room, lot=lot, problem=problem)
        return [item.peer for item in chosen]

    names = seated("a lot")
    assert len(names) == FIRST_SEATS + 1 and {former, once} < {*names} and names == sorted(names)
    assert sorted(judged) == names, "no more are judged than have seats"
    others = seated("another lot")
    assert {former, once} < {*others} and others != names
    instead = seated("a lot", refused=names[:1])
    assert len(instead) == FIRST_SEATS + 1 and {*names[1:]} < {*instead} and names[0] not in instead
    assert seated("a lot", room=1) == [former]


def test_a_ban_ends_the_seat_and_the_way_back_until_it_is_lifted() -> None:
    ledger = ticketed_ledger()
    agree(ledger, joined=[invited(peer(1)), invited(peer(2))])
    agree(ledger, statements=[statement("ban", peer(1))])
    assert roster_of(ledger.plans[-1]) == (AUTHOR, peer(2))
    assert verdict(ledger, joined=[request(peer(1))]) == "p001 is banned from this run"
    agree(ledger)
    agree(ledger, statements=[statement("unban", peer(1), serial=1)])
    assert verdict(ledger, joined=[request(peer(1))]) == ""


def test_a_peer_is_not_let_in_by_the_plan_that_bans_it() -> None:
    problem = "p001 is banned from this run"
    assert verdict(ticketed_ledger(), joined=[invited(peer(1))], statements=[statement("ban", peer(1))]) == problem


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (statement("ban", peer(1), signer=peer(2)), "is not by a signer of this run"),
        (statement("ban", peer(1), run=Digest("f" * 64)), "is not by a signer of this run"),
        (replace(statement("ban", peer(1)), subject=peer(2)), "is not signed by its signer"),
        (statement("ban", AUTHOR), "is about a signer"),
    ],
)
def test_what_is_no_statement_of_a_signer_is_refused(made: Statement, problem: str) -> None:
    ledger = ticketed_ledger()
    agree(ledger, joined=[invited(peer(3))])
    assert verdict(ledger, statements=[made]).endswith(problem)


def test_a_statement_counts_once() -> None:
    ledger = ticketed_ledger()
    ban = statement("ban", peer(1))
    assert "in order" in verdict(ledger, statements=[ban, ban])
    agree(ledger, statements=[ban])
    agree(ledger, statements=[statement("unban", peer(1), serial=1)])
    assert "is in the ledger already" in verdict(ledger, statements=[ban])


def test_a_shorter_ledger_knows_less() -> None:
    ledger = ticketed_ledger()
    agree(ledger, joined=[invited(peer(1))])
    agree(ledger, joined=[invited(peer(2))], statements=[statement("ban", peer(1))])
    cut = ledger.truncated(ledger.digests[1])
    assert cut.admissions.seats_taken() == {KEY: 1}
    assert not cut.admissions.bans()
    assert ledger.admissions.seats_taken() == {KEY: 2}
    assert list(ledger.admissions.bans()) == [peer(1)]


def test_whoever_holds_the_ledger_sees_that_a_peer_was_let_in_without_a_ticket() -> None:
    ledger = ticketed_ledger()
    first = ledger.plans[0]
    entries = [agree(ledger, joined=[invited(peer(1))])]
    assert verify_ledger(first, entries, decide, verify) == []
    without = replace(entries[0].value, joined=(request(peer(1)),))
    problems = verify_ledger(first, [replace(entries[0], value=without)], decide, verify)
    assert problems == ["round 1: p001 has no invitation"]
