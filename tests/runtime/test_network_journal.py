"""The consensus' journal: entries are found again, void records are dropped, and what is left means the same."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adloco_p2p.commands.train import is_complete
from adloco_p2p.core.agreement.recovery import COMMIT_VOTES_KEPT, recover
from adloco_p2p.core.ledger.ledger import ENTRIES_KEPT, Ledger, chain
from adloco_p2p.core.ledger.validation import verify_ledger
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.certificate import Ballot, CastVote, Certificate
from adloco_p2p.core.model.events import Durable
from adloco_p2p.core.model.ledger_entry import LedgerEntry, Value, Vote
from adloco_p2p.core.model.messages import (
    MAX_MESSAGE_BYTES,
    NO_AVERAGE,
    Accepted,
    AverageDigest,
    CommitVoted,
    Entries,
    Incarnation,
    Promised,
    Voted,
)
from adloco_p2p.core.model.plan import RosterChange, RoundPlan
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.rules import Rules, WorkRules
from adloco_p2p.core.model.scalars import Digest, InstanceId
from adloco_p2p.core.planning.round_plan import genesis, next_plan
from adloco_p2p.decode import decode as decode_bytes
from adloco_p2p.runtime.adapters import network_journal as journal_room
from adloco_p2p.runtime.adapters.network_journal import NetworkJournal, journal_records, newest_plan
from adloco_p2p.sim.identities import sign, verify
from adloco_p2p.storage.journal import Journal
from tests.core.core_values import RUN, capacity, peer

RULES = Rules(work=WorkRules(rounds=10_000))
ME = peer(0)
GENESIS = genesis(RUN, [(ME, capacity())], RULES)
BALLOT = Ballot(attempt=0, peer=ME)
AVERAGE = AverageDigest(instance=InstanceId(0), round=0, attempt=0, contributors=(), digest=NO_AVERAGE)
ROUNDS = 2 * ENTRIES_KEPT + 5


def decide(parent: RoundPlan, reports: Sequence[Report], change: RosterChange) -> RoundPlan:
    return next_plan(parent, reports, RULES, roster=change)


def entry_after(parent: RoundPlan) -> LedgerEntry:
    """The only member goes on without any report."""
    plan = decide(parent, (), RosterChange())
    value = Value(
        round=plan.round, parent=canonical.digest(parent), reports=(), joined=(), departed=(), plan=canonical.digest(plan)
    )
    vote = Vote(
        peer=ME, parent=value.parent, ballot=BALLOT, absent=(), value=canonical.digest(value), abstains=False, signature=""
    )
    cast = CastVote(peer=ME, abstains=False, signature=sign(ME, vote.payload))
    return LedgerEntry(plan=plan, value=value, reports=(), certificate=Certificate(ballot=BALLOT, absent=(), votes=(cast,)))


def write(journal: NetworkJournal, *, rounds: int, parent: RoundPlan = GENESIS) -> list[LedgerEntry]:
    """What a peer alone writes down, slot by slot; a second ballot in each."""
    entries: list[LedgerEntry] = []
    for _ in range(rounds):
        entry = entry_after(parent)
        journal.append(Promised(parent=entry.value.parent, ballot=BALLOT))
        journal.append(Promised(parent=entry.value.parent, ballot=replace(BALLOT, attempt=1)))
        journal.append(Accepted(ballot=replace(BALLOT, attempt=1), value=entry.value, reports=()))
        journal.append(Voted(parent=entry.value.parent, value=canonical.digest(entry.value)))
        journal.append(CommitVoted(plan=canonical.digest(parent), vote=replace(AVERAGE, round=parent.round)))
        journal.append(entry)
        entries.append(entry)
        parent = entry.plan
    return entries


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(journal_room, "LEAST_BYTES", 1 << 14)
    return tmp_path / "journal.bin"


def meaning(path: Path) -> tuple[Any, ...]:
    """What the next life would make of the journal."""
    opened = Journal.open(path)
    journal = NetworkJournal(opened)
    found = recover(journal.records(), GENESIS, recall=journal.recall)
    opened.close()
    return (
        found.incarnation,
        found.ledger.digests,
        found.ledger.samples,
        found.slots,
        found.commit_votes,
    )


def test_a_finished_directory_whose_ledger_went_over_to_another_history_is_not_complete(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Journal.open(path)
    journal = NetworkJournal(opened)
    first, second, last = write(journal, rounds=3)
    sibling = replace(second, value=replace(second.value, plan=Digest("f" * 64)))
    saved = SimpleNamespace(durable=Durable(round=3, plans=(second.plan, last.plan), held=(), is_finished=True))
    monkeypatch.setattr("adloco_p2p.commands.train._saved", lambda _: saved)
    assert newest_plan(path) == last.value.plan and is_complete(path.parent)
    journal.append(sibling)
    assert newest_plan(path) == sibling.value.plan and not is_complete(path.parent)
    opened.close()

    path.unlink()
    assert is_complete(path.parent), "an offline run has no journal"
    opened = Journal.open(path)
    for entry in (first, second):  # the last one was damaged, and cut off
        NetworkJournal(opened).append(entry)
    assert is_complete(path.parent)
    opened.close()


def test_dropping_void_records_changes_nothing_that_counts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bloated = path.with_name("bloated.bin")
    for place, least in ((path, 1 << 14), (bloated, 1 << 40)):
        monkeypatch.setattr(journal_room, "LEAST_BYTES", least)
        opened = Journal.open(place)
        journal = NetworkJournal(opened)
        for life in (1, 2):
            journal.append(Incarnation(number=life))
        entries = write(journal, rounds=ROUNDS)
        head = canonical.digest(entries[-1].plan)
        journal.append(Promised(parent=head, ballot=BALLOT))
        journal.append(Accepted(ballot=BALLOT, value=replace(entries[-1].value, parent=head), reports=()))
        journal.append(Voted(parent=head, value=head))
        opened.close()
    void = {place: sum(isinstance(record, Promised) for record in journal_records(place)) for place in (path, bloated)}
    assert void[bloated] == 2 * ROUNDS + 1
    assert void[path] <= ROUNDS + 1, "the first half at the least is gone"
    assert meaning(path) == meaning(bloated)
    commit_votes = sum(isinstance(record, CommitVoted) for record in journal_records(path))
    assert len(meaning(path)[-1]) == COMMIT_VOTES_KEPT < commit_votes < ROUNDS, "those of old rounds are dropped"
    votes = [record for record in journal_records(path) if isinstance(record, Voted)]
    assert len(votes) == ROUNDS + 1, "one per slot in a peer's whole life: never forgotten"
    assert verify_ledger(GENESIS, chain(journal_records(path), GENESIS), decide, verify) == []


def test_an_entry_that_came_in_a_message_is_written_down_as_it_came(path: Path) -> None:
    sent = Entries(entries=tuple(write(NetworkJournal(Journal.open(path.with_name("sender"))), rounds=3)))
    received = decode_bytes(Entries, canonical.encode(sent), max_bytes=MAX_MESSAGE_BYTES)
    for entry in received.entries:
        assert canonical.encode(entry) is canonical.encode(entry), "not encoded once more"
    journal = NetworkJournal(Journal.open(path))
    for entry in received.entries:
        journal.append(entry)
    assert journal_records(path) == list(sent.entries)


def test_old_entries_leave_the_memory_and_are_found_again(path: Path) -> None:
    journal = NetworkJournal(Journal.open(path))
    ledger = Ledger(GENESIS, recall=journal.recall)
    for entry in write(journal, rounds=ROUNDS):
        ledger.append(entry)
        ledger.forget_old()
    assert len(ledger.entries) < 2 * ENTRIES_KEPT
    everything = ledger.after(ledger.digests[0], 10 * ROUNDS)
    assert verify_ledger(GENESIS, everything, decide, verify) == []
    assert [entry.value.plan for entry in everything] == ledger.digests[1:]
    assert list(ledger.since(ROUNDS - 1)) == list(everything[-2:])


def test_a_ledger_cut_back_is_the_one_that_was(path: Path) -> None:
    journal = NetworkJournal(Journal.open(path))
    entries = write(journal, rounds=ROUNDS)
    long = Ledger(GENESIS, recall=journal.recall)
    for entry in entries:
        long.append(entry)
        long.forget_old()
    for length in (0, 1, 2, 3, ENTRIES_KEPT, ROUNDS - 1, ROUNDS):
        short = Ledger(GENESIS, recall=journal.recall)
        for entry in entries[:length]:
            short.append(entry)
        cut = long.truncated(long.digests[length])
        for what in ("head", "digests", "samples", "position", "reported"):
            assert getattr(cut, what) == getattr(short, what), (length, what)
    assert cut.members() == short.members()
    following = entry_after(cut.plans[-1])
    cut.append(following)
    assert cut.plans[-1] == following.plan


def test_a_journal_from_before_can_be_taken_up_and_shortened(path: Path) -> None:
    opened = Journal.open(path)
    entries = write(NetworkJournal(opened), rounds=3)
    opened.close()
    opened = Journal.open(path)
    journal = NetworkJournal(opened)
    assert len(list(journal.records())) == 18
    more = write(journal, rounds=ROUNDS, parent=entries[-1].plan)
    assert [journal.recall(entry.value.plan) for entry in (*entries, *more)] == [*entries, *more]
    opened.close()
