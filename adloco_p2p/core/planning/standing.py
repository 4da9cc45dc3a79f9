"""How much a seat counts: probation and standing of newcomers, as pure functions of the roster and the rules.

A newcomer trains from its first round on, but it neither votes, proposes nor reduces until it has served its probation, and its
samples weigh little. Then its standing rises to that of a full member. So an identity costs work in proportion to its
influence. Founders, signers and, if seats cost invitations, seats of a young run count in full at once: otherwise the author
would decide alone at first, and nothing could be agreed on while it restarts. A run that anybody may join has no such rounds;
there the probation is at most a quarter of the run so far.
"""

from collections.abc import Sequence
from dataclasses import replace

from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.roster_entry import FULL_STANDING, Capacity, FormerMember, RosterEntry
from adloco_p2p.core.model.rules import AdmissionRules
from adloco_p2p.core.model.scalars import PeerId

YOUNG_ROUNDS = 8
"""Seats of these first rounds of a run that admits by invitation count in full at once."""
RISE_ROUNDS = 8
"""Reports from the end of the probation to the full standing."""
REMEMBERED_ROUNDS = 64
"""Rounds for which a served probation is remembered for a peer that comes back."""
FIRST_STANDING = {"tickets": FULL_STANDING // 4, "open": 1, "work": 1}
"""Standing during the probation. It is small rather than zero, so that every contribution follows the same protocol."""


def seated(peer: PeerId, capacity: Capacity, previous: RoundPlan, rules: AdmissionRules) -> RosterEntry:
    """Return the seat of a newcomer, or of a former member that is back, in the plan after `previous`."""
    round = previous.round + 1
    uplink = capacity.upload_bytes_per_second  # measured when the peer was here before
    roster_entry = RosterEntry(peer=peer, joined_round=round, capacity=capacity, uplinks=(uplink,) if uplink > 0 else ())
    former = next((known for known in previous.former if known.peer == peer), None)
    if former is not None:
        return replace(roster_entry, standing=former.standing)
    is_full_at_once = peer in previous.signers or (rules.kind == "tickets" and round < YOUNG_ROUNDS)
    owed = 0 if is_full_at_once else _owed(rules, round)
    return replace(roster_entry, probation=owed, standing=FIRST_STANDING[rules.kind]) if owed else roster_entry


def after_report(roster_entry: RosterEntry, rules: AdmissionRules) -> RosterEntry:
    """Return the seat after one more report. Keepers and peers on the bench serve nothing by a report, because they do no
    work."""
    if roster_entry.capacity.is_keeper or roster_entry.is_waiting:
        return roster_entry
    if roster_entry.probation:
        return replace(roster_entry, probation=roster_entry.probation - 1)
    step = -((FIRST_STANDING[rules.kind] - FULL_STANDING) // RISE_ROUNDS)
    standing = min(FULL_STANDING, roster_entry.standing + step)
    return roster_entry if standing == roster_entry.standing else replace(roster_entry, standing=standing)


def begun_anew(roster_entry: RosterEntry, rules: AdmissionRules, *, round: int) -> RosterEntry:
    """Return the seat, in the plan of this round, of a member that starts its probation again."""
    owed = _owed(rules, round)
    if not owed:
        return roster_entry
    return replace(roster_entry, probation=owed, standing=min(roster_entry.standing, FIRST_STANDING[rules.kind]))


def _owed(rules: AdmissionRules, round: int) -> int:
    return min(rules.probation_rounds, round // 4) if rules.kind != "tickets" else rules.probation_rounds


def remembered(previous: RoundPlan, roster: Sequence[RosterEntry], rules: AdmissionRules) -> tuple[FormerMember, ...]:
    """Return the former members in the plan after `previous`, whose roster is `roster`: those that served their probation and
    left lately. In a run that anybody may join, one that is back remains among them until it reports, because its seat is no
    first seat."""
    round, seats = previous.round + 1, {roster_entry.peer: roster_entry for roster_entry in roster}
    known = {former.peer: former for former in previous.former if round - former.left_round <= REMEMBERED_ROUNDS}
    for roster_entry in previous.roster:
        is_served = roster_entry.probation == 0 and roster_entry.last_report is not None
        if is_served and roster_entry.peer not in seats:
            known[roster_entry.peer] = FormerMember(peer=roster_entry.peer, left_round=round, standing=roster_entry.standing)
    is_open = rules.kind != "tickets"
    return tuple(known[peer] for peer in sorted(known) if peer not in seats or (is_open and seats[peer].last_report is None))
