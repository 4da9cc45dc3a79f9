"""Signers that signers add and remove, and their orders, in a ledger that anybody can check."""

from dataclasses import replace

import pytest

from adloco_p2p.core.ledger.validation import verify_ledger
from adloco_p2p.core.model.course import MAX_CHANGES, Settings
from adloco_p2p.core.model.ledger_entry import Statement
from adloco_p2p.core.model.plan import MAX_SIGNERS
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.sim.identities import signed_by, verify
from tests.core.core_values import peer
from tests.core.ledger.test_admission import (
    AUTHOR,
    agree,
    decide,
    invitation,
    invited,
    statement,
    ticketed_ledger,
    verdict,
)

SECOND = peer(5)


def signed(made: Statement, **changes: object) -> Statement:
    unsigned = replace(made, signature="", **changes)  # type: ignore[arg-type]
    return signed_by(unsigned.signer, unsigned)


def order(action: str, *, serial: int = 0, round: int = 0, settings: Settings | None = None) -> Statement:
    return signed(statement(action, PeerId(""), serial=serial), round=round, settings=settings)


def test_after_the_authors_key_is_lost_another_signer_goes_on() -> None:
    ledger = ticketed_ledger()
    entries = [agree(ledger, joined=[invited(peer(1))], statements=[statement("add_signer", SECOND)])]
    assert ledger.plans[-1].signers == (AUTHOR, SECOND)
    theirs = invitation(signer=SECOND, key=PeerId("key of the second signer"))
    entries += [agree(ledger, joined=[invited(peer(2), theirs)])]
    entries += [agree(ledger, statements=[statement("remove_signer", AUTHOR, serial=1, signer=SECOND)])]
    assert ledger.plans[-1].signers == (SECOND,)
    assert verdict(ledger, joined=[invited(peer(3))]) == "the invitation is not by a signer of this run"
    assert verdict(ledger, joined=[invited(peer(3), theirs)]) == ""
    assert verdict(ledger, statements=[statement("ban", peer(1), serial=2)]).endswith("is not by a signer of this run")
    entries += [agree(ledger, statements=[statement("ban", peer(1), serial=2, signer=SECOND)])]
    assert verify_ledger(ledger.plans[0], entries, decide, verify) == []
    forged = replace(entries[0], plan=replace(entries[0].plan, signers=(AUTHOR,)))
    assert verify_ledger(ledger.plans[0], [forged], decide, verify) == ["round 1: the plan is not the one that was voted on"]


def test_an_invitation_of_a_signer_that_this_plan_removes_lets_nobody_in() -> None:
    ledger = ticketed_ledger()
    agree(ledger, statements=[statement("add_signer", SECOND)])
    removal = statement("remove_signer", AUTHOR, serial=1, signer=SECOND)
    problem = "the invitation is not by a signer of this run"
    assert verdict(ledger, joined=[invited(peer(1))], statements=[removal]) == problem


def test_a_signer_that_is_added_again_has_its_invitations_again() -> None:
    """So a key that was stolen must not be."""
    ledger = ticketed_ledger()
    agree(ledger, statements=[statement("add_signer", SECOND)])
    agree(ledger, statements=[statement("remove_signer", AUTHOR, serial=1, signer=SECOND)])
    assert verdict(ledger, joined=[invited(peer(3))]) == "the invitation is not by a signer of this run"
    agree(ledger, statements=[statement("add_signer", AUTHOR, serial=2, signer=SECOND)])
    assert verdict(ledger, joined=[invited(peer(3))]) == ""


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (statement("remove_signer", AUTHOR), "would leave the run without a signer"),
        (statement("remove_signer", SECOND), "is not about a signer"),
        (statement("add_signer", AUTHOR), "is about a signer already"),
        (statement("add_signer", peer(9)), "is about a banned peer"),
        (statement("add_signer", SECOND, signer=SECOND), "is not by a signer of this run"),
        (order("change"), "has settings that do not belong to it, or none"),
        (order("stop", settings=Settings()), "has settings that do not belong to it, or none"),
        (replace(order("stop", round=5), round=4), "is not signed by its signer"),
    ],
)
def test_what_signers_cannot_order_is_refused(made: Statement, problem: str) -> None:
    ledger = ticketed_ledger()
    agree(ledger, joined=[invited(peer(1))], statements=[statement("ban", peer(9), serial=9)])
    assert verdict(ledger, statements=[made]).endswith(problem)


def test_two_signers_that_remove_each_other_leave_one() -> None:
    ledger = ticketed_ledger()
    agree(ledger, statements=[statement("add_signer", SECOND)])
    first = statement("remove_signer", SECOND, serial=1)
    second = statement("remove_signer", AUTHOR, serial=2, signer=SECOND)
    assert verdict(ledger, statements=[first, second]).endswith("is not by a signer of this run")
    agree(ledger, statements=[first])
    assert ledger.plans[-1].signers == (AUTHOR,)


def test_signers_and_changes_to_come_are_bounded() -> None:
    ledger = ticketed_ledger()
    agree(ledger, statements=[statement("add_signer", peer(20 + index), serial=index) for index in range(MAX_SIGNERS - 1)])
    assert verdict(ledger, statements=[statement("add_signer", peer(90), serial=99)]).endswith("more than 16 signers")
    changes = [
        order("change", serial=100 + index, round=50, settings=Settings(learning_rate_factor=0.5))
        for index in range(MAX_CHANGES + 1)
    ]
    assert "more than 16 changes" in verdict(ledger, statements=changes)
    agree(ledger, statements=changes[:-1])
    assert "more than 16 changes" in verdict(ledger, statements=changes[-1:])


def test_a_paused_run_has_no_plan_but_one_that_resumes_it() -> None:
    ledger = ticketed_ledger()
    entries = [agree(ledger, statements=[order("pause", round=2)])]
    assert verdict(ledger) == "the run is paused from round 2 on"
    assert verdict(ledger, joined=[invited(peer(1))]) == "the run is paused from round 2 on"
    entries += [agree(ledger, joined=[invited(peer(1))], statements=[order("resume", serial=1)])]
    assert verdict(ledger) == ""
    assert verify_ledger(ledger.plans[0], entries, decide, verify) == []
    without = replace(entries[1].value, statements=())
    problems = verify_ledger(ledger.plans[0], [entries[0], replace(entries[1], value=without)], decide, verify)
    assert problems == ["round 2: the run is paused from round 2 on"]
