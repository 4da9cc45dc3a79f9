"""The electors after a plan: founders, and members past their probation, that report. Pure functions of the plan."""

from collections.abc import Collection, Sequence

from adloco_p2p.core.model.certificate import Certificate
from adloco_p2p.core.model.once import once
from adloco_p2p.core.model.plan import REPORT_LAG, RoundPlan
from adloco_p2p.core.model.protocol import PROBATION_LIMITED
from adloco_p2p.core.model.roster_entry import RosterEntry
from adloco_p2p.core.model.scalars import InstanceId, PeerId

SILENT_ROUNDS = 4
"""A member that misses this many reports in a row is no elector until it reports again."""
DEPARTS_AFTER = 16
"""A member that misses this many reports in a row loses its seat; if it is alive, it asks to join again. The limit leaves a
newcomer the time to fetch a large state, and a leaving peer the time to hand over its own."""


def is_majority(count: int, electors: int) -> bool:
    return count >= 1 and 2 * count > electors


def silent_rounds(roster_entry: RosterEntry, round: int) -> int:
    """Return how many reports in a row the peer missed, of those that the plan of this round could have used."""
    since = roster_entry.joined_round - 1 if roster_entry.last_report is None else roster_entry.last_report
    return max(0, round - REPORT_LAG - since)


@once
def electorate(plan: RoundPlan) -> tuple[PeerId, ...]:
    """Return the members that decide on the successor of the plan, sorted: founders, and members that have served their
    probation (`core/planning/standing.py`), as long as they report. Without any of these, members that reported lately; without
    those, all. Keepers count only if the roster has no other member."""
    return tuple(roster_entry.peer for roster_entry in electing(plan.roster, plan.round))


def electing(roster: Sequence[RosterEntry], round: int) -> list[RosterEntry]:
    """Return the roster entries of the electors after a plan of this round with this roster, by the rule of `electorate`."""
    training = [roster_entry for roster_entry in roster if not roster_entry.capacity.is_keeper] or list(roster)
    reporting = [roster_entry for roster_entry in training if silent_rounds(roster_entry, round) < SILENT_ROUNDS]
    seasoned = [
        roster_entry
        for roster_entry in reporting
        if not roster_entry.joined_round or (roster_entry.last_report is not None and not roster_entry.probation)
    ]
    return seasoned or [roster_entry for roster_entry in reporting if roster_entry.last_report is not None] or training


def electors(electorate: Sequence[PeerId], roster: Sequence[PeerId], absent: Sequence[PeerId]) -> list[PeerId]:
    """Return the electors that are not absent from a ballot or, if all of them are, the other members that are not."""
    gone = frozenset(absent)
    return [peer for peer in electorate if peer not in gone] or [peer for peer in roster if peer not in gone]


def full_members(plan: RoundPlan) -> frozenset[PeerId]:
    """Return the members of the plan that have served their probation."""
    return frozenset(entry.peer for entry in plan.roster if not entry.probation)


def deciding_hosts(workers: Collection[PeerId], plan: RoundPlan) -> frozenset[PeerId]:
    """Return those of the hosts with work whose votes and reports decide about a round: the full members among them or, if none
    is one, all. A name on probation must cost a full member nothing, and beside one full member any number of names could
    otherwise be a majority."""
    if plan.protocol < PROBATION_LIMITED:
        return frozenset(workers)
    return full_members(plan).intersection(workers) or frozenset(workers)


def deciding_contributors(plan: RoundPlan, instance: InstanceId) -> frozenset[PeerId]:
    """Return the contributors to the instance's average of the plan's round whose commit votes and reports decide."""
    return deciding_hosts(plan.instance(instance).contributors(plan.round), plan)


def is_emergency(certificate: Certificate, parent: RoundPlan) -> bool:
    """Return whether the votes come from at most half of the full electorate: a minority went on without the others."""
    full = frozenset(electorate(parent))
    voters = full.intersection(cast.peer for cast in certificate.votes if not cast.abstains)
    return not is_majority(len(voters), len(full))
