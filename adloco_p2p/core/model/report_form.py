"""The form of a report: how it names hosts, and how large it may be.

A report names the hosts in an average by one bit each, so it stays small in a large swarm. The plan that the report carries by
its digest gives the bits their meaning: bit 0 is the first host of the instance, in the plan's order.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.assessments import Assessment, ContributionAssessed
from adloco_p2p.core.model.complaints import Complaint, PartNotShown
from adloco_p2p.core.model.instance_plan import InstancePlan
from adloco_p2p.core.model.ledger_entry import SignedReport
from adloco_p2p.core.model.once import once
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.report import InstanceReport, Report
from adloco_p2p.core.model.scalars import InstanceId, PeerId

MAX_REPORT_BYTES = 8 << 10
"""Most canonical bytes of an unsigned report of a peer that hosts up to INSTANCES_INCLUDED instances."""
INSTANCES_INCLUDED = 4
MAX_INSTANCE_BYTES = 1 << 10
"""Bytes allowed in addition for each further instance that the plan gives the peer."""
MAX_PROOF_BYTES, LEAST_PROOF_BYTES, VOTE_BYTES = 128 << 10, 16 << 10, 320
"""Bytes allowed in addition for the proof of a branch: VOTE_BYTES per member, between the least and the most. A branch with
more than about 500 voters is not merged."""
MAX_REPORTS_BYTES = 20 << 20
"""Most bytes of all reports that one plan is made from; 256 hosts of each of 64 instances stay below it."""


_AROUND_BYTES = len(b'{"report":,"signature":}')
"""Bytes of a signed report besides its two values."""


# --- hosts as bits ---------------------------------------------------------------------------------------------------


def bits_of(named: Iterable[PeerId], hosts: Sequence[PeerId]) -> int:
    """Return the bits of `named`, one at the place of each among `hosts`, the hosts of the plan. All of `named` must be
    hosts."""
    places = {peer: place for place, peer in enumerate(hosts)}
    return sum(1 << places[peer] for peer in dict.fromkeys(named))


def named_by(bits: int, plan: InstancePlan) -> tuple[PeerId, ...]:
    """Return the hosts of the plan whose bits are set, sorted. A bit beyond the last host names no peer."""
    return tuple(share.peer for place, share in enumerate(plan.hosts) if bits >> place & 1)


def complaint_of(event: PartNotShown, plan: InstancePlan) -> Complaint | None:
    """Return the complaint for the report on the plan's round; None if one of the two peers is no host of the plan."""
    places = {share.peer: place for place, share in enumerate(plan.hosts)}
    if event.contributor not in places or event.reducer not in places:
        return None
    return Complaint(round=event.round, contributor=places[event.contributor], reducer=places[event.reducer])


def assessment_of(event: ContributionAssessed, plan: InstancePlan) -> Assessment | None:
    """Return the score for the report on the plan's round; None if nothing was measured, or the subject is no host of the
    plan."""
    places = {share.peer: place for place, share in enumerate(plan.hosts)}
    asked = event.asked
    if event.score is None or asked.subject not in places:
        return None
    return Assessment(round=event.round, subject=places[asked.subject], score=asked.tenths(event.score))


# --- size ------------------------------------------------------------------------------------------------------------


def max_bytes(num_instances: int) -> int:
    """Return the bytes that a report about `num_instances` may take, without a proof."""
    return MAX_REPORT_BYTES + MAX_INSTANCE_BYTES * max(0, num_instances - INSTANCES_INCLUDED)


def report_bytes(signed: SignedReport) -> int:
    """Return the canonical bytes of the report. Its size follows from that of the signed report, so it is not encoded again."""
    text = signed.signature
    signature = len(text) + 2 if text.isascii() and text.isalnum() else canonical.size(text)
    return canonical.size_once(signed) - signature - _AROUND_BYTES


def _proof_bytes(report: Report, limit: int) -> int:
    """Return the bytes that a report may take for its proof, in addition to those of its instances."""
    return 0 if report.proof is None else min(canonical.size_once(report.proof), limit)


def _proof_limit(num_members: int) -> int:
    return min(MAX_PROOF_BYTES, max(LEAST_PROOF_BYTES, VOTE_BYTES * num_members))


def fitted(report: Report, *, num_members: int) -> Report:
    """Cut a peer's own report to the size that others accept: leave out a proof that is too large, then scores on tasks, then
    branch states from the last one on, then statistics, then held-out losses on each data set."""
    longest = _proof_limit(num_members)
    if report.proof is not None and canonical.size_once(report.proof) > longest:
        report = replace(report, proof=None)
    limit = max_bytes(len(report.instances)) + _proof_bytes(report, longest)
    if canonical.size(report) > limit:
        report = replace(report, tasks=None)
    while report.branches and canonical.size(report) > limit:
        report = replace(report, branches=report.branches[:-1])
    report = _cut(report, limit, lambda item: replace(item, pseudo_gradient=None, half_batch=None))
    return _cut(report, limit, lambda item: replace(item, heldout_losses=()))


def _cut(report: Report, limit: int, shorter: Callable[[InstanceReport], InstanceReport]) -> Report:
    """Make the entries of the instances shorter, from the last one on, as far as the limit of bytes demands it."""
    for place in reversed(range(len(report.instances))):
        if canonical.size(report) <= limit:
            break
        item = shorter(report.instances[place])
        report = replace(report, instances=(*report.instances[:place], item, *report.instances[place + 1 :]))
    return report


def is_short(signed: SignedReport) -> bool:
    """Return whether the report is within the limit for the number of instances that it names."""
    limit = max_bytes(len(signed.report.instances)) + _proof_bytes(signed.report, MAX_PROOF_BYTES)
    return canonical.size_once(signed.report) <= limit


def usable(reports: Iterable[SignedReport], reported: RoundPlan) -> list[SignedReport]:
    """Return the reports on this plan from which a next plan may be made, in their order. Left out are reports that are larger
    than what the plan gives their peers to report, reports that name hosts which the plan does not have, and all beyond
    MAX_REPORTS_BYTES."""
    chosen, total = [], 0
    for signed in reports:
        size = usable_bytes(signed, reported)
        if size is not None and total + size <= MAX_REPORTS_BYTES:
            chosen.append(signed)
            total += size
    return chosen


def usable_bytes(signed: SignedReport, reported: RoundPlan) -> int | None:
    """Return how much of MAX_REPORTS_BYTES the report takes; None if it is too large itself, or names hosts that the plan does
    not have."""
    num_hosts, num_hosted = _hosting(reported)
    report, size = signed.report, report_bytes(signed)
    limit = max_bytes(num_hosted.get(report.peer, 0)) + _proof_bytes(report, _proof_limit(len(reported.roster)))
    return size if size <= limit and _names_hosts_only(report, num_hosts) else None


@once
def _hosting(plan: RoundPlan) -> tuple[Mapping[InstanceId, int], Mapping[PeerId, int]]:
    """Return the number of hosts of each instance, and the number of instances of each host."""
    num_hosted = Counter(share.peer for item in plan.instances for share in item.hosts)
    return {item.instance: len(item.hosts) for item in plan.instances}, num_hosted


def _names_hosts_only(report: Report, num_hosts: Mapping[InstanceId, int]) -> bool:
    return all(_last_place(item) < num_hosts.get(item.instance, 0) for item in report.instances)


def _last_place(item: InstanceReport) -> int:
    """Return the highest place of a host that the report names; -1 if it names none."""
    complaint, assessment = item.complaint, item.assessment
    last = max(item.contributors.bit_length(), item.left_out.bit_length()) - 1
    last = last if complaint is None else max(last, complaint.contributor, complaint.reducer)
    return last if assessment is None else max(last, assessment.subject)
