"""Islands with real processes: fast links inside, one slow link between, and the ways to use both, at equal wall time.

    python -m benchmarks.wan.islands run --out DIRECTORY [--ways 0 1] [--seeds 1] [--seconds 400] [--scale 20]
    python -m benchmarks.wan.islands report      the table in docs/results/method.md, from the kept records and its own

Two islands of two nodes each, in network namespaces. Every node has 200 Mbit/s; all traffic between the islands shares 20
Mbit/s in each direction, and takes 25 ms more. The nodes train a small model, each on a device that takes 0.4 s for an inner
step (`benchmarks.paced`). Vectors are small, because few cores are here for all of them, so `--scale K` divides the rates of
all links by K: an average then takes as long as that of K times as many values over links of the stated rates.

All peers are founders: they begin together, and no state is sent at the start. Instances are placed by what the product has:
a peer offers to host one (`max_instances`), and instance 0 gets the hosts with the lowest names. Names are digests of keys, so
the nodes of the first island get the keys with the lowest. Merges every P rounds are a rule of this benchmark
(`benchmarks.wan.islands_peer`). The learning rate is constant after its warm-up, so that losses compare at every instant.

Time begins with the first inner step of any host. The loss of a way at an instant is the mean over its instances of their
newest evaluations, on the same held-out rows for all.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from adloco_p2p.swarm.p2p.identity import Identity
from benchmarks.method.figures import estimate, paired
from benchmarks.method.report import keep_tables
from benchmarks.method.store import RESULTS, Record, append_record
from benchmarks.nodes import Event, Member, began, end, end_on_sigterm, write_document
from benchmarks.wan.course import Course
from benchmarks.wan.founders import LENGTH, SMALL_RUN
from benchmarks.wan.lab import Border, Laboratory, Link, begin_in

KEPT = RESULTS / "islands_real.jsonl.gz"
OWN = Path("islands_real.jsonl")
ISLANDS = 2
HOSTS = 2
"""Hosts of an island."""
BATCH = 2
"""Samples of a host per inner step."""
INSIDE_MBIT, BORDER_MBIT = 200.0, 20.0
INSIDE_DELAY_MS, BORDER_DELAY_MS = 0.5, 25.0
QUEUE_KB = 512.0
EVALUATED_STEPS = 64
"""Inner steps between two evaluations, or those of a round: where this machine is busy, one takes seconds."""
LOOK_SECONDS = 1.0
START_SECONDS = 900.0
"""How long the peers may take to start and to end a first round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to use the islands."""

    name: str
    inner_steps: int
    momentum: float = 0.5
    instances: int = 1
    merged_every: int = 0
    """Rounds between merges of the instances; 0: none."""
    islands: int = ISLANDS
    has_border: bool = True


WAYS = (
    Way(name="one instance, H 128", inner_steps=128, momentum=0.7),
    Way(name="one an island, merged every 8 rounds, H 16", inner_steps=16, instances=ISLANDS, merged_every=8),
    Way(name="one instance, no border, H 16", inner_steps=16, has_border=False),
    Way(name="one island alone, H 16", inner_steps=16, islands=1),
    Way(name="one instance, H 16", inner_steps=16),
)
BASES = (WAYS[0].name, WAYS[3].name)
"""The ways with which others are compared: one instance over all, and half of the machines."""
PARTS = (0.25, 0.5, 1.0)
"""Parts of the time after which losses are shown."""
PRINTED = ("load", "busy", "late", "failed_attempts", "crossed", "merges")


# --- the run --------------------------------------------------------------------------------------------------------------


def document_of(way: Way, founders: Sequence[str], seed: int) -> dict[str, Any]:
    batch = BATCH * HOSTS * way.islands // way.instances
    return {
        **SMALL_RUN,
        "name": "islands",
        "seed": seed,
        "founders": list(founders),
        "inner": {"learning_rate": 3e-3, "warmup_steps": 64, "schedule": "constant"},
        "outer": {"momentum": way.momentum, "state": "mixed"},
        "work": {"inner_steps": way.inner_steps, "rounds": 100_000, "share": "equal", "link_tolerance": None},
        "instances": {"count": way.instances, "start": "same"},
        "batch": {"initial_batch": batch, "max_batch": batch, "test": "constant"},
        "evaluation": {"rows": 64, "seed": 0, "period_rounds": max(1, EVALUATED_STEPS // way.inner_steps)},
    }


def named_hosts(out: Path, num_hosts: int) -> dict[str, str]:
    """Make the keys of so many hosts, peer-0 with the lowest name, and return the names."""
    found = []
    for number in range(num_hosts):
        key = out / f"{number}.key"
        found.append((Identity.load_or_create(key).peer_id, key))
    names: dict[str, str] = {}
    for number, (name, key) in enumerate(sorted(found)):
        (out / f"peer-{number}").mkdir()
        key.rename(out / f"peer-{number}" / "identity.key")
        names[f"peer-{number}"] = name
    return names


def laboratory(way: Way, hosts: Sequence[str], scale: float) -> Laboratory:
    rate = INSIDE_MBIT / scale
    links = [
        Link(name=host, up_mbit=rate, down_mbit=rate, delay_ms=INSIDE_DELAY_MS, queue_kb=QUEUE_KB / scale**0.5)
        for host in hosts
    ]
    islands = [hosts[first : first + HOSTS] for first in range(0, len(hosts), HOSTS)]
    border = Border(
        islands=islands,
        mbit=BORDER_MBIT / scale if way.has_border else len(hosts) * rate,
        delay_ms=BORDER_DELAY_MS if way.has_border else 0.0,
        queue_kb=QUEUE_KB / scale**0.5,
    )
    return Laboratory(links, border=border)


def conduct(way: Way, out: Path, arguments: argparse.Namespace, seed: int) -> tuple[list[Member], Course, dict[str, str]]:
    """Run all peers until their time is over, and ask them to leave."""
    out.mkdir(parents=True)
    names = named_hosts(out, HOSTS * way.islands)
    hosts, course = list(names), Course()
    config = write_document(out, document_of(way, list(names.values())[1:], seed))
    deadline = time.monotonic() + START_SECONDS
    program = ("benchmarks.wan.islands_peer", arguments.step_seconds, way.merged_every, arguments.scale)
    settings = ["checkpoint_period_rounds=100000", "max_instances=1", f"max_micro_batch={BATCH}"]
    with laboratory(way, hosts, arguments.scale) as lab:
        members = [begin_in(lab, out, hosts[0], "start", config, program=program, settings=settings)]
        try:
            join = ("join", "--initial-peers", *members[0].addresses(deadline=deadline))
            members += [begin_in(lab, out, host, *join, program=program, settings=settings) for host in hosts[1:]]
            begun = None
            while begun is None or time.time() < begun + arguments.seconds + 1:
                if begun is None:
                    begun = min((began(event) for member in members for event in member.new_rounds()), default=None)
                if begun is None and time.monotonic() > deadline:
                    sys.exit(f"{way.name}: nobody ended a round; see {out}")
                if ended := [member.name for member in members if not member.is_alive]:
                    sys.exit(f"{way.name}: {', '.join(ended)} ended; see {out}")
                course.look(lab)
                time.sleep(LOOK_SECONDS)
        finally:
            end(members, seconds=20.0)
    return members, course, names


# --- what it shows --------------------------------------------------------------------------------------------------------


def measure(way: Way, out: Path, arguments: argparse.Namespace, seed: int) -> Record:
    members, course, names = conduct(way, out, arguments, seed)
    told = {member.name: [event for event in member.events() if "time" in event] for member in members}
    rounds = {host: [event for event in events if event["event"] == "round"] for host, events in told.items()}
    begun = min(began(events[0]) for events in rounds.values() if events)
    until = begun + arguments.seconds
    inside = [number for number, when in enumerate(course.times) if begun <= when <= until]
    before, after = course.counters[inside[0]], course.counters[inside[-1]]
    crossed = [
        sum(after[host].crossed_bytes - before[host].crossed_bytes for host in list(names)[first : first + HOSTS])
        for first in range(0, len(names), HOSTS)
    ]
    merges = {event["round"] for events in told.values() for event in events if event["event"] == "merge"}
    return {
        "way": asdict(way),
        "seed": seed,
        "seconds": arguments.seconds,
        "step_seconds": arguments.step_seconds,
        "scale": arguments.scale,
        "parameters": next(event["parameters"] for events in told.values() for event in events if event["event"] == "started"),
        "peers": {host: peer_record([event for event in rounds[host] if event["time"] <= until], begun) for host in rounds},
        "curve": curve_of(rounds, begun=begun, until=until),
        "merges": sorted(merges),
        "crossed": crossed,
        "failed_attempts": sum(event["event"] == "average_failed" for events in told.values() for event in events),
        **course.machine(inside),
    }


def peer_record(rounds: Sequence[Event], begun: float) -> Record:
    """Return what one peer did until the end of the time."""
    phases: dict[str, float] = {}
    for event in rounds:
        for name, seconds in event["seconds"].items():
            phases[name] = phases.get(name, 0.0) + seconds
    return {
        "instances": sorted({event["instance"] for event in rounds}),
        "rounds": len(rounds),
        "void": sum(event["is_void"] for event in rounds),
        "steps": sum(event["tokens"] for event in rounds) // (BATCH * LENGTH),
        "seconds": round(rounds[-1]["time"] - begun, 1) if rounds else 0.0,
        "phases": {name: round(seconds, 1) for name, seconds in phases.items()},
        "ends": [[event["round"], round(began(event) - begun, 1), round(event["time"] - begun, 1)] for event in rounds],
    }


def curve_of(rounds: Mapping[str, Sequence[Event]], *, begun: float, until: float) -> list[list[float]]:
    """Return points [seconds, round, instance, held-out loss]: the first evaluation of each instance after each round."""
    found: dict[tuple[int, int], list[float]] = {}
    events = [event for some in rounds.values() for event in some]
    for event in sorted(events, key=lambda event: float(event["time"])):
        if event["heldout_loss"] is not None and event["time"] <= until:
            point = [round(event["time"] - begun, 1), event["round"], event["instance"], round(event["heldout_loss"], 4)]
            found.setdefault((event["round"], event["instance"]), point)
    return sorted(found.values())


def loss_at(record: Record, seconds: float) -> float | None:
    """Return the mean over the instances of their newest losses by then; None where one has none."""
    newest = {int(instance): loss for when, _, instance, loss in record["curve"] if when <= seconds}
    return fmean(newest.values()) if len(newest) == record["way"]["instances"] else None


def table(records: Sequence[Record]) -> list[str]:
    """Return every way: what its hosts did in the time, what crossed the border, and its loss at parts of the time."""
    seconds = {record["seconds"] for record in records}
    assert len(seconds) == 1, "ways compare at equal wall time"
    (last,) = seconds
    looks = [round(last * part) for part in PARTS]
    heads = ["way", "seeds", "load", "rounds", "inner steps of a host", "computing", "an average, s", "merges", "a merge, s"]
    heads += ["MB each way"]
    heads += [f"loss after {look} s" for look in looks] + [f"minus {base}" for base in BASES]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    ends = {way.name: {r["seed"]: loss_at(r, last) for r in records if r["way"]["name"] == way.name} for way in WAYS}
    for way in WAYS:
        if found := [record for record in records if record["way"]["name"] == way.name]:
            above = [paired(_known(ends[way.name]), _known(ends[base])) if way.name != base else None for base in BASES]
            cells = [
                way.name,
                str(len(found)),
                f"{_mean(found, lambda r: r['load']):.0f}",
                f"{_mean(found, lambda r: max(peer['rounds'] for peer in r['peers'].values())):.0f}",
                f"{_mean(found, lambda r: fmean(peer['steps'] for peer in r['peers'].values())):.0f}",
                f"{_mean(found, computing):.0%}",
                f"{_mean(found, average_seconds):.1f}",
                f"{_mean(found, lambda r: len(r['merges'])):.1f}" if way.instances > 1 else "",
                f"{_mean(found, merge_seconds):.0f}" if way.instances > 1 else "",
                f"{_mean(found, lambda r: fmean(r['crossed'])) / 1e6:.1f}" if way.islands > 1 else "",
                *(_shown([loss_at(record, look) for record in found]) for look in looks),
                *(one.shown(3) if one else "" for one in above),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def computing(record: Record) -> float:
    """Return the part of the time that the hosts' inner steps need, by the stated device."""
    steps = fmean(peer["steps"] for peer in record["peers"].values())
    return float(steps * record["step_seconds"] / record["seconds"])


def average_seconds(record: Record) -> float:
    """Return the mean seconds of an average, waiting for the others' inner steps and evaluations included."""
    peers = record["peers"].values()
    return sum(peer["phases"]["averaging"] for peer in peers) / sum(peer["rounds"] for peer in peers)


def merge_seconds(record: Record) -> float:
    """Return the mean seconds from the end of a host's round to the beginning of its next one, where a merge is between."""
    return fmean(
        begins[number] - ends[number - 1]
        for peer in record["peers"].values()
        for begins, ends in [({end[0]: end[1] for end in peer["ends"]}, {end[0]: end[2] for end in peer["ends"]})]
        for number in record["merges"]
        if number in begins
    )


def _known(losses: Mapping[int, float | None]) -> dict[int, float]:
    return {seed: loss for seed, loss in losses.items() if loss is not None}


def _mean(records: Sequence[Record], value: Callable[[Record], float]) -> float:
    return fmean(value(record) for record in records)


def _shown(losses: Sequence[float | None]) -> str:
    known = [loss for loss in losses if loss is not None]
    return estimate(known).shown(3) if len(known) == len(losses) else ""


# --- the commands ---------------------------------------------------------------------------------------------------------


def run(arguments: argparse.Namespace) -> None:
    """Run the ways that are asked for, of one seed before the next."""
    out = arguments.out.resolve()
    for seed in arguments.seeds:
        for number, way in enumerate(WAYS):
            if not arguments.ways or number in arguments.ways:
                record = measure(way, out / f"way-{number}-seed-{seed}-{time.time():.0f}", arguments, seed)
                append_record(arguments.output, {"key": f"{way.name}, seed {seed}", **record})
                print("\n".join([way.name, *table([record])[2:], str({k: record[k] for k in PRINTED})]), flush=True)


def tabulate(arguments: argparse.Namespace) -> None:
    keep_tables(KEPT, arguments.runs, "method.md", {"islands, real": table})


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.wan.islands", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(required=True)
    measuring = verbs.add_parser("run", help="run ways, one after another")
    measuring.add_argument("--out", type=Path, required=True, help="directory for logs and workdirs")
    measuring.add_argument("--output", type=Path, default=OWN, help="new records go there")
    names = "; ".join(f"{number}: {way.name}" for number, way in enumerate(WAYS))
    measuring.add_argument("--ways", nargs="+", type=int, choices=range(len(WAYS)), help=f"all, or some: {names}")
    measuring.add_argument("--seeds", nargs="+", type=int, default=[1])
    measuring.add_argument("--seconds", type=float, default=400.0, help="the wall time of every way")
    measuring.add_argument("--step-seconds", type=float, default=0.4, help="of an inner step")
    measuring.add_argument("--scale", type=float, default=20.0, help="the rates of all links are divided by it")
    measuring.set_defaults(act=run)
    report = verbs.add_parser("report", help="the table")
    report.add_argument("--runs", type=Path, nargs="*", default=[OWN], help="records beside the kept ones")
    report.set_defaults(act=tabulate)
    arguments = parser.parse_args()
    end_on_sigterm()
    arguments.act(arguments)


if __name__ == "__main__":
    main()
