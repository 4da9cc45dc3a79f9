"""Evidence in the ledger: what bans, what does not, and who can be accused at all."""

from dataclasses import replace

import pytest

from adloco_p2p.core.ledger import evidence as evidence_rules
from adloco_p2p.core.ledger.admission import in_order
from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.ledger.validation import verify_ledger
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.ledger_entry import Equivocation, LedgerEntry, Pledge
from adloco_p2p.core.model.plan import roster_of
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.sim.identities import sign, signed_by, verify
from tests.core.core_values import peer
from tests.core.ledger.test_admission import AUTHOR, agree, decide, invited, request, statement, ticketed_ledger, verdict

KEY, A, B = (Digest(letter * 64) for letter in "cab")


def pledge(
    ledger: Ledger, content: Digest, *, by: PeerId | None = None, kind: str = "contribution", key: Digest = KEY, back: int = 0
) -> Pledge:
    """About the plan so many before the newest."""
    plan = ledger.plans[-1 - back]
    unsigned = Pledge(
        kind=kind,  # type: ignore[arg-type]
        peer=by or peer(1),
        plan=canonical.digest(plan),
        round=plan.round,
        key=key,
        content=content,
        signature="",
    )
    return signed_by(unsigned.peer, unsigned)


def evidence(ledger: Ledger, **fields: object) -> Equivocation:
    return Equivocation(first=pledge(ledger, A, **fields), second=pledge(ledger, B, **fields))  # type: ignore[arg-type]


def seated(*, rounds: int = 0) -> tuple[Ledger, list[LedgerEntry]]:
    """The author, and a member."""
    ledger = ticketed_ledger()
    entries = [agree(ledger, joined=[invited(peer(1))])]
    entries += [agree(ledger) for _ in range(rounds)]
    return ledger, entries


@pytest.mark.parametrize("kind", ["contribution", "reduction"])
def test_two_pledges_about_one_thing_end_the_seat_of_their_signer(kind: str) -> None:
    ledger, entries = seated()
    first = ledger.plans[0]
    entries.append(agree(ledger, statements=[evidence(ledger, kind=kind)]))
    assert roster_of(ledger.plans[-1]) == (AUTHOR,)
    assert list(ledger.admissions.bans()) == [peer(1)]
    assert verdict(ledger, joined=[request(peer(1))]) == "p001 is banned from this run"
    assert verify_ledger(first, entries, decide, verify) == []


def test_a_signer_lifts_a_ban_by_evidence_and_the_same_evidence_does_not_count_again() -> None:
    ledger, _ = seated()
    found = evidence(ledger)
    agree(ledger, statements=[found])
    agree(ledger, joined=[], statements=[statement("unban", peer(1), serial=1)])
    assert not ledger.admissions.bans()
    assert "is in the ledger already" in verdict(ledger, statements=[found])


def test_a_lifted_ban_is_not_undone_by_other_evidence_of_what_came_before() -> None:
    """A peer that signed twice once, by an old copy of its directory, did so under several keys: each pair is evidence."""
    ledger, entries = seated()
    first, other = evidence(ledger), evidence(ledger, key=Digest("d" * 64))
    entries.append(agree(ledger, statements=[first]))
    entries.append(agree(ledger, statements=[statement("unban", peer(1), serial=1)]))
    entries.append(agree(ledger, joined=[invited(peer(1))]))
    assert peer(1) in roster_of(ledger.plans[-1])
    assert "is about a plan before a signer lifted that peer's ban" in verdict(ledger, statements=[other])
    entries.append(agree(ledger))
    again = evidence(ledger)
    assert verdict(ledger, statements=[again]) == "", "what it does afterwards counts"
    entries.append(agree(ledger, statements=[again]))
    assert list(ledger.admissions.bans()) == [peer(1)]
    assert verify_ledger(ticketed_ledger().plans[0], entries, decide, verify) == []


def test_a_signer_that_evidence_bans_lifts_the_ban_by_no_statement_of_its_own() -> None:
    """Neither at once, nor through a signer that it adds; another signer lifts it."""
    ledger, _ = seated()
    other = peer(4)
    agree(ledger, statements=[statement("add_signer", other)])
    found = evidence(ledger, by=AUTHOR)
    own = statement("unban", AUTHOR, serial=2)
    helper = statement("add_signer", peer(6), serial=3)
    assert verdict(ledger, statements=[helper]) == "", "before the ban"
    assert verdict(ledger, statements=in_order([found, own])).endswith("another signer can lift a ban by evidence")
    assert verdict(ledger, statements=in_order([found, helper])).endswith("another signer can add one"), "in one plan, too"
    agree(ledger, statements=[found])
    assert verdict(ledger, statements=[own]).endswith("another signer can lift a ban by evidence")
    assert verdict(ledger, statements=[helper]).endswith("another signer can add one")
    lifted = statement("unban", AUTHOR, serial=4, signer=other)
    assert verdict(ledger, statements=[lifted, statement("add_signer", peer(6), serial=5)]) == ""
    agree(ledger, statements=[lifted])
    assert AUTHOR not in ledger.admissions.bans()


def _swapped(ledger: Ledger) -> Equivocation:
    found = evidence(ledger)
    return Equivocation(first=found.second, second=found.first)


def _mixed(ledger: Ledger, **fields: object) -> Equivocation:
    return Equivocation(first=pledge(ledger, A), second=pledge(ledger, B, **fields))  # type: ignore[arg-type]


def _unsigned(ledger: Ledger) -> Equivocation:
    found = evidence(ledger)
    return replace(found, second=replace(found.second, signature=sign(peer(2), found.second.payload)))


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (lambda ledger: Equivocation(first=pledge(ledger, A), second=pledge(ledger, A)), "equal, or not in order"),
        (_swapped, "equal, or not in order"),
        (_unsigned, "is not signed by that peer"),
        (lambda ledger: _mixed(ledger, by=AUTHOR), "about two things"),
        (lambda ledger: _mixed(ledger, kind="reduction"), "about two things"),
        (lambda ledger: _mixed(ledger, key=A), "about two things"),
        (lambda ledger: _mixed(ledger, back=1), "about two things"),
        (lambda ledger: evidence(ledger, by=peer(7)), "had no seat by that plan"),
        (lambda ledger: evidence(ledger, back=1), "had no seat by that plan"),
    ],
    ids=[
        "the same",
        "not in order",
        "forged",
        "two peers",
        "two kinds",
        "two attempts",
        "two plans",
        "a stranger",
        "no member yet",
    ],
)
def test_what_proves_nothing_bans_nobody(made, problem: str) -> None:
    ledger, _ = seated()
    assert problem in verdict(ledger, statements=[made(ledger)])
    assert verdict(ledger, statements=[evidence(ledger)]) == "", "the case differs from sound evidence in one thing"


def test_evidence_names_the_round_of_its_plan() -> None:
    ledger, _ = seated()
    wrong = [replace(made, round=made.round + 1) for made in (pledge(ledger, A), pledge(ledger, B))]
    first, second = (signed_by(made.peer, made) for made in wrong)
    assert "had no seat by that plan" in verdict(ledger, statements=[Equivocation(first=first, second=second)])


def test_old_evidence_and_evidence_of_another_history_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence_rules, "EVIDENCE_ROUNDS", 2)
    ledger, _ = seated(rounds=2)
    assert verdict(ledger, statements=[evidence(ledger, back=1)]) == ""
    assert "none of the last" in verdict(ledger, statements=[evidence(ledger, back=2)])
    other = evidence(ledger)
    other = Equivocation(first=replace(other.first, plan=A), second=replace(other.second, plan=A))
    assert "none of the last" in verdict(ledger, statements=[other])


def test_a_peer_that_is_banned_is_not_banned_once_more() -> None:
    """One entry per seat: a liar cannot fill the ledger with evidence against itself."""
    ledger, _ = seated()
    agree(ledger, statements=[evidence(ledger)])
    other = evidence(ledger, key=A, back=1)
    assert "is banned already" in verdict(ledger, statements=[other])


def test_a_ledger_with_evidence_that_proves_nothing_is_not_sound() -> None:
    ledger, entries = seated()
    genesis = ledger.plans[0]
    last = agree(ledger, statements=[evidence(ledger)])
    forged = _unsigned(seated()[0])
    entries.append(replace(last, value=replace(last.value, statements=(forged,))))
    assert any("is not signed by that peer" in problem for problem in verify_ledger(genesis, entries, decide, verify))
