"""Old entries that are taken up by their hashes: for what votes, what is verified all the same, and what no forger gains."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import pytest

from adloco_p2p.core.agreement.membership import Timing
from adloco_p2p.core.agreement.observer import Observer
from adloco_p2p.core.ledger import fork_choice, vouching
from adloco_p2p.core.ledger.fork_choice import verdict
from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.ledger.validation import binding_problem, change_of, check_entry, verify_ledger
from adloco_p2p.core.ledger.vouching import STRETCH, Stretch
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.certificate import Ballot, CastVote, Certificate
from adloco_p2p.core.model.events import Send
from adloco_p2p.core.model.ledger_entry import Head, JoinRequest, LedgerEntry, SignedReport, Value, Vote
from adloco_p2p.core.model.messages import Entries, Heartbeat, PullEntries
from adloco_p2p.core.model.plan import RosterChange, RoundPlan, roster_of
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.rules import Rules, WorkRules
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.core.planning.round_plan import genesis, next_plan
from tests.core.agreement.test_consensus import sign, verify
from tests.core.core_values import RUN, capacity, peer
from tests.core.planning.test_round_plan import honest_reports

RULES = Rules(work=WorkRules(rounds=200))
ME = PeerId("reader")
SERVER = PeerId("server")
ALL = tuple(peer(index) for index in range(5))


def decide(parent: RoundPlan, reports: Sequence[Report], change: RosterChange) -> RoundPlan:
    return next_plan(parent, reports, RULES, roster=change)


def signed(report: Report) -> SignedReport:
    unsigned = SignedReport(report=report, signature="")
    return replace(unsigned, signature=sign(report.peer, unsigned.payload))


class History:
    """A ledger that a test writes: honest by default, all five report and vote."""

    def __init__(self, entries: Sequence[LedgerEntry] = ()) -> None:
        self.entries: dict[Digest, LedgerEntry] = {}
        self.ledger = Ledger(genesis(RUN, [(name, capacity()) for name in ALL], RULES), recall=self.entries.__getitem__)
        for entry in entries:
            self.append(entry)

    @property
    def all(self) -> list[LedgerEntry]:
        return list(self.ledger.between(1, len(self.ledger.digests)))

    def append(self, entry: LedgerEntry) -> None:
        self.entries[entry.value.plan] = entry
        self.ledger.append(entry)

    def grow(self, rounds: int, voters: Collection[PeerId] = ALL, **how: object) -> "History":
        for _ in range(rounds):
            self.append(self.entry(voters, **how))  # type: ignore[arg-type]
        return self

    def entry(
        self,
        voters: Collection[PeerId] = ALL,
        *,
        absent: Collection[PeerId] = (),
        joined: Sequence[JoinRequest] = (),
        forge: Callable[[Sequence[SignedReport]], Sequence[SignedReport]] = tuple,
        abstaining: Collection[PeerId] = (),
    ) -> LedgerEntry:
        """The next one; `absent` lose their seats, and `forge` makes other reports of the honest ones."""
        parent, reported = self.ledger.plans[-1], self.ledger.reported
        told = [signed(report) for report in honest_reports(reported)] if reported is not None else []
        reports = tuple(forge([one for one in told if one.report.peer not in absent]))
        value = Value(
            round=parent.round + 1,
            parent=self.ledger.digests[-1],
            reports=tuple(canonical.digest(one) for one in reports),
            joined=tuple(joined),
            departed=tuple(sorted(set(absent) & set(roster_of(parent)))),
            plan=Digest(""),
        )
        plain = tuple(one.report for one in reports)
        plan = decide(parent, plain, change_of(value, plain, self.ledger, verify))
        value = replace(value, plan=canonical.digest(plan))
        certificate = certified(value, voters, absent=absent, abstaining=abstaining)
        return LedgerEntry(plan=plan, value=value, reports=reports, certificate=certificate)


def certified(
    value: Value, voters: Collection[PeerId], *, absent: Collection[PeerId] = (), abstaining: Collection[PeerId] = ()
) -> Certificate:
    ballot, casts = Ballot(attempt=0, peer=min(voters)), []
    for name in sorted(voters):
        vote = Vote(
            peer=name,
            parent=value.parent,
            ballot=ballot,
            absent=tuple(sorted(absent)),
            value=canonical.digest(value),
            abstains=name in abstaining,
            signature="",
        )
        casts.append(CastVote(peer=name, abstains=vote.abstains, signature=sign(name, vote.payload)))
    return Certificate(ballot=ballot, absent=tuple(sorted(absent)), votes=tuple(casts))


class Counting:
    """Checks signatures and counts them."""

    def __init__(self) -> None:
        self.checked: list[tuple[PeerId, bytes]] = []

    def __call__(self, author: PeerId, content: bytes, signature: str) -> bool:
        self.checked.append((author, content))
        return verify(author, content, signature)

    def num(self, kind: str) -> int:
        return sum(content.startswith(f'["{kind}"'.encode()) for _, content in self.checked)


def reader_of(check: Callable[[PeerId, bytes, str], bool] = verify) -> Observer:
    first = genesis(RUN, [(name, capacity()) for name in ALL], RULES)
    return Observer(first, decide=decide, verify=check, contacts=(SERVER,), timing=Timing())


def announce(reader: Observer, head: Head, *, sender: PeerId = SERVER, now: float = 0.0) -> list[Send]:
    beat = Heartbeat(beat=1, roster=canonical.digest(reader.ledger.plans[0]), heard=(), head=head, have=0)
    return reader.receive(sender, beat, now)


def read(reader: Observer, entries: Sequence[LedgerEntry], *, now: float = 0.0, head: Head | None = None) -> Observer:
    """One entry per message, as where rosters are large, of a server that named the end of its ledger."""
    end = entries[-1]
    announce(reader, head or Head(round=end.plan.round, digest=end.value.plan, samples=0), now=now)
    for entry in entries:
        reader.receive(SERVER, Entries(entries=(entry,)), now)
    return reader


def invented(reports: Sequence[SignedReport]) -> Sequence[SignedReport]:
    """The first report in its author's name, of a speed that it never claimed, without its signature."""
    first, *others = reports
    return (replace(first, report=replace(first.report, capacity=capacity(speed=99.0))), *others)


# --- what is verified and what is not --------------------------------------------------------------------------------


def test_of_old_entries_a_majority_of_the_votes_is_checked_and_of_new_ones_everything() -> None:
    honest, check = History().grow(4 * STRETCH), Counting()
    reader = read(reader_of(check), honest.all)
    assert reader.ledger.digests == honest.ledger.digests and reader.ledger.samples == honest.ledger.samples
    stretches = 3
    verified = 4 * STRETCH - stretches * (STRETCH - 1)
    assert STRETCH < verified < 2 * STRETCH
    assert check.num("report") == 5 * verified
    assert check.num("vote") == 5 * verified + 3 * stretches
    assert verify_ledger(reader.ledger.plans[0], honest.all, decide, check) == []
    assert check.num("report") == 5 * verified + 5 * (4 * STRETCH - 1), "the audit checks everything"


def test_a_peer_that_is_a_little_behind_verifies_everything_at_once() -> None:
    honest, check = History().grow(STRETCH), Counting()
    reader = reader_of(check)
    for number, entry in enumerate(honest.all, start=1):
        read(reader, [entry])
        assert len(reader.ledger.digests) == number + 1
    assert check.num("report") == 5 * (STRETCH - 1) and check.num("vote") == 5 * STRETCH


def test_votes_of_several_certificates_count_together() -> None:
    """As churn leaves them: no certificate has the votes of more than half of those that were electors before."""
    parts = (ALL[:2], ALL[2:4], ALL[4:])
    split = History()
    for number in range(STRETCH):
        split.append(split.entry(parts[number % 3]))
    stretch = Stretch(verify)
    assert all(stretch.extend(reader_of().ledger, entry) for entry in split.all)
    assert stretch.pop_vouched(reader_of().ledger) == split.all[:-2], "the last two entries have three voters"


def test_entries_wait_for_no_peer_that_is_gone() -> None:
    honest = History().grow(STRETCH + 4)
    head, middle = honest.ledger.head, honest.all[5]
    reader = read(reader_of(), honest.all[:10], head=replace(head, round=10**6))
    assert len(reader.ledger.digests) == 1, "more is to come"
    known = Head(round=middle.plan.round, digest=middle.value.plan, samples=0)
    assert announce(reader, known, sender=peer(1)) == []
    assert reader.ledger.digests == honest.ledger.digests[:11]

    reader = read(reader_of(), honest.all[:10], head=replace(head, round=10**6))
    (pull,) = announce(reader, head, sender=peer(1))
    assert isinstance(pull.message, PullEntries) and pull.message.locator[0] == honest.ledger.digests[10]
    reader.receive(peer(1), Entries(entries=tuple(honest.all[10:])), 0.0)
    assert reader.ledger.digests == honest.ledger.digests


def test_what_waits_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = History().grow(4)
    monkeypatch.setattr(vouching, "MAX_STRETCH_BYTES", 1)
    reader = read(reader_of(), honest.all[:3], head=replace(honest.ledger.head, round=10**6))
    assert len(reader.ledger.digests) == 4


# --- forgeries -------------------------------------------------------------------------------------------------------

LIARS = ALL[:2]
"""A minority, with its keys."""


def resealed(entries: Sequence[LedgerEntry], change: Callable[[LedgerEntry], LedgerEntry], place: int) -> list[LedgerEntry]:
    """The history with one changed entry, and all hashes after it made anew; nobody voted for those."""
    forged = list(entries[:place])
    for entry in [change(entries[place]), *entries[place + 1 :]]:
        parent = forged[-1].value.plan
        reports = tuple(canonical.digest(one) for one in entry.reports)
        value = replace(entry.value, parent=parent, reports=reports)
        plan = replace(entry.plan, parent=parent, inputs=value.inputs)
        forged.append(replace(entry, plan=plan, value=replace(value, plan=canonical.digest(plan))))
    return forged


PLACE = 5


def one_byte(entry: LedgerEntry) -> LedgerEntry:
    first, *others = entry.reports
    return replace(entry, reports=(replace(first, signature="0" + first.signature[1:]), *others))


def relinked(entry: LedgerEntry) -> LedgerEntry:
    return replace(entry, value=replace(entry.value, parent=Digest("ab" * 32)))


def other_reason(entry: LedgerEntry) -> LedgerEntry:
    return replace(entry, plan=replace(entry.plan, reason="because"))


@pytest.mark.parametrize("change", [one_byte, relinked, other_reason])
@pytest.mark.parametrize("is_resealed", [False, True])
def test_a_changed_entry_in_between_is_refused_with_all_after_it(
    change: Callable[[LedgerEntry], LedgerEntry], is_resealed: bool
) -> None:
    honest = History().grow(3 * STRETCH).all
    forged = [*honest[:PLACE], change(honest[PLACE]), *honest[PLACE + 1 :]]
    if is_resealed and change is not relinked:
        forged = resealed(honest, change, PLACE)
        plans = [genesis(RUN, [(name, capacity()) for name in ALL], RULES), *(entry.plan for entry in forged)]
        assert not any(binding_problem(entry, parent) for entry, parent in zip(forged, plans, strict=False))
    reader = read(reader_of(), forged)
    assert set(reader.ledger.digests[1:]) <= {entry.value.plan for entry in honest[:PLACE]}
    read(reader, honest[PLACE:], now=1.0)
    assert reader.ledger.digests[-1] == honest[-1].value.plan, "it goes on with what others have"


def sybils(history: History, voters: Collection[PeerId]) -> History:
    """Made-up members join, and are the majority of those that vote from then on."""
    names = [peer(index) for index in range(50, 60)]
    requests = []
    for name in names:
        unsigned = JoinRequest(peer=name, run=RUN, capacity=capacity(), beat=1, round=0, signature="")
        requests.append(replace(unsigned, signature=sign(name, unsigned.payload)))
    history.append(history.entry((*voters, *names), joined=requests[:5]))
    return history.grow(3 * STRETCH, voters=(*voters, *names))


@pytest.mark.parametrize("voters", [(), LIARS[:1], LIARS])
def test_a_majority_of_made_up_members_vouches_for_nothing(voters: Sequence[PeerId]) -> None:
    honest = History().grow(2)
    forged = sybils(History(honest.all), voters)
    reader = read(reader_of(), forged.all)
    assert reader.ledger.digests == honest.ledger.digests


def stretch_of(entries: Sequence[LedgerEntry], after: Ledger) -> Stretch:
    stretch = Stretch(verify)
    assert all(stretch.extend(after, entry) for entry in entries)
    return stretch


def test_exactly_half_of_the_electors_are_no_majority(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.core.ledger.test_vouching.ALL", ALL[:4])
    history = History()
    base = len(history.ledger.digests)
    history.grow(STRETCH, voters=ALL[:2], forge=tuple)
    first = History().ledger
    assert base == 1 and stretch_of(history.all, first).pop_vouched(first) == []
    more = History([*history.all[:-1]])
    more.append(more.entry(ALL[:3]))
    assert stretch_of(more.all, first).pop_vouched(first) == more.all[:-1]


def test_a_vote_counts_once_however_often_it_is_there() -> None:
    first, history = History().ledger, History().grow(STRETCH, voters=LIARS)
    doubled = [
        replace(entry, certificate=replace(entry.certificate, votes=entry.certificate.votes * 3)) for entry in history.all
    ]
    assert stretch_of(doubled, first).pop_vouched(first) == []


def test_abstentions_and_votes_that_nobody_signed_count_for_nothing() -> None:
    first, history = History().ledger, History().grow(STRETCH, voters=ALL, abstaining=ALL[2:])
    assert stretch_of(history.all, first).pop_vouched(first) == []
    history = History().grow(STRETCH)
    unsigned = []
    for entry in history.all:
        votes = tuple(cast if cast.peer in LIARS else replace(cast, signature="00") for cast in entry.certificate.votes)
        unsigned.append(replace(entry, certificate=replace(entry.certificate, votes=votes)))
    assert stretch_of(unsigned, first).pop_vouched(first) == []


def test_votes_for_the_entry_itself_and_earlier_ones_do_not_vouch_for_it() -> None:
    first, history = History().ledger, History().grow(STRETCH - 1)
    history.append(history.entry(LIARS))
    assert stretch_of(history.all, first).pop_vouched(first) == history.all[:-2]


def test_a_majority_of_the_electors_can_vouch_for_anything() -> None:
    """The bound, as it is without stretches: such a majority can decide on any other plan, too. The audit shows it."""
    forged = History().grow(2).grow(3 * STRETCH, voters=ALL[:3], forge=invented)
    reader = read(reader_of(), forged.all)
    assert STRETCH <= len(reader.ledger.digests) <= 2 * STRETCH + 2, "the last entries are verified whole, and refused"
    assert verify_ledger(reader.ledger.plans[0], forged.all, decide, verify)


# --- two histories ---------------------------------------------------------------------------------------------------


def spoilt(entries: Sequence[LedgerEntry], places: Collection[int]) -> list[LedgerEntry]:
    """With certificates that prove nothing at these places."""
    empty = [replace(entry, certificate=replace(entry.certificate, votes=())) for entry in entries]
    return [empty[place] if place in places else entry for place, entry in enumerate(entries)]


def test_a_spoilt_certificate_in_the_past_gives_a_minority_no_other_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server can spoil certificates of entries that others vouch for, and then show a fork there."""
    honest = History().grow(3 * STRETCH)
    reader = read(reader_of(), spoilt(honest.all, {PLACE}))
    assert reader.ledger.digests == honest.ledger.digests
    others = [name for name in ALL if name not in LIARS]
    fork = History(honest.all[:PLACE])
    fork.append(fork.entry(LIARS, absent=others))
    fork.grow(5 * STRETCH, voters=LIARS)
    assert not check_entry(fork.all[PLACE], ledger=History(honest.all[:PLACE]).ledger, decide=decide, verify=verify)
    read(reader, fork.all, now=1.0)
    assert reader.ledger.digests == honest.ledger.digests
    ours = reader.ledger
    assert verdict(ours, fork.ledger, verify) == "own"
    monkeypatch.setattr(fork_choice, "with_proven_votes", lambda ledger, position, _: ledger.entry(position))
    assert verdict(ours, fork.ledger, verify) == "other", "by the spoilt certificate alone"


def test_a_history_of_a_minority_loses_against_one_verified_whole_and_one_taken_up_by_hashes() -> None:
    honest = History().grow(3 * STRETCH)
    fork = History(honest.all[:2])
    fork.append(fork.entry(LIARS, absent=ALL[2:]))
    fork.grow(6 * STRETCH, voters=LIARS)
    for first, then in ((honest, fork), (fork, honest)):
        reader = read(reader_of(), first.all)
        read(reader, then.all, now=1.0)
        assert reader.ledger.digests == honest.ledger.digests


def test_an_emergency_that_the_majority_went_on_from_is_taken_up() -> None:
    """All but two are gone for a while; who reads it later sees the votes of the majority after it."""
    history = History().grow(2)
    history.append(replace(made := history.entry(ALL), certificate=certified(made.value, LIARS, absent=ALL[2:])))
    history.grow(3 * STRETCH)
    reader = read(reader_of(), history.all)
    assert reader.ledger.digests == history.ledger.digests
