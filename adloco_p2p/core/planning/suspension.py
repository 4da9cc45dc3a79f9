"""Hosts that do not show what they sent to a reducer are left without work for a while. Pure.

A wrong sum is proven by the contributions to it (`core/ledger/evidence.py`), so a reducer that lies shows nobody its own, or
has friends that show nobody theirs. Each host that could not make a part again reports that in its next report. No complaint
proves anything, so nothing follows from those of a minority; but a host about which most contributors complain, for two
averages each, is suspended: it has no work in the next rounds, so that it neither contributes nor reduces, and after that it
reduces nothing for some rounds more (`core/model/complaints.py`).

A complaint also names the reducer whose part it was. While it counts, every member of an average draws a part of that reducer
beside those that it draws anyway (`Average.inspected`): so all hosts check the experience of one, and a false complaint is
found false by all.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from adloco_p2p.core.model.complaints import KnownComplaint
from adloco_p2p.core.model.instance_plan import HostShare, InstancePlan
from adloco_p2p.core.model.plan import REPORT_LAG
from adloco_p2p.core.model.report import InstanceReport
from adloco_p2p.core.model.roster_entry import RosterEntry
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.planning.witnesses import Witnesses, had_work

ROUNDS_COUNTED = 16
"""A complaint counts for so many rounds after its average."""
LEAST_AVERAGES = 2
"""A host complains about another one for so many averages before that counts: one that is restarted has lost what it sent to
the last average."""
LEAST_FULL = 2
"""So many of those that complain are full members."""
SHORTEST_ROUNDS = 8
"""The first suspension; each one that follows is twice as long, ..."""
LONGEST_ROUNDS = 64
"""... up to this."""


def suspension_rounds(suspensions: int) -> int:
    """Rounds without work of the `suspensions`-th one."""
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
    """The instance's next plan with the complaints that count, and the suspensions that follow from them.

    `plan` is the instance in the plan before, whose roster this is, `moved` in the next one, but for this. `places`: by which
    numbers the reports `claims` on `round` name hosts.
    """
    following = round + REPORT_LAG
    workers = had_work(plan, places, round) - suspended(moved.hosts, following)
    complaints = _counted([*plan.complaints, *_new(claims, places, round)], workers, roster, round)
    silent = _silent(complaints, Witnesses.among(workers, roster))
    return replace(
        moved,
        complaints=tuple(complaint for complaint in complaints if complaint.contributor not in silent),
        hosts=tuple(_suspend(share, following) if share.peer in silent else share for share in moved.hosts),
    )


def _new(claims: Mapping[PeerId, InstanceReport], places: Mapping[PeerId, int], round: int) -> list[KnownComplaint]:
    """Those in the reports on `round`, by peer."""
    named = {place: peer for peer, place in places.items()}
    made = [(peer, claim.complaint) for peer, claim in sorted(claims.items()) if claim.complaint is not None]
    return [
        KnownComplaint(peer=peer, round=said.round, contributor=named[said.contributor], reducer=named[said.reducer])
        for peer, said in made
        if said.round <= round and said.contributor in named and said.reducer in named
    ]


def _counted(
    complaints: Iterable[KnownComplaint], workers: Collection[PeerId], roster: Sequence[RosterEntry], round: int
) -> list[KnownComplaint]:
    """Those of the last rounds, of hosts that have work about others, in order. Each host counts with one about each average,
    and about fewer than half of the hosts. Two hosts in client mode cannot reach each other, which is no fault of either."""
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
    return list(counted.values())


def _silent(complaints: Iterable[KnownComplaint], witnesses: Witnesses) -> set[PeerId]:
    """The hosts about which most of those that have work complain, at least two full members among them."""
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
    """Hosts that are to have no work in this round."""
    return {share.peer for share in hosts if share.suspended_until > round}


def describe_suspensions(hosts: Iterable[HostShare], round: int) -> str:
    """In words, which hosts get no work in the plan of this round for it; empty where none is suspended."""
    without = [share for share in hosts if share.suspended_until > round and share.batch_samples == 0]
    named = ", ".join(f"{share.peer} before round {share.suspended_until}" for share in without)
    return f"no work for {named} (showed no member what it had sent to averages)" if named else ""
