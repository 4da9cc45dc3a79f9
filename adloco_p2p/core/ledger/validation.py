"""The check of one ledger entry, and of a whole ledger, which anybody can repeat: pure functions of values.

An entry is valid after its parent if its reports and join requests are signed by their authors and belong to the right round,
the rule makes exactly this plan of them, and more than half of the members that counted voted for it.
"""

from collections.abc import Callable, Collection, Iterable, Sequence

from adloco_p2p.core.ledger.admission import Door, crowding, in_order, newly_banned
from adloco_p2p.core.ledger.branch_claims import accepted_claims
from adloco_p2p.core.ledger.certificates import check_certificate
from adloco_p2p.core.ledger.desk import Desk
from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.ledger.orders import course_after
from adloco_p2p.core.ledger.signers import signers_after
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.course import is_paused_at
from adloco_p2p.core.model.electorate import electorate, is_emergency
from adloco_p2p.core.model.ledger_entry import Decree, LedgerEntry, SignedReport, Value, Verify
from adloco_p2p.core.model.plan import REPORT_LAG, Decide, RosterChange, RoundPlan, members_of, roster_of
from adloco_p2p.core.model.protocol import NEWEST, unfollowed
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.report_form import usable
from adloco_p2p.core.model.roster_entry import Capacity
from adloco_p2p.core.model.scalars import MAX_ROSTER, Digest, PeerId


def num_emergencies(genesis: RoundPlan, entries: Sequence[LedgerEntry]) -> int:
    """Return the number of emergency entries: those with votes of less than a majority of the full electorate."""
    parents = [genesis, *(entry.plan for entry in entries)]
    return sum(is_emergency(entry.certificate, parent) for entry, parent in zip(entries, parents, strict=False))


def may_have_ended(genesis: RoundPlan, entries: Iterable[LedgerEntry], lone: Collection[Digest], *, is_alone: bool) -> bool:
    """Return whether members may have gone on with the run without this peer, and ended it: an emergency entry took the seats
    of so many electors that they could, and as many never had one again. These must be more than half if this peer is alone at
    the end. `lone` has the plans of emergency entries that the peer followed without having agreed with these members since its
    start; for those half of the electors are enough, and other electors that came back with this peer change nothing. Any other
    member does: it was not away, and ends the run."""
    parent = genesis
    losses: list[tuple[frozenset[PeerId], int, frozenset[PeerId]]] = []
    roster = frozenset(roster_of(genesis))
    for entry in entries:
        roster = frozenset(roster_of(entry.plan))
        if is_emergency(entry.certificate, parent):
            full = electorate(parent)
            if entry.value.plan in lone:
                losses.append((frozenset(full), (len(full) + 1) // 2, frozenset(full)))
            elif is_alone:
                losses.append((frozenset(full), len(full) // 2 + 1, roster))
        losses = [(lost - roster, least, before) for lost, least, before in losses if len(lost - roster) >= least]
        parent = entry.plan
    return any(is_alone or roster <= before for _, _, before in losses)


def change_of(value: Value, reports: Sequence[Report], ledger: Ledger, verify: Verify) -> RosterChange:
    """Return the rule's input beside the reports. The ledger ends with the value's parent."""
    joined = tuple((join.peer, join.capacity) for join in value.joined)
    parent = ledger.plans[-1]
    departed = sorted({*value.departed, *newly_banned(value.statements, parent)})
    return RosterChange(
        joined=joined,
        departed=tuple(departed),
        branches=accepted_claims(ledger, reports, verify),
        signers=signers_after(parent.signers, value.statements),
        course=course_after(parent.course, value.statements, round=value.round),
    )


def door_of(
    ledger: Ledger, verify: Verify, *, statements: Sequence[Decree] = (), may_check: Callable[[], bool] = lambda: True
) -> Door:
    """Return the judge of join requests for the plan after the end of the ledger."""
    return Door(
        parent=ledger.plans[-1],
        admissions=ledger.admissions,
        members=ledger.members(),
        digests=ledger.digests,
        statements=statements,
        verify=verify,
        may_check=may_check,
    )


def check_value(
    value: Value,
    reports: Sequence[SignedReport],
    *,
    ledger: Ledger,
    decide: Decide,
    verify: Verify,
    are_verified: bool = False,
    shown: RoundPlan | None = None,
) -> RoundPlan | str:
    """Return the plan of the value, or what is wrong with it. The ledger ends with the value's parent. The signatures of
    `reports` are checked here unless `are_verified`; their digests the caller checks. `shown` is the plan that came with the
    value, whose digest is known already."""
    parent = ledger.plans[-1]
    wrong = _check_reports(value, reports, ledger, None if are_verified else verify)
    wrong = wrong or _check_statements(value, ledger, verify) or _check_change(value, ledger, verify)
    if wrong:
        return wrong
    plain_reports = tuple(signed.report for signed in reports)
    plan = decide(parent, plain_reports, change_of(value, plain_reports, ledger, verify))
    made = shown if shown == plan else plan
    if canonical.digest_once(made) != value.plan:
        return "the rule makes another plan of these reports"
    return made


def _check_reports(value: Value, reports: Sequence[SignedReport], ledger: Ledger, verify: Verify | None) -> str:
    reported, peers = ledger.reported, [signed.report.peer for signed in reports]
    if peers != sorted(set(peers)):
        return "reports are not sorted by peer, one each"
    if reports and reported is None:
        return "there is no round that could be reported"
    if reported is None:
        return ""
    digest, members = ledger.digests[-REPORT_LAG], members_of(reported)
    for signed in reports:
        report = signed.report
        if report.round != value.round - REPORT_LAG or report.plan != digest or report.peer not in members:
            return f"the report of {report.peer} is not about round {value.round - REPORT_LAG} of this run"
        if verify is not None and not verify(report.peer, signed.payload, signed.signature):
            return f"the report of {report.peer} is not signed by that peer"
    if len(usable(reports, reported)) < len(reports):
        return "a report is too large, or names hosts that its plan does not have"
    return ""


def _check_statements(value: Value, ledger: Ledger, verify: Verify) -> str:
    if list(value.statements) != in_order(set(value.statements)):
        return "statements are not in order, one each"
    desk = Desk(ledger, verify=verify)
    wrong = next(filter(None, map(desk.problem, value.statements)), "")
    if wrong:
        return wrong
    course = course_after(ledger.plans[-1].course, value.statements, round=value.round)
    return f"the run is paused from round {course.paused_from} on" if is_paused_at(course, value.round) else ""


def is_trained_after(parent: RoundPlan, gone: Collection[PeerId], joined: Iterable[Capacity]) -> bool:
    """Return whether a member is left that is no keeper. A run without one waits for the next newcomer."""
    stays = any(entry.peer not in gone and not entry.capacity.is_keeper for entry in parent.roster)
    return stays or any(not capacity.is_keeper for capacity in joined)


def _check_change(value: Value, ledger: Ledger, verify: Verify) -> str:
    parent = ledger.plans[-1]
    roster = members_of(parent)
    joined = [join.peer for join in value.joined]
    if joined != sorted(set(joined)) or any(peer in roster for peer in joined):
        return "newcomers are not new, or not sorted"
    if list(value.departed) != sorted(set(value.departed)) or any(peer not in roster for peer in value.departed):
        return "a departing peer is not on the roster"
    gone = {*value.departed, *newly_banned(value.statements, parent)}
    if not 1 <= len(roster) + len(joined) - len(gone) <= MAX_ROSTER:
        return "the roster would be empty or too large"
    if not is_trained_after(parent, gone, [join.capacity for join in value.joined]):
        return "no member would be left that trains"
    for join in value.joined:
        if join.run != parent.run or not verify(join.peer, join.payload, join.signature):
            return f"the join request of {join.peer} is not signed by that peer for this run"
    door = door_of(ledger, verify, statements=value.statements)
    return crowding(joined, parent, gone) or next(filter(None, map(door.problem, value.joined)), "")


def check_entry(
    entry: LedgerEntry,
    *,
    ledger: Ledger,
    decide: Decide,
    verify: Verify,
    is_old: bool = False,
    is_audit: bool = False,
    newest: int = NEWEST,
) -> str:
    """Return why the entry is not a valid next one of the ledger; empty if it is. `newest` is the newest protocol whose rule
    `decide` knows.

    Its votes are checked first, because anybody can make up an entry whose other checks cost far more. An audit of a ledger
    (`is_audit`) goes on, and names another fault before one of the votes.

    If the entry `is_old` and more than half of all electors voted for it, the signatures of its reports are not checked: the
    honest ones checked them before, and the votes bind every byte of the reports, signatures included. All else is checked."""
    parent = ledger.plans[-1]
    if entry.value.parent != ledger.digests[-1] or entry.value.round != parent.round + 1 or parent.is_last:
        return "it does not follow its parent"
    if wrong := unfollowed(parent.protocol, newest=newest):
        return wrong
    if tuple(canonical.digest_once(signed) for signed in entry.reports) != entry.value.reports:
        return "the reports are not those that were voted on"
    members = ledger.members()
    unproven = check_certificate(
        entry.certificate,
        value=canonical.digest_once(entry.value),
        parent=parent,
        parent_digest=entry.value.parent,
        verify=verify,
        returning_members=[join.peer for join in entry.value.joined if join.peer in members],
    )
    if unproven and not is_audit:
        return unproven
    plan = check_value(
        entry.value,
        entry.reports,
        ledger=ledger,
        decide=decide,
        verify=verify,
        are_verified=is_old and not unproven and not is_emergency(entry.certificate, parent),
        shown=entry.plan,
    )
    if isinstance(plan, str):
        return plan
    return unproven if plan == entry.plan else "the plan is not the one that was voted on"


def verify_ledger(
    genesis: RoundPlan, entries: Sequence[LedgerEntry], decide: Decide, verify: Verify, *, newest: int = NEWEST
) -> list[str]:
    """Recompute every decision, check every signature, and return the problems, none for a sound ledger. Entries after the
    first plan of a protocol beyond the `newest` cannot be checked, which counts as one problem."""
    problems: list[str] = []
    known = {entry.value.plan: entry for entry in entries}
    ledger = Ledger(genesis, recall=known.__getitem__)
    for entry in entries:
        wrong = check_entry(entry, ledger=ledger, decide=decide, verify=verify, is_audit=True, newest=newest)
        if wrong:
            problems.append(f"round {entry.plan.round}: {wrong}")
        if ledger.plans[-1].protocol > newest or entry.value.parent != ledger.digests[-1]:
            break  # the next entries cannot be checked without this one
        ledger.append(entry)
    return problems
