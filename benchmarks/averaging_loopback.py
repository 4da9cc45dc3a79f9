"""How fast is averaging on loopback: ours, hivemind's own averager and gloo, in the same run on the same machine.

    python -m benchmarks.averaging_loopback [--millions 10] [--peers 2 4] [--rounds 3]

Every peer is a process of its own, and every row has new ones. Seconds are the slowest peer's, from a common start until no
other needs it any more, without matchmaking or dialing; the median over the rounds after one that warms up. `cpu` is the
processor time of all processes of all peers in one round, network daemons included. Hivemind's and our streams are encrypted,
gloo's are not.

`wire` is what the loopback interface carried, over the 2 (n - 1) S bytes that any butterfly needs for a vector of S encoded
bytes: headers, encryption and acknowledgements make it more than one, other traffic of the machine too. `peer` is what the
peer with most of it sent or received, whichever is more, over its part of them, 2 (n - 1) / n S: counted by our streams where
bytes are written and read, frames, hellos and answers included. Only ours has int8. `ours` is the plain mean; `robust` is the
same with that aggregation rule, which sees all contributions before it decides. `recheck` and `recheck 1` are the mean, and
then the parts that members make again, at the rates 0.05, the default of runs, and 1.0; in a run that goes on beside training.
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from adloco_p2p.numerics.codecs import codec_named
from benchmarks.barrier import DirectedPeers, PeerFailed
from benchmarks.contenders import DTYPES, Task, rounds_of
from benchmarks.nodes import end_on_sigterm

ROUND_SECONDS = 120.0
"""The time limit of a row, with as much again to begin: a slower row is ended."""
CODECS = (*DTYPES, "int8")
WAYS = ("hivemind", "gloo", "ours", "robust", "recheck", "recheck 1")
ADDRESS = "127.0.0.1"

Figures = tuple[float, float, float, float]
"""Seconds, processor seconds, bytes on the interface, and bytes that the peer counted; none are 0."""


def loopback_bytes() -> int:
    return psutil.net_io_counters(pernic=True)["lo"].bytes_sent


def free_port() -> int:
    with socket.create_server((ADDRESS, 0)) as server:
        return int(server.getsockname()[1])


def measure(codec: str, way: str, folder: Path, *, num_peers: int, size: int, rounds: int) -> list[Figures]:
    """Return the figures of every round after the first; where a peer dies, of those until then. `folder`: for the logs."""
    processes: list[subprocess.Popen[bytes]] = []

    def popen(_host: str, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        processes.append(subprocess.Popen(command, start_new_session=True, **options))
        return processes[-1]

    peers, port, measured = DirectedPeers(popen, seconds=ROUND_SECONDS * (rounds + 2)), free_port(), list[Figures]()
    try:
        for rank in range(num_peers):
            task = Task(
                contender=way,
                rank=rank,
                addresses=[ADDRESS] * num_peers,
                size=size,
                codec=codec,
                rounds=rounds + 1,
                shares=[1 / num_peers] * num_peers,
                gloo_port=port,
                interface="lo",
            )
            peers.begin(ADDRESS, "benchmarks.contenders", json.dumps(asdict(task)), log=folder / f"{rank}.txt")
        for told, before, after in rounds_of(peers, loopback_bytes):
            seconds, cpu_seconds, counted = (
                [each[name] for each in told] for name in ("whole_seconds", "cpu_seconds", "counted_bytes")
            )
            measured.append((max(seconds), sum(cpu_seconds), after - before, max(counted)))
    except PeerFailed as error:
        words = "\n".join(log.read_text()[-1000:] for log in folder.iterdir())
        print(f"{codec}, {num_peers} peers, {way}: {error}; the figures are incomplete\n{words}")
    finally:
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(2)
            end_session(process.pid)
            process.wait()
    return measured[1:]


def end_session(leader: int) -> None:
    """End a peer and the processes that it has left behind."""
    for process in psutil.process_iter(["pid"]):
        try:
            if os.getsid(process.pid) == leader:
                os.kill(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def row(codec: str, way: str, num_peers: int, size: int, rounds: Sequence[Figures]) -> str:
    seconds, cpu, wire, counted = (statistics.median(column) for column in zip(*rounds, strict=True))
    least = 2 * (num_peers - 1) * codec_named(codec).num_bytes(size)
    speed = least / num_peers / seconds / 1e6
    told = f"{counted / least * num_peers:6.3f}" if counted else ""
    figures = f"{seconds:8.2f} {speed:6.0f} {cpu:6.1f} {cpu / least * 1e9:8.1f} {wire / least:5.2f} {told}"
    return f"{codec:8} {num_peers:2} {way:9} {figures}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=int, default=10, help="parameters, in millions")
    parser.add_argument("--peers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--codecs", nargs="+", default=["float32", "float16", "int8"], choices=CODECS)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    args = parser.parse_args()
    end_on_sigterm()
    size = args.millions * 1_000_000
    print(f"{args.millions}M parameters, {os.cpu_count()} cores, median of {args.rounds} rounds")
    print(f"{'codec':8} {'n':>2} {'way':9} {'seconds':>8} {'MB/s':>6} {'cpu s':>6} {'cpu s/GB':>8} {'wire':>5} {'peer':>6}")
    for num_peers in args.peers:
        for codec in args.codecs:
            for way in args.ways:
                if way in ("hivemind", "gloo") and codec not in DTYPES:
                    continue
                with tempfile.TemporaryDirectory() as folder:
                    rounds = measure(codec, way, Path(folder), num_peers=num_peers, size=size, rounds=args.rounds)
                if rounds:
                    print(row(codec, way, num_peers, size, rounds), flush=True)


if __name__ == "__main__":
    main()
