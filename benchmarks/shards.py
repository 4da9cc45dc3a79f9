"""A model divided over processes (`shards`) beside the same model in one: time of an inner step, memory of each process.

python -m benchmarks.shards                two processes, 14.3M and 50.5M parameters, CPU; five minutes on two cores
python -m benchmarks.shards --sizes 14M    only the smaller one

Both sides live at once and take turns, a round of inner steps each; every process has one thread. Processor time is that of
all processes of a side, which other jobs of the machine disturb less than the time by the clock. Memory: the high-water marks
of the processes, minus those with a negligible model, per parameter. On a CPU the processes share memory and
cores, so this shows what dividing costs, not what it gains.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from statistics import median
from typing import Any

import psutil
import torch

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import ModelConfig, RunConfig
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.numerics.batch import Batch
from adloco_p2p.training.hosting import Hosting
from adloco_p2p.training.shards.hosting import ShardedHosting
from benchmarks.equal_hosts import ME, InMemory, work_of
from benchmarks.nodes import llama
from benchmarks.resident import peak_bytes

ONE = InstanceId(0)
VOCABULARY, LENGTH, BATCH, STEPS = 259, 128, 2, 2
WIDTHS = {"none": (64, 1), "14M": (384, 6), "50M": (512, 12)}
"""Width and layers of each model; the first is negligible, and not timed."""
ROUNDS = 4
"""Rounds of each side; the first one is not counted."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=2, metavar="N")
    parser.add_argument("--sizes", nargs="+", choices=[*WIDTHS][1:], default=[*WIDTHS][1:], metavar="SIZE")
    parser.add_argument("--side", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--size", choices=WIDTHS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side is not None:
        serve(arguments.side, arguments.size)
        return
    small = [Side(number, "none") for number in (1, arguments.shards)]
    peaks_before = [side.round()["peaks"] for side in small]
    for side in small:
        side.end()
    for size in arguments.sizes:
        compare(size, arguments.shards, peaks_before)


def compare(name: str, shards: int, peaks_before: Sequence[dict[str, int]]) -> None:
    """Compare the sides. `peaks_before`: those of the processes of each side with a negligible model."""
    sides = [Side(number, name) for number in (1, shards)]
    rounds = [[side.round() for side in sides] for _ in range(ROUNDS)][1:]
    for side in sides:
        side.end()
    size = rounds[-1][0]["parameters"]
    losses = [one["loss"] for one in rounds[-1]]
    say(f"{size} parameters, batch {BATCH} of {LENGTH} tokens, fp32; last losses {losses[0]:.6f} and {losses[1]:.6f}")
    for kind in ("processor", "seconds"):
        ratios = sorted(divided[kind] / alone[kind] for alone, divided in rounds)
        one, more = (median(both[which][kind] for both in rounds) for which in (0, 1))
        spread = f"{median(ratios):.2f}, {ratios[0]:.2f} to {ratios[-1]:.2f}"
        say(f"{kind} per inner step: {one:.3f} in one process, {more:.3f} in {shards}; ratio {spread}")
    for which, before in enumerate(peaks_before):
        peaks = rounds[-1][which]["peaks"]
        for process, peak in peaks.items():
            title, each = ("one process", "divided")[which], (peak - before[process]) / size
            say(
                f"{title}, {process}: {peak / 2**20:.0f} MiB, {before[process] / 2**20:.0f} with a small model:"
                f" {each:.1f} bytes per parameter"
            )


class Side:
    """A peer in a process of its own, which does a round on request."""

    def __init__(self, processes: int, size: str) -> None:
        words = ["-m", "benchmarks.shards", "--side", str(processes), "--size", size]
        self._process = subprocess.Popen([sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def round(self) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def end(self) -> None:
        self._process.communicate()


def serve(shards: int, size: str) -> None:
    width, layers = WIDTHS[size]
    architecture = llama(width=width, layers=layers, heads=width // 64, intermediate=4 * width)
    run = RunConfig(model=ModelConfig(architecture=architecture, precision="float32"))
    machine = PeerConfig(device="cpu", num_threads=shards, max_micro_batch=BATCH, max_instances=1, shards=shards)
    ids = torch.randint(VOCABULARY, (BATCH, LENGTH), generator=torch.Generator().manual_seed(1))
    feed = InMemory(Batch(input_ids=ids, labels=ids), vocab_size=VOCABULARY)
    peer = (Hosting if shards == 1 else ShardedHosting)(run, machine, ME, feed)
    peer.start([ONE])
    pids = {"peer": os.getpid()}
    if isinstance(peer, ShardedHosting):
        pids |= {f"shard {rank}": pid for rank, pid in enumerate(peer.pids)}
    for number, _ in enumerate(sys.stdin):
        work = work_of(0, number, hosts=[ME], instance=ONE, batch=BATCH, inner_steps=STEPS, rounds=ROUNDS + 1)
        before = sum(processor_seconds(pid) for pid in pids.values())
        result = peer.run_inner(work, should_stop=lambda: False, on_progress=lambda *_: None)
        assert result is not None
        peer.apply_outer(ONE, peer.pseudo_gradient(ONE), round=number)
        found = {
            "parameters": peer.num_parameters,
            "seconds": result.seconds / STEPS,
            "processor": (sum(processor_seconds(pid) for pid in pids.values()) - before) / STEPS,
            "loss": result.loss,
            "peaks": {name: peak_bytes(pid) for name, pid in pids.items()},
        }
        say(json.dumps(found))


def processor_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
