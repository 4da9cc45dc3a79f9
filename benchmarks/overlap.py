"""How much of the time two real peers compute, with and without overlap: a 12M-parameter model over capped links.

python -m benchmarks.overlap                           none and forecast; 100 Mbit/s each way, 9 rounds of 8 steps; 6 minutes
python -m benchmarks.overlap --hidden-size 128 --megabits 5 --step-seconds 3       where the machine is too busy for that model

Real processes on loopback, under the node's own caps of traffic, each with a device of a stated speed (`benchmarks/paced.py`).
Counted are the rounds that both peers trained: seconds in inner steps over the time in which these rounds ended. Take enough
rounds: the joiner's first one or two, and the average of the last, which nothing hides, are among them.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

LOOPBACK = "/ip4/127.0.0.1/tcp/0"
LAST_SECONDS = 900.0
"""A run that has not ended by then never will."""


def write_run(folder: Path, *, way: str, hidden_size: int, rounds: int, inner_steps: int) -> Path:
    """One instance, one short row per peer and step, so that the model fits any machine."""
    model = {
        "model_type": "llama",
        "hidden_size": hidden_size,
        "intermediate_size": hidden_size * 8 // 3,
        "num_hidden_layers": 7,
        "num_attention_heads": hidden_size // 64,
        "num_key_value_heads": hidden_size // 64,
        "tie_word_embeddings": True,
    }
    document = {
        "name": f"overlap-{way}",
        "mode": "diloco",
        "model": {"architecture": model},
        "data": {"sequence_length": 32},
        "inner": {"learning_rate": 1e-3, "warmup_steps": 16},
        "outer": {"momentum": 0.5, "overlap": way},
        "work": {"inner_steps": inner_steps, "rounds": rounds, "share": "equal"},
        "batch": {"initial_batch": 2},
        "evaluation": {"rows": 4, "period_rounds": 4},
        "admission": {"kind": "open", "probation_rounds": 0},
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def start(workdir: Path, verb: list[str], *, step_seconds: float, bytes_per_second: int) -> subprocess.Popen[bytes]:
    caps = [f"{way}_bytes_per_second={bytes_per_second}" for way in ("upload", "download")]
    machine = ["--plain", "--host-maddrs", LOOPBACK, "--peer-set", "num_threads=1", "checkpoint_period_rounds=1000", *caps]
    with workdir.with_suffix(".log").open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.paced", str(step_seconds), *verb, "--workdir", str(workdir), *machine],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
        )


def addresses(log: Path) -> list[str]:
    """What the first peer prints for others."""
    deadline = time.monotonic() + LAST_SECONDS
    while time.monotonic() < deadline:
        if found := re.search(r"^initial peers: (.+)$", log.read_text("utf-8", "replace"), re.MULTILINE):
            return found[1].split()
        time.sleep(0.2)
    raise RuntimeError(f"no address in {log}")


def rounds_of(workdir: Path) -> list[dict[str, Any]]:
    """In order, the first round aside that both trained: what went before it is not counted."""
    events = [json.loads(line) for line in (workdir / "events.jsonl").read_text("utf-8").splitlines()]
    return [event for event in events if event["event"] == "round" and len(event["hosts"]) == 2]


def measure(folder: Path, way: str, arguments: argparse.Namespace) -> None:
    run = write_run(
        folder, way=way, hidden_size=arguments.hidden_size, rounds=arguments.rounds, inner_steps=arguments.inner_steps
    )
    device = {"step_seconds": arguments.step_seconds, "bytes_per_second": round(arguments.megabits * 1e6 / 8)}
    peers = [folder / "first", folder / "second"]
    processes = [start(peers[0], ["start", str(run)], **device)]
    try:
        through = addresses(peers[0].with_suffix(".log"))
        processes.append(start(peers[1], ["join", "--initial-peers", *through], **device))
        codes = [process.wait(LAST_SECONDS) for process in processes]
    finally:
        for process in processes:
            process.send_signal(signal.SIGINT)
            process.wait(60.0)
    assert codes == [0, 0], f"see {folder}/*.log"
    digests: dict[int, set[str]] = {}
    for peer in peers:
        counted = rounds_of(peer)
        for event in counted:
            digests.setdefault(event["round"], set()).add(event["digest"])
        seconds = counted[-1]["time"] - counted[0]["time"]
        computing = sum(event["seconds"]["training"] for event in counted[1:])
        averaging = sum(event["seconds"]["averaging"] for event in counted[1:]) / len(counted[1:])
        ahead = sum(event["is_ahead"] for event in counted[1:])
        print(
            f"{way:9s} {peer.name:7s} {len(counted) - 1} rounds in {seconds:.0f} s, {ahead} ahead, averaging {averaging:.1f} s"
            f" each, computing {computing / seconds:.1%}, held-out loss {_last_loss(peers)}",
            flush=True,
        )
    assert all(len(found) == 1 for found in digests.values()), "both peers came to the same bytes"


def _last_loss(peers: list[Path]) -> object:
    lines = [line for peer in peers for line in (peer / "events.jsonl").read_text("utf-8").splitlines()]
    return next(event["heldout_loss"] for line in reversed(lines) if (event := json.loads(line))["event"] == "finished")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overlap", description=__doc__)
    parser.add_argument("--ways", nargs="+", default=["none", "forecast"])
    parser.add_argument("--hidden-size", type=int, default=384, help="a multiple of 64; 384: 12M parameters, 128: 1.4M")
    parser.add_argument("--megabits", type=float, default=100.0, help="caps of a peer, each way")
    parser.add_argument("--step-seconds", type=float, default=1.5, help="of one inner step")
    parser.add_argument("--inner-steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--keep", type=Path, help="directory for what the peers write")
    arguments = parser.parse_args()
    for way in arguments.ways:
        with tempfile.TemporaryDirectory() as made:
            folder = arguments.keep / way if arguments.keep else Path(made)
            folder.mkdir(parents=True, exist_ok=True)
            measure(folder, way, arguments)


if __name__ == "__main__":
    main()
