"""The processes that hold one model in parts, as the peer sees them: started, called, and ended together.

They end with this object, with this process however it ends (their end of a socket closes), and all of them as soon as one is
gone, because nobody else has its part. Every wait has an end.
"""

import fcntl
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import IO, Any, NoReturn

import torch

from adloco_p2p.core.model import canonical
from adloco_p2p.errors import AdlocoError, ConfigError, DeviceError, ShardLost
from adloco_p2p.training.memory_need import EXCHANGE_BYTES
from adloco_p2p.training.shards import messages, worker
from adloco_p2p.training.shards.messages import Values
from adloco_p2p.training.shards.setup import Setup

STALL_SECONDS = 300.0
"""How long one process may wait for another in a collective operation. An answer may take as long for each pass over the model
that it contains, and once more."""
DEATH_SECONDS = 10.0
"""How long a killed process may take to end after another one reports that it is gone, or its connection closes."""
LOOK_SECONDS = 0.01
"""The time between two looks whether one has ended."""
EXCHANGE_VALUES = EXCHANGE_BYTES // torch.float32.itemsize
"""Values of a vector, in fp32, that pass at a time."""
MAX_LAST_LINE_BYTES = 300
MAX_OUTPUT_BYTES = 1 << 20
"""How much of a process's output is kept while it lives; older output is dropped beyond that."""
RETURNING = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_ARENA_MAX": "2"}
"""Environment of a process on a CPU, with which the allocator of glibc soon gives memory back to the system."""


@dataclass(frozen=True, slots=True)
class _Member:
    process: "subprocess.Popen[bytes]"
    connection: Connection
    errors: IO[bytes]


class ShardGroup:
    """The processes of one divided model. One thread at a time calls it."""

    def __init__(self, setups: Sequence[Setup]) -> None:
        """Start the processes. Raises ShardLost, DeviceError and ConfigError."""
        if not hasattr(os, "memfd_create"):
            raise ConfigError("shards: more than 1 needs Linux; leave it at 1", code="E210")
        size = EXCHANGE_BYTES
        descriptor = os.memfd_create("exchange")  # not /dev/shm, which is small in containers
        os.ftruncate(descriptor, size)
        self._lock = threading.RLock()
        self._exchange = torch.frombuffer(mmap.mmap(descriptor, size), dtype=torch.float32)
        self._problem = ""
        self._members: list[_Member] = []
        self._end = weakref.finalize(self, _end, self._members)
        meeting = os.memfd_create("meeting")  # a file that disappears with the last process, however it ends
        meeting_place = f"/proc/self/fd/{meeting}"
        try:
            for setup in setups:
                self._members.append(_started(descriptor, size, meeting, is_cpu=setup.device == "cpu"))
        finally:
            os.close(descriptor)
            os.close(meeting)
        each = [replace(setup, meeting_place=meeting_place, stall_seconds=STALL_SECONDS) for setup in setups]
        for rank, setup in enumerate(each):
            self._send([rank], canonical.encode(setup))
        self.call("join")
        for rank in range(len(each)):
            self._send([rank], messages.encode("build", {}))
            self._answers([rank], "build", 4 * STALL_SECONDS)

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(member.process.pid for member in self._members)

    def call(self, command: str, *, num_waits: int = 1, **arguments: Any) -> list[Values]:
        """Return every member's answer, by rank. `num_waits`: how many passes over the model the command contains. Raises
        ShardLost, and ends the group, where a member fails, is gone or does not answer, and DeviceError where its memory is
        short."""
        with self._lock:
            ranks = range(len(self._members))
            self._send(ranks, messages.encode(command, arguments))
            return self._answers(ranks, command, STALL_SECONDS * (1 + num_waits))

    def write(self, name: str, vector: torch.Tensor) -> None:
        """Write this vector [P], of any floating type, on the CPU, into a vector that the members hold."""
        with self._lock:
            for first in range(0, len(vector), EXCHANGE_VALUES):
                piece = vector[first : first + EXCHANGE_VALUES]
                self._exchange[: len(piece)].copy_(piece)
                self.call("take", name=name, first=first, count=len(piece))

    def read(self, name: str, into: torch.Tensor) -> None:
        """Read a vector that the members hold into `into` [P], on the CPU."""
        with self._lock:
            for first in range(0, len(into), EXCHANGE_VALUES):
                piece = into[first : first + EXCHANGE_VALUES]
                self.call("give", name=name, first=first, count=len(piece))
                piece.copy_(self._exchange[: len(piece)])

    @property
    def lives(self) -> bool:
        return not self._problem

    def close(self) -> None:
        self._problem = self._problem or "they were ended"
        self._end()

    def _send(self, ranks: Sequence[int], payload: bytes) -> None:
        if self._problem:
            raise ShardLost(f"shards: the processes of this model are gone: {self._problem}")
        for rank in ranks:
            _shorten(self._members[rank].errors)
            try:
                self._members[rank].connection.send_bytes(payload)
            except (BrokenPipeError, ConnectionResetError):
                pass  # its answer will be missing
            except BlockingIOError:
                self._fail(f"{_titles([rank])} took no command for {STALL_SECONDS:.0f} s")

    def _answers(self, ranks: Sequence[int], command: str, seconds: float) -> list[Values]:
        deadline = time.monotonic() + seconds
        missing = {self._members[rank].connection: rank for rank in ranks}
        answers: dict[int, Values] = {}
        while missing:
            ready = wait(list(missing), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                self._fail(f"{_titles(missing.values())} did not answer {command!r} in {seconds:.0f} s")
            for connection in ready:
                assert isinstance(connection, Connection)
                rank = missing.pop(connection)
                try:
                    word, answers[rank] = messages.decode(connection.recv_bytes())
                except (EOFError, OSError):
                    self._fail(_death_of(rank, self._members[rank]))
                if word == messages.FAILED:
                    self._refuse(rank, **answers[rank])
        return [answers[rank] for rank in ranks]

    def _refuse(self, rank: int, *, reason: str, kind: str) -> NoReturn:
        """Raise the error that a member reports. `kind`: `setting`, `memory` or another word."""
        if kind == "setting":
            self.close()
            raise ConfigError(reason, code="E210")
        if kind == "memory":
            self._fail(f"{_titles([rank])} is short of memory: {reason}; lower max_micro_batch", DeviceError, code="E502")
        self._fail(self._first_death() or f"{_titles([rank])} reports: {reason}")

    def _first_death(self) -> str:
        """Describe the death of the member that others have reported; empty where all are alive."""
        deadline = time.monotonic() + DEATH_SECONDS
        while True:
            for rank, member in enumerate(self._members):
                if member.process.poll() is not None:
                    return _death_of(rank, member)
            if time.monotonic() > deadline:
                return ""
            time.sleep(LOOK_SECONDS)

    def _fail(self, reason: str, kind: type[AdlocoError] = ShardLost, *, code: str | None = None) -> NoReturn:
        self._problem = reason
        self._end()
        raise kind(f"shards: {reason}; the last checkpoint is intact", code=code)


def _titles(ranks: Iterable[int]) -> str:
    return " and ".join(f"process {rank}" for rank in sorted(ranks))


def _started(exchange: int, size: int, meeting: int, *, is_cpu: bool) -> _Member:
    ours, theirs = socket.socketpair()
    for end in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):  # for a process that stops in the middle of a message
        ours.setsockopt(socket.SOL_SOCKET, end, struct.pack("ll", int(STALL_SECONDS), 0))
    errors = tempfile.TemporaryFile()  # noqa: SIM115  # `_end` closes it
    fcntl.fcntl(errors, fcntl.F_SETFL, fcntl.fcntl(errors, fcntl.F_GETFL) | os.O_APPEND)  # see `_shorten`
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", worker.__name__, str(theirs.fileno()), str(exchange), str(size)],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            pass_fds=(theirs.fileno(), exchange, meeting),
            env={**(RETURNING if is_cpu else {}), **os.environ, "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"},
            start_new_session=True,  # Ctrl-C reaches the node alone
        )
    return _Member(process, Connection(ours.detach()), errors)


def _death_of(rank: int, member: _Member) -> str:
    """Describe in words how a process ended, or is about to."""
    try:
        code = member.process.wait(timeout=DEATH_SECONDS)
    except subprocess.TimeoutExpired:
        return f"process {rank} has closed its connection"
    if code == -signal.SIGKILL:
        return f"process {rank} was killed; the system kills one where main memory runs out"
    member.errors.seek(max(0, member.errors.seek(0, os.SEEK_END) - MAX_LAST_LINE_BYTES))
    lines = member.errors.read().decode(errors="replace").strip().splitlines()
    return f"process {rank} ended with {code}" + (f": {lines[-1]}" if lines else "")


def _shorten(errors: IO[bytes]) -> None:
    """Drop the output of a process where it is too long."""
    if os.fstat(errors.fileno()).st_size > MAX_OUTPUT_BYTES:
        os.ftruncate(errors.fileno(), 0)


def _end(members: list[_Member]) -> None:
    for member in members:
        member.process.kill()
    for member in members:
        with suppress(subprocess.TimeoutExpired):
            member.process.wait(timeout=DEATH_SECONDS)
        member.connection.close()
        member.errors.close()
