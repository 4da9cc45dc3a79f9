"""Hosts with internet links, on one machine: network namespaces joined by an emulator of links.

    with Laboratory([Link(name="a", up_mbit=100, down_mbit=100, delay_ms=25), ...], congestion_control="bbr") as lab:
        lab.run("a", ["python", "-c", "..."], timeout_seconds=10)
        lab.partition([["a", "b"], ["c"]])

Needs Linux, root, gcc and nsenter. The namespaces have no names and belong to the emulator, which ends with its input:
whatever happens to the program that made the laboratory, no namespace outlives the processes in it. Several laboratories may
exist at once, with the same names and addresses; what is in one never reaches another.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from benchmarks.nodes import Member, begin, node_command
from benchmarks.wan.emulator import Emulator

FIRST_ADDRESS = IPv4Address("10.77.0.1")
MAX_HOSTS = 64
GRACE_SECONDS = 2.0
"""Seconds between asking the processes of a laboratory to end and killing them."""
LOOK_SECONDS = 0.02

CongestionControl = Literal["cubic", "bbr", "reno"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The connection of one host. Between two hosts the delays of both add up: RTT = 2 (a.delay_ms + b.delay_ms)."""

    name: str
    up_mbit: float
    down_mbit: float
    delay_ms: float
    """The delay of this host's leg, one way."""
    jitter_ms: float = 0.0
    """Largest extra delay of a packet, evenly distributed. Packets overtake each other then, and only then."""
    loss: float = 0.0
    """Probability that a packet from this host is lost."""
    queue_kb: float = 512.0
    """KiB that may wait in each direction; more is dropped."""

    def __post_init__(self) -> None:
        if min(self.up_mbit, self.down_mbit, self.queue_kb) <= 0 or min(self.delay_ms, self.jitter_ms) < 0:
            raise ValueError(f"{self.name}: rates and queue must be positive, delay and jitter not negative")
        if not 0 <= self.loss <= 1:
            raise ValueError(f"{self.name}: loss is a probability")

    @property
    def fields(self) -> dict[str, float]:
        """The values in the emulator's order and units: bytes and seconds."""
        return {
            "up": self.up_mbit * 125_000,
            "down": self.down_mbit * 125_000,
            "delay": self.delay_ms / 1e3,
            "jitter": self.jitter_ms / 1e3,
            "loss": self.loss,
            "queue": self.queue_kb * 1024,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Border:
    """The way out of every island, which all traffic to other islands shares. Between two islands that is one link with the
    same rate in each direction; what comes from several islands is not limited together."""

    islands: Sequence[Sequence[str]]
    """The hosts of each island; every host is on one."""
    mbit: float
    delay_ms: float = 0.0
    """One way, beside the delays of the two hosts."""
    queue_kb: float = 512.0

    def __post_init__(self) -> None:
        if min(self.mbit, self.queue_kb) <= 0 or self.delay_ms < 0:
            raise ValueError("rate and queue of a border must be positive, its delay not negative")

    def command(self, hosts: Sequence[str]) -> str:
        """Return the line for the emulator, in bytes and seconds."""
        island_of = {host: number for number, island in enumerate(self.islands) for host in island}
        if sorted(host for island in self.islands for host in island) != sorted(hosts):
            raise ValueError("every host is on one island")
        values = (self.mbit * 125_000, self.delay_ms / 1e3, self.queue_kb * 1024)
        return " ".join(["islands", *map(repr, values), *(str(island_of[host]) for host in hosts)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """IP packets of one host since the laboratory began."""

    sent_packets: int
    """Packets that the host sent, whatever became of them."""
    sent_bytes: int
    received_packets: int
    received_bytes: int
    lost: int
    """Packets from this host that were lost by chance."""
    cut: int
    """Packets from this host that a partition stopped."""
    up_dropped: int
    """Packets that were dropped because the queue of its uplink was full."""
    down_dropped: int
    crossed_bytes: int
    """Bytes of packets from this host that left its island."""
    border_dropped: int
    """Packets from this host that were dropped because the queue out of its island was full."""
    late: int
    """Packets that were received more than 2 ms after their time. Many of them mean that this machine was too busy, and the
    link was not as requested."""


class Laboratory:
    """A network of hosts for a `with` statement; at its end every process in it, its namespaces and files are gone."""

    def __init__(
        self,
        links: Sequence[Link],
        *,
        border: Border | None = None,
        congestion_control: CongestionControl = "cubic",
        seed: int = 1,
    ) -> None:
        """Only the seed decides whether the k-th packet of a host is lost. Without a border all hosts are on one island."""
        self._number = {link.name: number for number, link in enumerate(links)}
        self._islands = border.command(self.hosts) if border is not None else ""
        if not 1 <= len(self._number) <= MAX_HOSTS or len(self._number) < len(links):
            raise ValueError(f"a laboratory has 1 to {MAX_HOSTS} hosts, each with a name of its own")
        self._links = tuple(links)
        self._congestion_control = congestion_control
        self._seed = seed
        self._started: list[subprocess.Popen[Any]] = []

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(self._number)

    def address(self, host: str) -> str:
        """Return the IPv4 address, such as 10.77.0.1."""
        return str(FIRST_ADDRESS + self._number[host])

    def __enter__(self) -> Self:
        """Start the emulator. Raises LaboratoryUnavailable."""
        arguments = [",".join([self.address(link.name), *map(repr, link.fields.values())]) for link in self._links]
        self._emulator = Emulator(arguments, congestion_control=self._congestion_control, seed=self._seed)
        if self._islands:
            self._emulator.ask(self._islands)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self._end_processes()
        finally:
            self._emulator.stop()

    # --- programs ---

    def popen(self, host: str, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a program on a host; `options` are those of subprocess.Popen. The pid is the program's own."""
        inside = ["nsenter", f"--net={self._emulator.namespace(self._number[host])}", "--", *argv]
        process = subprocess.Popen(inside, start_new_session=True, **options)
        self._started.append(process)
        return process

    def run(
        self, host: str, argv: Sequence[str], *, timeout_seconds: float, **options: Any
    ) -> subprocess.CompletedProcess[Any]:
        """Run a program on a host to its end. Raises TimeoutExpired after having ended it."""
        with self.popen(host, argv, **options) as process:
            try:
                out, err = process.communicate(timeout=timeout_seconds)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    # --- the network ---

    def partition(self, groups: Sequence[Sequence[str]]) -> None:
        """Cut every connection between hosts of different groups, and no other. Hosts without a group are on their own."""
        group = {name: index for index, names in enumerate(groups) for name in names}
        if sum(map(len, groups)) != len(group) or not set(group) <= set(self._number):
            raise ValueError("the groups of a partition are hosts of the laboratory, each in at most one group")
        numbers = [group.get(name, len(groups) + index) for index, name in enumerate(self._number)]
        self._emulator.ask("groups " + " ".join(map(str, numbers)))

    def heal(self) -> None:
        """Connect all hosts again."""
        self.partition([self.hosts])

    def cut(self, host: str, other: str) -> None:
        """Cut the connection between two hosts; what is under way is lost."""
        self._emulator.ask(f"cut {self._number[host]} {self._number[other]}")

    def change(self, link: Link) -> None:
        """Give the host of this name another link, for packets that come from now on."""
        for name, value in link.fields.items():
            self._emulator.ask(f"set {self._number[link.name]} {name} {value!r}")

    def counters(self) -> Mapping[str, Counters]:
        """Return the present counters by host."""
        entries = json.loads(self._emulator.ask("count"))
        return {name: Counters(**entry) for name, entry in zip(self._number, entries, strict=True)}

    # --- the end ---

    def _end_processes(self) -> None:
        """End all processes inside, which are ours because a namespace of this laboratory contains them."""
        deadline = time.monotonic() + GRACE_SECONDS
        for ending in (signal.SIGTERM, signal.SIGKILL):
            for pid in self._inside():
                _signal(pid, ending)
            while any(process.poll() is None for process in self._started) or self._inside():
                if time.monotonic() > deadline:
                    break
                time.sleep(LOOK_SECONDS)
            deadline += GRACE_SECONDS
        for process in self._started:
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()

    def _inside(self) -> list[int]:
        pids = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) != self._emulator.pid:
                try:
                    is_inside = (entry / "ns/net").stat().st_ino in self._emulator.inodes
                except (FileNotFoundError, ProcessLookupError, PermissionError):
                    continue  # it has just ended
                if is_inside:
                    pids.append(int(entry.name))
        return pids


def begin_in(lab: Laboratory, out: Path, host: str, *arguments: object, **options: Any) -> Member:
    """Start a node on this host; `options`: those of `node_command`."""
    command = node_command(*arguments, workdir=out / host, listen=f"/ip4/{lab.address(host)}/tcp/0", **options)
    return begin(out, host, command, popen=partial(lab.popen, host))


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
