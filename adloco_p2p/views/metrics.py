"""The metrics of a node. Each is declared here once, with its name, unit and meaning, and how it follows from the status. The
page, the terminal, `adloco-peer status`, Prometheus and the Grafana dashboard show what is declared here.

Names follow the conventions of Prometheus: base units, `_total` for counters. A counter may fall when a node resumes, because
rounds that were lost are not counted; monitors interpret that as a restart.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

from adloco_p2p.core.model.telemetry import Bandwidth, Gpu, Machine
from adloco_p2p.views import looks, own_part, progress, table_rows, traffic, units
from adloco_p2p.views.status import Status
from adloco_p2p.views.table_rows import InstanceRow

Labels = tuple[str, ...]
Values = Mapping[Labels, float | None]
Unit = Literal[
    "",
    "rounds",
    "seconds",
    "unix seconds",
    "bytes",
    "samples",
    "tokens",
    "bytes per second",
    "tokens per second",
    "nats",
    "celsius",
    "watts",
    "ratio",
]

_TEXTS: Mapping[Unit, Callable[[float], str]] = {
    "rounds": lambda value: f"{value:.0f}",
    "seconds": units.duration,
    "bytes": units.size,
    "ratio": units.percent,
}
"""How a unit is printed for people; the others are printed as counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One metric and its samples by the values of their labels. An unknown sample is omitted."""

    name: str
    unit: Unit
    meaning: str
    words: str
    """Text with `{}` for the value; empty where views have another place for it, such as a bar or a table."""
    label_names: Labels
    samples: Mapping[Labels, float]

    @property
    def kind(self) -> Literal["gauge", "counter"]:
        return "counter" if self.name.endswith("_total") else "gauge"

    @property
    def text(self) -> str:
        """The metric in words; empty where views show it elsewhere, and where it is not known."""
        read = _TEXTS.get(self.unit, units.count)
        return self.words.format(read(self.samples[()])) if self.words and self.samples else ""


def measures(status: Status) -> list[Measure]:
    """Return all metrics, always under the same names in the same order, the most read ones first."""
    found = [*_work(status), *_run(status), *_traffic(status), *_instances(status), *_troubles(status), *_machine(status)]
    if own_part.keeper_words(status):
        return [replace(measure, words="") if measure.name in _OF_TRAINING else measure for measure in found]
    return found


_OF_TRAINING = frozenset({"adloco_tokens_total", "adloco_samples_total", "adloco_micro_batch_limit_samples"})
"""Metrics that are not shown to people for a keeper, which trains nothing."""


def bootstrap_measures(num_connected: int | None) -> list[Measure]:
    """Return the metrics of a bootstrap, which trains nothing."""
    return [_metric("connected_peers", "", "Peers that are connected to this bootstrap.", num_connected)]


def _run(status: Status) -> list[Measure]:
    plan = status.current_plan
    expected = plan.expected_seconds if plan is not None else None
    node = (
        units.short_digest(status.run),
        units.one_line(status.name),
        status.mode,
        units.one_line(status.peer),
        status.device,
    )
    names = ("run", "name", "mode", "peer", "device")
    return [
        _labelled("run_info", "", "Run, peer and device of this node; always 1.", names, {node: 1.0 if status.run else None}),
        _metric("round", "rounds", "The outer round in progress, from 0.", status.current_round),
        _metric("run_rounds", "rounds", "Outer rounds of the whole run, where it counts rounds.", status.rounds),
        _metric("run_samples", "samples", "Samples of the whole run, where it counts samples.", status.samples),
        _metric("run_progress_ratio", "ratio", "Part of the run that is done.", progress.run_fraction(status)),
        _metric("run_remaining_seconds", "seconds", "Estimated time until the end of the run.", progress.eta_seconds(status)),
        _metric("run_finished", "", "1 once the run is complete.", float(status.finish is not None)),
        _metric("round_expected_seconds", "seconds", "Computing time of the slowest host, as planned.", expected),
        _metric(
            "last_event_timestamp_seconds",
            "unix seconds",
            "Time of the last event of this node, in unix time.",
            status.last_time,
        ),
    ]


def _work(status: Status) -> list[Measure]:
    totals = traffic.totals(status)
    counted, saved = status.first_contribution_seconds, status.last_checkpoint
    rate, utilisation = progress.tokens_per_second(status), progress.compute_utilisation(status)
    return [
        _metric("tokens_per_second", "tokens per second", "Tokens by running time, over the last rounds.", rate, "{} tokens/s"),
        _metric(
            "tokens_total",
            "tokens",
            "Predicted tokens that this node trained, in rounds that count.",
            totals.tokens,
            "{} tokens" if totals.tokens else "",  # a joiner may train for minutes before its first round counts
        ),
        _metric(
            "compute_utilisation_ratio",
            "ratio",
            "Time in inner steps by running time.",
            utilisation,
            "computing {} of the time",
        ),
        _metric(
            "sent_per_token_bytes",
            "bytes",
            "All traffic that this node sent, by the tokens that it trained.",
            traffic.bytes_per_token(status) or None,
            "{} sent per token",
        ),
        _metric(
            "first_contribution_seconds",
            "seconds",
            "From the command to the first committed average of this session with this node's work.",
            counted,
            "first average {} after the command",
        ),
        _metric(
            "saved_round",
            "rounds",
            "The newest checkpoint is at the boundary before this round.",
            saved,
            "checkpoint before round {}",
        ),
        _metric(
            "micro_batch_limit_samples",
            "samples",
            "Samples that fit one pass on this device.",
            status.micro_batch_limit or None,
            "at most {} samples a pass",
        ),
        _metric(
            "samples_total",
            "samples",
            "Samples that this node trained, in rounds that count.",
            totals.samples,
            "{} samples trained" if totals.samples else "",
        ),
        _metric("training_seconds_total", "seconds", "Time in inner steps, in rounds that count.", totals.training_seconds),
        _metric("running_seconds_total", "seconds", "Time in which the node ran, over all restarts.", status.elapsed_seconds),
    ]


def _traffic(status: Status) -> list[Measure]:
    kinds = traffic.traffic_by_kind(status)
    sent: Values = {(kind,): pair[0] for kind, pair in kinds.items()}
    received: Values = {(kind,): pair[1] for kind, pair in kinds.items()}
    plan, now = status.current_plan, status.bandwidth or Bandwidth()
    links: Values = {(line.peer,): line.upload_bytes_per_second or None for line in (plan.roster if plan is not None else ())}
    return [
        _labelled("sent_bytes_total", "bytes", "Payload sent, by kind of traffic.", ("kind",), sent),
        _labelled("received_bytes_total", "bytes", "Payload received, by kind of traffic.", ("kind",), received),
        _metric("sent_bytes_per_second", "bytes per second", "Payload that leaves this node now.", now.up_bytes_per_second),
        _metric(
            "received_bytes_per_second", "bytes per second", "Payload that reaches this node now.", now.down_bytes_per_second
        ),
        _labelled(
            "peer_upload_bytes_per_second", "bytes per second", "Uplink of a peer in its last averages.", ("peer",), links
        ),
    ]


def _instances(status: Status) -> list[Measure]:
    rows = table_rows.instance_rows(status)

    def each(name: str, unit: Unit, meaning: str, value: Callable[[InstanceRow], float | None]) -> Measure:
        return _labelled(name, unit, meaning, ("model_instance",), {(str(row.instance),): value(row) for row in rows})

    inner: Values = {(str(instance),): activity.loss for instance, activity in status.activities.items()}
    scores: Values = {
        (task.name, metric.name, claim.peer): metric.value
        for claim in status.task_scores.values()
        for task in claim.scores
        for metric in task.metrics
    }
    return [
        _labelled("task_score", "", "Score of the model on a task, as a peer claims it.", ("task", "metric", "peer"), scores),
        _labelled(
            "look_score",
            "",
            "Mean of the last looks at a peer's work: 0 where it did not train on its rows.",
            ("peer",),
            {(peer,): fmean(known) for peer, known in looks.look_scores(status.current_plan).items()},
        ),
        _metric("instances", "", "Instances of the current plan.", len(rows)),
        each("instance_loss_nats", "nats", "Training loss per token.", lambda row: row.loss),
        _labelled("inner_loss_nats", "nats", "Loss of the last inner step, per token.", ("model_instance",), inner),
        each("instance_heldout_loss_nats", "nats", "Newest held-out loss per token.", lambda row: row.heldout_loss),
        each(
            "instance_requested_batch_samples",
            "samples",
            "Requested global batch, by the batch test or the ramp.",
            lambda row: row.requested_batch,
        ),
        each("instance_effective_batch_samples", "samples", "Global batch that a step uses.", lambda row: row.effective_batch),
        each("instance_hosts", "", "Peers that train the instance.", lambda row: row.num_hosts),
    ]


def _troubles(status: Status) -> list[Measure]:
    peers = Counter(row.state for row in table_rows.peer_rows(status))
    states: Values = {(state,): peers[state] for state in ("alive", "suspected", "left", "joining")}
    events: Values = {(name,): count for name, count in sorted(status.counts.items())}
    return [
        _labelled("peers", "", "Known peers of the swarm by their state.", ("state",), states),
        _metric("warnings", "", "Conditions that hold now and ask for attention.", len(status.warnings)),
        _labelled(
            "events_total", "", "Events of this node by name: average_failed, out_of_memory, merge, ...", ("event",), events
        ),
    ]


def _machine(status: Status) -> list[Measure]:
    """Return metrics of the whole machine, with all its programs."""
    machine = status.machine
    gpus = machine.gpus if machine is not None else ()

    def plain(name: str, unit: Unit, meaning: str, value: Callable[[Machine], float]) -> Measure:
        return _metric(name, unit, meaning, None if machine is None else value(machine))

    def each(name: str, unit: Unit, meaning: str, value: Callable[[Gpu], float | None]) -> Measure:
        return _labelled(name, unit, meaning, ("gpu",), {(str(gpu.index),): value(gpu) for gpu in gpus})

    return [
        plain("machine_processor_ratio", "ratio", "Load of all processors.", lambda now: now.processor_fraction),
        plain("machine_memory_bytes", "bytes", "Memory of the machine in use.", lambda now: now.memory_bytes),
        plain("machine_memory_limit_bytes", "bytes", "Memory that the machine has.", lambda now: now.memory_limit_bytes),
        plain("process_memory_bytes", "bytes", "Resident memory of this node.", lambda now: now.process_memory_bytes),
        each("gpu_memory_bytes", "bytes", "Memory of the GPU in use, by all programs.", lambda gpu: gpu.memory_bytes),
        each("gpu_memory_limit_bytes", "bytes", "Memory that the GPU has.", lambda gpu: gpu.memory_limit_bytes),
        each(
            "gpu_utilisation_ratio",
            "ratio",
            "Fraction of the time that the GPU works.",
            lambda gpu: gpu.utilisation_fraction,
        ),
        each("gpu_temperature_celsius", "celsius", "Temperature of the GPU.", lambda gpu: gpu.temperature_celsius),
        each("gpu_power_watts", "watts", "Power that the GPU draws.", lambda gpu: gpu.power_watts),
    ]


def _metric(name: str, unit: Unit, meaning: str, value: float | None, words: str = "") -> Measure:
    return _labelled(name, unit, meaning, (), {(): value}, words)


def _labelled(name: str, unit: Unit, meaning: str, label_names: Labels, values: Values, words: str = "") -> Measure:
    known = {labels: float(value) for labels, value in values.items() if value is not None and math.isfinite(value)}
    return Measure(name=f"adloco_{name}", unit=unit, meaning=meaning, words=words, label_names=label_names, samples=known)
