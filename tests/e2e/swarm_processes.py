"""A swarm of real processes for the tests: peers that are started, watched through their event files, killed and frozen."""

import contextlib
import json
import os
import random
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Protocol

import psutil

from adloco_p2p import peer_id
from benchmarks.nodes import LOOPBACK, Event, read_events, write_document
from tests.e2e.processes import TINY_MODEL, begin_warm, write_text

MACHINE = ("num_threads=1", "allow_local_files=true", "daemon_start_seconds=240")
NETWORK = ("--plain", "--peer-set", *MACHINE, "--host-maddrs", LOOPBACK)
WAIT_LIMIT_SECONDS = 600.0
"""What has not happened by then never will, on a machine that is ten times slower or busier than ours."""
LOOK_SECONDS = 0.02
REST_SHARE = 4
"""A look is followed by a rest this many times as long: reading long event files must not starve those who write them."""


def free_port() -> int:
    """Of loopback. Not one of those that the system gives to connections: another process could get it before it is used."""
    first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(10_000, first_given)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def founded(folder: Path, *names: str) -> tuple[str, str]:
    """Options of `start` for a run that begins once the peers with these names are here, however slowly they start."""
    return ("--set", f"founders={json.dumps([peer_id(folder / name) for name in names])}")


def write_swarm_config(folder: Path, *, rounds: int, inner_steps: int = 60, name: str = "tiny", overlap: str = "none") -> Path:
    """One instance of 18,560 parameters with a fixed batch; words in random order, which are learned in a few rounds, so that
    all later rounds end at nearly the same loss."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder, num_paragraphs=200)
    document = {
        "name": name,
        "seed": 5,
        "model": TINY_MODEL,
        "data": {"source": "text", "path": str(folder / "text.txt"), "sequence_length": 64, "heldout_fraction": 0.2},
        "inner": {"learning_rate": 3e-3, "warmup_steps": 4},
        "outer": {"kind": "average", "overlap": overlap},
        "work": {"inner_steps": inner_steps, "rounds": rounds},
        "instances": {"count": 1},
        "batch": {"initial_batch": 32, "max_batch": 32},
        "merge": {"policy": "none"},
        "evaluation": {"rows": 16, "period_rounds": 1},
        "admission": {"kind": "open", "probation_rounds": 0},
    }
    return write_document(folder, document)


@dataclass
class PeerProcess:
    """One `adloco-peer` process and its workdir. `verb` is its command line without what all have in common."""

    workdir: Path
    verb: tuple[object, ...]
    process: ForkServerProcess = field(init=False)
    started_at: float = field(init=False)
    lives: int = 0

    def start(self, *, fault: tuple[str, ...] = ()) -> "PeerProcess":
        self.workdir.mkdir(parents=True, exist_ok=True)
        self.lives += 1
        self.started_at = time.time()
        arguments = [*self.verb, "--workdir", self.workdir, *NETWORK]
        if self.verb[0] == "bootstrap":
            arguments.remove("--plain")
        self.process = begin_warm(arguments, output=self.output_path, errors=self.errors_path, fault=fault)
        return self

    @property
    def output_path(self) -> Path:
        return self.workdir.with_name(f"{self.workdir.name}.{self.lives}.out")

    @property
    def errors_path(self) -> Path:
        return self.workdir.with_name(f"{self.workdir.name}.{self.lives}.err")

    @property
    def words(self) -> str:
        """Everything it said in this life."""
        paths = (self.output_path, self.errors_path)
        return "".join(path.read_text() for path in paths if path.exists())

    @property
    def events(self) -> list[Event]:
        return read_events(self.workdir)

    @property
    def events_of_this_life(self) -> list[Event]:
        return [event for event in self.events if event["time"] >= self.started_at]

    @property
    def me(self) -> str:
        return str(self.wait_for("started")["peer"])

    def addresses(self) -> list[str]:
        """What it prints for others to copy, once they can join by it."""
        return self._answering(self.said(r"^initial peers: (.+)$")).split()

    def link(self) -> str:
        return self._answering(self.said(r"^join link: (.+)$"))

    def _answering(self, said: str) -> str:
        """The words, once it answers others: however long it loads its model, they need not ask again."""
        if self.verb[0] != "bootstrap":
            self.wait_for_any(lambda event: event["event"] == "plan" or event.get("key") == "founders", "to answer others")
        return said

    def said(self, pattern: str) -> str:
        """What the group of the pattern matches in what it says, once it has."""

        return said_by(self, pattern)

    def wait_for(self, name: str, *, seconds: float = WAIT_LIMIT_SECONDS, **wanted: object) -> Event:
        """The first event of this life with the name and the fields; a field may be a function of the value."""

        return self.wait_for_any(lambda e: e["event"] == name and _fits(e, wanted), f"{name} {wanted}", seconds=seconds)

    def wait_for_any(self, fits: Callable[[Event], bool], what: str, *, seconds: float = WAIT_LIMIT_SECONDS) -> Event:
        """The first event of this life that fits."""

        def look() -> Event | None:
            is_dead = self.process.exitcode is not None
            found = next((event for event in self.events_of_this_life if fits(event)), None)
            assert found or not is_dead, f"{self.workdir.name} ended without {what}: {self.words[-3000:]}"
            return found

        found: Event = wait(look, f"{what} of {self.workdir.name}", self, seconds=seconds)
        return found

    def end(self, *, seconds: float = WAIT_LIMIT_SECONDS) -> int:
        """Its exit code, once it has ended by itself."""
        self.process.join(seconds)
        assert self.process.exitcode is not None, f"{self.workdir.name} did not end: {self.words[-3000:]}"
        return self.process.exitcode

    def signal(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def pause(self) -> contextlib.AbstractContextManager[None]:
        return _paused(self)


class Speaker(Protocol):
    workdir: Path
    process: ForkServerProcess

    @property
    def words(self) -> str: ...


def said_by(speaker: Speaker, pattern: str, *, seconds: float = WAIT_LIMIT_SECONDS) -> str:
    """What the group of the pattern matches in whole lines that a process says, once it has."""
    name = speaker.workdir.name

    def look() -> re.Match[str] | None:
        has_ended = speaker.process.exitcode is not None
        found = re.search(pattern, "".join(speaker.words.rpartition("\n")[:2]), re.MULTILINE)
        assert found or not has_ended, f"{name} ended without saying {pattern}: {speaker.words[-3000:]}"
        return found

    return str(wait(look, f"{name} to say {pattern}", speaker, seconds=seconds)[1])


def start_three(peers: list[PeerProcess], config: Path) -> None:
    """Three peers in the run of this file, which lie beside it; `peers` gets them."""
    peers.append(PeerProcess(config.parent / "first", ("start", config)).start())
    join = ("join", "--initial-peers", *peers[0].addresses())
    peers += [PeerProcess(config.parent / name, join).start() for name in ("second", "third")]


@contextlib.contextmanager
def _paused(peer: PeerProcess) -> Iterator[None]:
    peer.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        peer.signal(signal.SIGCONT)


def wait(look: Callable[[], Any], what: str, *peers: Speaker, seconds: float = WAIT_LIMIT_SECONDS) -> Any:
    """The first true thing that `look` returns."""
    deadline = time.monotonic() + seconds
    while (begun := time.monotonic()) < deadline:
        found = look()
        if found:
            return found
        time.sleep(max(LOOK_SECONDS, REST_SHARE * (time.monotonic() - begun)))
    raise AssertionError(f"waited {seconds:.0f} s for {what}\n" + "\n".join(peer.words[-2000:] for peer in peers))


def _fits(event: Event, wanted: dict[str, object]) -> bool:
    return all(value(event[key]) if callable(value) else event.get(key) == value for key, value in wanted.items())


def processes_of(folder: Path) -> list[str]:
    """Command lines of living processes that work under the folder: peers and their daemons."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or ())
        if str(folder) in line and process.info["status"] != psutil.STATUS_ZOMBIE and process.pid != os.getpid():
            found.append(line[:300])
    return found


def digests_by_round(peers: list[PeerProcess]) -> dict[tuple[int, int, str], set[str]]:
    """Round, instance and plan -> the outer parameters that hosts had after it: one digest, if all is well.

    A host that was cut off, by a kill or by a machine that stood still, may end a round without an outer step. What it does
    then is its own until it goes on with the state of the others, so it is not among these.
    """
    found: dict[tuple[int, int, str], set[str]] = {}
    for peer in peers:
        plans: dict[int, str] = {}
        is_apart = False
        for event in peer.events:
            if event["event"] == "plan":
                plans[event["round"]] = event["digest"]
            elif event["event"] == "fast_forwarded":
                is_apart = False
            elif event["event"] == "round":
                is_apart = is_apart or event["is_void"]
                if not is_apart:
                    key = (event["round"], event["instance"], plans[event["round"]])
                    found.setdefault(key, set()).add(event["digest"])
    return found
