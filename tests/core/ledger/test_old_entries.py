"""Old entries: when a newcomer leaves the signatures of reports to the electors that voted, and what no forger gains."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import pytest

from adloco_p2p.core.agreement import ledger_sync
from adloco_p2p.core.agreement.ledger_sync import ROUNDS_VERIFIED_WHOLE
from adloco_p2p.core.agreement.membership import Timing
from adloco_p2p.core.agreement.observer import Observer
from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.ledger.validation import change_of, check_entry, verify_ledger
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.certificate import Ballot
from adloco_p2p.core.model.electorate import electorate
from adloco_p2p.core.model.ledger_entry import (
    Head,
    JoinRequest,
    LedgerEntry,
    SignedReport,
    Statement,
    Value,
    cast_payloads,
)
from adloco_p2p.core.model.messages import Entries, Heartbeat
from adloco_p2p.core.model.plan import RosterChange, RoundPlan, roster_of
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.rules import AdmissionRules, Rules, WorkRules
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.core.planning.round_plan import genesis, next_plan
from adloco_p2p.sim.identities import sign, signed_by, verify
from adloco_p2p.sim.synthetic_reports import certificate_of
from adloco_p2p.sim.votes import votes_in
from tests.core.core_values import RUN, capacity, peer
from tests.core.planning.test_round_plan import honest_reports

RULES = Rules(work=WorkRules(rounds=200), admission=AdmissionRules(kind="open"))
SERVER, OTHER = PeerId("server"), PeerId("other")
ALL = tuple(peer(index) for index in range(4))
MAJORITY = ALL[:3]
AUTHOR = ALL[0]
Forge = Callable[[SignedReport], SignedReport]


def decide(parent: RoundPlan, reports: Sequence[Report], change: RosterChange) -> RoundPlan:
    return next_plan(parent, reports, RULES, roster=change)


def signed(report: Report) -> SignedReport:
    return signed_by(report.peer, SignedReport(report=report, signature=""))


def unsigned(one: SignedReport) -> SignedReport:
    """A report that its author did not sign."""
    return replace(one, signature=sign(PeerId("forger"), one.payload))


class History:
    """A ledger that a test writes; all members report."""

    def __init__(self, members: Sequence[PeerId] = ALL) -> None:
        self.first = genesis(RUN, [(name, capacity()) for name in members], RULES, signers=[AUTHOR])
        self.entries: dict[Digest, LedgerEntry] = {}
        self.ledger = Ledger(self.first, recall=self.entries.__getitem__)

    @property
    def all(self) -> list[LedgerEntry]:
        return list(self.ledger.between(1, len(self.ledger.digests)))

    def append(self, entry: LedgerEntry) -> LedgerEntry:
        self.entries[entry.value.plan] = entry
        self.ledger.append(entry)
        return entry

    def grow(self, rounds: int) -> "History":
        for _ in range(rounds):
            self.append(self.entry(electorate(self.ledger.plans[-1])))
        return self

    def entry(
        self,
        voters: Collection[PeerId] = MAJORITY,
        *,
        absent: Collection[PeerId] = (),
        joined: Sequence[JoinRequest] = (),
        statements: Sequence[Statement] = (),
        forge: Forge = lambda one: one,
        abstaining: Collection[PeerId] = (),
    ) -> LedgerEntry:
        """The next one; `absent` lose their seats."""
        parent, reported = self.ledger.plans[-1], self.ledger.reported
        told = [signed(report) for report in honest_reports(reported)] if reported is not None else []
        reports = tuple(forge(one) for one in told)
        value = Value(
            round=parent.round + 1,
            parent=self.ledger.digests[-1],
            reports=tuple(canonical.digest(one) for one in reports),
            joined=tuple(joined),
            departed=tuple(sorted(set(absent) & set(roster_of(parent)))),
            plan=Digest(""),
            statements=tuple(statements),
        )
        plain = tuple(one.report for one in reports)
        plan = decide(parent, plain, change_of(value, plain, self.ledger, verify))
        value = replace(value, plan=canonical.digest(plan))
        certificate = certificate_of(
            sorted(voters),
            (value.parent, canonical.digest(value)),
            ballot=Ballot(attempt=0, peer=min(voters)),
            absent=tuple(sorted(absent)),
            abstaining=abstaining,
        )
        return LedgerEntry(plan=plan, value=value, reports=reports, certificate=certificate)

    def problem(self, entry: LedgerEntry, *, is_old: bool, is_audit: bool = False) -> str:
        return check_entry(entry, ledger=self.ledger, decide=decide, verify=verify, is_old=is_old, is_audit=is_audit)


class Counting:
    """Checks signatures and counts those of each kind."""

    def __init__(self) -> None:
        self.kinds: list[str] = []

    def __call__(self, author: PeerId, content: bytes, signature: str) -> bool:
        self.kinds.append(content.split(b'"')[1].decode())
        return verify(author, content, signature)


def reader_of(history: History, check: Callable[[PeerId, bytes, str], bool] = verify) -> Observer:
    return Observer(history.first, decide=decide, verify=check, contacts=(SERVER,), timing=Timing())


def announce(reader: Observer, round: int, *, sender: PeerId = SERVER, digest: str = "ff" * 32, now: float = 0.0) -> None:
    head = Head(round=round, digest=Digest(digest), samples=0)
    reader.receive(sender, Heartbeat(beat=1, roster=Digest("ff" * 32), heard=(), head=head, have=0), now)


def read(reader: Observer, entries: Sequence[LedgerEntry], *, sender: PeerId = SERVER, now: float = 0.0) -> Observer:
    """One entry per message, as where rosters are large."""
    for entry in entries:
        reader.receive(sender, Entries(entries=(entry,)), now)
    return reader


# --- what is left to the electors ------------------------------------------------------------------------------------


def test_of_an_old_entry_with_a_majority_every_signature_but_those_of_reports_is_checked() -> None:
    history = History().grow(2)
    request = asking(history, PeerId("newcomer"))
    entry = history.entry(joined=[request], statements=[statement()])
    for is_old in (False, True):
        check = Counting()
        assert check_entry(entry, ledger=history.ledger, decide=decide, verify=check, is_old=is_old) == ""
        expected = {"vote": 3, "join": 1, "statement": 1} | ({} if is_old else {"report": 4})
        assert {kind: check.kinds.count(kind) for kind in check.kinds} == expected


def test_the_last_rounds_of_the_longest_ledger_are_verified_whole() -> None:
    history = History().grow(ROUNDS_VERIFIED_WHOLE + 5)
    check = Counting()
    reader = reader_of(history, check)
    announce(reader, ROUNDS_VERIFIED_WHOLE + 5)
    read(reader, history.all)
    assert reader.ledger.digests == history.ledger.digests
    assert check.kinds.count("report") == 4 * ROUNDS_VERIFIED_WHOLE - 4 + 4  # rounds 6 to 37
    assert check.kinds.count("vote") == 4 * (ROUNDS_VERIFIED_WHOLE + 5)


def test_where_no_peer_has_named_an_end_everything_is_verified() -> None:
    history = History().grow(6)
    check = Counting()
    read(reader_of(history, check), history.all)
    assert check.kinds.count("report") == 4 * 5


def test_an_end_that_a_peer_takes_back_makes_no_entry_old() -> None:
    history = History().grow(3)
    reader = reader_of(history)
    announce(reader, 1000)
    announce(reader, 4)
    read(reader, [*history.all, history.entry(forge=unsigned)])
    assert reader.ledger.digests == history.ledger.digests


# --- what no minority gains ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("voters", "options"),
    [
        (ALL[:2], {}),
        (ALL[:2], {"absent": ALL[2:3]}),
        (ALL[:1], {"absent": ALL[1:]}),
        (ALL, {"abstaining": ALL[2:]}),
        (ALL[:3], {"abstaining": ALL[2:3]}),
    ],
    ids=["half", "half and an absent one", "one alone", "half abstains", "abstentions are no votes"],
)
def test_without_the_votes_of_more_than_half_of_all_electors_reports_are_checked(voters, options) -> None:
    history = History().grow(2)
    sound = history.entry(voters, **options)
    assert history.problem(sound, is_old=True) == history.problem(sound, is_old=False)
    forged = history.entry(voters, forge=unsigned, **options)
    assert "is not signed by that peer" in history.problem(forged, is_old=True, is_audit=True)
    without = history.problem(sound, is_old=True)
    wrong = history.problem(forged, is_old=True)
    assert wrong == without if without else "is not signed by that peer" in wrong


def test_no_report_is_looked_at_before_the_votes() -> None:
    """Anybody can make up an entry, and its reports cost far more than its votes."""
    history = History().grow(2)
    counting = Counting()
    entry = history.entry(ALL[:2], forge=unsigned)
    assert "no majority" in check_entry(entry, ledger=history.ledger, decide=decide, verify=counting)
    assert set(counting.kinds) == {"vote"}


def test_a_vote_that_its_elector_did_not_sign_makes_no_majority() -> None:
    history = History().grow(2)
    forged = history.entry(forge=unsigned)
    votes = forged.certificate.votes
    spoilt = (*votes[:2], replace(votes[2], signature=votes[1].signature))
    entry = replace(forged, certificate=replace(forged.certificate, votes=spoilt))
    assert "not signed by that peer" in history.problem(entry, is_old=True)
    doubled = (*votes[:2], votes[1])
    entry = replace(forged, certificate=replace(forged.certificate, votes=doubled))
    assert "the report of" in history.problem(entry, is_old=True, is_audit=True)
    assert history.problem(entry, is_old=True)


def test_members_on_probation_are_no_majority() -> None:
    history = History(ALL).grow(32)
    newcomers = [PeerId(f"newcomer{index}") for index in range(6)]
    history.append(history.entry(ALL, joined=[asking(history, name) for name in newcomers]))
    history.grow(3)
    assert electorate(history.ledger.plans[-1]) == ALL
    forged = history.entry(newcomers, absent=ALL, forge=unsigned)
    assert "is not signed by that peer" in history.problem(forged, is_old=True)
    beside = history.entry([*ALL[:2], *newcomers], forge=unsigned)
    assert history.problem(beside, is_old=True)
    assert "is not signed by that peer" in history.problem(beside, is_old=True, is_audit=True)


def test_who_decided_alone_before_the_swarm_grew_vouches_for_nothing_afterwards() -> None:
    """One founder; the others join, and decide with it after a few rounds."""
    history = History(ALL[:1]).grow(1)
    history.append(history.entry(ALL[:1], joined=[asking(history, name) for name in ALL[1:]]))
    alone = history.entry(ALL[:1], forge=unsigned)
    history.grow(4)
    assert electorate(history.ledger.plans[-1]) == ALL
    for voters in (ALL[:1], ALL[:2]):
        forged = history.entry(voters, absent=ALL[len(voters) :], forge=unsigned)
        assert "is not signed by that peer" in history.problem(forged, is_old=True)
    assert history.problem(alone, is_old=True) == "it does not follow its parent"


@pytest.mark.parametrize("is_old", [False, True])
def test_what_takes_or_gives_a_seat_is_checked_whoever_voted_for_it(is_old: bool) -> None:
    history = History().grow(2)
    request, order = asking(history, PeerId("newcomer")), statement()
    assert history.problem(history.entry(ALL, joined=[request], statements=[order]), is_old=is_old) == ""
    for what in ({"joined": [replace(request, signature="00")]}, {"statements": [replace(order, signature="00")]}):
        assert "is not signed by" in history.problem(history.entry(ALL, **what), is_old=is_old)


# --- relays ----------------------------------------------------------------------------------------------------------


def test_a_relay_changes_no_byte_of_an_entry_that_a_majority_voted_for() -> None:
    """Neither what is checked nor what is left to the electors: the votes bind every byte but their own."""
    history = History().grow(2)
    entry = history.entry(joined=[asking(history, PeerId("newcomer"))], statements=[statement()])
    report, cast = entry.reports[0], entry.certificate.votes[0]
    more = replace(report.report, capacity=capacity(speed=77.0))
    changed = [
        replace(entry, reports=(unsigned(report), *entry.reports[1:])),
        replace(entry, reports=(replace(report, report=more), *entry.reports[1:])),
        replace(entry, reports=entry.reports[1:]),
        replace(entry, value=replace(entry.value, joined=())),
        replace(entry, value=replace(entry.value, statements=())),
        replace(entry, plan=replace(entry.plan, reason="other")),
        replace(
            entry, certificate=replace(entry.certificate, votes=(replace(cast, signature="00"), *entry.certificate.votes[1:]))
        ),
        replace(entry, certificate=replace(entry.certificate, ballot=Ballot(attempt=1, peer=ALL[0]))),
    ]
    for is_old in (False, True):
        assert history.problem(entry, is_old=is_old) == ""
        assert all(history.problem(other, is_old=is_old) for other in changed)


def test_what_a_reader_takes_up_and_hands_on_is_sound_whatever_it_was_offered() -> None:
    """A relay spoils each entry in one way or another; a second reader reads from the first one."""
    history = History().grow(30)
    reader = reader_of(history)
    announce(reader, 1000)
    announce(reader, 1000, sender=OTHER)
    for entry in history.all:
        votes = entry.certificate.votes
        spoilt = [
            replace(entry, certificate=replace(entry.certificate, votes=(*votes[:-1], replace(votes[-1], signature="00")))),
            *([replace(entry, reports=(unsigned(entry.reports[0]), *entry.reports[1:]))] if entry.reports else []),
        ]
        read(reader, spoilt)
        read(reader, [entry], sender=OTHER)
    first = list(reader.ledger.between(1, len(reader.ledger.digests)))
    assert first == history.all
    second = reader_of(history)
    announce(second, 1000)
    read(second, first)
    assert list(second.ledger.between(1, 31)) == history.all
    assert verify_ledger(history.first, history.all, decide, verify) == []


def test_a_stream_of_junk_holds_up_nobody() -> None:
    """Of a peer that names an end far ahead, entries with the votes of two strangers; the honest ones are taken at once."""
    history, junk = History().grow(20), History((PeerId("stranger1"), PeerId("stranger2"))).grow(20)
    reader = reader_of(history)
    announce(reader, 10_000)
    for number, entry in enumerate(history.all):
        announce(reader, 10_000 + number)
        read(reader, [replace(junk.all[number], value=replace(junk.all[number].value, parent=entry.value.parent))])
        read(reader, [entry], sender=OTHER)
        assert reader.ledger.digests[-1] == entry.value.plan


# --- two histories ---------------------------------------------------------------------------------------------------


def test_another_history_than_ones_own_is_verified_whole() -> None:
    """It would win; and does, where its reports are signed."""
    own = History().grow(3)
    own.append(own.entry(ALL[3:], absent=ALL[:3]))
    for forge, is_taken in ((unsigned, False), (lambda one: one, True)):
        reader, other = reader_of(own), History().grow(3)
        other.append(other.entry(ALL[:3], absent=ALL[3:], forge=forge))
        for history, sender in ((own, SERVER), (other, OTHER)):
            announce(reader, 1000, sender=sender)
            read(reader, history.all, sender=sender)
            announce(reader, 1000, sender=sender, digest=history.ledger.digests[-1])
        assert (reader.ledger.digests == other.ledger.digests) is is_taken


@pytest.mark.parametrize("is_minority_first", [True, False])
def test_the_majoritys_history_wins_whichever_a_newcomer_reads_first(is_minority_first: bool) -> None:
    """They parted after round 3; the minority's is longer. The members of both live, and have told their ends."""
    common = 3
    majority, minority = History().grow(common), History().grow(common)
    majority.append(majority.entry(ALL[:3], absent=ALL[3:]))
    majority.grow(4)
    minority.append(minority.entry(ALL[3:], absent=ALL[:3]))
    minority.grow(20)
    histories = [(minority, SERVER), (majority, OTHER)]
    reader = reader_of(majority)
    for history, sender in histories if is_minority_first else reversed(histories):
        head = history.ledger.head
        announce(reader, head.round + ROUNDS_VERIFIED_WHOLE, sender=sender)
        read(reader, history.all, sender=sender)
        announce(reader, head.round, sender=sender, digest=head.digest)
    assert reader.ledger.digests == majority.ledger.digests


# --- what a majority of the electors can do ----------------------------------------------------------------------------


def test_a_majority_of_the_electors_can_invent_old_reports_and_verifying_the_ledger_shows_it(monkeypatch) -> None:
    monkeypatch.setattr(ledger_sync, "ROUNDS_VERIFIED_WHOLE", 8)
    history = History().grow(3)
    history.append(history.entry(MAJORITY, forge=unsigned))
    for length, is_taken in ((7, False), (8, True)):
        reader = reader_of(history)
        announce(reader, 4 + length)
        read(reader, history.all)
        assert (reader.ledger.digests == history.ledger.digests) is is_taken
    assert verify_ledger(history.first, history.all, decide, verify) == [
        f"round 4: the report of {ALL[0]} is not signed by that peer"
    ]


# --- parts -------------------------------------------------------------------------------------------------------------


def asking(history: History, name: PeerId) -> JoinRequest:
    round = history.ledger.plans[-1].round
    return signed_by(name, JoinRequest(peer=name, run=RUN, capacity=capacity(), beat=1, round=round, signature=""))


def statement() -> Statement:
    return signed_by(AUTHOR, Statement(run=RUN, signer=AUTHOR, serial=1, action="add_signer", subject=ALL[1], signature=""))


def test_a_vote_of_a_certificate_is_checked_as_its_voter_signed_it() -> None:
    entry = History().grow(2).entry(MAJORITY[:2], absent=ALL[2:], abstaining=MAJORITY[:1])
    parent, value = entry.value.parent, canonical.digest(entry.value)
    votes = votes_in(entry.certificate, (parent, value))
    assert [vote.abstains for vote in votes] == [True, False]
    assert list(cast_payloads(entry.certificate, parent=parent, value=value)) == [vote.payload for vote in votes]
