"""The main memory of a peer, by phase: the whole process, and its p2p daemon apart.

python -m benchmarks.peer_memory configs/finetune.yaml           a few minutes of a core
python -m benchmarks.peer_memory CONFIG --peers 2 --rounds 3 --set data.sequence_length=128

One thread, one row at a time, rows of 256 tokens unless set. The first peer is measured; further ones are founders beside it,
so that every round ends with an average. A phase ends with a line of the peer's output; its
peak is the kernel's own high-water mark, set back at the start of the phase. `adloco-peer plan` gives the sum of tensors.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import psutil

from adloco_p2p.swarm.p2p.identity import Identity
from benchmarks.join_time import OWN_PEERS
from benchmarks.nodes import ADDRESSES, ENVIRONMENT, node_command
from benchmarks.resident import peak_bytes, reset_peak, resident_bytes

PHASES = {
    "starting the p2p daemon": "loading libraries",
    "reading the text": "starting the p2p daemon",
    "building the model": "reading the text",
    "joining the network": "building the model",
}
"""Beginnings of lines of output, each with the phase that it ends; after them every round's line ends a phase."""
MIB = 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE")
    parser.add_argument("--peer-set", nargs="+", default=[], metavar="KEY=VALUE")
    parser.add_argument("--peers", type=int, default=1)
    arguments = parser.parse_args()
    rows = arguments.peers  # one for each
    settings = ["data.sequence_length=256", f"batch.initial_batch={rows}", f"batch.max_batch={rows}", "work.inner_steps=4"]
    settings += [f"work.rounds={arguments.rounds}", "evaluation.rows=2", *OWN_PEERS, *arguments.set]
    machine = ["num_threads=1", "max_micro_batch=1", "allow_local_files=true", *arguments.peer_set]
    _say(f"{'phase':28s}{'peak':>7s}{'at its end: own':>17s}{'of files':>10s}{'children':>10s}   MiB")
    with tempfile.TemporaryDirectory() as name, ExitStack() as others:
        workdirs = [Path(name) / f"peer-{number}" for number in range(arguments.peers)]
        founders = ", ".join(_name(workdir) for workdir in workdirs[1:])
        first = _start("start", arguments.config, "--set", *settings, f"founders=[{founders}]", machine=machine, at=workdirs[0])
        with first as peer:

            def join_all(addresses: list[str]) -> None:
                for workdir in workdirs[1:]:
                    joiner = _start("join", "--initial-peers", *addresses, machine=machine, at=workdir)
                    others.callback(joiner.wait)
                    others.callback(joiner.terminate)

            most = _watch(peer, join_all)
    assert peer.returncode == 0, f"exit code {peer.returncode}"
    _say(f"{'the whole process':28s}{most / MIB:7.0f}   {most / 1e9:.2f} GB")


def _name(workdir: Path) -> str:
    workdir.mkdir()
    return Identity.load_or_create(workdir / "identity.key").peer_id


def _start(*words: object, machine: Sequence[str], at: Path) -> "subprocess.Popen[str]":
    command = [*node_command(*words, workdir=at, listen="/ip4/127.0.0.1/tcp/0"), "--peer-set", *machine]
    output = subprocess.PIPE if words[0] == "start" else subprocess.DEVNULL
    return subprocess.Popen(command, stdout=output, text=True, env={**os.environ, **ENVIRONMENT})


def _watch(peer: "subprocess.Popen[str]", join_all: Callable[[list[str]], None]) -> int:
    """Return the most resident bytes of the process itself. `join_all` takes the addresses by which others join."""
    assert peer.stdout is not None
    most, addresses = 0, list[str]()
    for line in peer.stdout:
        if found := ADDRESSES.match(line):
            addresses = found[1].split()
        phase = next((phase for start, phase in PHASES.items() if line.startswith(start)), None)
        if line.startswith("round "):
            phase = line.split("  ")[0]
        if phase is None:
            continue
        peak, (own, of_files) = peak_bytes(peer.pid), resident_bytes(peer.pid)
        children = sum(child.memory_info().rss for child in psutil.Process(peer.pid).children(recursive=True))
        reset_peak(peer.pid)
        _say(f"{phase:28s}{peak / MIB:7.0f}{own / MIB:17.0f}{of_files / MIB:10.0f}{children / MIB:10.0f}")
        most = max(most, peak)
        if phase == "building the model":  # only now can others find the run
            join_all(addresses)
    return most


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
