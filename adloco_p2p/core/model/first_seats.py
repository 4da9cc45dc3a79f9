"""First seats: those of members of an open run that have not reported yet. Pure functions of the plan.

Identities cost nothing in an open run, so a plan seats few members without a report: at most `FIRST_SEATS` or, if that is more,
as many as have reported. After some rounds such a member keeps its seat only until another newcomer needs it; otherwise a few
identities would keep all others out. Former members that served their probation are not counted, nor are seats that end with
the plan.
"""

from collections.abc import Collection, Iterable

from adloco_p2p.core.model.electorate import silent_rounds
from adloco_p2p.core.model.ledger_entry import MAX_JOINS
from adloco_p2p.core.model.measurers import lot
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.roster_entry import RosterEntry
from adloco_p2p.core.model.scalars import PeerId

FIRST_SEATS = 8
"""First seats that an open run has at least, however few its members are."""
FIRST_SEAT_ROUNDS = 4
"""Rounds without a report after which a first seat goes to a newcomer that asks for it."""


def served_before(parent: RoundPlan) -> frozenset[PeerId]:
    """Return the former members, which need no first seat in the plan after `parent`."""
    return frozenset(former.peer for former in parent.former)


def free_first_seats(parent: RoundPlan, gone: Collection[PeerId]) -> int:
    """Return how many newcomers the plan after `parent` may seat if it drops `gone`, including newcomers that displace
    others."""
    if parent.is_ticketed:
        return MAX_JOINS
    staying = [seat for seat in parent.roster if seat.peer not in gone]
    return max(0, _room(staying, parent) + len(_lapsed(staying, parent)))


def displaced(staying: Collection[RosterEntry], joined: Iterable[PeerId], parent: RoundPlan) -> frozenset[PeerId]:
    """Return the members that would stay in the plan after `parent` but lose their first seats to those that join: the members
    that have been silent longest, in an order by lot among equals."""
    if parent.is_ticketed:
        return frozenset()
    lacking = max(0, len(frozenset(joined) - served_before(parent)) - max(0, _room(staying, parent)))
    lapsed = sorted(_lapsed(staying, parent), key=lambda seat: (seat.joined_round, lot(parent.parent, seat.peer)))
    return frozenset(seat.peer for seat in lapsed[:lacking])


def _silent(staying: Iterable[RosterEntry], parent: RoundPlan) -> list[RosterEntry]:
    served = served_before(parent)
    return [seat for seat in staying if seat.last_report is None and seat.joined_round > 0 and seat.peer not in served]


def _lapsed(staying: Iterable[RosterEntry], parent: RoundPlan) -> list[RosterEntry]:
    return [seat for seat in _silent(staying, parent) if silent_rounds(seat, parent.round + 1) >= FIRST_SEAT_ROUNDS]


def _room(staying: Collection[RosterEntry], parent: RoundPlan) -> int:
    """Return how many first seats are free; negative if more are taken than the plan has by now."""
    num_silent = len(_silent(staying, parent))
    return max(FIRST_SEATS, len(staying) - num_silent) - num_silent
