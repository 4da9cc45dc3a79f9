"""What can go wrong inside a process, arranged from within it: a signal at an exact place, work that hangs, a full disk.

python faults.py FUNCTION ARGUMENT... -- ADLOCO_PEER_ARGUMENT...
"""

import importlib
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def signal_at(place: str, call: str, when: str, name: str) -> None:
    """Send oneself the signal `before` or `after` the given call (counted from 1) of the function `module:Class.name`."""

    def send() -> None:
        os.kill(os.getpid(), signal.Signals[name])

    _at(place, int(call), send, is_before=when == "before")


def hang_at(place: str, call: str) -> None:
    """The given call never comes back."""
    _at(place, int(call), lambda: threading.Event().wait(), is_before=True)


def limit_files(size_bytes: str) -> None:
    """No file grows beyond this: to the writer, much like a full disk.

    python faults.py FUNCTION ARGUMENT... -- ADLOCO_PEER_ARGUMENT...
    """
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(size_bytes), resource.RLIM_INFINITY))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def misbehave(*kinds: str) -> None:
    """Be a bad peer of these kinds, see `benchmarks/bad_peer.py`."""
    bad_peer = importlib.import_module("benchmarks.bad_peer")
    for kind in kinds:
        bad_peer.KINDS[kind]()


def paced(step_seconds: str) -> None:
    """The device takes so long for an inner step, however busy this machine is; see `benchmarks/paced.py`."""
    importlib.import_module("benchmarks.paced").pace(float(step_seconds))


def patient(seconds: str) -> None:
    """The leader of a retry waits so long for what the others report."""
    vars(importlib.import_module("adloco_p2p.core.averaging.attempt"))["GRACE_SECONDS"] = float(seconds)


def impatient(seconds: str) -> None:
    """A founder waits only so long for the others."""
    vars(importlib.import_module("adloco_p2p.swarm.discovery.gathering"))["GATHER_SECONDS"] = float(seconds)


def _at(place: str, call: int, deed: Callable[[], object], *, is_before: bool) -> None:
    module, _, path = place.partition(":")
    owner = importlib.import_module(module)
    *parts, name = path.split(".")
    for part in parts:
        owner = getattr(owner, part)
    original, calls = getattr(owner, name), 0

    def replacement(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        is_now = calls == call
        if is_now and is_before:
            deed()
        result = original(*arguments, **options)
        if is_now and not is_before:
            deed()
        return result

    setattr(owner, name, replacement)


def newer_protocol(*arguments: str) -> None:
    """The process becomes one of the next release, with this command line."""
    os.execv(sys.executable, [sys.executable, str(Path(__file__).with_name("next_release.py")), *arguments])


def shift_clock(seconds: str) -> None:
    """This machine's clock is so much ahead."""
    assert not any(name.split(".")[0] == "adloco_p2p" for name in sys.modules), "what is imported keeps the real clock"
    real = time.time
    time.time = lambda: real() + float(seconds)


FRESH = ("shift_clock",)
"""Faults that must come before the program is imported, so a warm process becomes a new one for them."""


if __name__ == "__main__":
    end = sys.argv.index("--")
    globals()[sys.argv[1]](*sys.argv[2:end])
    from adloco_p2p.cli import main

    raise SystemExit(main(sys.argv[end + 1 :]))
