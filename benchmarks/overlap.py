"""How much of the time two real peers compute, with and without overlap: a 12M-parameter model over capped links.

python -m benchmarks.overlap                           none and forecast; 100 Mbit/s each way, 9 rounds of 8 steps; 6 minutes
python -m benchmarks.overlap --hidden-size 128 --megabits 5 --step-seconds 3       where the machine is too busy for that model

Real processes on loopback, under the node's own caps of traffic, each with a device of a stated speed (`benchmarks/paced.py`).
Counted are the rounds that both peers trained: seconds in inner steps over the time in which these rounds ended. Take enough
rounds: the joiner's first one or two, and the average of the last, which nothing hides, are among them.
"""

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks.nodes import Event, Member, begin_node, end, llama, write_document

LAST_SECONDS = 900.0
"""The time limit of a run."""


def write_run(folder: Path, *, way: str, hidden_size: int, rounds: int, inner_steps: int) -> Path:
    """Write a run of one instance with one short row per peer and step, so that the model fits any machine."""
    model = llama(width=hidden_size, layers=7, heads=hidden_size // 64, intermediate=hidden_size * 8 // 3)
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
    return write_document(folder, document)


def rounds_of(peer: Member) -> list[Event]:
    """Return the rounds that both trained, in order, but the first, since the time before it is not counted."""
    return [event for event in peer.events() if event["event"] == "round" and len(event["hosts"]) == 2]


def measure(folder: Path, way: str, arguments: argparse.Namespace) -> None:
    run = write_run(
        folder, way=way, hidden_size=arguments.hidden_size, rounds=arguments.rounds, inner_steps=arguments.inner_steps
    )
    caps = [f"{way}_bytes_per_second={arguments.megabits * 1e6 / 8:.0f}" for way in ("upload", "download")]
    device = partial(begin_node, step_seconds=arguments.step_seconds, settings=["checkpoint_period_rounds=1000", *caps])
    peers = [device(folder, "first", "start", run)]
    try:
        through = peers[0].addresses(deadline=time.monotonic() + LAST_SECONDS)
        peers.append(device(folder, "second", "join", "--initial-peers", *through))
        codes = [peer.process.wait(LAST_SECONDS) for peer in peers]
    finally:
        end(peers)
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


def _last_loss(peers: list[Member]) -> object:
    events = [event for peer in peers for event in peer.events()]
    return next(event["heldout_loss"] for event in reversed(events) if event["event"] == "finished")


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
