"""Telemetry of a plan, and of the reports and orders that it was made from."""

from collections.abc import Sequence

from adloco_p2p.core.model import telemetry
from adloco_p2p.core.model.ledger_entry import Decree, Statement
from adloco_p2p.core.model.lineage import Fork, Merge
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.run_progress import planned_samples
from adloco_p2p.core.model.scalars import Digest
from adloco_p2p.core.model.telemetry import HeldOut, InstanceLine, Joined, Plan, RosterLine, Ruled, TaskScores, shared


def plan_line(plan: RoundPlan, digest: Digest) -> Plan:
    fields = shared(plan, Plan)
    fields["roster"] = tuple(
        RosterLine(
            peer=entry.peer,
            samples_per_second=entry.capacity.samples_per_second,
            last_report=entry.last_report,
            upload_bytes_per_second=entry.capacity.upload_bytes_per_second,
            probation=entry.probation,
            is_keeper=entry.capacity.is_keeper,
            is_leaving=entry.capacity.is_leaving,
            waits_from=entry.turn_from if entry.is_waiting and not plan.is_last else None,
        )
        for entry in plan.roster
    )
    fields["instances"] = tuple(InstanceLine(**shared(item, InstanceLine)) for item in plan.instances)
    return Plan(**fields, digest=digest, samples=planned_samples(plan))


def merge_line(merge: Merge, round: int) -> telemetry.Merge:
    return telemetry.Merge(round=round, **shared(merge, telemetry.Merge))


def fork_line(fork: Fork, round: int) -> telemetry.Fork:
    return telemetry.Fork(round=round, **shared(fork, telemetry.Fork))


def task_lines(reports: Sequence[Report]) -> list[TaskScores]:
    """Return the claims of task scores in the reports."""
    return [TaskScores(peer=report.peer, **shared(report.tasks, TaskScores)) for report in reports if report.tasks is not None]


def heldout_lines(report: Report) -> list[HeldOut]:
    """Return the claims of held-out losses in the report."""
    return [
        HeldOut(
            round=report.round,
            instance=item.instance,
            peer=report.peer,
            heldout_loss=item.heldout_loss,
            heldout_losses=item.heldout_losses,
        )
        for item in report.instances
        if item.heldout_loss is not None
    ]


def joined_lines(previous: RoundPlan | None, plan: RoundPlan) -> list[Joined]:
    """Return the peers on the roster of `plan` that were not on the previous one; none if that is unknown."""
    known = previous.roster if previous is not None else plan.roster
    newcomers = {roster_entry.peer for roster_entry in plan.roster} - {roster_entry.peer for roster_entry in known}
    return [Joined(peer=peer, round=plan.round) for peer in sorted(newcomers)]


def ruled_lines(decrees: Sequence[Decree], round: int) -> list[Ruled]:
    """Return the events of the decrees in the plan of this round."""
    return [
        Ruled(
            round=round,
            action=decree.action,
            subject=decree.subject,
            by=decree.signer if isinstance(decree, Statement) else "evidence",
            reason=decree.reason,
        )
        for decree in decrees
    ]
