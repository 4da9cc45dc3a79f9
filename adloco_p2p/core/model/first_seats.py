"""Seats of an open run for members that have shown nothing yet. Pure functions of the plan.

Names cost nothing there, so a plan seats few of them: with it there are no more such members than members that have reported,
or `FIRST_SEATS`. One that still has not reported after some rounds keeps its seat only as long as no other newcomer needs it:
else a few names would keep all others out. Former members that served their probation are not counted, nor are seats that end
with the plan.
"""

from collections.abc import Collection, Iterable

from adloco_p2p.core.model.electorate import silent_rounds
from adloco_p2p.core.model.ledger_entry import MAX_JOINS
from adloco_p2p.core.model.measurers import lot
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.roster_entry import RosterEntry
from adloco_p2p.core.model.scalars import PeerId

FIRST_SEATS = 8
"""Seats without a first report that an open run has room for, however few its members are."""
FIRST_SEAT_ROUNDS = 4
"""After so many rounds without a report such a seat goes to a newcomer that asks for it."""


def served_before(parent: RoundPlan) -> frozenset[PeerId]:
    """Former members that need no first seat in the plan after `parent`."""
    return frozenset(former.peer for former in parent.former)


def free_first_seats(parent: RoundPlan, gone: Collection[PeerId]) -> int:
    """How many newcomers the plan after `parent`, without `gone`, may seat: with those for which others have to go."""
    if parent.is_ticketed:
        return MAX_JOINS
    staying = [seat for seat in parent.roster if seat.peer not in gone]
    return max(0, _room(staying, parent) + len(_lapsed(staying, parent)))


def displaced(staying: Collection[RosterEntry], joined: Iterable[PeerId], parent: RoundPlan) -> frozenset[PeerId]:
    """Those of the members that would stay in the plan after `parent` whose first seats go to the ones that join: of the
    silent the longest silent, among equals by lot."""
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
    """First seats that nobody has; negative where more have one than there are by now."""
    num_silent = len(_silent(staying, parent))
    return max(FIRST_SEATS, len(staying) - num_silent) - num_silent
