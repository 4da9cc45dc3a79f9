"""Synchronises a benchmark and its peers, each a process: every message is a barrier for all of them."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.nodes import ROOT


class PeerFailed(Exception):
    """A peer has died, did not send the next message, or was late."""


class Director:
    """The benchmark, as a peer sees it at the other end of its pipes."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)  # libraries may print to standard output

    def tell(self, kind: str, value: Any = None) -> Any:
        """Wait until all peers have sent the same kind of message, and return the benchmark's answer, as a rule everybody's
        values."""
        self._out.write(json.dumps({"kind": kind, "value": value}) + "\n")
        line = sys.stdin.readline()
        if not line:
            sys.exit("the benchmark has ended")
        return json.loads(line)


class DirectedPeers:
    """The peers, as the benchmark sees them: by rank, in the order in which they begin."""

    def __init__(self, popen: Callable[..., subprocess.Popen[bytes]], *, seconds: float) -> None:
        """`popen`: starts a program on a host, as in a laboratory. `seconds`: the time for all of their messages."""
        self._popen = popen
        self._deadline = time.monotonic() + seconds
        self._living: dict[int, subprocess.Popen[bytes]] = {}

    def begin(self, host: str, module: str, *arguments: str, log: Path) -> None:
        """Start `python -m MODULE ARGUMENTS`, a program with a `Director`."""
        command, pipe = [sys.executable, "-m", module, *arguments], subprocess.PIPE
        with log.open("w") as errors:
            # Unbuffered, so that waiting sees everything that has arrived.
            peer = self._popen(host, command, stdin=pipe, stdout=pipe, stderr=errors, cwd=ROOT, bufsize=0)
        self._living[len(self._living)] = peer

    def hear(self) -> tuple[str, list[Any]]:
        """Return the kind of the next message of all live peers, and their values by rank. Raises PeerFailed."""
        told = [self._message(rank) for rank in self._living]
        kinds = sorted({message["kind"] for message in told})
        if len(kinds) > 1:
            raise PeerFailed(f"peers tell {' and '.join(kinds)} at once; see their logs")
        return kinds[0], [message["value"] for message in told]

    def expect(self, kind: str) -> list[Any]:
        """Return the values of a message of this kind. Raises PeerFailed."""
        found, values = self.hear()
        if found != kind:
            raise PeerFailed(f"the peers tell {found} where {kind} is next; see their logs")
        return values

    def share(self, kind: str) -> list[Any]:
        """Return the values as `expect` does, and send all of them to every peer."""
        values = self.expect(kind)
        self.answer(values)
        return values

    def answer(self, value: Any) -> None:
        for peer in self._living.values():
            assert peer.stdin is not None
            peer.stdin.write(json.dumps(value).encode() + b"\n")

    def kill(self, rank: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._living.pop(rank).pid, signal.SIGKILL)

    def _message(self, rank: int) -> dict[str, Any]:
        stdout = self._living[rank].stdout
        assert stdout is not None
        ready, _, _ = select.select([stdout], [], [], max(0.0, self._deadline - time.monotonic()))
        if not ready:
            raise PeerFailed("its time was over")
        line = stdout.readline()
        if not line:
            raise PeerFailed(f"peer {rank} has died; see its log")
        message: dict[str, Any] = json.loads(line)
        return message
