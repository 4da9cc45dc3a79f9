"""Suspension of hosts that do not show what they sent to a reducer: they are left without work for a while. Pure.

A wrong sum is proven by the contributions to it (`core/ledger/evidence.py`), so a reducer that lies shows nobody its own, or
has friends that show nobody theirs. Each host that could not make a part again says so in its next report. A complaint proves
nothing, so those of a minority have no consequences. But a host about which most contributors complain, for two averages each,
is suspended: it has no work in the next rounds, so it neither contributes nor reduces, and for some more rounds it does not
reduce (`core/model/complaints.py`).

A complaint also names the reducer whose part it was. While it counts, every member of an average checks a part of that reducer
in addition to those that it draws anyway (`Average.inspected`). So all hosts check what one has reported, and a false complaint
is refuted by all.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from adloco_p2p.core.model.complaints import KnownComplaint
from adloco_p2p.core.model.instance_plan import MAX_COMPLAINTS, HostShare, InstancePlan
from adloco_p2p.core.model.plan import REPORT_LAG
from adloco_p2p.core.model.report import InstanceReport
from adloco_p2p.core.model.roster_entry import RosterEntry
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.planning.witnesses import Witnesses

ROUNDS_COUNTED = 16
"""Rounds after its average for which a complaint counts."""
LEAST_AVERAGES = 2
"""Averages for which a host has to complain about another one before that counts: a restarted host has lost what it sent to the
last average."""
LEAST_FULL = 2
"""Full members that have to be among those that complain, at least."""
SHORTEST_ROUNDS = 8
"""Length of the first suspension; each further one is twice as long."""
LONGEST_ROUNDS = 64
"""Greatest length of a suspension."""


def suspension_rounds(suspensions: int) -> int:
    """Return the rounds without work of the `suspensions`-th suspension."""
    return min(SHORTEST_ROUNDS << min(suspensions - 1, 8), LONGEST_ROUNDS)


def with_complaints(
    plan: InstancePlan,
    moved: InstancePlan,
    claims: Mapping[PeerId, InstanceReport],
    roster: Sequence[RosterEntry],
    places: Mapping[PeerId, int],
    *,
    round: int,
) -> InstancePlan:
    """Return the instance's next plan with the complaints that count, and the suspensions that follow from them.

    `plan` is the instance in the plan before, whose roster is `roster`; `moved` is the instance in the next plan, without
    these. `places` are the numbers by which the reports `claims` on `round` name hosts.
    """
    following = round + REPORT_LAG
    workers = plan.workers_before(round) - suspended(moved.hosts, following)
    complaints = _counted([*plan.complaints, *_new(claims, places, round)], workers, roster, round)
    silent = _silent(complaints, Witnesses.among(workers, roster))
    return replace(
        moved,
        complaints=tuple(complaint for complaint in complaints if complaint.contributor not in silent),
        hosts=tuple(_suspend(share, following) if share.peer in silent else share for share in moved.hosts),
    )


def _new(claims: Mapping[PeerId, InstanceReport], places: Mapping[PeerId, int], round: int) -> list[KnownComplaint]:
    """Return the complaints in the reports on `round`, sorted by peer."""
    named = {place: peer for peer, place in places.items()}
    made = [(peer, claim.complaint) for peer, claim in sorted(claims.items()) if claim.complaint is not None]
    return [
        KnownComplaint(
            peer=peer, round=complaint.round, contributor=named[complaint.contributor], reducer=named[complaint.reducer]
        )
        for peer, complaint in made
        if complaint.round <= round and complaint.contributor in named and complaint.reducer in named
    ]


def _counted(
    complaints: Iterable[KnownComplaint], workers: Collection[PeerId], roster: Sequence[RosterEntry], round: int
) -> list[KnownComplaint]:
    """Return the complaints that count, in order: those of the last rounds, by hosts with work about other such hosts. Each
    host counts with one complaint per average, about fewer than half of the hosts. Two hosts in client mode cannot reach each
    other, for which neither is responsible. Of more than a plan can hold, the oldest are forgotten."""
    clients = {entry.peer for entry in roster if not entry.capacity.is_reachable}
    counted: dict[tuple[PeerId, int], KnownComplaint] = {}
    about: dict[PeerId, set[PeerId]] = {}
    for complaint in complaints:
        peer, other = complaint.peer, complaint.contributor
        is_between_hosts = peer in workers and other in workers and peer != other and not {peer, other} <= clients
        is_recent = round - ROUNDS_COUNTED <= complaint.round
        named = about.setdefault(peer, set()) | {other}
        if is_between_hosts and is_recent and 2 * len(named) < len(workers) and (peer, complaint.round) not in counted:
            about[peer] = named
            counted[peer, complaint.round] = complaint
    return list(counted.values())[-MAX_COMPLAINTS:]


def _silent(complaints: Iterable[KnownComplaint], witnesses: Witnesses) -> set[PeerId]:
    """Return the hosts about which most of those with work complain, at least two full members among them."""
    averages: dict[tuple[PeerId, PeerId], int] = {}
    for complaint in complaints:
        key = complaint.contributor, complaint.peer
        averages[key] = averages.get(key, 0) + 1
    found = set()
    for contributor in {contributor for contributor, _ in averages}:
        peers = {peer for (about, peer), count in averages.items() if about == contributor and count >= LEAST_AVERAGES}
        if witnesses.are_mostly(peers) and len(peers & witnesses.full) >= LEAST_FULL:
            found.add(contributor)
    return found


def _suspend(share: HostShare, round: int) -> HostShare:
    suspensions = share.suspensions + 1
    return replace(share, suspensions=suspensions, suspended_until=round + suspension_rounds(suspensions))


def suspended(hosts: Iterable[HostShare], round: int) -> set[PeerId]:
    """Return the hosts that are to have no work in this round."""
    return {share.peer for share in hosts if share.suspended_until > round}


def describe_suspensions(hosts: Iterable[HostShare], round: int) -> str:
    """Describe which hosts get no work in the plan of this round because they are suspended; empty if none is."""
    without = [share for share in hosts if share.suspended_until > round and share.batch_samples == 0]
    named = ", ".join(f"{share.peer} before round {share.suspended_until}" for share in without)
    return f"no work for {named} (showed no member what it had sent to averages)" if named else ""
