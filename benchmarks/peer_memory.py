"""What a peer takes of main memory, by phase: the whole process, and its p2p daemon apart.

python -m benchmarks.peer_memory configs/finetune.yaml           a few minutes of a core
python -m benchmarks.peer_memory CONFIG --rounds 2 --set data.sequence_length=128

A peer alone, one thread, one row at a time, rows of 256 tokens unless set. A phase ends with a line of the peer's output; its
peak is the kernel's own high-water mark, set back at the start of the phase. `adloco-peer plan` gives the sum of tensors.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

from benchmarks.resident import peak_bytes, reset_peak, resident_bytes

PHASES = {
    "starting the p2p daemon": "loading libraries",
    "reading the text": "starting the p2p daemon",
    "building the model": "reading the text",
    "connecting to the others": "building the model",
}
"""Beginnings of lines of output, each with the phase that it ends; then every round's line ends a phase."""
MIB = 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE")
    parser.add_argument("--peer-set", nargs="+", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    settings = ["data.sequence_length=256", "batch.initial_batch=1", "batch.max_batch=1", "work.inner_steps=4"]
    settings += [f"work.rounds={arguments.rounds}", "evaluation.rows=2", *arguments.set]
    _say(f"{'phase':28s}{'peak':>7s}{'at its end: own':>17s}{'of files':>10s}{'children':>10s}   MiB")
    with tempfile.TemporaryDirectory() as name:
        machine = ["--peer-set", "num_threads=1", "max_micro_batch=1", *arguments.peer_set]
        command = [sys.executable, "-m", "adloco_p2p", "start", str(arguments.config), "--workdir", f"{name}/peer", "--plain"]
        command += ["--host-maddrs", "/ip4/127.0.0.1/tcp/0", *machine, "--set", *settings]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        ) as peer:
            most = _watch(peer)
    assert peer.returncode == 0, f"exit code {peer.returncode}"
    _say(f"{'the whole process':28s}{most / MIB:7.0f}   {most / 1e9:.2f} GB")


def _watch(peer: "subprocess.Popen[str]") -> int:
    """Most resident bytes of the process itself."""
    assert peer.stdout is not None
    most = 0
    for line in peer.stdout:
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
    return most


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
