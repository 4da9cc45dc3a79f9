"""How long until a volunteer's work counts, and how long until a swarm has got over a loss.

    python -m benchmarks.join_time --out DIRECTORY [--peers 3] [--config default] [--set KEY=VALUE ...] [--minutes 10] \
        [--step-seconds 0.5]

A swarm of real processes on loopback; once its peers average with each other, one more

- joins with an empty directory (cold): the times of its output and events, counted from the start of its process;
- is asked to stop (SIGINT): from its last event to the moment at which each of the others noted that it left;
- joins again with its directory (warm);
- is killed (SIGKILL) and started again at once: until each of the others noted it (its host is gone, or was back before anybody
  missed it), until the round under way ended, and until it had its next counted contribution.

Everything is told by the peers' own event files and lines; they share a clock. Targets of the project: 15 s from process start
to training, 2 s for a leave, 10 s for a kill. Nothing is judged here: a busy machine only shows how busy it is. So beside the
seconds of a join stand the processor seconds that the joiner (without its network daemon) had used by then, and every table
ends with how busy the machine was meanwhile. `--step-seconds`: devices that sleep for what is left of
that time in every inner step (`benchmarks/paced.py`), so that rounds keep their length and the cores stay free.
"""

import argparse
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

import psutil

from benchmarks.nodes import LOOPBACK, Event, Member, end_on_sigterm, new_directory, node_command, paced

LOOK_SECONDS = 0.05
SAMPLE_SECONDS = 0.1
SAYINGS = {
    "process started, imported": "looking for the swarm",
    "p2p up": "asking for the run",
    "run found, manifest checked": "run ",
    "directory opened": "reading the text",
    "text read": "building the model",
}
"""The lines that a joiner prints at each step, in their order."""
NOTES = ("left", "suspected", "returned")
"""Events by which others show that they have noticed a kill."""


OWN_PEERS = ("admission.kind=open", "admission.probation_rounds=0")


def piped(command: Sequence[str], **options: Any) -> "subprocess.Popen[str]":
    """Start the process with its output for this program, which notes when each line came."""
    return subprocess.Popen(command, **options | {"stdout": subprocess.PIPE, "text": True})


@dataclass(kw_only=True, eq=False)
class Peer(Member):
    """One `adloco-peer` over its lives."""

    popen: Callable[..., Any] = piped
    began: float = field(init=False)
    lines: list[tuple[float, str]] = field(init=False)
    """Its output in this life, with wall clock times."""
    samples: list[tuple[float, float]] = field(init=False)
    """Processor seconds of its process in this life, with wall clock times."""

    def start(self) -> Self:
        self.began, self.lines, self.samples = time.time(), [], []
        super().start()
        for work, into in ((self._listen, self.lines), (self._sample, self.samples)):
            threading.Thread(target=work, args=(self.process, into), daemon=True).start()
        return self

    def _listen(self, process: subprocess.Popen[str], lines: list[tuple[float, str]]) -> None:
        assert process.stdout is not None
        with self.log.open("a") as log:
            for line in process.stdout:
                lines.append((time.time(), line.rstrip("\n")))
                log.write(line)

    def _sample(self, process: subprocess.Popen[str], samples: list[tuple[float, float]]) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            watched = psutil.Process(process.pid)
            while process.returncode is None:
                samples.append((time.time(), _seconds(watched)))
                time.sleep(SAMPLE_SECONDS)

    def processor_seconds(self, at: float) -> float:
        return max((seconds for when, seconds in list(self.samples) if when <= at), default=0.0)

    def said(self, prefix: str) -> tuple[float, str] | None:
        return next(((at, line) for at, line in list(self.lines) if line.startswith(prefix)), None)

    def first(self, name: str, *, since: float, fits: Callable[[Event], bool] = bool) -> Event | None:
        return next((e for e in self.events() if e["event"] == name and e["time"] >= since and fits(e)), None)

    @property
    def me(self) -> str:
        return str(next(event["peer"] for event in self.events() if event["event"] == "started"))


def timed(folder: Path, name: str, *arguments: object, step_seconds: float = 0.0) -> Peer:
    """Return a node on loopback, not yet started; `step_seconds`: see `paced`."""
    command = node_command(*arguments, workdir=folder / name, listen=LOOPBACK, program=paced(step_seconds))
    return Peer(workdir=folder / name, command=command)


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


class Impatient(Exception):
    """Something did not happen within the time of the benchmark."""


@dataclass(frozen=True, kw_only=True)
class Waiter:
    deadline: float
    peers: list[Peer]

    def wait(self, look: Callable[[], Any], what: str) -> Any:
        """Return the result of `look`, once there is one. Raises Impatient."""
        while not (found := look()):
            if time.monotonic() > self.deadline:
                said = "\n".join(line for peer in self.peers for _, line in peer.lines[-5:])
                raise Impatient(f"{what}: not within the time; last words:\n{said}")
            time.sleep(LOOK_SECONDS)
        return found


class Machine:
    """The load of the processor from here on."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._all, self._own = _busy_seconds(), _own_seconds()

    def __str__(self) -> str:
        available = (time.monotonic() - self._begun) * (os.cpu_count() or 1)
        busy, own = (_busy_seconds() - self._all) / available, (_own_seconds() - self._own) / available
        return f"the machine was {busy:.0%} busy, {own:.0%} with this benchmark"


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


def _own_seconds() -> float:
    """Return the processor seconds of all processes that were started here, live or ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = ended.ru_utime + ended.ru_stime
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            seconds += _seconds(process)
    return seconds


Row = tuple[float, float | None]
"""Seconds, and processor seconds where they differ enough to matter."""


def phases(peer: Peer, waiter: Waiter) -> dict[str, Row]:
    """Return the phases from the start of the process."""
    counted = waiter.wait(lambda: peer.first("first_contribution", since=peer.began), "the first counted contribution")
    moments = {phase: said[0] for phase, prefix in SAYINGS.items() if (said := peer.said(prefix)) is not None}
    started = peer.first("started", since=peer.began)
    assert started is not None
    moments["model built, node started"] = started["time"]
    own = peer.first("round", since=peer.began, fits=lambda e: (e["round"], peer.me in e["hosts"]) == (counted["round"], True))
    assert own is not None
    moments["state here, training"] = own["time"] - sum(own["seconds"].values()) + own["seconds"].get("waiting", 0.0)
    moments["first counted contribution"] = counted["time"]
    return {phase: (at - peer.began, peer.processor_seconds(at)) for phase, at in moments.items()}


def leave(peer: Peer, others: Sequence[Peer], waiter: Waiter) -> dict[str, Row]:
    asked = time.time()
    peer.process.send_signal(signal.SIGINT)
    waiter.wait(lambda: peer.process.poll() is not None, "the joiner to leave")
    goodbye = peer.events()[-1]["time"]
    noted = missed(others, peer.me, since=asked, waiter=waiter)
    return {"its round ended, saved": (goodbye - asked, None), "noted by the last of the others": (noted - goodbye, None)}


def missed(others: Sequence[Peer], gone: str, *, since: float, waiter: Waiter) -> float:
    """Return when the last of the others wrote that this peer left."""

    def look() -> list[Event] | None:
        found = [other.first("left", since=since, fits=lambda event: event["peer"] == gone) for other in others]
        return None if None in found else [event for event in found if event is not None]

    return max(event["time"] for event in waiter.wait(look, f"{gone} to be missed"))


def kill_and_restart(peer: Peer, others: Sequence[Peer], waiter: Waiter) -> dict[str, Row]:
    me = peer.me
    peer.kill()
    since = time.time()
    lost = shares_under_way(others, me, since)
    peer.start()

    def first_note(other: Peer) -> Event | None:
        return next((e for e in other.events() if e["time"] >= since and e["event"] in NOTES and e.get("peer") == me), None)

    def ended() -> list[float] | None:
        ends: dict[tuple[int, int], float] = {}
        for event in (event for other in others for event in other.events() if event["event"] == "round"):
            ends.setdefault((event["round"], event["instance"]), event["time"])
        return [ends[share] for share in lost] if lost <= ends.keys() else None

    round_ends = waiter.wait(lambda: [since, *times] if (times := ended()) is not None else None, "the end of the round")
    counted = waiter.wait(lambda: peer.first("first_contribution", since=since), "a counted contribution after the kill")
    rows: dict[str, Row] = {}
    notes = [note["time"] for other in others if (note := first_note(other)) is not None]
    if notes:
        rows[f"noted, by the last of the {len(notes)} of {len(others)} others that did"] = (max(notes) - since, None)
    if lost:
        rows["round that lost it ended"] = (max(round_ends) - since, None)
    return {**rows, "counted again": (counted["time"] - since, peer.processor_seconds(counted["time"]))}


def shares_under_way(others: Sequence[Peer], peer: str, at: float) -> set[tuple[int, int]]:
    """Return the shares of the peer in the earliest plan that nobody had completed: round and instance of each."""
    events = [event for other in others for event in other.events() if event["time"] < at]
    done = {(event["round"], event["instance"]) for event in events if event["event"] == "round"}
    planned = {
        (event["round"], instance["instance"])
        for event in events
        if event["event"] == "plan"
        for instance in event["instances"]
        if peer in (host["peer"] for host in instance["hosts"])
    }
    newest = max(number for number, _ in done)
    due = {share for share in planned - done if share[0] >= newest}
    return {share for share in due if share[0] == min(number for number, _ in due)}


def conduct(args: argparse.Namespace, peers: list[Peer]) -> dict[str, dict[str, Row]]:
    waiter = Waiter(deadline=time.monotonic() + 60 * args.minutes, peers=peers)
    results: dict[str, dict[str, Row]] = {}

    def measure(title: str, work: Callable[[], dict[str, Row]]) -> None:
        machine = Machine()
        results[title] = rows = work()
        print(f"{title}: {machine}\n  wall s   cpu s")
        for what, (seconds, processor) in rows.items():
            print(f"{seconds:8.2f}{'' if processor is None else format(processor, '.2f'):>8}  {what}", flush=True)

    step = args.step_seconds
    settings = ("--set", "work.rounds=100000", *OWN_PEERS, *args.set)
    first = timed(args.out, "peer-0", "start", args.config, *settings, step_seconds=step)
    peers.append(first.start())
    known = waiter.wait(lambda: first.said("initial peers: "), "the first peer")[1].split()[2:]
    join = ("join", "--initial-peers", *known)
    for number in range(1, args.peers):
        peers.append(timed(args.out, f"peer-{number}", *join, step_seconds=step).start())
    others = list(peers)
    for other in others:
        waiter.wait(partial(other.first, "first_contribution", since=other.began), "the swarm to train")
    joiner = timed(args.out, "joiner", *join, step_seconds=step)

    def begin() -> dict[str, Row]:
        peers[len(others) :] = [joiner.start()]
        return phases(joiner, waiter)

    def kill() -> dict[str, Row]:
        joiner.kill()
        since = time.time()
        return {"noted by the last of the others": (missed(others, joiner.me, since=since, waiter=waiter) - since, None)}

    measure("cold join", begin)
    measure("graceful leave", lambda: leave(joiner, others, waiter))
    measure("warm join", begin)
    measure("kill, started again at once", lambda: kill_and_restart(joiner, others, waiter))
    measure("kill, not started again", kill)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="new directory for join_time.json and the workdirs")
    parser.add_argument("--peers", type=int, default=3, help="of the swarm that is joined")
    parser.add_argument("--config", default="default", help="YAML or TOML file, or a shipped name")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="change a setting of the run")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="of every device; 0: as fast as it can")
    parser.add_argument("--minutes", type=float, default=10.0, help="the benchmark ends after this time")
    args = parser.parse_args()
    args.out = new_directory(parser, args.out)
    end_on_sigterm()
    peers: list[Peer] = []
    try:
        results = conduct(args, peers)
    except Impatient as error:
        print(error)
        return 1
    finally:
        for peer in peers:
            peer.kill()
    (args.out / "join_time.json").write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
