"""The reports and values of a slot, and the plans that follow from them.

A value names its reports and its plan by digest. A peer accepts it only after the rule has made the same plan of the same
reports here, so missing reports and values are pulled from a peer that named them.
"""

import math
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace

from adloco_p2p.core.agreement.report_pool import ReportPool
from adloco_p2p.core.agreement.slot import Context, Slot
from adloco_p2p.core.ledger.validation import change_of, check_value
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.certificate import Certificate
from adloco_p2p.core.model.effects import Send
from adloco_p2p.core.model.electorate import is_majority
from adloco_p2p.core.model.events import ReportHeard
from adloco_p2p.core.model.ledger_entry import Decree, JoinRequest, LedgerEntry, SignedReport, Value
from adloco_p2p.core.model.messages import Pull, Supply
from adloco_p2p.core.model.plan import REPORT_LAG, RoundPlan, roster_of
from adloco_p2p.core.model.report_form import MAX_REPORTS_BYTES, usable, usable_bytes
from adloco_p2p.core.model.scalars import Digest, PeerId

UNKNOWN_ROUND_SECONDS = 3600.0
"""The longest time for which a peer that works on a round itself waits for the reports of a majority if no speeds are known."""
RETURN_FRACTION = 0.5
"""The part of the expected time of the round under way for which a plan waits for members that fell silent."""
DOUBT_LEASES = 8
"""The number of leases for which a value that omits reports is refused, from when its proposer could have had them; then any
plan is better than none."""


class Values:
    """The reports and values of one slot. `named` returns the values that a member stands for: only those are kept, a few per
    member. Instants are seconds of the peer's own clock."""

    def __init__(self, context: Context, slot: Slot, pool: ReportPool, *, named: Callable[[], frozenset[Digest]]) -> None:
        self._context = context
        self._slot = slot
        self._pool = pool
        self._named = named
        self._values: dict[Digest, Value] = {}
        self._plans: dict[Digest, RoundPlan | str] = {}
        """The plans of the checked values, or what is wrong with them."""
        self._sources: dict[Digest, PeerId] = {}
        """The peer that can supply the missing parts of each value."""
        reported = slot.ledger.reported
        self._reporters = roster_of(reported) if reported is not None else ()
        """The roster whose reports the next plan uses, in the bit order of `have`."""
        self._places = {peer: place for place, peer in enumerate(self._reporters)}
        self._workers = _workers(reported) or frozenset(self._reporters)
        self._expected: tuple[frozenset[PeerId], tuple[frozenset[PeerId], frozenset[PeerId]]] | None = None
        """The responsive members, and the answer of `expected` for them."""
        self._held: dict[PeerId, Digest] = {}
        self._have = 0
        self._are_known, self._are_sorted = False, True
        """Whether `_held` and `_have` cover all reports that are here, and whether `_held` is sorted."""
        self._num_bytes = 0
        """The size of all reports that the next plan could use if it had room for them."""
        self._own_since: float | None = None
        """When this peer's own report for the next plan was first held here."""
        self._first_since: float | None = None
        """When the first report counts as having come; see `first_report`."""
        self._worked_until = -math.inf
        """When this peer was last known to work on that round itself."""
        self._doubted_since: float | None = None
        """When a value was first refused because it lacks reports that could have been in it."""
        # reports of one round more are too late for a plan, but still show which peers have a state that others lack
        pool.move(range(slot.round - REPORT_LAG - 1, slot.round + 1), (*slot.roster, *self._reporters))

    # --- reports -----------------------------------------------------------------------------------------------------

    @property
    def reporters(self) -> tuple[PeerId, ...]:
        return self._reporters

    @property
    def held(self) -> dict[PeerId, Digest]:
        """The digests of the reports that the next plan can use: one per peer, sorted by peer."""
        self._find_held()
        if not self._are_sorted:
            self._held, self._are_sorted = dict(sorted(self._held.items())), True
        return self._held

    @property
    def have(self) -> int:
        """The held reports as one bit per reporter, lowest first."""
        self._find_held()
        return self._have

    def _find_held(self) -> None:
        """Find the first report of each peer, as far as there is room, unless they are known."""
        if self._are_known:
            return
        ledger, self._held, self._have, self._num_bytes, self._are_known = self._slot.ledger, {}, 0, 0, True
        if (reported := ledger.reported) is None:
            return
        about = self._pool.about(self._slot.round - REPORT_LAG, ledger.digests[-REPORT_LAG])
        first = self._pool.get(tuple(about.values()))
        for signed in usable(first, reported):
            self._hold(signed)
        self._num_bytes = sum(usable_bytes(signed, reported) or 0 for signed in first)

    def _hold(self, signed: SignedReport) -> None:
        place = self._places.get(signed.report.peer)
        if place is not None:
            self._held[signed.report.peer] = canonical.digest_once(signed)
            self._have |= 1 << place

    def _note_kept(self, signed: SignedReport) -> None:
        """Add a new report to the held ones, or have them found anew if it may change which others are held."""
        report, ledger = signed.report, self._slot.ledger
        if report.round != self._slot.round - REPORT_LAG or ledger.reported is None:
            return
        size = usable_bytes(signed, ledger.reported) if report.plan == ledger.digests[-REPORT_LAG] else None
        self._num_bytes += size or 0
        if self._pool.num_versions(report) > 1 or self._num_bytes > MAX_REPORTS_BYTES:
            self._are_known = False
        elif size is not None:
            self._hold(signed)
            self._are_sorted = False

    def keep_reports(self, reports: Iterable[SignedReport]) -> None:
        """Keep the reports of interest. A value that names more reports than there are reporters is not valid, and the reports
        that it names get no place for that, or one member could fill the others' memory with versions of its own report."""
        fit = [value for value in self._values.values() if len(value.reports) <= len(self._reporters)]
        named = frozenset(digest for value in fit for digest in value.reports)
        for signed in reports:
            if self._pool.keep(signed, named=named):
                self._note_kept(signed)
                if signed.report.peer != self._context.me:
                    self._context.emit(ReportHeard(report=signed.report))

    def reports(self, digests: Sequence[Digest]) -> tuple[SignedReport, ...]:
        """Return the reports among the digests that are here, in order."""
        return self._pool.get(digests)

    # --- values and their plans --------------------------------------------------------------------------------------

    def get(self, digest: Digest) -> Value | None:
        return self._values.get(digest)

    def keep(self, value: Value, source: PeerId | None) -> Digest:
        """Keep a value, drop others that nobody names, and return its digest. `source` is the peer that sent it, if any."""
        digest, named = canonical.digest_once(value), self._named()
        for other in [other for other in self._values if other not in named]:
            del self._values[other]
            self._plans.pop(other, None)
        self._sources = {other: peer for other, peer in self._sources.items() if other in named}
        self._values.setdefault(digest, value)
        if source is not None:
            self._sources[digest] = source
        return digest

    def plan_of(self, digest: Digest) -> RoundPlan | str | None:
        """Return the plan of a value, or what is wrong with it; None while the value or one of its reports is missing."""
        known = self._plans.get(digest)
        if known is not None:
            return known
        value = self._values.get(digest)
        if value is None or self._is_lacking(value):
            return None
        if value.round != self._slot.round or value.parent != self._slot.digest:
            return "it does not follow its parent"
        self._plans[digest] = check_value(
            value,
            self._pool.get(value.reports),
            ledger=self._slot.ledger,
            decide=self._context.decide,
            verify=self._context.verify,
            are_verified=True,
        )
        return self._plans[digest]

    def _is_lacking(self, value: Value) -> bool:
        """Return whether a report of the value is not here."""
        return any(report not in self._pool for report in value.reports)

    def is_valid(self, digest: Digest) -> bool:
        """Return whether the value is complete here, and the rule makes its plan."""
        return isinstance(self.plan_of(digest), RoundPlan)

    def note_time(self, now: float) -> None:
        """Note which of the timed conditions hold now; called with every event."""
        if self._own_since is None and self._context.me in self.held:
            self._own_since = now
        if self.held:
            self._first_since = self.first_report(self.held, self._first_since, now)
        if self._is_working:
            self._worked_until = now

    @property
    def _is_working(self) -> bool:
        return self._slot.round - REPORT_LAG in self._context.working and self._context.me not in self.held

    def first_report(self, reported: Iterable[PeerId], before: float | None, now: float) -> float:
        """Return when the first report came, for `stragglers_end`, given the peers that have `reported` by now. Peers on the
        bench report at the beginning of a round, so their reports alone count as if they had come much later. `before` is the
        last result of this function."""
        if before is not None and before <= now:
            return before
        came = now if any(peer in self._workers for peer in reported) else now + UNKNOWN_ROUND_SECONDS
        return came if before is None else min(before, came)

    def stragglers_end(self, first: float) -> float:
        """Return when a plan may come without the reports of a majority, if the first report came at `first`. No peer reports
        so late without a reason (`core/averaging/adaptive_timeout.py`), and a peer may report at once. If no speeds are known,
        this peer's own work is the measure: as long as it works on the round, the others may, too."""
        timing, reported = self._context.timing, self._slot.ledger.reported
        expected = reported.expected_seconds if reported is not None else 0.0
        if expected > 0.0:
            return first + timing.straggler_seconds + 2.0 * expected
        longest = first + UNKNOWN_ROUND_SECONDS
        if self._is_working:
            return longest
        return min(longest, max(first, self._worked_until) + timing.straggler_seconds)

    def grace_end(self, majority: float) -> float:
        """Return until when a plan waits for the other reports, if those of a majority came at `majority`: one host of an
        instance evaluates after each round, and reports only then. The plan is due when the round of its parent ends; if no
        speeds are known, this peer's own work is the measure."""
        parent, working = self._slot.parent, self._context.working
        if parent.expected_seconds == 0.0 and (parent.round in working or parent.round - 1 in working):
            return majority + UNKNOWN_ROUND_SECONDS
        return majority + max(self._context.timing.grace_seconds, parent.expected_seconds)

    def return_end(self, majority: float) -> float:
        """Return until when a plan waits for members that fell silent without having left, if the reports of a majority came at
        `majority`, so that a member that restarts keeps its seat and its work."""
        return majority + RETURN_FRACTION * self._slot.parent.expected_seconds

    def awaits_return(self, majority: float, now: float) -> bool:
        """Return whether a plan waits for a silent member, which may be back in time to keep its seat. A peer on the bench or a
        keeper is not waited for, because it has no work in that round to lose."""
        members, parent = self._context.members, self._slot.parent
        return now < self.return_end(majority) and any(members.is_silent(peer, now) for peer in _workers(parent))

    def expected(self, now: float) -> tuple[frozenset[PeerId], frozenset[PeerId]]:
        """Return the responsive reporters, and those of them whose majority is waited for: electors that had work in the round.
        Peers on the bench report at once, and must not outrun the hosts."""
        responsive = self._context.members.living(now).responsive
        if self._expected is None or self._expected[0] is not responsive:
            waited_for = responsive.intersection(self._reporters)
            deciding = waited_for & self._slot.deciders or waited_for
            self._expected = responsive, (waited_for, deciding & self._workers or deciding)
        return self._expected[1]

    def omits_reports(self, digest: Digest, now: float) -> bool:
        """Return whether a value is refused because it leaves out reports that its proposer should have: this peer's own, which
        it sent in time; more than half of those here; or, while stragglers have time, those of a majority of the living
        electors. Once a complete value can be made, the refusal lasts only as long as the members need to find it.

        So no proposer decides alone which reports, and with them which statistics, a plan has, nor which peer seems silent.
        """
        value = self._values.get(digest)
        if value is None:
            return False
        reported = {signed.report.peer for signed in self._pool.get(value.reports)}
        if not self._omits(frozenset(value.reports), reported, now):
            return False
        if self._doubted_since is None and not self._lacks_majority(self.held, now):
            self._doubted_since = now
        return self._doubted_since is None or now < self._doubted_since + DOUBT_LEASES * self._context.members.lease_seconds

    def comes_too_early(self, digest: Digest, now: float) -> bool:
        """Return whether a value lacks the reports of a majority while stragglers still have time."""
        value = self._values.get(digest)
        return value is not None and self._lacks_majority({one.report.peer for one in self._pool.get(value.reports)}, now)

    def _omits(self, named: frozenset[Digest], reported: set[PeerId], now: float) -> bool:
        own = self.held.get(self._context.me)
        is_timely = self._own_since is not None and now >= self._own_since + self._context.timing.grace_seconds
        if (is_timely and own not in named) or 2 * len(reported) < len(self.held):
            return True
        return self._lacks_majority(reported, now)

    def _lacks_majority(self, reported: Container[PeerId], now: float) -> bool:
        """Return whether stragglers have time and these reporters are no majority."""
        if self._first_since is not None and now >= self.stragglers_end(self._first_since):
            return False
        _, deciding = self.expected(now)
        return bool(deciding) and not is_majority(sum(peer in reported for peer in deciding), len(deciding))

    def make(self, *, joined: Sequence[JoinRequest], absent: tuple[PeerId, ...], statements: tuple[Decree, ...] = ()) -> Value:
        """Return the value that follows from the reports held now, and keep it as this peer's own."""
        slot = self._slot
        value = Value(
            round=slot.round,
            parent=slot.digest,
            reports=tuple(self.held.values()),
            joined=tuple(joined),
            departed=absent,
            plan=Digest(""),
            statements=statements,
        )
        reports = tuple(signed.report for signed in self._pool.get(value.reports))
        plan = self._context.decide(slot.parent, reports, change_of(value, reports, slot.ledger, self._context.verify))
        value = replace(value, plan=canonical.digest_once(plan))
        self.keep(value, self._context.me)
        return value

    def entry(self, digest: Digest, certificate: Certificate) -> LedgerEntry:
        """Return the ledger entry of a valid value."""
        plan, value = self.plan_of(digest), self._values[digest]
        assert isinstance(plan, RoundPlan)
        return LedgerEntry(plan=plan, value=value, reports=self._pool.get(value.reports), certificate=certificate)

    # --- pull and supply ---------------------------------------------------------------------------------------------

    def ask_for(self, digest: Digest, source: PeerId) -> None:
        """Pull a value, or the reports that it lacks, from a peer that has them. The plan of the value is made only after its
        ballot is admitted, because a member can send values faster than plans can be made."""
        self._sources.setdefault(digest, source)
        value = self._values.get(digest)
        if source == self._context.me or (value is not None and not self._is_lacking(value)):
            return
        lacking = 0 if value is None else sum(1 << i for i, report in enumerate(value.reports) if report not in self._pool)
        self._context.emit(Send(peer=source, message=Pull(parent=self._slot.digest, value=digest, lacking=lacking)))

    def ask_again(self, digests: Iterable[Digest], source: PeerId) -> None:
        """Pull the missing parts of these values from a peer in the same slot."""
        for digest in dict.fromkeys(digests):
            self.ask_for(digest, source)

    def pull_reports(self, sender: PeerId, have: int) -> None:
        """Pull the reports that the sender has, by the bits of `have`, and this peer lacks."""
        lacking = have & ~self.have
        if lacking:
            self._context.emit(Send(peer=sender, message=Pull(parent=self._slot.digest, reporters=lacking)))

    def on_pull(self, sender: PeerId, message: Pull) -> None:
        held = self.held
        value = self._values.get(message.value) if message.value is not None else None
        wanted = lacking_of(message, value) if value is not None else []
        wanted += [held[peer] for i, peer in enumerate(self._reporters) if message.reporters >> i & 1 and peer in held]
        reports = self._pool.get(wanted)
        given = value if not message.lacking else None
        if reports or given is not None:
            self._context.emit(Send(peer=sender, message=Supply(parent=message.parent, value=given, reports=reports)))

    def on_supply(self, sender: PeerId, message: Supply) -> None:
        """Keep the signed reports. A value is not signed, so it is taken only from a member, and only if some member stands for
        it."""
        self.keep_reports(message.reports)
        value = message.value
        if value is None or message.parent != self._slot.digest or sender not in self._slot.members:
            return
        digest = canonical.digest_once(value)
        if digest in self._named():
            self.keep(value, self._sources.get(digest, sender))
            self.ask_for(digest, self._sources[digest])


def _workers(plan: RoundPlan | None) -> frozenset[PeerId]:
    """Return the peers that have work in the plan's round."""
    shares = [share for item in plan.instances for share in item.hosts] if plan is not None else []
    return frozenset(share.peer for share in shares if share.samples > 0)


def lacking_of(message: Pull, value: Value) -> list[Digest]:
    """Return the reports of the value for which the message asks."""
    return [report for i, report in enumerate(value.reports) if message.lacking >> i & 1]
