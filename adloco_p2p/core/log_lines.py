"""The events that tell a run's story, as plain fields: what the event file and the views are made of."""

from adloco_p2p.core import canonical
from adloco_p2p.core.events import Log
from adloco_p2p.core.outer_round import OuterRound
from adloco_p2p.core.report_form import named_by
from adloco_p2p.core.run_end import planned_samples
from adloco_p2p.core.types import Digest, InstanceId, RoundPlan

_PLAN_FIELDS = ("round", "reason", "expected_seconds", "is_last", "forks", "merges", "probe")
_INSTANCE_FIELDS = ("instance", "requested_batch", "effective_batch", "mode", "reason", "hosts")


def plan_line(plan: RoundPlan, digest: Digest) -> Log:
    """An agreed plan."""
    plain = canonical.to_plain(plan)
    fields: dict[str, object] = {name: plain[name] for name in _PLAN_FIELDS}
    fields |= {"digest": digest, "samples_before": plan.samples_before, "samples": planned_samples(plan)}
    fields["roster"] = [
        {"peer": s.peer, "samples_per_second": s.capacity.samples_per_second, "last_report": s.last_report} for s in plan.roster
    ]
    fields["instances"] = [{name: item[name] for name in _INSTANCE_FIELDS} for item in plain["instances"]]
    return Log(name="plan", fields=fields)


def joined_lines(previous: RoundPlan | None, plan: RoundPlan) -> list[Log]:
    """The peers on the roster of `plan` that were not on the roster before; none where that one is unknown."""
    known = previous.roster if previous is not None else plan.roster
    newcomers = {seat.peer for seat in plan.roster} - {seat.peer for seat in known}
    return [Log(name="joined", fields={"peer": peer, "round": plan.round}) for peer in sorted(newcomers)]


def out_of_memory_line(instance: InstanceId, round: int, *, micro_batch_limit: int) -> Log:
    """The device ran out of memory; `micro_batch_limit`: samples per pass from now on."""
    return Log(name="out_of_memory", fields={"instance": instance, "round": round, "micro_batch_limit": micro_batch_limit})


def round_line(outer: OuterRound) -> Log:
    """One instance ended a round on this peer."""
    report, totals, plan = outer.report(), outer.totals(), outer.instance_plan
    hosts = named_by(report.contributors, plan)
    fields: dict[str, object] = {
        "round": outer.round,
        "instance": outer.instance,
        "loss": report.loss,
        "heldout_loss": outer.heldout_loss,
        "requested_batch": plan.requested_batch,
        "effective_batch": plan.effective_batch,
        "accumulation_steps": report.accumulation_steps,
        "mode": plan.mode,
        "reason": plan.reason,
        "samples": report.samples,
        "tokens": report.tokens,
        "hosts": list(hosts),
        "is_ahead": outer.is_ahead,
        "digest": report.digest,
        "seconds": {phase: round(seconds, 6) for phase, seconds in outer.seconds.items()},
        "bytes_sent": totals.bytes_sent,
        "bytes_received": totals.bytes_received,
    }
    return Log(name="round", fields=fields)


def fetch_warning(instance: InstanceId, message: str, *, active: bool) -> Log:
    """The state of an instance cannot be had, or can again."""
    return Log(name="warning", fields={"key": f"fetch {instance}", "message": message, "active": active})
