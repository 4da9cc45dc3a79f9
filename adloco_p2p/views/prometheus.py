"""The numbers that a monitor collects of one node, by the conventions of Prometheus: base units, `_total` for counters.

A counter may fall when a node resumes, because rounds that were lost are not counted: monitors read that as a restart.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeGuard

from adloco_p2p.views import derived, units
from adloco_p2p.views.status import Status

Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One metric and its samples: values of the labels -> value. An unknown sample is omitted."""

    name: str
    kind: Literal["gauge", "counter"]
    meaning: str
    label_names: Labels = ()
    samples: Mapping[Labels, float]


def measures(status: Status) -> list[Measure]:
    """All of them, always the same names in the same order."""
    return [*_run(status), *_work(status), *_traffic(status), *_instances(status), *_swarm(status), *_troubles(status)]


def _run(status: Status) -> list[Measure]:
    plan = status.current_plan
    expected = plan.expected_seconds if plan is not None else None
    return [
        Measure(
            name="adloco_run_info",
            kind="gauge",
            meaning="Run, peer and device of this node; always 1.",
            label_names=("run", "name", "mode", "peer", "device"),
            samples={
                (
                    units.short_digest(status.run),
                    units.one_line(status.name),
                    status.mode,
                    units.one_line(status.peer),
                    status.device,
                ): 1.0
            }
            if status.run
            else {},
        ),
        _gauge("adloco_round", "The outer round in progress, from 0.", status.current_round),
        _gauge("adloco_run_rounds", "Outer rounds of the whole run, where it counts rounds.", status.rounds),
        _gauge("adloco_run_samples", "Samples of the whole run, where it counts samples.", status.samples),
        _gauge("adloco_run_progress_ratio", "Part of the run that is done.", derived.run_fraction(status)),
        _gauge("adloco_run_remaining_seconds", "Estimated time until the end of the run.", derived.eta_seconds(status)),
        _gauge("adloco_run_finished", "1 once the run is complete.", float(status.finish is not None)),
        _gauge("adloco_round_expected_seconds", "Computing time of the slowest host, as planned.", expected),
        _gauge("adloco_last_event_timestamp_seconds", "Time of the last event of this node, in unix time.", status.last_time),
    ]


def _work(status: Status) -> list[Measure]:
    totals = derived.totals(status)
    return [
        _counter("adloco_samples_total", "Samples that this node trained, in rounds that count.", totals.samples),
        _counter("adloco_tokens_total", "Predicted tokens that this node trained, in rounds that count.", totals.tokens),
        _counter("adloco_training_seconds_total", "Time in inner steps, in rounds that count.", totals.training_seconds),
        _counter("adloco_running_seconds_total", "Time in which the node ran, over all restarts.", status.elapsed_seconds),
        _gauge("adloco_compute_utilisation_ratio", "Time in inner steps by running time.", derived.compute_utilisation(status)),
        _gauge("adloco_tokens_per_second", "Tokens by running time, over the last rounds.", derived.tokens_per_second(status)),
        _gauge("adloco_micro_batch_limit_samples", "Samples that fit one pass on this device.", status.micro_batch_limit),
    ]


def _traffic(status: Status) -> list[Measure]:
    kinds = derived.traffic_by_kind(status)
    return [
        Measure(
            name="adloco_sent_bytes_total",
            kind="counter",
            meaning="Payload sent, by kind of traffic.",
            label_names=("kind",),
            samples={(kind,): sent for kind, (sent, _) in kinds.items()},
        ),
        Measure(
            name="adloco_received_bytes_total",
            kind="counter",
            meaning="Payload received, by kind of traffic.",
            label_names=("kind",),
            samples={(kind,): received for kind, (_, received) in kinds.items()},
        ),
    ]


def _instances(status: Status) -> list[Measure]:
    rows = derived.instance_rows(status)

    def each(name: str, meaning: str, value: Mapping[int, float | None]) -> Measure:
        known: dict[Labels, float] = {(str(instance),): number for instance, number in value.items() if _is_known(number)}
        return Measure(name=name, kind="gauge", meaning=meaning, label_names=("model_instance",), samples=known)

    return [
        _gauge("adloco_instances", "Instances of the current plan.", len(rows)),
        each("adloco_instance_loss_nats", "Training loss per token.", {row.instance: row.loss for row in rows}),
        each(
            "adloco_instance_heldout_loss_nats", "Newest held-out loss per token.", {r.instance: r.heldout_loss for r in rows}
        ),
        each(
            "adloco_instance_requested_batch_samples",
            "Global batch that the norm test asks for.",
            {r.instance: r.requested_batch for r in rows},
        ),
        each(
            "adloco_instance_effective_batch_samples",
            "Global batch that a step uses.",
            {r.instance: r.effective_batch for r in rows},
        ),
        each("adloco_instance_hosts", "Peers that train the instance.", {row.instance: row.num_hosts for row in rows}),
    ]


def _swarm(status: Status) -> list[Measure]:
    states = Counter(row.state for row in derived.peer_rows(status))
    return [
        Measure(
            name="adloco_peers",
            kind="gauge",
            meaning="Known peers of the swarm by their state.",
            label_names=("state",),
            samples={(state,): states.get(state, 0) for state in ("alive", "suspected", "left", "joining")},
        )
    ]


def _troubles(status: Status) -> list[Measure]:
    return [
        _gauge("adloco_warnings", "Conditions that hold now and ask for attention.", len(status.warnings)),
        Measure(
            name="adloco_events_total",
            kind="counter",
            meaning="Events of the event file, by name: average_failed, out_of_memory, merge, ...",
            label_names=("event",),
            samples={(name,): count for name, count in sorted(status.counts.items())},
        ),
    ]


def _gauge(name: str, meaning: str, value: float | None) -> Measure:
    return Measure(name=name, kind="gauge", meaning=meaning, samples={(): value} if _is_known(value) else {})


def _counter(name: str, meaning: str, value: float) -> Measure:
    return Measure(name=name, kind="counter", meaning=meaning, samples={(): float(value)})


def _is_known(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)
