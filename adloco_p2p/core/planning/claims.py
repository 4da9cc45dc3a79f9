"""The reports of a round, sorted by subject. Pure. Reports come from strangers, so unfitting ones are passed over."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.electorate import deciding_hosts
from adloco_p2p.core.model.plan import RoundPlan, keepers_of
from adloco_p2p.core.model.protocol import PROBATION_LIMITED
from adloco_p2p.core.model.report import InstanceReport, Report
from adloco_p2p.core.model.scalars import InstanceId, PeerId

Claims = Mapping[PeerId, InstanceReport]


@dataclass(frozen=True, slots=True)
class HostReports:
    """The reports of one instance's hosts on a round, and which of them count for what."""

    all: Claims
    places: Mapping[PeerId, int]
    """The bits by which these reports name hosts."""
    of_workers: Claims
    """Those of the hosts that had work: the round's noise is measured from these."""
    decisive: Claims
    """Those that decide about the round; see `deciding_hosts`."""
    deciding: Collection[PeerId]
    """The hosts whose reports decide, whether they reported or not."""


def reports_by_instance(previous: RoundPlan, received: Mapping[PeerId, Report]) -> dict[InstanceId, HostReports]:
    """Return the hosts' reports on the round before `previous`. Before protocol 22 those of hosts without work decide, too."""
    claims, places = claims_by_instance(previous, received), places_by_instance(previous)
    found: dict[InstanceId, HostReports] = {}
    for item in previous.instances:
        every = claims[item.instance]
        workers = item.workers_before(previous.round - 1)
        deciding = deciding_hosts(workers, previous)
        trained, decisive = ({peer: claim for peer, claim in every.items() if peer in hosts} for hosts in (workers, deciding))
        if previous.protocol < PROBATION_LIMITED:
            trained = decisive = every
        found[item.instance] = HostReports(every, places[item.instance], trained, decisive, deciding)
    return found


def received_reports(previous: RoundPlan, reports: Sequence[Report]) -> dict[PeerId, Report]:
    """Return one report per peer of the roster, about the round before `previous`. Of two different ones the one with the
    smaller bytes counts."""
    known = {roster_entry.peer for roster_entry in previous.roster}
    received: dict[PeerId, Report] = {}
    for report in reports:
        if report.round != previous.round - 1 or report.peer not in known:
            continue
        other = received.get(report.peer)
        if other is None or canonical.encode(report) < canonical.encode(other):
            received[report.peer] = report
    return {peer: received[peer] for peer in sorted(received)}


def claims_by_instance(
    previous: RoundPlan, received: Mapping[PeerId, Report]
) -> dict[InstanceId, dict[PeerId, InstanceReport]]:
    """Return the hosts' reports per instance, without those of keepers and of hosts that did nothing. For a fresh copy, which
    did not exist yet, the report about its source counts."""
    origin, keepers = _origin(previous), keepers_of(previous)
    hosts: dict[InstanceId, dict[PeerId, None]] = {}
    for plan in previous.instances:
        hosts.setdefault(origin.get(plan.instance, plan.instance), {}).update(dict.fromkeys(s.peer for s in plan.hosts))
    claims: dict[InstanceId, dict[PeerId, InstanceReport]] = {}
    for plan in previous.instances:
        source = origin.get(plan.instance, plan.instance)
        claims[plan.instance] = {
            peer: item
            for peer in received
            if peer in hosts[source] and peer not in keepers
            for item in [next((item for item in received[peer].instances if item.instance == source), None)]
            if item is not None and not item.is_bare
        }
    return claims


def places_by_instance(previous: RoundPlan) -> dict[InstanceId, dict[PeerId, int]]:
    """Return, per instance, the bit by which reports name each host. Hosts of all copies were hosts of the source."""
    origin = _origin(previous)
    places: dict[InstanceId, dict[PeerId, int]] = {}
    for plan in previous.instances:
        known = {share.peer: share.place_before for share in plan.hosts if share.place_before is not None}
        places.setdefault(origin.get(plan.instance, plan.instance), {}).update(known)
    return {plan.instance: places[origin.get(plan.instance, plan.instance)] for plan in previous.instances}


def _origin(plan: RoundPlan) -> dict[InstanceId, InstanceId]:
    """Map fresh copies to their sources."""
    return {target: fork.source for fork in plan.forks for target in fork.targets}
