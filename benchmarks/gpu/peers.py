"""Two real peers on one card average 105 million parameters over emulated links of 100 Mbit/s, with two codecs.

python -m benchmarks.gpu.peers                                      four rounds each; four minutes
python -m benchmarks.gpu.peers --device cpu --width 64 --layers 2   tries the program out

Each peer is `adloco-peer` in a network namespace of its own; without a laboratory (see `benchmarks.wan.lab`) both use loopback,
and the first line says so. The model has the shape of `configs/c4-150m.yaml`, in bytes, and trains on Python's own texts. The
table has one line per round, of which the first is that of the join, over a faster link: seconds of the inner steps and of
everything after them until the next round, of the slower peer. Ends with 1 where a peer failed, or where the two hold different
parameters after a round.
"""

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.nodes import Member, begin_node, end, llama, write_document
from benchmarks.wan.emulator import LaboratoryUnavailable
from benchmarks.wan.lab import Laboratory, Link, begin_in

CODECS = ("int8", "sign")
NAMES = ("one", "two")
MBIT, DELAY_MS = 100.0, 12.5
JOIN_MBIT = 2000.0
"""The rate until both peers have been in one average: a joiner fetches 839 MB."""
ROUNDS, STEPS, BATCH, MICRO = 4, 16, 128, 32
LENGTH = 1024
SECONDS = 150.0
"""The most seconds of one run."""
LOOK_SECONDS = 0.5

Begin = Callable[..., Member]
"""Starts a node of this name with these arguments, and settings of its machine."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where two peers run."""

    link: str
    """The link in words."""
    begin: Begin
    narrow: Callable[[], None]
    """Lowers the rate of the links to MBIT."""


@contextlib.contextmanager
def place_in(folder: Path) -> Iterator[Place]:
    links = [Link(name=name, up_mbit=JOIN_MBIT, down_mbit=JOIN_MBIT, delay_ms=DELAY_MS, queue_kb=4096) for name in NAMES]
    with contextlib.ExitStack() as stack:
        try:
            lab = stack.enter_context(Laboratory(links))
        except LaboratoryUnavailable as problem:
            yield Place(f"loopback ({problem})", partial(begin_node, folder), lambda: None)
            return

        def narrow() -> None:
            for wide in links:
                lab.change(replace(wide, up_mbit=MBIT, down_mbit=MBIT, queue_kb=512))

        link = f"links of {MBIT:g} Mbit/s each way, {4 * DELAY_MS:g} ms there and back"
        yield Place(link, partial(begin_in, lab, folder), narrow)


def write_run(folder: Path, codec: str, args: argparse.Namespace) -> Path:
    heads = args.width // 64
    architecture = llama(width=args.width, layers=args.layers, heads=heads, intermediate=args.width * 16 // 7)
    document = {
        "name": f"card-{codec}",
        "model": {"architecture": architecture, "precision": "auto"},
        "data": {"source": "python", "sequence_length": args.length},
        "inner": {"learning_rate": 4e-4, "warmup_steps": 16},
        "work": {"inner_steps": args.steps, "rounds": 10_000, "share": "equal"},
        "batch": {"initial_batch": args.batch, "max_batch": args.batch, "test": "constant"},
        "evaluation": {"period_rounds": ROUNDS, "rows": 32},
        "averaging": {"codec": codec},
        "admission": {"kind": "open", "probation_rounds": 0},
    }
    return write_document(folder, document)


def settings_of(args: argparse.Namespace) -> list[str]:
    """Return the settings of each peer's machine: half of the card and of the processors."""
    common = [f"device={args.device}", f"num_threads={args.threads}", f"max_micro_batch={MICRO}"]
    return [*common, "memory_fraction=0.3"] if args.device == "cuda" else common


def wait_for(members: list[Member], count: int, deadline: float) -> None:
    """Wait until the peers have ended so many rounds together, or the time is over, or one of them has ended."""
    while time.monotonic() < deadline and all(member.is_alive for member in members):
        if len(common_rounds(members)) >= count:
            return
        time.sleep(LOOK_SECONDS)


def common_rounds(members: list[Member]) -> dict[int, list[dict[str, Any]]]:
    """Return the events of the rounds whose average holds the work of all peers."""
    ended = [{e["round"]: e for e in member.events() if e["event"] == "round"} for member in members]
    both = sorted(set.intersection(*map(set, ended)))
    return {
        number: [rounds[number] for rounds in ended]
        for number in both
        if all(len(rounds[number]["hosts"]) == len(members) for rounds in ended)
    }


def show(codec: str, rounds: dict[int, list[dict[str, Any]]]) -> None:
    for number, events in rounds.items():
        training = [event["seconds"].get("training", 0.0) for event in events]
        phases = dict.fromkeys(phase for event in events for phase in event["seconds"] if phase != "training")
        longest = {phase: max(event["seconds"].get(phase, 0.0) for event in events) for phase in phases}
        after = ", ".join(f"{phase} {spent:.2f}" for phase, spent in longest.items() if spent >= 0.01)
        rate = sum(event["tokens"] for event in events) / max(training) if max(training) else 0.0
        sent = max(event["bytes_sent"] for event in events) / 1e6
        loss = max(event["loss"] or 0.0 for event in events)
        equal = "equal" if len({event["digest"] for event in events}) == 1 else "DIFFERENT"
        print(f"{codec:6s}{number:6d}{max(training):10.2f}{rate:10.0f}{sent:9.1f}{loss:7.3f}  {equal:12s}{after}", flush=True)


def measure(codec: str, args: argparse.Namespace) -> bool:
    """Run two peers, and return whether both held the same parameters after every round."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with place_in(folder) as place:
            print(f"{codec}: {place.link}", flush=True)
            settings, deadline = settings_of(args), time.monotonic() + SECONDS
            members = [place.begin(NAMES[0], "start", write_run(folder, codec, args), settings=settings)]
            try:
                join = ("join", "--initial-peers", *members[0].addresses(deadline=deadline))
                members.append(place.begin(NAMES[1], *join, settings=settings))
                wait_for(members, 1, deadline)
                place.narrow()
                wait_for(members, 1 + ROUNDS, deadline)
            finally:
                end(members, seconds=20)
        rounds = common_rounds(members)
        show(codec, rounds)
        is_sound = len(rounds) > ROUNDS and all(len({e["digest"] for e in events}) == 1 for events in rounds.values())
        if not is_sound:
            for member in members:
                print(f"{member.name} ended with {member.process.returncode}:\n{member.words[-1500:]}", flush=True)
        return is_sound


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--width", type=int, default=896)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--length", type=int, default=LENGTH)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--codecs", nargs="+", default=list(CODECS))
    args = parser.parse_args()
    print(f"{'codec':6s}{'round':>6s}{'inner s':>10s}{'tokens/s':>10s}{'MB sent':>9s}{'loss':>7s}  {'parameters':12s}then, s")
    are_sound = {codec: measure(codec, args) for codec in args.codecs}
    return 0 if all(are_sound.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
