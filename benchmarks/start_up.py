"""How long the start of `join` takes until the node is up, and how much of a processor.

    python -m benchmarks.start_up --out DIRECTORY [--starts 5] [--busy 2]

A founder on loopback whose device sleeps through its inner steps, so that it needs next to nothing; beside it, one after the
other, newcomers with empty directories. Each is ended when its node has started. Wall seconds and processor seconds since the
start of the process, median and range. `--busy`: so many endless loops run beside them, at the priority of the newcomers.
"""

import argparse
import multiprocessing
import os
import sys
import time
from pathlib import Path
from statistics import median

from benchmarks.join_time import OWN_PEERS, Peer, Waiter, timed
from benchmarks.nodes import write_config

STEP_SECONDS = 0.5
"""The time of an inner step on the founder's device, which sleeps."""
MINUTES = 10.0


def spin() -> None:
    while True:
        pass


def moments_of(peer: Peer, waiter: Waiter) -> dict[str, tuple[float, float]]:
    """Return wall and processor seconds of each moment since the start of the process, which is ended."""
    imported = waiter.wait(lambda: peer.said("looking for the swarm"), "the imports")[0]
    found = waiter.wait(lambda: peer.said("run "), "the run")[0]
    up = waiter.wait(lambda: peer.first("started", since=peer.began), "the node")["time"]
    time.sleep(0.2)  # so that the sampler of processor seconds sees the last moment
    peer.kill()
    moments = {"imported": imported, "run found": found, "node up": up}
    return {name: (at - peer.began, peer.processor_seconds(at)) for name, at in moments.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="new directory for the workdirs")
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--busy", type=int, default=0, help="endless loops beside them")
    args = parser.parse_args()
    args.out = args.out.resolve()
    args.out.mkdir(parents=True)
    config = write_config(args.out, "start-up", rounds=100000, inner_steps=4, width=32, layers=1, equal_shares=True)
    founder = timed(args.out, "founder", "start", config, "--set", *OWN_PEERS, step_seconds=STEP_SECONDS)
    peers = list[Peer]()
    waiter = Waiter(deadline=time.monotonic() + 60 * MINUTES, peers=peers)
    loops = [multiprocessing.Process(target=spin, daemon=True) for _ in range(args.busy)]
    results: list[dict[str, tuple[float, float]]] = []
    try:
        peers.append(founder.start())
        known = waiter.wait(lambda: founder.said("initial peers: "), "the founder")[1].split()[2:]
        waiter.wait(lambda: founder.first("round", since=founder.began), "the first round")
        for loop in loops:
            loop.start()
        for number in range(args.starts):
            peers.append(timed(args.out, f"joiner-{number}", "join", "--initial-peers", *known).start())
            results.append(moments_of(peers[-1], waiter))
    finally:
        for loop in loops:
            if loop.pid is not None:
                loop.kill()
        for peer in peers:
            peer.kill()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; {args.starts} starts beside {args.busy} busy loops")
    for name in results[0]:
        wall, processor = (sorted(result[name][i] for result in results) for i in (0, 1))
        print(
            f"{name:<10} {median(wall):5.1f} s ({wall[0]:.1f} to {wall[-1]:.1f}),"
            f" {median(processor):.1f} s of a processor ({processor[0]:.1f} to {processor[-1]:.1f})"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
