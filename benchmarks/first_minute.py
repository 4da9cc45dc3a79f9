"""What a newcomer waits for: seconds from the command to its first ink, and changes of the screen per second of `swarm`.

    python -m benchmarks.first_minute [--peers 2] [--rounds 4]

Every verb runs in a pseudo-terminal of 80 x 24, as a person would start it. The clock includes the start of Python.
"""

import argparse
import fcntl
import itertools
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Sequence
from pathlib import Path

QUIET_SECONDS = 120.0
"""A verb that has printed nothing for so long prints nothing any more."""


def ink(words: Sequence[str], *, until_first: bool) -> list[float]:
    """Seconds from the start to each piece of output; only to the first one where asked, which ends the process."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    begun, seconds = time.perf_counter(), list[float]()
    process = subprocess.Popen(
        [sys.executable, "-m", "adloco_p2p", *words],
        stdin=child,
        stdout=child,
        stderr=child,
        env={**os.environ, "TERM": "xterm", "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    os.close(child)
    try:
        while select.select([parent], [], [], QUIET_SECONDS)[0]:
            try:
                if not os.read(parent, 1 << 16):
                    break
            except OSError:  # the other end is closed
                break
            seconds.append(time.perf_counter() - begun)
            if until_first:
                break
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait()
        os.close(parent)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=4)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"load {load:.1f} on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as folder:
        run = ["swarm", "--peers", str(arguments.peers), "--rounds", str(arguments.rounds), "--workdir", f"{folder}/run"]
        changes = ink(run, until_first=False)
        peer = str(Path(folder) / "run" / "peer-0")
        verbs = {
            "swarm": ["swarm", "--peers", "2", "--workdir", f"{folder}/a"],
            "start": ["start", "--workdir", f"{folder}/b"],
            "join": ["join", "--initial-peers", "/ip4/127.0.0.1/tcp/1/p2p/x", "--workdir", f"{folder}/c"],
            "doctor": ["doctor", "--workdir", f"{folder}/d"],
            "status": ["status", "--workdir", peer],
            "generate": ["generate", "--workdir", peer, "--prompt", "The "],
            "evaluate": ["evaluate", "--workdir", peer],
            "export": ["export", "--workdir", peer, "--output", f"{folder}/model"],
            "report": ["report", "--workdir", peer, "--output", f"{folder}/report"],
            "plan": ["plan", "--samples", "1000"],
            "ledger": ["ledger", "--workdir", peer],
            "simulate": ["simulate", "--peers", "4", "--seeds", "1"],
        }
        print(f"{'verb':<10} {'first ink':>9}")
        for name, words in verbs.items():
            print(f"{name:<10} {ink(words, until_first=True)[0]:>7.2f} s")
    seconds = changes[-1] - changes[0]
    longest = max(later - earlier for earlier, later in itertools.pairwise(changes))
    rate = len(changes) / seconds
    print(f"swarm: {rate:.1f} changes of the screen per second over {seconds:.0f} s, longest still {longest:.1f} s")


if __name__ == "__main__":
    main()
