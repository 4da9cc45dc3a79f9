"""The events that describe a run, as plain fields: the content of the event file and the input of the views."""

from dataclasses import dataclass, field

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.run_progress import planned_samples
from adloco_p2p.core.model.types import Digest, InstanceId, RoundPlan

_PLAN_FIELDS = ("round", "reason", "expected_seconds", "is_last", "forks", "merges", "probe")
_INSTANCE_FIELDS = ("instance", "requested_batch", "effective_batch", "mode", "reason", "hosts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """One event for the event file and the views: a name and plain fields."""

    name: str
    fields: dict[str, object] = field(default_factory=dict)


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
    newcomers = {roster_entry.peer for roster_entry in plan.roster} - {roster_entry.peer for roster_entry in known}
    return [Log(name="joined", fields={"peer": peer, "round": plan.round}) for peer in sorted(newcomers)]


def out_of_memory_line(instance: InstanceId, round: int, *, micro_batch_limit: int) -> Log:
    """The device ran out of memory; `micro_batch_limit`: samples per pass from now on."""
    return Log(name="out_of_memory", fields={"instance": instance, "round": round, "micro_batch_limit": micro_batch_limit})
