"""The grid of compute utilisation that `diloco-measured` published, for this node, and where its bytes go.

    python -m benchmarks.wan.grid run --out DIRECTORY [--presets int8 half] [--steps 32 128] [--mbit 50 100]
                                      [--overlap none forecast] [--repeats 1] [--scale 10]
    python -m benchmarks.wan.grid report        the tables in docs/results/time.md, from the kept records and grid.jsonl

Four real nodes in network namespaces, links of a stated rate and 50 ms between any two, a vector of 30.8M values. The device
is a stand-in that takes 25.5 ms for an inner step of 2,048 tokens, as one GPU of that measurement did, and computes nothing
(`benchmarks.wan.grid_peer`). All peers are founders: they begin together, and no state is sent. Four nodes that code, hash and
sum 30.8M values fill two cores for longer than links of 50 Mbit/s need to carry them, so `--scale K` divides both, the values
and the rates of the links, by K: everything takes as long as on a machine with K times the processors. 1: as stated.

Counted are whole rounds, the first `SETTLED` and the last one left out. Utilisation is inner steps times 25.5 ms over the time
in which these rounds ended. Bytes are those of the node's own counters, by kind, beside the IP packets that the emulator saw
in the same time. One cell takes two to five minutes.
"""

import argparse
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from adloco_p2p.config.run_config import AVERAGING_PRESETS
from benchmarks.method.report import keep_tables
from benchmarks.method.store import RESULTS, Record, append_record
from benchmarks.nodes import Event, Member, end_on_sigterm, llama, write_text
from benchmarks.wan.course import Course
from benchmarks.wan.founders import conduct
from benchmarks.wan.grid_cell import DELAY_MS, PARAMETERS, PEERS, STEP_SAMPLES, STEP_SECONDS, STEP_TOKENS, Cell
from benchmarks.wan.grid_tables import bytes_table, calculated, shown, utilisation_table
from benchmarks.wan.lab import Link

SETTLED = 3
"""Rounds until streams have grown their windows and the plans know the links."""
FEWEST_ROUNDS, MOST_ROUNDS = 5, 30
"""The fewest and the most rounds of a cell that are counted."""
QUEUE_KB = 512.0
KEPT = RESULTS / "grid.jsonl.gz"
OWN = Path("grid.jsonl")
KINDS = ("averaging", "state", "gossip")
"""The kinds of the node's counters."""


# --- the run --------------------------------------------------------------------------------------------------------------


def architecture(values: float) -> dict[str, Any]:
    """Return a model of about so many parameters, with a vocabulary of bytes."""
    width, layers = (512, 10) if values > 1e7 else (256, 5)
    intermediate = (values - 260 * width) / layers - 4 * width**2 - 2 * width
    return llama(width=width, layers=layers, heads=width // 64, intermediate=round(intermediate / (3 * width)))


def document_of(folder: Path, cell: Cell, *, rounds: int) -> dict[str, Any]:
    """Return the configuration of a run, after writing its text into the folder."""
    batch = PEERS * STEP_SAMPLES
    momentum = {} if cell.preset == "sparse" else {"momentum": 0.5}  # plain SGD belongs to that preset
    return {
        "name": cell.name,
        "mode": "diloco",
        "model": {"architecture": architecture(PARAMETERS / cell.scale)},
        "data": {"source": "text", "path": str(write_text(folder)), "sequence_length": 32, "heldout_fraction": 0.1},
        "outer": {**momentum, "overlap": cell.overlap},
        "work": {"inner_steps": cell.inner_steps, "rounds": rounds, "share": "equal"},
        "instances": {"count": 1},
        "batch": {"initial_batch": batch, "max_batch": batch, "test": "constant"},
        "averaging": {"preset": cell.preset},
        "evaluation": {"rows": 2, "period_rounds": 0},
        "admission": {"kind": "open", "probation_rounds": 0},
    }


def dht_path(out: Path, host: str) -> Path:
    return out / f"dht-{host}"


def run_cell(cell: Cell, out: Path, *, rounds: int, minutes: float) -> tuple[list[Member], Course]:
    """Run all peers to the end of the run. Raises SystemExit where one fails, or is late."""
    out.mkdir(parents=True)
    rate = cell.mbit / cell.scale
    like = Link(name="", up_mbit=rate, down_mbit=rate, delay_ms=DELAY_MS, queue_kb=QUEUE_KB / cell.scale)
    return conduct(
        [replace(like, name=f"peer-{number}") for number in range(PEERS)],
        out,
        document_of(out, cell, rounds=rounds),
        program=lambda host: ("benchmarks.wan.grid_peer", STEP_SECONDS, dht_path(out, host)),
        settings=["checkpoint_period_rounds=1000", f"max_micro_batch={STEP_SAMPLES}"],
        minutes=minutes,
    )


# --- what it shows --------------------------------------------------------------------------------------------------------


def rounds_of(events: Iterable[Event]) -> dict[int, Event]:
    return {event["round"]: event for event in events if event["event"] == "round"}


def measured_peer(
    events: Sequence[Event],
    dht: Sequence[tuple[float, int, int]],
    course: Course,
    host: str,
    *,
    settled: int = SETTLED,
    num_hosts: int = PEERS,
) -> Record:
    """Return the record of one peer in the counted rounds; bytes are those that it sent."""
    rounds = rounds_of(events)
    first, last = settled, max(rounds) - 1
    counted = [event for number, event in sorted(rounds.items()) if first <= number <= last]
    begun, ended = rounds[first - 1]["time"], counted[-1]["time"]
    traffic = [event for event in events if event["event"] == "traffic" and first <= event["round"] <= last]
    sent = {kind: sum(event["sent"].get(kind, 0) for event in traffic) for kind in KINDS}
    sent["dht"] = sum(entry[1] for entry in dht if begun < entry[0] <= ended)
    return {
        "wall_seconds": ended - begun,
        "steps": sum(event["tokens"] for event in counted) // STEP_TOKENS,
        "phases": phases_of(counted),
        "missed": last - first + 1 - len(counted),
        "void": sum(event["is_void"] for event in counted),
        "partial": sum(len(event["hosts"]) < num_hosts for event in counted),
        "failed_attempts": sum(event["event"] == "average_failed" and first <= event["round"] <= last for event in events),
        "sent": sent,
        "committed": sum(event["bytes_sent"] for event in counted),
        "wire": round(course.sent_until(host, ended) - course.sent_until(host, begun)),
    }


def phases_of(counted: Sequence[Event]) -> dict[str, float]:
    """Return the mean seconds of a round in each phase."""
    names = sorted({name for event in counted for name in event["seconds"]})
    return {name: round(fmean(event["seconds"].get(name, 0.0) for event in counted), 3) for name in names}


def read_dht(path: Path) -> list[tuple[float, int, int]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [(float(when), int(sent), int(received)) for when, sent, received in map(str.split, lines)]


def measure(cell: Cell, out: Path, *, rounds: int, minutes: float) -> Record:
    members, course = run_cell(cell, out, rounds=rounds, minutes=minutes)
    told = {member.name: member.events() for member in members}
    peers = [measured_peer(told[host], read_dht(dht_path(out, host)), course, host) for host in told]
    ended = [rounds_of(events) for events in told.values()]
    digests = [{each[number]["digest"] for each in ended if number in each} for number in range(SETTLED, rounds)]
    assert all(len(found) <= 1 for found in digests), "all peers came to the same bytes"
    settled = min(rounds_of(events)[SETTLED - 1]["time"] for events in told.values())
    inside = [number for number, when in enumerate(course.times) if when >= settled]
    return {
        "cell": asdict(cell),
        "parameters": next(event["parameters"] for event in told["peer-0"] if event["event"] == "started"),
        "rounds": rounds - SETTLED - 1,
        "peers": peers,
        **course.machine(inside),
    }


def round_seconds(cell: Cell) -> float:
    """Return the calculated seconds of a round."""
    plan = calculated(cell)
    together = plan.computing_seconds + plan.averaging_seconds
    return together if cell.overlap == "none" else max(plan.computing_seconds, plan.averaging_seconds)


# --- the commands ---------------------------------------------------------------------------------------------------------


def run(arguments: argparse.Namespace) -> None:
    cells = [
        Cell(preset=preset, overlap=overlap, inner_steps=steps, mbit=mbit, scale=arguments.scale)
        for mbit in arguments.mbit
        for preset in arguments.presets
        for overlap in arguments.overlap
        for steps in arguments.steps
    ]
    out = arguments.out.resolve()
    for cell in cells:
        for _ in range(arguments.repeats):
            number = sum(entry.name.startswith(f"{cell.name}.") for entry in out.glob("*"))
            count = round(min(MOST_ROUNDS, max(FEWEST_ROUNDS, arguments.seconds / round_seconds(cell))))
            record = measure(cell, out / f"{cell.name}.{number}", rounds=SETTLED + count + 1, minutes=arguments.minutes)
            append_record(arguments.output, {"key": f"{cell.name}.{time.time():.0f}", **record})
            print("\n".join(shown(record)), flush=True)


def tabulate(arguments: argparse.Namespace) -> None:
    keep_tables(KEPT, arguments.runs, "time.md", {"grid": utilisation_table, "wire": bytes_table})


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.wan.grid", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(required=True)
    measuring = verbs.add_parser("run", help="measure cells")
    measuring.add_argument("--out", type=Path, required=True, help="directory for logs and workdirs")
    measuring.add_argument("--output", type=Path, default=OWN, help="new records go there")
    measuring.add_argument("--presets", nargs="+", choices=list(AVERAGING_PRESETS), default=["int8", "half"])
    measuring.add_argument("--overlap", nargs="+", choices=["none", "forecast"], default=["none", "forecast"])
    measuring.add_argument("--steps", nargs="+", type=int, default=[32, 128])
    measuring.add_argument("--mbit", nargs="+", type=float, default=[50.0, 100.0])
    measuring.add_argument("--scale", type=int, default=10, help="values and links are divided by it")
    measuring.add_argument("--repeats", type=int, default=1)
    measuring.add_argument("--seconds", type=float, default=100.0, help="of the counted rounds of a cell, calculated")
    measuring.add_argument("--minutes", type=float, default=10.0, help="a cell is given up after this time")
    measuring.set_defaults(act=run)
    report = verbs.add_parser("report", help="the tables")
    report.add_argument("--runs", type=Path, nargs="*", default=[OWN], help="records beside the kept ones")
    report.set_defaults(act=tabulate)
    arguments = parser.parse_args()
    end_on_sigterm()
    arguments.act(arguments)


if __name__ == "__main__":
    main()
