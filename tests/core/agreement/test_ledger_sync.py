"""Entries for others: once per peer and period, members before strangers, as many bytes as a message should have."""

from dataclasses import replace

import pytest

from adloco_p2p.core.agreement import ledger_sync
from adloco_p2p.core.agreement.entry_donors import MAX_REMEMBERED, NEAR_ROUNDS
from adloco_p2p.core.agreement.ledger_sync import STRANGERS_PER_PERIOD, LedgerExchange
from adloco_p2p.core.ledger.fork_choice import CandidateChain
from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.certificate import Ballot, CastVote, Certificate
from adloco_p2p.core.model.ledger_entry import LedgerEntry, Value
from adloco_p2p.core.model.messages import Entries, PullEntries
from adloco_p2p.core.model.plan import RosterChange, roster_of
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.sim.identities import verify
from tests.core.agreement.test_consensus import decide, first_plan
from tests.core.core_values import peer

MEMBER = peer(0)
PERIOD = 1.0


def ledger_of(length: int) -> Ledger:
    """Nobody checks its votes here."""
    ledger = Ledger(first_plan(3), recall=dict[Digest, LedgerEntry]().__getitem__)
    for _ in range(length):
        parent = ledger.plans[-1]
        plan = decide(parent, (), RosterChange())
        digest = canonical.digest(plan)
        value = Value(round=plan.round, parent=ledger.digests[-1], reports=(), joined=(), departed=(), plan=digest)
        certificate = Certificate(ballot=Ballot(attempt=0, peer=MEMBER), absent=(), votes=())
        ledger.append(LedgerEntry(plan=plan, value=value, reports=(), certificate=certificate))
    return ledger


def voted_by(*names: PeerId, absent: tuple[PeerId, ...] = ()) -> Certificate:
    votes = tuple(CastVote(peer=name, abstains=False, signature="") for name in names)
    return Certificate(ballot=Ballot(attempt=0, peer=names[0]), absent=absent, votes=votes)


def exchange() -> LedgerExchange:
    return LedgerExchange(decide, verify, period_seconds=PERIOD)


def served(by: LedgerExchange, ledger: Ledger, name: PeerId, now: float) -> int:
    """How many entries a peer that knows only the first plan is sent."""
    sends = by.answer(ledger, name, PullEntries(locator=(ledger.digests[0],)), now=now)
    return sum(len(send.message.entries) for send in sends if isinstance(send.message, Entries))


def test_a_peer_that_asks_200_times_in_a_period_is_answered_once() -> None:
    ledger, by = ledger_of(3), exchange()
    assert [served(by, ledger, MEMBER, now / 200) for now in range(200)] == [3] + [0] * 199
    assert served(by, ledger, MEMBER, PERIOD) == 3


def test_heartbeats_and_pulls_share_the_turn() -> None:
    ledger, by = ledger_of(3), exchange()
    assert by.serve(ledger, MEMBER, after=ledger.digests[1], now=0.0)
    assert served(by, ledger, MEMBER, 0.1) == 0


def test_who_has_everything_uses_up_no_turn() -> None:
    ledger, by = ledger_of(3), exchange()
    assert by.serve(ledger, MEMBER, after=ledger.digests[-1], now=0.0) == []
    assert served(by, ledger, MEMBER, 0.0) == 3


def test_strangers_share_a_cap_and_members_are_served_beside_them() -> None:
    ledger, by = ledger_of(2), exchange()
    answers = [served(by, ledger, PeerId(f"stranger{number}"), 0.5) for number in range(100)]
    assert answers == [2] * STRANGERS_PER_PERIOD + [0] * (100 - STRANGERS_PER_PERIOD)
    assert [served(by, ledger, peer(index), 0.5) for index in range(3)] == [2, 2, 2]
    assert served(by, ledger, PeerId("late"), 0.5 + PERIOD) == 2


def test_a_refused_question_costs_no_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, by = ledger_of(2), exchange()
    assert served(by, ledger, MEMBER, 0.0) == 2

    def between(*_: object) -> None:
        raise AssertionError("the journal was read for an answer that is not sent")

    monkeypatch.setattr(Ledger, "between", between)
    assert served(by, ledger, MEMBER, 0.1) == 0


def test_entries_in_one_message_are_counted_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = ledger_of(6)
    sizes = [canonical.size(entry) for entry in ledger.entries]
    monkeypatch.setattr(ledger_sync, "ENTRIES_BYTES", sum(sizes[:3]))
    assert served(exchange(), ledger, MEMBER, 0.0) == 3
    monkeypatch.setattr(ledger_sync, "ENTRIES_BYTES", sum(sizes[:3]) - 1)
    assert served(exchange(), ledger, MEMBER, 0.0) == 2
    monkeypatch.setattr(ledger_sync, "ENTRIES_BYTES", 1)
    assert served(exchange(), ledger, MEMBER, 0.0) == 1, "an entry of any size is sent"


def test_who_was_served_is_remembered_of_so_many() -> None:
    ledger, by = ledger_of(1), exchange()
    for number in range(MAX_REMEMBERED + 100):
        by.serve(ledger, PeerId(f"stranger{number}"), after=ledger.digests[0], now=10.0 * number)
        by.ask_for_help(ledger, PeerId(f"stranger{number}"), now=10.0 * number)
    assert len(by._served) == len(by._asked) == MAX_REMEMBERED
    assert len(by._strangers_served) <= STRANGERS_PER_PERIOD


def test_a_peer_that_knows_nothing_of_us_gets_nothing() -> None:
    ledger, by = ledger_of(2), exchange()
    assert by.answer(ledger, MEMBER, PullEntries(locator=(Digest("0" * 64),)), now=0.0) == []


class Newcomer:
    """Owns a ledger that follows everything."""

    def __init__(self, first: Ledger) -> None:
        self.ledger = Ledger(first.plans[0], recall=dict[Digest, LedgerEntry]().__getitem__)

    def follow_entry(self, entry: LedgerEntry, now: float) -> bool:
        self.ledger.append(entry)
        return True

    def follow_reorg(self, other: Ledger, now: float) -> None:
        raise AssertionError("there is one history")


def test_of_five_that_are_far_ahead_one_is_asked_and_another_when_it_is_silent() -> None:
    ledger = ledger_of(8)
    newcomer, by = Newcomer(ledger), exchange()
    sends = [by.announced(newcomer, peer(index), ledger.head, now=index / 10) for index in range(5)]
    assert [len(each) for each in sends] == [1, 0, 0, 0, 0] and sends[0][0].peer == peer(0)
    assert by.pull_next(newcomer.ledger, now=0.9) == []
    (second,) = by.pull_next(newcomer.ledger, now=1.5)
    assert second.peer == peer(4), "the one that was heard last"


def test_of_many_that_are_a_little_ahead_some_are_asked_and_a_false_end_takes_no_ones_place() -> None:
    ledger = ledger_of(NEAR_ROUNDS)
    newcomer, by = Newcomer(ledger), exchange()
    false = replace(ledger.head, digest=Digest("e" * 64))
    assert by.announced(newcomer, peer(99), false, now=0.0)
    pulled = [number for number in range(20) if by.announced(newcomer, peer(10 + number), ledger.head, now=number / 20)]
    assert pulled == [0, 10]


def test_once_an_answer_is_there_the_next_donor_is_asked_for_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CandidateChain, "is_wrong", lambda *_, **__: False)  # nobody checks these votes
    ledger = ledger_of(8)
    newcomer, by = Newcomer(ledger), exchange()
    for index in range(2):
        by.announced(newcomer, peer(index), ledger.head, now=0.0)
    (more,) = by.follow(newcomer, peer(0), ledger.entries[:3], now=0.5)
    assert more.peer == peer(1) and isinstance(more.message, PullEntries)
    assert more.message.locator[0] == ledger.digests[3]
    assert by.ask_for_help(newcomer.ledger, peer(0), now=0.6) == [], "the answer of the other one is awaited"
    assert by.follow(newcomer, peer(1), ledger.entries[:3], now=0.7) == [], "nothing new: it waits for the next period"


def test_a_donor_that_sends_one_entry_each_time_comes_after_one_that_takes_longer_and_sends_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CandidateChain, "is_wrong", lambda *_, **__: False)  # nobody checks these votes
    ledger = ledger_of(12)
    monkeypatch.setattr(ledger_sync, "ENTRIES_BYTES", sum(map(canonical.size, ledger.entries[:4])))
    newcomer, by = Newcomer(ledger), exchange()
    by.announced(newcomer, peer(0), ledger.head, now=0.0)
    by.announced(newcomer, peer(1), ledger.head, now=0.0)
    by.follow(newcomer, peer(0), ledger.entries[:1], now=0.3)
    assert by.follow(newcomer, peer(1), ledger.entries[1:5], now=0.8) == [], "both rest"
    (next_one,) = by.pull_next(newcomer.ledger, now=2.0)
    assert next_one.peer == peer(1)


def test_an_entry_that_its_electors_do_not_prefer_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger can make one up about any old plan, with as many votes as it likes to claim but those of the electors."""
    ledger, by = ledger_of(4), exchange()
    names = roster_of(ledger.plan(1))
    ledger.entries[1] = replace(ledger.entries[1], certificate=voted_by(*names))
    owner = Newcomer(ledger)
    owner.ledger = ledger
    own = ledger.entries[1]
    forged = replace(own, plan=replace(own.plan, reason="forged"), certificate=voted_by(*names[:1], absent=names[1:]))
    forged = replace(forged, value=replace(own.value, plan=canonical.digest(forged.plan)))

    def check(*_: object, **__: object) -> bool:
        raise AssertionError("the entry was checked")

    monkeypatch.setattr(CandidateChain, "is_wrong", check)
    assert by.follow(owner, PeerId("stranger"), [forged], now=0.0) == []
    with pytest.raises(AssertionError, match="was checked"):
        by.follow(owner, PeerId("stranger"), [replace(forged, certificate=voted_by(*names))], now=0.0)
