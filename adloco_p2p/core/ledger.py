"""The chain of final plans: what makes an entry valid, how two histories compare, and the check that anybody can repeat.

Pure functions of values. An entry is valid after its parent when its reports and join requests are signed by their authors
and belong to the right round, the rule makes exactly this plan of them, and more than half of those who counted voted for it.
"""

from collections.abc import Callable, Collection, Iterator, Sequence

from adloco_p2p.core import canonical
from adloco_p2p.core.messages import (
    Certificate,
    Head,
    LedgerEntry,
    SignedReport,
    Value,
    Verify,
    Vote,
)
from adloco_p2p.core.report_form import usable
from adloco_p2p.core.strays import believed
from adloco_p2p.core.types import MAX_ROSTER, Digest, InstanceId, PeerId, Report, RosterChange, RoundPlan, Seat

Decide = Callable[[RoundPlan, Sequence[Report], RosterChange], RoundPlan]
"""parent, reports sorted by peer, change of the roster -> the next plan."""
Recall = Callable[[Digest], LedgerEntry]
"""Digest of a plan -> its entry, which was persisted."""

REPORT_LAG = 2
"""plan(r) is made from the reports of round r - 2: it is decided while round r - 1 computes."""
PROBATION_ROUNDS = 8
"""A newcomer has a say after so many rounds: names are free, rounds of work are not."""
SILENT_ROUNDS = 4
"""A member that did not report so many rounds running has no say until it reports again."""
DEPARTS_AFTER = 16
"""A member that did not report so many rounds running loses its seat. Long enough for a newcomer to fetch a large state, and
for one that goes to hand over what it has; a peer that lives asks to join again."""
ENTRIES_KEPT = 32
"""The newest entries stay in memory, for peers that are a little behind."""


def roster_of(plan: RoundPlan) -> tuple[PeerId, ...]:
    return tuple(seat.peer for seat in plan.roster)


def is_majority(count: int, electors: int) -> bool:
    return count >= 1 and 2 * count > electors


def silent_rounds(seat: Seat, round: int) -> int:
    """How many rounds running the peer did not report, of those whose reports the plan of this round could have used."""
    since = seat.joined_round - 1 if seat.last_report is None else seat.last_report
    return max(0, round - REPORT_LAG - since)


def electorate(plan: RoundPlan) -> tuple[PeerId, ...]:
    """The members that decide on the successor of the plan, sorted: those that were there from the first plan on, or have
    been for `PROBATION_ROUNDS`, and report. Where there is none, those that reported lately; else all."""
    heard = [seat for seat in plan.roster if silent_rounds(seat, plan.round) < SILENT_ROUNDS]
    seasoned = [seat for seat in heard if not seat.joined_round or plan.round - seat.joined_round >= PROBATION_ROUNDS]
    chosen = seasoned or [seat for seat in heard if seat.last_report is not None] or plan.roster
    return tuple(seat.peer for seat in chosen)


def electors(electorate: Sequence[PeerId], roster: Sequence[PeerId], absent: Sequence[PeerId]) -> list[PeerId]:
    """Those who count in a ballot: of the electorate, or, where all of it is absent, of the other members."""
    gone = frozenset(absent)
    return [peer for peer in electorate if peer not in gone] or [peer for peer in roster if peer not in gone]


def is_emergency(certificate: Certificate, parent: RoundPlan) -> bool:
    """Whether the votes are not of more than half of the full electorate: somebody went on without the others."""
    full = electorate(parent)
    voters = [cast.peer for cast in certificate.votes if not cast.abstains and cast.peer in full]
    return not is_majority(len(voters), len(full))


def num_emergencies(genesis: RoundPlan, entries: Sequence[LedgerEntry]) -> int:
    """Entries of a ledger that rest on less than a majority of the full electorate."""
    parents = [genesis, *(entry.plan for entry in entries)]
    return sum(is_emergency(entry.certificate, parent) for entry, parent in zip(entries, parents, strict=False))


def change_of(value: Value, reports: Sequence[Report], ledger: "Ledger") -> RosterChange:
    """What the rule is told beside the reports; the ledger ends with the value's parent."""
    joined = tuple((join.peer, join.capacity) for join in value.joined)
    return RosterChange(joined=joined, departed=value.departed, strays=believed(ledger, reports))


def check_value(
    value: Value,
    reports: Sequence[SignedReport],
    *,
    ledger: "Ledger",
    decide: Decide,
    verify: Verify,
    are_verified: bool = False,
) -> RoundPlan | str:
    """The plan that the value stands for, or what is wrong with it. The ledger ends with the value's parent. Signatures of
    `reports` are checked here unless they were before, their digests by the caller."""
    parent = ledger.plans[-1]
    wrong = _check_reports(value, reports, ledger.reported, None if are_verified else verify)
    wrong = wrong or _check_change(value, parent, verify)
    if wrong:
        return wrong
    told = tuple(signed.report for signed in reports)
    plan = decide(parent, told, change_of(value, told, ledger))
    if canonical.digest_once(plan) != value.plan:
        return "the rule makes another plan of these reports"
    return plan


def _check_reports(value: Value, reports: Sequence[SignedReport], reported: RoundPlan | None, verify: Verify | None) -> str:
    peers = [signed.report.peer for signed in reports]
    if peers != sorted(set(peers)):
        return "reports are not sorted by peer, one each"
    if reports and reported is None:
        return "there is no round that could be reported"
    if reported is None:
        return ""
    digest, members = canonical.digest_once(reported), frozenset(roster_of(reported))
    for signed in reports:
        report = signed.report
        if report.round != value.round - REPORT_LAG or report.plan != digest or report.peer not in members:
            return f"the report of {report.peer} is not about round {value.round - REPORT_LAG} of this run"
        if verify is not None and not verify(report.peer, signed.payload, signed.signature):
            return f"the report of {report.peer} is not signed by that peer"
    if len(usable(reports, reported)) < len(reports):
        return "a report is too large, or names hosts that its plan does not have"
    return ""


def _check_change(value: Value, parent: RoundPlan, verify: Verify) -> str:
    roster = roster_of(parent)
    joined = [join.peer for join in value.joined]
    if joined != sorted(set(joined)) or any(peer in roster for peer in joined):
        return "newcomers are not new, or not sorted"
    if list(value.departed) != sorted(set(value.departed)) or any(peer not in roster for peer in value.departed):
        return "somebody departs who is not there"
    if not 1 <= len(roster) + len(joined) - len(value.departed) <= MAX_ROSTER:
        return "the roster would be empty or too large"
    for join in value.joined:
        if join.run != parent.run or not verify(join.peer, join.payload, join.signature):
            return f"the join request of {join.peer} is not signed by that peer for this run"
    return ""


def vote_of(
    cast_by: PeerId, *, parent: Digest, value: Digest, certificate: Certificate, abstains: bool, signature: str
) -> Vote:
    return Vote(
        peer=cast_by,
        parent=parent,
        ballot=certificate.ballot,
        absent=certificate.absent,
        value=value,
        abstains=abstains,
        signature=signature,
    )


def check_certificate(
    certificate: Certificate,
    *,
    value: Digest,
    parent: RoundPlan,
    parent_digest: Digest,
    verify: Verify,
    heirs: Collection[PeerId] = (),
) -> str:
    """Empty where the votes make the value final; otherwise what is missing. Where nobody of the roster is left, the vote of
    one of the `heirs` is enough, who made the value: of those who join with it, the ones that had a seat before."""
    counted = electors(electorate(parent), roster_of(parent), certificate.absent)
    if not counted and certificate.ballot.peer in heirs:
        counted = [certificate.ballot.peer]
    members = frozenset(counted)
    peers = [vote.peer for vote in certificate.votes]
    if peers != sorted(set(peers)) or any(peer not in members for peer in peers):
        return "votes are not by distinct members that count"
    for cast in certificate.votes:
        vote = vote_of(
            cast.peer,
            parent=parent_digest,
            value=value,
            certificate=certificate,
            abstains=cast.abstains,
            signature=cast.signature,
        )
        if not verify(cast.peer, vote.payload, cast.signature):
            return f"the vote of {cast.peer} is not signed by that peer"
    abstained = sum(cast.abstains for cast in certificate.votes)
    votes = len(certificate.votes) - abstained
    if not is_majority(votes, len(counted) - abstained):
        return f"{votes} votes of {len(counted) - abstained} are no majority"
    return ""


def check_entry(entry: LedgerEntry, *, ledger: "Ledger", decide: Decide, verify: Verify) -> str:
    """Empty where the entry is a valid next one of the ledger; otherwise what is wrong."""
    parent = ledger.plans[-1]
    if entry.value.parent != canonical.digest_once(parent) or entry.value.round != parent.round + 1 or parent.is_last:
        return "it does not follow its parent"
    if tuple(canonical.digest_once(signed) for signed in entry.reports) != entry.value.reports:
        return "the reports are not those that were voted on"
    plan = check_value(entry.value, entry.reports, ledger=ledger, decide=decide, verify=verify)
    if isinstance(plan, str):
        return plan
    if plan != entry.plan:
        return "the plan is not the one that was voted on"
    value = canonical.digest_once(entry.value)
    return check_certificate(
        entry.certificate,
        value=value,
        parent=parent,
        parent_digest=entry.value.parent,
        verify=verify,
        heirs=[join.peer for join in entry.value.joined if join.peer in ledger.members()],
    )


def verify_ledger(genesis: RoundPlan, entries: Sequence[LedgerEntry], decide: Decide, verify: Verify) -> list[str]:
    """Recompute every decision and check every signature; the problems found, none for a sound ledger."""
    problems: list[str] = []
    known = {entry.value.plan: entry for entry in entries}
    ledger = Ledger(genesis, recall=known.__getitem__)
    for entry in entries:
        wrong = check_entry(entry, ledger=ledger, decide=decide, verify=verify)
        if wrong:
            problems.append(f"round {entry.plan.round}: {wrong}")
        if entry.value.parent != ledger.digests[-1]:
            break  # there is nothing that the rest could be checked against
        ledger.append(entry)
    return problems


def proven_samples(reported: RoundPlan | None, reports: Sequence[SignedReport]) -> int:
    """Samples that signed reports prove, each host's claim capped at what the plan gave it and counted once."""
    if reported is None:
        return 0
    given = {(plan.instance, share.peer): share.samples for plan in reported.instances for share in plan.hosts}
    claimed: dict[tuple[InstanceId, PeerId], int] = {}
    for signed in reports:
        for item in signed.report.instances:
            claimed.setdefault((item.instance, signed.report.peer), item.samples)
    return sum(min(samples, given.get(key, 0)) for key, samples in claimed.items())


def chain(records: Sequence[object], genesis: RoundPlan) -> list[LedgerEntry]:
    """The ledger that a journal ends with. An entry whose parent is not the end of the chain cuts it back to that parent:
    that is how a switch to another history is written down, and it may have been cut short by a crash."""
    entries: list[LedgerEntry] = []
    position = {canonical.digest_once(genesis): 0}
    for record in records:
        if isinstance(record, LedgerEntry) and record.value.parent in position:
            length = position[record.value.parent]
            for cut in entries[length:]:
                position.pop(cut.value.plan, None)
            entries = [*entries[:length], record]
            position[record.value.plan] = length + 1
    return entries


def unconnected(records: Sequence[object], genesis: RoundPlan) -> list[LedgerEntry]:
    """Entries of a journal that follow no plan written down before them: `chain` leaves them out, an honest peer has none."""
    known = {canonical.digest_once(genesis): None}
    loose: list[LedgerEntry] = []
    for record in records:
        if isinstance(record, LedgerEntry):
            if record.value.parent in known:
                known[record.value.plan] = None
            else:
                loose.append(record)
    return loose


class Ledger:
    """Genesis and what follows. In memory are the digests and the running count of proven samples of all of it, and the newest
    `plans` and `entries`; an older entry is asked of `recall`, which reads what was persisted."""

    def __init__(self, genesis: RoundPlan, *, recall: Recall) -> None:
        self.plans: list[RoundPlan] = [genesis]
        self.entries: list[LedgerEntry] = []
        self.digests: list[Digest] = [canonical.digest_once(genesis)]
        self.samples: list[int] = [0]
        self.position: dict[Digest, int] = {self.digests[0]: 0}
        self._members: dict[PeerId, int] = dict.fromkeys(roster_of(genesis), 0)
        """Everybody who ever was on a roster -> the position of the first one."""
        self._genesis = genesis
        self._recall = recall

    @property
    def head(self) -> Head:
        return Head(round=self.plans[-1].round, digest=self.digests[-1], samples=self.samples[-1])

    @property
    def reported(self) -> RoundPlan | None:
        """The plan whose reports the next entry uses."""
        return self.plans[-REPORT_LAG] if len(self.plans) >= REPORT_LAG else None

    def append(self, entry: LedgerEntry) -> None:
        assert entry.value.parent == self.digests[-1]
        self.samples.append(self.samples[-1] + proven_samples(self.reported, entry.reports))
        self.entries.append(entry)
        self.plans.append(entry.plan)
        self.digests.append(entry.value.plan)
        self.position[entry.value.plan] = len(self.digests) - 1
        for peer in roster_of(entry.plan):
            self._members.setdefault(peer, len(self.digests) - 1)

    def forget_old(self) -> None:
        """Keep the newest entries only. To be called when everything that was appended is persisted."""
        if len(self.entries) >= 2 * ENTRIES_KEPT:  # not one by one: a list is cut at its front
            del self.entries[:-ENTRIES_KEPT], self.plans[:-ENTRIES_KEPT]

    def entry(self, position: int) -> LedgerEntry:
        """The one that made the plan at this position, from 1 on."""
        from_end = len(self.digests) - position
        return self.entries[-from_end] if from_end <= len(self.entries) else self._recall(self.digests[position])

    def plan(self, position: int) -> RoundPlan:
        return self.entry(position).plan if position else self._genesis

    def between(self, first: int, end: int) -> Iterator[LedgerEntry]:
        """The entries at positions `first` to `end - 1`."""
        return (self.entry(position) for position in range(first, min(end, len(self.digests))))

    def after(self, digest: Digest, limit: int) -> tuple[LedgerEntry, ...]:
        first = self.position[digest] + 1
        return tuple(self.between(first, first + limit))

    def since(self, round: int) -> Iterator[LedgerEntry]:
        """The entries of the plans of this round and later ones."""
        return self.between(max(1, round - self._genesis.round), len(self.digests))

    def truncated(self, digest: Digest) -> "Ledger":
        """A copy that ends with this plan."""
        length = self.position[digest] + 1
        copy = Ledger(self._genesis, recall=self._recall)
        copy.digests, copy.samples = self.digests[:length], self.samples[:length]
        copy.position = {digest: position for position, digest in enumerate(copy.digests)}
        copy._members = {peer: first for peer, first in self._members.items() if first < length}
        first = max(1, min(len(self.digests) - len(self.entries), length - REPORT_LAG))
        copy.entries = list(self.between(first, length))
        copy.plans = [*([self._genesis] if first == 1 else []), *(entry.plan for entry in copy.entries)]
        return copy

    def members(self) -> frozenset[PeerId]:
        """Everybody who ever was on a roster."""
        return frozenset(self._members)

    def trail(self) -> tuple[Digest, ...]:
        """Digests from the head backwards, ever farther apart, ending with the first plan."""
        steps, position = [], len(self.digests) - 1
        stride = 1
        while position > 0:
            steps.append(self.digests[position])
            position -= stride
            stride *= 1 if len(steps) < 4 else 2
        return (*steps, self.digests[0])
