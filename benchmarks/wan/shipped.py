"""A shipped configuration behind emulated links: the share of the time that eight real nodes compute, beside the calculation.

    python -m benchmarks.wan.shipped run --out DIRECTORY    `configs/c4-150m.yaml`; needs root, takes some 25 minutes
    python -m benchmarks.wan.shipped report                 the table in docs/results/time.md; keeps the records

H, outer step, aggregation and codec are those of the file. The device is a stand-in that computes nothing: an inner step takes
what `plan --teraflops` calculates for one. So that eight nodes fit two cores, values and rates of the links are divided by
SCALE; averages take as long as those of the whole, and the outer step a SCALE-th, which is why the calculation beside it has a
SCALE-th of it, too. The batch stays the first one. All peers are founders, so no state is sent. Rounds are counted without the
first and the last.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from adloco_p2p.config.documents import shipped
from adloco_p2p.config.load import load_run
from adloco_p2p.views.cost_model import Link as StatedLink
from adloco_p2p.views.cost_model import round_bytes
from adloco_p2p.views.device_share import DeviceShare, device_share
from benchmarks.method.report import keep_tables
from benchmarks.method.store import RESULTS, Record, append_record, command_line
from benchmarks.nodes import end_on_sigterm, write_text
from benchmarks.wan.founders import conduct
from benchmarks.wan.grid import QUEUE_KB, architecture, dht_path, measured_peer, phases_of, read_dht, rounds_of
from benchmarks.wan.lab import Link

NAME = "c4-150m"
PARAMETERS = 149_600_000
"""About as many values as the file's model has."""
HOSTS, MBIT, TERAFLOPS, SCALE = 8, 100.0, 50.0, 20
DELAY_MS = 25.0
"""The delay of one leg: 50 ms one way between two peers, as in the calculation."""
ROUNDS, SETTLED = 5, 1
"""Rounds of the run, and those until the plans know the links."""
KEPT = RESULTS / "shipped.jsonl.gz"


def calculated() -> DeviceShare:
    """Return the seconds of a round by the arithmetic of `adloco-peer plan`, at full size."""
    run = load_run(Path(NAME)).value
    values = run.averaging.bytes_per_value
    return device_share(
        StatedLink(num_parameters=PARAMETERS, num_workers=HOSTS, bytes_per_value=values, megabits_per_second=MBIT),
        batch_per_host=run.batch.initial_batch / HOSTS,
        row_tokens=run.data.sequence_length,
        inner_steps=run.work.inner_steps,
        teraflops=TERAFLOPS,
    )


def step_seconds() -> float:
    return calculated().computing_seconds / load_run(Path(NAME)).value.work.inner_steps


def document_of(folder: Path) -> dict[str, Any]:
    """Return the configuration of the run: the file's, with a small model and text of this machine."""
    given = yaml.safe_load(shipped()[NAME].read_text("utf-8"))
    first = given["batch"]["initial_batch"]
    return {
        "name": NAME,
        "mode": given["mode"],
        "model": {"architecture": architecture(PARAMETERS / SCALE)},
        "data": {"source": "text", "path": str(write_text(folder)), "sequence_length": 32, "heldout_fraction": 0.1},
        "inner": {"warmup_samples": first},
        "outer": given["outer"],
        "work": {"inner_steps": given["work"]["inner_steps"], "rounds": ROUNDS, "share": "equal"},
        "batch": {"initial_batch": first, "max_batch": first, "test": "constant"},
        "switch": given["switch"],
        "averaging": given["averaging"],
        "evaluation": {"rows": 2, "period_rounds": 0},
        "admission": {"kind": "open", "probation_rounds": 0},
    }


def measure(out: Path, *, minutes: float) -> Record:
    out.mkdir(parents=True)
    rate = MBIT / SCALE
    link = Link(name="", up_mbit=rate, down_mbit=rate, delay_ms=DELAY_MS, queue_kb=QUEUE_KB / SCALE)
    members, course = conduct(
        [replace(link, name=f"peer-{number}") for number in range(HOSTS)],
        out,
        document_of(out),
        program=lambda host: ("benchmarks.wan.grid_peer", step_seconds(), dht_path(out, host)),
        settings=["checkpoint_period_rounds=1000"],
        minutes=minutes,
    )
    told = {member.name: member.events() for member in members}
    peers = [
        measured_peer(events, read_dht(dht_path(out, host)), course, host, settled=SETTLED, num_hosts=HOSTS)
        for host, events in told.items()
    ]
    begun = min(rounds_of(events)[SETTLED - 1]["time"] for events in told.values())
    counted = [event for number, event in rounds_of(told["peer-0"]).items() if SETTLED <= number < ROUNDS - 1]
    return {
        "name": NAME,
        "parameters": next(event["parameters"] for event in told["peer-0"] if event["event"] == "started"),
        "step_seconds": step_seconds(),
        "rounds": len(counted),
        "phases": phases_of(counted),
        "peers": peers,
        **course.machine([number for number, when in enumerate(course.times) if when >= begun]),
    }


def measured_share(record: Record) -> float:
    """Return the share of the time that all peers together computed."""
    seconds = sum(peer["steps"] for peer in record["peers"]) * record["step_seconds"]
    return float(seconds / sum(peer["wall_seconds"] for peer in record["peers"]))


def table(records: Sequence[Record]) -> list[str]:
    """Return the calculation with its part of an outer step, and each measured run."""
    whole = calculated()
    part = replace(whole, outer_step_seconds=whole.outer_step_seconds / SCALE)
    values = load_run(Path(NAME)).value.averaging.bytes_per_value
    sent = round_bytes(num_parameters=PARAMETERS, num_workers=HOSTS, bytes_per_value=values)
    head = "| configuration | | a round | averaging | computing | MB of averages, per peer and round | void rounds | load |"
    lines = [head, "|" + "---|" * 8, _line(part.computing_seconds / part.share, part.averaging_seconds, part.share, sent)]
    for record in records:
        peers = record["peers"]
        seconds = fmean(peer["wall_seconds"] for peer in peers) / record["rounds"]
        averaging = fmean(peer["phases"]["averaging"] for peer in peers)
        sent = fmean(peer["sent"]["averaging"] for peer in peers) * SCALE / record["rounds"]
        void, load = sum(peer["void"] for peer in peers), record["load"]
        lines.append(_line(seconds, averaging, measured_share(record), sent, name="measured", others=f"{void} | {load}"))
    return lines


def _line(seconds: float, averaging: float, share: float, sent: float, *, name: str = "calculated", others: str = "|") -> str:
    cells = f"{seconds:.0f} s | {averaging:.1f} s | {share:.1%} | {sent / 1e6:.0f}"
    return f"| `configs/{NAME}.yaml` | {name} | {cells} | {others} |"


def run(arguments: argparse.Namespace) -> None:
    record = measure(arguments.out.resolve(), minutes=arguments.minutes)
    append_record(arguments.output, {"key": f"{NAME}.{time.time():.0f}", **record})
    print(f"computing {measured_share(record):.1%} of the time; calculated {calculated().share:.1%} with the whole outer step")


def tabulate(arguments: argparse.Namespace) -> None:
    keep_tables(KEPT, arguments.runs, "time.md", {"shipped": table})


def main() -> None:
    line = command_line("wan.shipped", __doc__, seeds=None, train=run, tabulate=tabulate)
    line.run.add_argument("--out", type=Path, required=True, help="directory for logs and workdirs; it must not exist")
    line.run.add_argument("--minutes", type=float, default=45.0, help="the run is given up after this time")
    end_on_sigterm()
    line.act()


if __name__ == "__main__":
    main()
