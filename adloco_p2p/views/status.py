"""The status of a run, from the events of one peer: `apply(status, event)` is a pure fold, so a replay of
`events.jsonl` gives exactly what the live view showed. `derived.py` computes what views show from it.

Rounds are numbered from 0, as in plans and events. A boundary has the number of the round that it precedes: forks and merges
of round 12 happen after round 11 and before round 12. A round of an instance may appear twice (a peer that was killed does
it again); the later one counts.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from adloco_p2p.views import units
from adloco_p2p.views.records import (
    Activity,
    Decision,
    Event,
    Finish,
    Host,
    Incident,
    Life,
    Plan,
    PlannedInstance,
    RosterEntry,
    RoundResult,
)

MAX_PLANS = 4
"""Plans kept: the current one, and those decided ahead of it."""
MAX_INCIDENTS = 50
"""Past troubles kept for the view; `counts` still counts all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Everything the views need. Grows with rounds times instances of the run; what could grow faster has a limit above."""

    run: str = ""
    name: str = ""
    peer: str = ""
    mode: str = ""
    rounds: int | None = None
    """Length of a run that counts rounds."""
    samples: int | None = None
    """Length of a run that counts samples."""
    inner_steps: int = 0
    parameters: int = 0
    device: str = ""
    micro_batch_limit: int = 0
    unigram_entropy: float | None = None
    """Nats per token: what a model reaches that only knows how frequent each token is."""
    earlier_seconds: float = 0.0
    """Running time of the sessions before this one."""
    session_start: float | None = None
    """Unix seconds, like `last_time`."""
    last_time: float | None = None
    active_round: int | None = None
    """The round this peer works on; none before it began one."""
    plans: tuple[Plan, ...] = ()
    """By round, at most MAX_PLANS."""
    activities: Mapping[int, Activity] = field(default_factory=dict)
    results: Mapping[tuple[int, int], RoundResult] = field(default_factory=dict)
    """By round and instance."""
    lives: Mapping[int, Life] = field(default_factory=dict)
    decisions: tuple[Decision, ...] = ()
    incidents: tuple[Incident, ...] = ()
    warnings: Mapping[str, str] = field(default_factory=dict)
    """Conditions that hold now: key to message."""
    peer_states: Mapping[str, str] = field(default_factory=dict)
    """The last membership event of a peer: joined, left, suspected, returned."""
    traffic: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Bytes sent and received by kind, where they were counted: averaging with its failed attempts, gossip, state."""
    last_checkpoint: int | None = None
    first_contribution_seconds: float | None = None
    """From the user's command to the first round of this session whose committed average holds this peer's work."""
    state: str = "starting"
    """starting, running, pausing, paused, stopping, stopped, finished."""
    join_link: str = ""
    """With which others join through this peer; empty where others cannot dial it."""
    starting: str = ""
    """The phase of the node in that state, before it can be asked."""
    stopping: str | None = None
    """Why it stops, or pauses."""
    finish: Finish | None = None
    bandwidth: Mapping[str, float | None] = field(default_factory=dict)
    """Rates and caps of now, by the names of `derived.bandwidth`; empty where nothing measures them."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """How often each known event came."""

    @property
    def elapsed_seconds(self) -> float:
        """Running time of this peer, all sessions."""
        if self.session_start is None or self.last_time is None:
            return self.earlier_seconds
        return self.earlier_seconds + max(0.0, self.last_time - self.session_start)

    @property
    def current_round(self) -> int:
        """The round in progress. The plan of a round is decided while the one before computes, so the newest plan alone
        does not tell; a peer that hosts nothing has only plans to go by."""
        newest = self.plans[-1].round - 1 if self.plans else 0
        return max(self.active_round or 0, newest)

    @property
    def current_plan(self) -> Plan | None:
        """The plan of the round in progress, or the nearest one known."""
        begun = [plan for plan in self.plans if plan.round <= self.current_round]
        return begun[-1] if begun else self.plans[0] if self.plans else None


def apply(status: Status, event: Event) -> Status:
    """Return the status after the event. Unknown events change nothing."""
    handler = _HANDLERS.get(event["event"])
    if handler is None:
        return status
    if event["event"] not in ("starting", "started"):  # `started` closes the books of the session before it first
        status = _at(status, event["time"])
    status = handler(status, event)
    name = event["event"]
    return replace(status, counts={**status.counts, name: status.counts.get(name, 0) + 1})


def replay(events: Iterable[Event]) -> Status:
    status = Status()
    for event in events:
        status = apply(status, event)
    return status


def _at(status: Status, time: float) -> Status:
    """Clocks may be set back; running time does not."""
    start = time if status.session_start is None else status.session_start
    last = time if status.last_time is None else max(status.last_time, time)
    return replace(status, session_start=start, last_time=last)


# --- one handler per event -------------------------------------------------------------------------------------------


def _started(status: Status, event: Event) -> Status:
    """A session begins. A different run starts from nothing; the same one keeps what was done before."""
    if status.run != event["run"]:
        status = Status()
    resumed: int | None = event["resumed_round"]
    return replace(
        status,
        run=event["run"],
        name=event["name"],
        peer=event["peer"],
        mode=event["mode"],
        rounds=event["rounds"],
        samples=event["samples"],
        inner_steps=event["inner_steps"],
        parameters=event["parameters"],
        device=event["device"],
        micro_batch_limit=event["micro_batch_limit"],
        unigram_entropy=event["unigram_entropy"],
        earlier_seconds=status.elapsed_seconds,
        session_start=event["time"],
        last_time=event["time"],
        active_round=resumed,
        plans=tuple(plan for plan in status.plans if resumed is not None and plan.round <= resumed),
        activities={},
        warnings={},
        peer_states={},
        first_contribution_seconds=None,
        state="running",
        stopping=None,
        finish=None,
        bandwidth={},
    )


def _plan(status: Status, event: Event) -> Status:
    plan = Plan(
        round=event["round"],
        digest=event["digest"],
        reason=event["reason"],
        expected_seconds=event["expected_seconds"],
        roster=tuple(_roster_entry(roster_entry) for roster_entry in event["roster"]),
        instances=tuple(_planned_instance(instance) for instance in event["instances"]),
        is_last=event["is_last"],
        samples_before=event["samples_before"],
        samples=event["samples"],
    )
    others = {known.round: known for known in status.plans if known.round != plan.round}
    before = [known for known in others.values() if known.round < plan.round]
    for switch in _switches(before[-1], plan) if before else ():
        status = _decided(status, switch)
    for planned in plan.instances:
        status = _lived(status, planned.instance, plan.round, plan.round if plan.is_last else plan.round + 1)
    on_roster = {roster_entry.peer for roster_entry in plan.roster}
    states = {peer: state for peer, state in status.peer_states.items() if peer in on_roster or state != "left"}
    newest = tuple(known for _, known in sorted({**others, plan.round: plan}.items()))[-MAX_PLANS:]
    return replace(status, plans=newest, peer_states=states)


def _roster_entry(event: Event) -> RosterEntry:
    return RosterEntry(peer=event["peer"], samples_per_second=event["samples_per_second"], last_report=event["last_report"])


def _planned_instance(event: Event) -> PlannedInstance:
    return PlannedInstance(
        instance=event["instance"],
        requested_batch=event["requested_batch"],
        effective_batch=event["effective_batch"],
        mode=event["mode"],
        reason=event["reason"],
        hosts=tuple(
            Host(
                peer=host["peer"],
                batch_samples=host["batch_samples"],
                inner_steps=host["inner_steps"],
                micro_batch_size=host["micro_batch_size"],
                accumulation_steps=host["accumulation_steps"],
            )
            for host in event["hosts"]
        ),
    )


def _switches(before: Plan, plan: Plan) -> list[Decision]:
    """Instances whose mode changed between two plans."""
    modes = {planned.instance: planned.mode for planned in before.instances}
    return [
        Decision(
            round=plan.round,
            kind="switch",
            sources=(planned.instance,),
            targets=(planned.instance,),
            reason=f"{modes[planned.instance]} -> {planned.mode}: {planned.reason}",
        )
        for planned in plan.instances
        if modes.get(planned.instance, planned.mode) != planned.mode
    ]


def _decided(status: Status, decision: Decision) -> Status:
    """Append, or replace the same decision of an earlier session."""

    def key(known: Decision) -> tuple[int, str, tuple[int, ...]]:
        return known.round, known.kind, known.sources

    kept = tuple(known for known in status.decisions if key(known) != key(decision))
    return replace(status, decisions=(*kept, decision))


def _lived(status: Status, instance: int, start: int, end: int) -> Status:
    life = status.lives.get(instance, Life(start=start, end=end))
    longer = Life(start=min(life.start, start), end=max(life.end, end))
    return replace(status, lives={**status.lives, instance: longer})


def _phase(status: Status, event: Event) -> Status:
    known = status.activities.get(event["instance"])
    if known is not None and known.phase == "training" and known.round == event["round"] + 1:
        return status  # its inner steps did not wait for the end of this round
    if known is None or known.round != event["round"]:
        known = Activity(round=event["round"], phase=event["phase"])
    return _active(status, event, replace(known, phase=event["phase"]))


def _progress(status: Status, event: Event) -> Status:
    return _active(
        status,
        event,
        Activity(
            round=event["round"],
            phase="training",
            step=event["step"],
            num_steps=event["num_steps"],
            loss=event["loss"],
            tokens_per_second=event["tokens_per_second"],
        ),
    )


def _active(status: Status, event: Event, activity: Activity) -> Status:
    activities = {**status.activities, event["instance"]: activity}
    return replace(status, activities=activities, active_round=max(status.active_round or 0, activity.round))


def _round(status: Status, event: Event) -> Status:
    result = RoundResult(
        round=event["round"],
        instance=event["instance"],
        loss=event["loss"],
        heldout_loss=event["heldout_loss"],
        requested_batch=event["requested_batch"],
        effective_batch=event["effective_batch"],
        accumulation_steps=event["accumulation_steps"],
        mode=event["mode"],
        reason=event["reason"],
        samples=event["samples"],
        tokens=event["tokens"],
        hosts=tuple(event["hosts"]),
        seconds=dict(event["seconds"]),
        bytes_sent=event["bytes_sent"],
        bytes_received=event["bytes_received"],
        elapsed_seconds=status.elapsed_seconds,
    )
    status = _lived(status, result.instance, result.round, result.round + 1)
    # Taken out first, so that the order of the results is the order in which they came.
    others = {key: known for key, known in status.results.items() if key != (result.round, result.instance)}
    results = {**others, (result.round, result.instance): result}
    return replace(status, results=results, active_round=max(status.active_round or 0, result.round))


def _merge(status: Status, event: Event) -> Status:
    ended = set(event["sources"]) - {event["target"]}
    decision = Decision(
        round=event["round"],
        kind="merge",
        sources=tuple(event["sources"]),
        targets=(event["target"],),
        weights=tuple(event["weights"]),
        reason=event["reason"],
    )
    activities = {instance: activity for instance, activity in status.activities.items() if instance not in ended}
    return _decided(replace(status, activities=activities), decision)


def _fork(status: Status, event: Event) -> Status:
    targets = tuple(event["targets"])
    copies = "copy" if len(targets) == 1 else "copies"
    decision = Decision(
        round=event["round"],
        kind="fork",
        sources=(event["source"],),
        targets=targets,
        reason=f"{len(targets)} {copies} of the warmed-up instance",
    )
    return _decided(status, decision)


def _probe(status: Status, event: Event) -> Status:
    losses = ", ".join(units.loss(loss) for loss in event["source_losses"])
    decision = Decision(
        round=event["round"],
        kind="probe",
        sources=tuple(event["sources"]),
        targets=(event["target"],),
        reason=f"merged point {units.loss(event['merged_loss'])}, sources {losses} nats per token",
    )
    return _decided(status, decision)


def _incident(status: Status, kind: str, message: str, *, round_: int | None = None, instance: int | None = None) -> Status:
    incident = Incident(
        elapsed_seconds=status.elapsed_seconds,
        round=status.current_round if round_ is None else round_,
        instance=instance,
        kind=kind,
        message=message,
    )
    return replace(status, incidents=(*status.incidents, incident)[-MAX_INCIDENTS:])


def _average_failed(status: Status, event: Event) -> Status:
    message = f"averaging attempt {event['attempt']} failed: {event['reason']}"
    return _incident(status, "average failed", message, round_=event["round"], instance=event["instance"])


def _out_of_memory(status: Status, event: Event) -> Status:
    limit = event["micro_batch_limit"]
    message = f"out of memory; at most {limit} samples per pass from now on"
    return _incident(replace(status, micro_batch_limit=limit), "out of memory", message, instance=event["instance"])


def _warning(status: Status, event: Event) -> Status:
    warnings = {key: message for key, message in status.warnings.items() if key != event["key"]}
    if event["active"]:
        warnings[event["key"]] = event["message"]
    return replace(status, warnings=warnings)


def _member(status: Status, event: Event) -> Status:
    status = replace(status, peer_states={**status.peer_states, event["peer"]: event["event"]})
    return _incident(status, "silent peer", f"{event['peer']} fell silent") if event["event"] == "suspected" else status


def _checkpoint(status: Status, event: Event) -> Status:
    return replace(status, last_checkpoint=event["round"])


def _first_contribution(status: Status, event: Event) -> Status:
    return replace(status, first_contribution_seconds=event["seconds"])


def _traffic(status: Status, event: Event) -> Status:
    traffic = dict(status.traffic)
    for kind, sent in event["sent"].items():
        before = traffic.get(kind, (0, 0))
        traffic[kind] = before[0] + sent, before[1] + event["received"][kind]
    return replace(status, traffic=traffic)


def _stopping(status: Status, event: Event) -> Status:
    return replace(status, state=event["event"], stopping=event["reason"])


def _stood_still(status: Status, event: Event) -> Status:
    message = f"this peer stood still for {units.duration(event['seconds'])} (suspended, asleep, or its clock was set)"
    return _incident(status, "stood still", message)


def _paused(status: Status, _event: Event) -> Status:
    return replace(status, state="paused", activities={})


def _resumed(status: Status, _event: Event) -> Status:
    return replace(status, state="running", stopping=None)


def _stopped(status: Status, event: Event) -> Status:
    return replace(status, state="stopped", stopping=event["reason"], activities={}) if status.finish is None else status


def _bandwidth(status: Status, event: Event) -> Status:
    return replace(status, bandwidth={name: value for name, value in event.items() if name not in ("event", "time")})


def _listening(status: Status, event: Event) -> Status:
    return replace(status, join_link=event["join_link"])


def _starting(status: Status, event: Event) -> Status:
    return replace(status, state="starting", starting=event["phase"])


def _finished(status: Status, event: Event) -> Status:
    finish = Finish(
        heldout_loss=event["heldout_loss"],
        samples=event["samples"],
        tokens=event["tokens"],
        seconds=event["seconds"],
        bytes_sent=event["bytes_sent"],
        bytes_received=event["bytes_received"],
    )
    activities = {instance: replace(activity, phase="done") for instance, activity in status.activities.items()}
    return replace(status, state="finished", finish=finish, activities=activities)


_HANDLERS: Mapping[str, Callable[[Status, Event], Status]] = {
    "starting": _starting,
    "listening": _listening,
    "started": _started,
    "plan": _plan,
    "phase": _phase,
    "progress": _progress,
    "round": _round,
    "merge": _merge,
    "fork": _fork,
    "probe": _probe,
    "average_failed": _average_failed,
    "out_of_memory": _out_of_memory,
    "warning": _warning,
    "joined": _member,
    "left": _member,
    "suspected": _member,
    "returned": _member,
    "checkpoint": _checkpoint,
    "first_contribution": _first_contribution,
    "traffic": _traffic,
    "stopping": _stopping,
    "pausing": _stopping,
    "paused": _paused,
    "stood_still": _stood_still,
    "resumed": _resumed,
    "stopped": _stopped,
    "bandwidth": _bandwidth,
    "finished": _finished,
}
