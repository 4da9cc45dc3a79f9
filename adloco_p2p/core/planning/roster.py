"""The seats of the next plan: members that stay, with what they reported, and peers that join."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from adloco_p2p.core.model.electorate import DEPARTS_AFTER, silent_rounds
from adloco_p2p.core.model.first_seats import displaced
from adloco_p2p.core.model.plan import RosterChange, RoundPlan
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.roster_entry import RosterEntry
from adloco_p2p.core.model.rules import Rules
from adloco_p2p.core.model.scalars import MAX_ROSTER, InstanceId, PeerId
from adloco_p2p.core.planning.claims import HostReports
from adloco_p2p.core.planning.guard import left_out_when_strict
from adloco_p2p.core.planning.standing import after_report, begun_anew, seated

SPEEDS_KEPT = 5
"""Measured speeds that a seat remembers; work is shared by their median."""
UPLINKS_KEPT = 3
"""Measured uplinks that a seat remembers; they are fewer, because a slow link is seldom measured."""


def put_on_probation(previous: RoundPlan, reports: Mapping[InstanceId, HostReports]) -> set[PeerId]:
    """Return the members that begin their probation anew because the stricter rule left them out in a round after an alarm."""
    left_out: set[PeerId] = set()
    for plan in previous.instances:
        found = reports[plan.instance]
        left_out |= left_out_when_strict(plan, found.all, previous.roster, found.places, round=previous.round - 1)
    return left_out


def next_roster(
    previous: RoundPlan,
    received: Mapping[PeerId, Report],
    change: RosterChange,
    rules: Rules,
    *,
    left_out: Collection[PeerId],
) -> tuple[RosterEntry, ...]:
    """Return the seats of the plan after `previous`, sorted by peer. `left_out` are members that begin their probation anew."""
    hosts = {share.peer for item in previous.instances for share in item.hosts}
    roster_entries: dict[PeerId, RosterEntry] = {}
    for roster_entry in previous.roster:
        if roster_entry.peer in change.departed:
            continue
        report = received.get(roster_entry.peer)
        if report is not None:
            speed = report.capacity.samples_per_second
            speeds = (*roster_entry.speeds, speed)[-SPEEDS_KEPT:] if speed > 0 else roster_entry.speeds
            uplink = report.capacity.upload_bytes_per_second
            uplinks = roster_entry.uplinks
            if uplink > 0 and any(item.vector_bytes for item in report.instances):  # else it repeats an earlier one
                uplinks = (*uplinks, uplink)[-UPLINKS_KEPT:]
            known = replace(roster_entry, capacity=report.capacity, speeds=speeds, uplinks=uplinks, last_report=report.round)
            is_hosting = roster_entry.peer in hosts  # else it serves nothing: a false slow uplink would earn a full seat
            roster_entry = after_report(known, rules.admission) if is_hosting else known  # noqa: PLW2901
        if roster_entry.peer in left_out:
            roster_entry = begun_anew(roster_entry, rules.admission, round=previous.round + 1)  # noqa: PLW2901
        roster_entries[roster_entry.peer] = roster_entry
    round = previous.round + 1
    staying = {
        peer: roster_entry
        for peer, roster_entry in roster_entries.items()
        if silent_rounds(roster_entry, round) < DEPARTS_AFTER
    }
    if any(not roster_entry.capacity.is_keeper for roster_entry in staying.values()):
        roster_entries = staying
    for peer in displaced(roster_entries.values(), (peer for peer, _ in change.joined), previous):
        del roster_entries[peer]
    for peer, capacity in sorted(dict(change.joined).items()):
        if peer not in roster_entries and len(roster_entries) < MAX_ROSTER:
            roster_entries[peer] = seated(peer, capacity, previous, rules.admission)
    assert roster_entries, "a plan needs a peer"
    return tuple(roster_entries[peer] for peer in sorted(roster_entries))
