"""The electors after a plan: founders, and members past their probation that report. Pure functions of the plan."""

from collections.abc import Sequence

from adloco_p2p.core.model.certificate import Certificate
from adloco_p2p.core.model.once import once
from adloco_p2p.core.model.plan import REPORT_LAG, RoundPlan
from adloco_p2p.core.model.roster_entry import RosterEntry
from adloco_p2p.core.model.scalars import PeerId

SILENT_ROUNDS = 4
"""A member that did not report this many rounds running is no elector until it reports again."""
DEPARTS_AFTER = 16
"""A member that did not report this many rounds running loses its seat. Long enough for a newcomer to fetch a large state, and
for a leaving one to hand over its own; a live peer asks to join again."""


def is_majority(count: int, electors: int) -> bool:
    return count >= 1 and 2 * count > electors


def silent_rounds(roster_entry: RosterEntry, round: int) -> int:
    """How many rounds running the peer did not report, of those whose reports the plan of this round could have used."""
    since = roster_entry.joined_round - 1 if roster_entry.last_report is None else roster_entry.last_report
    return max(0, round - REPORT_LAG - since)


@once
def electorate(plan: RoundPlan) -> tuple[PeerId, ...]:
    """The members that decide on the successor of the plan, sorted: founders, and those that have reported and served their
    probation (`core/planning/standing.py`), if they report. Where there is none, those that reported lately; else all. Keepers
    are among them only where the roster has no other member."""
    return tuple(roster_entry.peer for roster_entry in electing(plan.roster, plan.round))


def electing(roster: Sequence[RosterEntry], round: int) -> list[RosterEntry]:
    """The same, of the roster of a plan of this round."""
    training = [roster_entry for roster_entry in roster if not roster_entry.capacity.is_keeper] or list(roster)
    reporting = [roster_entry for roster_entry in training if silent_rounds(roster_entry, round) < SILENT_ROUNDS]
    seasoned = [
        roster_entry
        for roster_entry in reporting
        if not roster_entry.joined_round or (roster_entry.last_report is not None and not roster_entry.probation)
    ]
    return seasoned or [roster_entry for roster_entry in reporting if roster_entry.last_report is not None] or training


def electors(electorate: Sequence[PeerId], roster: Sequence[PeerId], absent: Sequence[PeerId]) -> list[PeerId]:
    """The members that count in a ballot: of the electorate, or, where all of it is absent, the other ones."""
    gone = frozenset(absent)
    return [peer for peer in electorate if peer not in gone] or [peer for peer in roster if peer not in gone]


def is_emergency(certificate: Certificate, parent: RoundPlan) -> bool:
    """Whether the votes are not of more than half of the full electorate: a minority went on without the others."""
    full = frozenset(electorate(parent))
    voters = full.intersection(cast.peer for cast in certificate.votes if not cast.abstains)
    return not is_majority(len(voters), len(full))
