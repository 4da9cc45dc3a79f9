"""Folds the status of a run from the events of one peer: `apply(status, event)` is pure, so a replay of `events.jsonl` gives
exactly what the live view showed.

A round of an instance may appear twice (a peer that was killed does it again); the later one counts.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import singledispatch

from adloco_p2p.core.model import telemetry
from adloco_p2p.core.model.course import in_words, pending, settings_at
from adloco_p2p.core.model.protocol import CANNOT_FOLLOW
from adloco_p2p.core.model.scalars import MAX_ROSTER
from adloco_p2p.core.model.telemetry import InstanceLine, Log, Stamped, shared
from adloco_p2p.views import units
from adloco_p2p.views.own_part import upgrade_words
from adloco_p2p.views.records import Activity, Decision, Incident, Life, RoundResult
from adloco_p2p.views.round_results import RoundResults
from adloco_p2p.views.slow_peer import slow_peer
from adloco_p2p.views.status import (
    MAX_INCIDENTS,
    MAX_PLANS,
    MAX_SAMPLE_TEXTS,
    MAX_SCORERS,
    ORDERS,
    SLOW_PEER,
    UPGRADE,
    Status,
)

STATE_TOO_LATE = (
    "the state came when the others no longer had the averages after it; fetching a newer one. Where this repeats, the link is"
    " too slow for this run"
)
"""Words about a newcomer whose state came too late."""


def apply(status: Status, stamped: Stamped) -> Status:
    """Return the status after the event."""
    event = stamped.event
    if isinstance(event, telemetry.Started):  # it first closes the session before
        status = _started(status, event, stamped.time)
    else:
        status = fold(event, status if isinstance(event, telemetry.Starting) else _at(status, stamped.time))
    return replace(status, counts={**status.counts, event.event: status.counts.get(event.event, 0) + 1})


def replay(events: Iterable[Stamped]) -> Status:
    status = Status()
    for event in events:
        status = apply(status, event)
    return status


def _at(status: Status, time: float) -> Status:
    """Advance the running time, which never falls, although clocks may be set back."""
    start = time if status.session_start is None else status.session_start
    last = time if status.last_time is None else max(status.last_time, time)
    return replace(status, session_start=start, last_time=last)


# --- one handler per event -------------------------------------------------------------------------------------------


@singledispatch
def fold(event: Log, status: Status) -> Status:
    """Return the status after the event; an event that it does not keep is only counted."""
    del event
    return status


def _started(status: Status, event: telemetry.Started, time: float) -> Status:
    """Begin a session. A different run starts from nothing; the same run keeps its earlier results."""
    if status.run != event.run:
        status = Status()
    resumed = event.resumed_round
    return replace(
        status,
        **shared(event, Status),
        rounds_unstopped=event.rounds,
        earlier_seconds=status.elapsed_seconds,
        session_start=time,
        last_time=time,
        active_round=resumed,
        plans=tuple(plan for plan in status.plans if resumed is not None and plan.round <= resumed),
        activities={},
        warnings={},
        peer_states={},
        counts=status.counts if status.results else {},
        first_contribution_seconds=None,
        state="running",
        stopping=None,
        finish=None,
        bandwidth=None,
        machine=None,
        downloads={},
        fetched=frozenset(),
        proving=None,
    )


@fold.register
def _plan(plan: telemetry.Plan, status: Status) -> Status:
    if status.plans and plan.round <= status.plans[-1].round and plan.digest not in [known.digest for known in status.plans]:
        status = _rewound(status, plan.round)
    others = {known.round: known for known in status.plans if known.round != plan.round}
    before = [known for known in others.values() if known.round < plan.round]
    for switch in _switches(before[-1], plan) if before else ():
        status = _decided(status, switch)
    for planned in plan.instances:
        status = _lived(status, planned.instance, plan.round, plan.round if plan.is_last else plan.round + 1)
    newest = tuple(known for _, known in sorted({**others, plan.round: plan}.items()))[-MAX_PLANS:]
    proving = None if plan.seat(status.peer) is not None else status.proving
    status = _seated(_ordered(replace(status, plans=newest, proving=proving), newest[-1]))
    words = slow_peer(plan, status.averaging_bytes, codec=status.codec, me=status.peer)
    return _warning(telemetry.Warning(key=SLOW_PEER, message=words, active=bool(words)), status)


def _seated(status: Status) -> Status:
    """Drop the states of peers that no plan seats from the round in progress on: no event reports the leaving of a peer that
    lost its seat while this one was away or passive."""
    seated = {seat.peer for plan in status.plans if plan.round >= status.current_round for seat in plan.roster}
    return replace(status, peer_states={peer: state for peer, state in status.peer_states.items() if peer in seated})


def _ordered(status: Status, plan: telemetry.Plan) -> Status:
    """Note the orders of signers for the run, coming ones as a condition, and the run's length where they changed it."""
    settings, last = settings_at(plan.course, plan.round), plan.course.last_round
    if settings.rounds is not None or settings.samples is not None:
        status = replace(status, rounds_unstopped=settings.rounds, samples=settings.samples)
    rounds = status.rounds_unstopped
    status = replace(status, rounds=rounds if rounds is None or last is None else min(rounds, last + 1))
    warnings = {key: message for key, message in status.warnings.items() if key not in (ORDERS, UPGRADE)}
    why = status.reasons.get("pause") if plan.course.paused_from is not None else None
    reason = f"; reason of the pause: {why}" if why else ""
    now = status.current_round
    if to_come := in_words(pending(plan.course, now), now):
        warnings[ORDERS] = to_come + reason
    if (coming := upgrade_words(plan)) and CANNOT_FOLLOW not in warnings:
        warnings[UPGRADE] = coming
    return replace(status, warnings=warnings, orders=in_words(plan.course, plan.round) + reason)


def _passes(mode: str) -> str:
    """Return the mode of an inner step in a reader's words."""
    return {"single": "one pass", "capped": "one pass of what fits", "accumulate": "several passes"}.get(mode, mode)


def _switches(before: telemetry.Plan, plan: telemetry.Plan) -> list[Decision]:
    """Return a decision for each instance whose mode changed between two plans."""
    modes = {planned.instance: planned.mode for planned in before.instances}

    def switch(planned: InstanceLine) -> Decision:
        reason = f"{_passes(modes[planned.instance])} -> {_passes(planned.mode)}: {planned.reason}"
        about = (planned.instance,)
        return Decision(round=plan.round, kind="switch", sources=about, targets=about, reason=reason)

    return [switch(planned) for planned in plan.instances if modes.get(planned.instance, planned.mode) != planned.mode]


def _decided(status: Status, decision: Decision) -> Status:
    """Append a decision, or replace the same one of an earlier session."""

    about = decision.kind, decision.sources
    kept = [known for known in status.decisions if known.round != decision.round or (known.kind, known.sources) != about]
    return replace(status, decisions=(*kept, decision))


def _lived(status: Status, instance: int, start: int, end: int) -> Status:
    life = status.lives.get(instance, Life(start=start, end=end))
    longer = Life(start=min(life.start, start), end=max(life.end, end))
    return replace(status, lives={**status.lives, instance: longer})


@fold.register
def _phase(event: telemetry.Phase, status: Status) -> Status:
    known = status.activities.get(event.instance)
    if known is not None and known.phase == "training" and known.round == event.round + 1:
        return status  # its inner steps did not wait for the end of this round
    if known is None or known.round != event.round:
        known = Activity(round=event.round, phase=event.phase)
    return _active(status, event.instance, replace(known, phase=event.phase, since=status.last_time))


@fold.register
def _progress(event: telemetry.Progress, status: Status) -> Status:
    return _active(status, event.instance, Activity(phase="training", **shared(event, Activity)))


def _active(status: Status, instance: int, activity: Activity) -> Status:
    if status.plans and activity.round > status.plans[-1].round:
        return status  # a last step of a round that no plan has any more, because another history won meanwhile
    activities = {**status.activities, instance: activity}
    return replace(status, activities=activities, active_round=max(status.active_round or 0, activity.round))


@fold.register
def _round(event: telemetry.Round, status: Status) -> Status:
    result = RoundResult(**shared(event, RoundResult), elapsed_seconds=status.elapsed_seconds)
    result = _with_heldout(result, status.evaluated.get((result.round, result.instance)))
    status = _lived(status, result.instance, result.round, result.round + 1)
    averaging_bytes = status.averaging_bytes
    if len(result.hosts) > 1 and result.bytes_sent:
        averaging_bytes = {**averaging_bytes, result.instance: result.bytes_sent}
    return replace(
        status,
        results=status.results.adding(result),
        averaging_bytes=averaging_bytes,
        active_round=max(status.active_round or 0, result.round),
    )


@fold.register
def _held_out(event: telemetry.HeldOut, status: Status) -> Status:
    """Keep the held-out loss of a round. One host of an instance evaluates it, for all, since they have the same parameters;
    that host may be ahead of this peer."""
    key = event.round, event.instance
    known = status.results.get(key)
    if known is None:
        waiting = {place: claim for place, claim in status.evaluated.items() if place[0] >= status.current_round}
        return replace(status, evaluated={**waiting, key: event})
    return replace(status, results=status.results.replacing(_with_heldout(known, event)))


def _with_heldout(result: RoundResult, claim: telemetry.HeldOut | None) -> RoundResult:
    if claim is None or result.heldout_loss is not None:
        return result
    return replace(result, heldout_loss=claim.heldout_loss, heldout_losses=claim.heldout_losses)


@fold.register
def _merge(event: telemetry.Merge, status: Status) -> Status:
    ended = {*event.sources} - {event.target}
    decision = Decision(kind="merge", targets=(event.target,), **shared(event, Decision))
    activities = {instance: activity for instance, activity in status.activities.items() if instance not in ended}
    return _decided(replace(status, activities=activities), decision)


@fold.register
def _fork(event: telemetry.Fork, status: Status) -> Status:
    copies = "copy" if len(event.targets) == 1 else "copies"
    reason = f"{len(event.targets)} {copies} of the warmed-up instance"
    return _decided(
        status, Decision(round=event.round, kind="fork", sources=(event.source,), targets=event.targets, reason=reason)
    )


@fold.register
def _probe(event: telemetry.Probe, status: Status) -> Status:
    losses = ", ".join(units.loss(loss) for loss in event.source_losses)
    reason = f"merged point {units.loss(event.merged_loss)}, sources {losses} nats per token"
    probe = Decision(round=event.round, kind="probe", sources=event.sources, targets=(event.target,), reason=reason)
    return _decided(status, probe)


def _incident(status: Status, kind: str, message: str, *, round_: int | None = None, instance: int | None = None) -> Status:
    incident = Incident(
        elapsed_seconds=status.elapsed_seconds,
        round=status.current_round if round_ is None else round_,
        instance=instance,
        kind=kind,
        message=message,
    )
    return replace(status, incidents=(*status.incidents, incident)[-MAX_INCIDENTS:])


@fold.register
def _average_failed(event: telemetry.AverageFailed, status: Status) -> Status:
    message = f"{units.attempt_words(event.attempt)} failed: {event.reason}"
    return _incident(status, "average failed", message, round_=event.round, instance=event.instance)


@fold.register
def _out_of_memory(event: telemetry.OutOfMemory, status: Status) -> Status:
    message = f"out of memory; at most {event.micro_batch_limit} samples per pass from now on"
    status = replace(status, micro_batch_limit=event.micro_batch_limit)
    return _incident(status, "out of memory", message, round_=event.round, instance=event.instance)


@fold.register
def _fast_forwarded(event: telemetry.FastForwarded, status: Status) -> Status:
    if not status.results:
        if not status.counts.get(event.event) or not status.is_seated:
            return status  # a newcomer reads the plans and begins with the state of others: no trouble
        return _incident(status, "state too late", STATE_TOO_LATE, round_=event.to_round)
    way = "was behind: it went on" if event.to_round > event.from_round else "went back"
    message = f"this peer {way} from round {event.from_round} to {event.to_round} with the state of others"
    return _incident(status, "fast-forwarded", message, round_=event.to_round)


def _rewound(status: Status, boundary: int) -> Status:
    """Drop the rounds from the boundary on, which are different in the history that this peer now follows."""
    lives = {instance: replace(life, end=min(life.end, boundary)) for instance, life in status.lives.items()}
    return replace(
        status,
        active_round=boundary,
        plans=tuple(plan for plan in status.plans if plan.round < boundary),
        activities={},
        results=RoundResults({place: result for place, result in status.results.items() if place[0] < boundary}),
        evaluated={place: claim for place, claim in status.evaluated.items() if place[0] < boundary},
        lives={instance: life for instance, life in lives.items() if life.start < boundary},
        decisions=tuple(decision for decision in status.decisions if decision.round < boundary),
    )


@fold.register
def _refused(event: telemetry.Refused, status: Status) -> Status:
    messages = "a message" if event.count == 1 else f"{event.count} messages"
    return _incident(status, "refused", f"{event.peer} refused {messages} of this peer: {event.reason}")


@fold.register
def _warning(event: telemetry.Warning, status: Status) -> Status:
    warnings = {key: message for key, message in status.warnings.items() if key != event.key}
    if event.active:
        warnings[event.key] = event.message
    if CANNOT_FOLLOW in warnings:
        warnings.pop(UPGRADE, None)  # the orders include it
    return replace(status, warnings=warnings)


@fold.register
def _member(event: telemetry.Joined | telemetry.Left | telemetry.Suspected | telemetry.Returned, status: Status) -> Status:
    status = replace(status, peer_states={**status.peer_states, event.peer: event.event})
    return _incident(status, "silent peer", f"{event.peer} fell silent") if isinstance(event, telemetry.Suspected) else status


@fold.register
def _peer_card(event: telemetry.PeerCard, status: Status) -> Status:
    others = {peer: card for peer, card in status.peer_cards.items() if peer != event.peer}
    kept = [*others.items(), (event.peer, event)][-MAX_ROSTER:]
    return replace(status, peer_cards=dict(kept))


@fold.register
def _ruled(event: telemetry.Ruled, status: Status) -> Status:
    bans = {peer: ban for peer, ban in status.bans.items() if peer != event.subject or event.action not in ("ban", "unban")}
    if event.action == "ban":
        bans[event.subject] = event
    reasons = {**status.reasons, event.action: event.reason} if event.action in ("pause", "stop") else status.reasons
    status = replace(status, bans=bans, reasons=reasons)
    return _ordered(status, status.plans[-1]) if status.plans else status  # it may come after its plan


@fold.register
def _task_scores(event: telemetry.TaskScores, status: Status) -> Status:
    others = [known for peer, known in status.task_scores.items() if peer != event.peer]
    return replace(status, task_scores={known.peer: known for known in [*others, event][-MAX_SCORERS:]})


@fold.register
def _sample_text(event: telemetry.SampleText, status: Status) -> Status:
    def place(known: telemetry.SampleText) -> tuple[int, int, str]:
        return known.round, known.instance, known.prompt

    texts = [known for known in status.sample_texts if place(known) != place(event)]  # a round may be done again
    return replace(status, sample_texts=(*texts, event)[-MAX_SAMPLE_TEXTS:])


@fold.register
def _checkpoint(event: telemetry.Checkpoint, status: Status) -> Status:
    return replace(status, last_checkpoint=event.round)


@fold.register
def _first_contribution(event: telemetry.FirstContribution, status: Status) -> Status:
    return replace(status, first_contribution_seconds=event.seconds)


@fold.register
def _traffic(event: telemetry.Traffic, status: Status) -> Status:
    traffic = dict(status.traffic)
    for kind, sent in event.sent.items():
        before = traffic.get(kind, (0, 0))
        traffic[kind] = before[0] + sent, before[1] + event.received.get(kind, 0)
    return replace(status, traffic=traffic)


@fold.register
def _stopping(event: telemetry.Stopping | telemetry.Pausing, status: Status) -> Status:
    return replace(status, state=event.event, stopping=event.reason)


@fold.register
def _stood_still(event: telemetry.StoodStill, status: Status) -> Status:
    message = f"this peer stood still for {units.duration(event.seconds)} (suspended, asleep, or its clock was set)"
    return _incident(status, "stood still", message)


@fold.register
def _paused(_event: telemetry.Paused, status: Status) -> Status:
    return replace(status, state="paused", activities={}, proving=None)


@fold.register
def _resumed(_event: telemetry.Resumed, status: Status) -> Status:
    return replace(status, state="running", stopping=None, finish=None)


@fold.register
def _stopped(event: telemetry.Stopped, status: Status) -> Status:
    """Note the stop. A peer that has carried out the last plan, but ends without the model of the run, has not finished it."""
    if event.is_finished and status.finish is not None:
        return status
    return replace(status, state="stopped", stopping=event.reason, activities={}, finish=None)


@fold.register
def _of_now(event: telemetry.Bandwidth | telemetry.Machine, status: Status) -> Status:
    return replace(status, machine=event) if isinstance(event, telemetry.Machine) else replace(status, bandwidth=event)


@fold.register
def _state_download(event: telemetry.StateDownload, status: Status) -> Status:
    others = {instance: known for instance, known in status.downloads.items() if instance != event.instance}
    if event.received_bytes < event.total_bytes:
        downloads, fetched = {**others, event.instance: event}, status.fetched - {event.instance}
    else:
        downloads, fetched = others, status.fetched | {event.instance}
    return replace(status, downloads=downloads, fetched=fetched)


@fold.register
def _proving(event: telemetry.Proving, status: Status) -> Status:
    return replace(status, proving=None if event.is_over else event)


@fold.register
def _listening(event: telemetry.Listening, status: Status) -> Status:
    return replace(status, join_link=event.join_link, may_invite=event.may_invite)


@fold.register
def _starting(event: telemetry.Starting, status: Status) -> Status:
    return replace(status, state="starting", starting=event.phase)


@fold.register
def _finished(event: telemetry.Finished, status: Status) -> Status:
    activities = {instance: replace(activity, phase="done") for instance, activity in status.activities.items()}
    over = (ORDERS, UPGRADE, SLOW_PEER)  # carried out; nobody waits any more
    warnings = {key: message for key, message in status.warnings.items() if key not in over}
    return replace(status, state="finished", finish=event, activities=activities, warnings=warnings)
