"""DiLoCo, AdLoCo and a ramp with real processes: held-out loss against wall time and bytes, behind 20 and 100 Mbit/s.

    python -m benchmarks.wan.methods run --out DIRECTORY [--ways DiLoCo AdLoCo ramp] [--links 20 100] [--seeds 1] [--scale 20]
    python -m benchmarks.wan.methods report    the table in docs/results/time.md and the plot, from the kept records and its own

Four real nodes in network namespaces train the small model of `benchmarks.wan.islands`. Each is behind a link of its own, of
the stated rate in each direction and 25 ms one way, so that a packet and its answer take 100 ms between any two. As there,
`--scale K` divides the rates by K: an average then takes as long as that of K times as many values over the stated rates.

The ways differ in the batch alone: constant, by the batch test as `mode: adloco` ships it, or a linear ramp. The learning rate
follows the root of a batch that grows. Start of the batch, its cap, H, the outer step, the peak of the learning rate, and the
samples of the run are the same for all, and warm-up, decay and ramp go by samples.

A device takes 0.05 s for each row of an inner step and nothing else (`benchmarks.paced`). So the inner steps of all ways take
equally long in all, but for batches that four hosts cannot divide, and a batch that grows saves averages only. On real devices
a step has fixed costs, too, which would favour batches that grow.

All peers are founders, and the run ends by its samples. Time begins with the first inner step of any host and ends with the
last outer step. Bytes are those that the nodes count as sent, of all kinds; the emulator counts IP packets beside them. Runs
that the records have are skipped.
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from benchmarks.method.figures import BYTES, SECONDS, at_cost, estimate, paired, with_end
from benchmarks.method.plots import mean_curve, save
from benchmarks.method.report import keep_tables
from benchmarks.method.store import RESULTS, Record, command_line, read_records, train_missing
from benchmarks.nodes import Event, began, end_on_sigterm, paced
from benchmarks.wan.course import Course
from benchmarks.wan.founders import SMALL_RUN, conduct
from benchmarks.wan.grid import phases_of
from benchmarks.wan.islands import QUEUE_KB
from benchmarks.wan.lab import Link

KEPT = RESULTS / "methods_real.jsonl.gz"
PLOT = RESULTS / "real_swarm.svg"
HOSTS = 4
BATCH, MAX_BATCH = 16, 40
"""Samples of an inner step over all hosts: at the start, and where growth ends."""
INNER_STEPS = 32
SAMPLES = 20_480
"""Of a run: 40 rounds with the batch of the start."""
WARMUP_SAMPLES = 2048
HELDOUT_ROWS = 128
DELAY_MS = 25.0
"""The delay of one link, one way."""
LINKS_MBIT = (20.0, 100.0)
PARTS = (0.25, 0.5, 1.0)
"""Parts of the time of the fastest way after which losses are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to choose the batch."""

    name: str
    mode: str
    batch: Mapping[str, Any]


DILOCO = Way(name="DiLoCo", mode="diloco", batch={"max_batch": BATCH})
WAYS = (
    DILOCO,
    Way(name="AdLoCo", mode="adloco", batch={"max_batch": MAX_BATCH}),
    Way(name="ramp", mode="adloco", batch={"max_batch": MAX_BATCH, "test": "schedule", "ramp": "linear"}),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run."""

    way: Way
    mbit: float
    """The stated rate."""
    seed: int
    scale: float
    row_seconds: float
    samples: int

    @property
    def key(self) -> str:
        link = f"{self.mbit:g} Mbit/s / {self.scale:g}"
        return f"{self.way.name}, {link}, {self.samples} samples, {self.row_seconds:g} s a row, seed {self.seed}"


# --- the run --------------------------------------------------------------------------------------------------------------


def document_of(way: Way, *, samples: int, seed: int) -> dict[str, Any]:
    return {
        **SMALL_RUN,
        "name": "methods",
        "mode": way.mode,
        "seed": seed,
        "inner": {"learning_rate": 3e-3, "warmup_samples": WARMUP_SAMPLES},
        "outer": {"momentum": 0.5, "state": "mixed"},
        "work": {"inner_steps": INNER_STEPS, "samples": samples, "share": "equal", "link_tolerance": None},
        "instances": {"count": 1, "start": "same"},
        "batch": {"initial_batch": BATCH, **way.batch},
        "evaluation": {"rows": HELDOUT_ROWS, "seed": 0, "period_rounds": 2},
    }


def measure(job: Job, out: Path, *, minutes: float) -> Record:
    """Run all peers to the end of the run and return its record. Raises SystemExit where one fails, or is late."""
    folder = out / f"{job.way.name}-{job.mbit:g}mbit-seed-{job.seed}-{time.time():.0f}"
    folder.mkdir(parents=True)
    rate, queue_kb = job.mbit / job.scale, QUEUE_KB / job.scale**0.5
    members, course = conduct(
        [
            Link(name=f"peer-{number}", up_mbit=rate, down_mbit=rate, delay_ms=DELAY_MS, queue_kb=queue_kb)
            for number in range(HOSTS)
        ],
        folder,
        document_of(job.way, samples=job.samples, seed=job.seed),
        program=lambda _: paced(0.0, row_seconds=job.row_seconds),
        settings=["checkpoint_period_rounds=100000", f"max_micro_batch={-(-MAX_BATCH // HOSTS)}"],
        minutes=minutes,
    )
    told = {member.name: [event for event in member.events() if "time" in event] for member in members}
    stated = {**asdict(job), "way": job.way.name, "asked_samples": job.samples}
    return {**stated, **record_of(told, course)}


# --- what it shows --------------------------------------------------------------------------------------------------------


def record_of(told: Mapping[str, Sequence[Event]], course: Course) -> Record:
    """Return what all peers did, by their events, in the form of the records of `benchmarks.method`."""
    rounds = [event for events in told.values() for event in events if event["event"] == "round"]
    begun = min(began(event) for event in rounds)
    ends = round_ends(rounds)
    ended = max(event["time"] for event in rounds)
    inside = [number for number, when in enumerate(course.times) if begun <= when <= ended]
    last = max(ends)
    finished = [event for events in told.values() for event in events if event["event"] == "finished"]
    batches = {event["round"]: event["requested_batch"] for event in rounds}
    return {
        "parameters": next(event["parameters"] for events in told.values() for event in events if event["event"] == "started"),
        "loss": round(next(event["heldout_loss"] for event in finished if event["heldout_loss"] is not None), 4),
        "rounds": last + 1,
        "samples": samples_until(rounds, last),
        "inner_steps": steps_until(rounds, last),
        "seconds": round(ended - begun, 1),
        "bytes_per_peer": bytes_until(told, finished[0]["round"]),
        "wire_bytes_per_peer": round(fmean(course.sent_until(host, ended) - course.sent_until(host, begun) for host in told)),
        "phases": phases_of(rounds),
        "void": sum(event["is_void"] for event in rounds),
        "partial": sum(len(event["hosts"]) < len(told) for event in rounds),
        "failed_attempts": sum(event["event"] == "average_failed" for events in told.values() for event in events),
        **course.machine(inside),
        "batches": [batches[number] for number in sorted(batches)],
        "curve": [
            [
                samples_until(rounds, number),
                number + 1,
                steps_until(rounds, number),
                bytes_until(told, number),
                round(ends[number] - begun, 1),
                round(loss, 4),
            ]
            for number, loss in sorted(evaluations(rounds).items())
        ],
    }


def round_ends(rounds: Sequence[Event]) -> dict[int, float]:
    """Return when the first host had ended each round: the parameters are there then, whoever evaluates them later."""
    ends: dict[int, float] = {}
    for event in rounds:
        ends[event["round"]] = min(event["time"], ends.get(event["round"], event["time"]))
    return ends


def evaluations(rounds: Sequence[Event]) -> dict[int, float]:
    """Return the held-out loss after each round that a host evaluated."""
    return {event["round"]: event["heldout_loss"] for event in rounds if event["heldout_loss"] is not None}


def samples_until(rounds: Sequence[Event], last: int) -> int:
    """Return the samples of all hosts up to the end of this round."""
    return sum(event["samples"] for event in rounds if event["round"] <= last)


def steps_until(rounds: Sequence[Event], last: int) -> int:
    """Return the inner steps up to the end of this round."""
    return round(sum(event["samples"] / event["effective_batch"] for event in rounds if event["round"] <= last))


def bytes_until(told: Mapping[str, Sequence[Event]], last: int) -> int:
    """Return the bytes that a peer had sent when it ended this round, as it counts them; the mean of all peers."""
    sent = [
        sum(event["sent"].values())
        for events in told.values()
        for event in events
        if event["event"] == "traffic" and event["round"] <= last
    ]
    return round(sum(sent) / len(told))


HEADS = ("way", "link", "seeds", "load", "rounds", "computing", "an average, s", "wall s", "MB sent per peer", "MB in packets")
LOSS_HEADS = (
    "final loss",
    f"minus {DILOCO.name}",
    *(f"loss at {part:.0%} of the time of the fastest" for part in PARTS),
    f"minus {DILOCO.name}",
    "loss at the bytes of the cheapest",
    f"minus {DILOCO.name}",
)


def table(records: Sequence[Record]) -> list[str]:
    """Return every way behind every link: what it took, its final loss, and its loss when the fastest way ended, and with the
    bytes of the way that sent least."""
    stated = {(record["scale"], record["row_seconds"], record["asked_samples"]) for record in records}
    assert len(stated) <= 1, "ways compare on the same devices, at equal samples"
    heads = (*HEADS, *LOSS_HEADS)
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for mbit in sorted({record["mbit"] for record in records}):
        behind = [record for record in records if record["mbit"] == mbit]
        least = _least(behind, "seconds"), _least(behind, "bytes_per_peer")
        base = [record for record in behind if record["way"] == DILOCO.name]
        for way in WAYS:
            if found := [record for record in behind if record["way"] == way.name]:
                cells = [way.name, f"{mbit:g} Mbit/s", *costs(found), *losses(found, base, *least)]
                lines.append(f"| {' | '.join(cells)} |")
    return lines


def costs(records: Sequence[Record]) -> list[str]:
    """Return the cells of what a way took."""

    def mean(value: Callable[[Record], float]) -> float:
        return fmean(map(value, records))

    return [
        str(len(records)),
        f"{mean(lambda r: r['load']):.0f}",
        f"{mean(lambda r: r['rounds']):.0f}",
        f"{mean(computing):.0%}",
        f"{mean(lambda r: r['phases']['averaging']):.1f}",
        estimate([record["seconds"] for record in records]).shown(0),
        f"{mean(lambda r: r['bytes_per_peer']) / 1e6:.1f}",
        f"{mean(lambda r: r['wire_bytes_per_peer']) / 1e6:.1f}",
    ]


def _least(records: Sequence[Record], cost: str) -> dict[int, float]:
    """Return the least of this cost for each seed."""
    return {record["seed"]: min(r[cost] for r in records if r["seed"] == record["seed"]) for record in records}


def losses(
    records: Sequence[Record], base: Sequence[Record], fastest: Mapping[int, float], cheapest: Mapping[int, float]
) -> list[str]:
    """Return the cells of the losses of a way; differences from DiLoCo are paired by seed."""
    is_base = records[0]["way"] == DILOCO.name

    def compared(loss: Callable[[Record], float]) -> list[str]:
        ours, theirs = ({record["seed"]: loss(record) for record in some} for some in (records, base))
        difference = None if is_base else paired(ours, theirs)
        return [estimate([*ours.values()]).shown(3), difference.shown(3) if difference else ""]

    def at_time(part: float) -> list[str]:
        return compared(lambda record: loss_at(record, part * fastest[record["seed"]]))

    parts = [cell for part in PARTS[:-1] for cell in at_time(part)[:1]]
    at_bytes = compared(lambda record: loss_at(record, cheapest[record["seed"]], BYTES))
    return [*compared(lambda record: float(record["loss"])), *parts, *at_time(PARTS[-1]), *at_bytes]


def computing(record: Record) -> float:
    """Return the part of the time that the hosts' inner steps need, by the stated device."""
    return float(record["samples"] / HOSTS * record["row_seconds"] / record["seconds"])


def loss_at(record: Record, cost: float, column: int = SECONDS) -> float:
    """Return the loss at this cost, by default in seconds, linear between two evaluations."""
    return at_cost(with_end(record), cost, column)


def plot(records: Sequence[Record], path: Path) -> None:
    """Plot held-out loss against wall time and against bytes: a colour for each way, and a line for each link."""
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    columns = (("minutes", SECONDS, 1 / 60), ("MB sent per peer", BYTES, 1e-6))
    for panel, (label, column, unit) in zip(panels, columns, strict=True):
        for index, way in enumerate(WAYS):
            for mbit, line in zip(LINKS_MBIT, ("-", "--"), strict=True):
                if found := [record for record in records if (record["way"], record["mbit"]) == (way.name, mbit)]:
                    given, means = mean_curve(found, column, unit=unit)
                    panel.plot(given, means, line, color=f"C{index}", linewidth=1.1, label=f"{way.name}, {mbit:g} Mbit/s")
        panel.set_xlabel(label)
        panel.grid(alpha=0.3)
    least = min(record["loss"] for record in records)
    panels[0].set_ylim(least - 0.05, least + 1.0)
    panels[0].set_ylabel("held-out loss, nats per byte")
    figure.legend(*panels[0].get_legend_handles_labels(), fontsize=7, loc="outside lower center", ncols=len(WAYS))
    save(figure, path)


# --- the commands ---------------------------------------------------------------------------------------------------------


def run(arguments: argparse.Namespace) -> None:
    """Run what the records lack, of one seed before the next."""
    out = arguments.out.resolve()
    jobs = [
        Job(
            way=way,
            mbit=mbit,
            seed=seed,
            scale=arguments.scale,
            row_seconds=arguments.row_seconds,
            samples=arguments.samples,
        )
        for seed in arguments.seeds
        for mbit in arguments.links
        for way in WAYS
        if way.name in arguments.ways
    ]
    train_missing(KEPT, arguments.output, [(job.key, partial(measure, job, out, minutes=arguments.minutes)) for job in jobs])


def tabulate(arguments: argparse.Namespace) -> None:
    keep_tables(KEPT, arguments.runs, "time.md", {"methods, real": table})
    if records := read_records(KEPT):
        plot(records, PLOT)


def main() -> None:
    line = command_line("wan.methods", __doc__, seeds=(1,), train=run, tabulate=tabulate)
    names = [way.name for way in WAYS]
    line.run.add_argument("--out", type=Path, required=True, help="directory for logs and workdirs")
    line.run.add_argument("--ways", nargs="+", choices=names, default=names)
    line.run.add_argument("--links", nargs="+", type=float, choices=LINKS_MBIT, default=list(LINKS_MBIT), help="Mbit/s")
    line.run.add_argument("--scale", type=float, default=20.0, help="the rates of all links are divided by it")
    line.run.add_argument("--row-seconds", type=float, default=0.05, help="of each row of an inner step")
    line.run.add_argument("--samples", type=int, default=SAMPLES, help="of a run")
    line.run.add_argument("--minutes", type=float, default=20.0, help="a run is given up after this time")
    end_on_sigterm()
    line.act()


if __name__ == "__main__":
    main()
