"""A whole swarm on one machine: real processes on loopback, one workdir each, one view over all of them.

The parent trains nothing: it starts the first peer, gives its address to the others, follows their event files, passes Ctrl-C
on, and exports the model at the end.
"""

import argparse
import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from adloco_p2p.commands import trained_model
from adloco_p2p.commands.console import open_view, say
from adloco_p2p.commands.train import is_complete
from adloco_p2p.config.load import load_run
from adloco_p2p.core.model.telemetry import Stamped
from adloco_p2p.decode import decode_events
from adloco_p2p.errors import ConfigError, SwarmError
from adloco_p2p.runtime.node.event_sink import View
from adloco_p2p.storage.disk import reported

LOOPBACK = "/ip4/127.0.0.1/tcp/0"
START_SECONDS = 120.0
"""For the first peer to listen; a cold machine imports slowly."""
OWN_PEERS = ("admission.kind=open", "admission.probation_rounds=0")
"""All peers are the user's own: none needs an invitation, or has to earn its say."""
POLL_SECONDS = 0.2
STOP_SECONDS = 120.0
"""For a peer to end its round after Ctrl-C."""
_ADDRESSES = re.compile(r"^initial peers: (.+)$", re.MULTILINE)


@dataclass(slots=True)
class Member:
    """One peer process of the swarm."""

    workdir: Path
    process: subprocess.Popen[bytes]
    log: Path
    read_bytes: int = 0
    events: Path = field(init=False)

    def __post_init__(self) -> None:
        self.events = self.workdir / "events.jsonl"
        self.read_bytes = self.events.stat().st_size if self.events.exists() else 0

    def new_events(self) -> list[Stamped]:
        """Whole lines that were written since the last call."""
        if not self.events.exists():
            return []
        if self.events.stat().st_size < self.read_bytes:
            self.read_bytes = 0  # rewound at a resume
        with self.events.open("rb") as file:
            file.seek(self.read_bytes)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self.read_bytes += len(whole)
        return decode_events(whole.splitlines())

    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        begins = [index for index, line in enumerate(lines) if line.startswith("adloco-peer: E")]
        if not begins:
            return (lines or ["no output"])[-1]
        message = lines[begins[-1] :]  # an error may fill several lines; cause and remedy follow it
        return "\n".join(itertools.takewhile(lambda line: not line.startswith("  cause:"), message))


def swarm(arguments: argparse.Namespace) -> int:
    """Start the peers, watch them, end with one model."""
    overrides = [*OWN_PEERS, *arguments.set, *([f"work.rounds={arguments.rounds}"] if arguments.rounds else [])]
    loaded = load_run(arguments.config, overrides)  # mistakes show before any process starts
    run = loaded.value
    if run.admission.kind != "open":
        raise ConfigError("--set admission.kind=tickets: all peers of `swarm` are your own; leave it out", code="E201")
    for notice in loaded.notices:
        say(notice)
    if arguments.export is not None and arguments.export.exists() and any(arguments.export.iterdir()):
        raise ConfigError(f"--export {arguments.export}: exists and is not empty; name a new directory", code="E211")
    threads = max(1, (os.cpu_count() or 1) // arguments.peers)
    machine = [f"num_threads={threads}", "allow_local_files=true"]  # the run is the user's own
    common = ["--plain", "--host-maddrs", LOOPBACK, "--peer-set", *machine, *arguments.peer_set]
    config = [str(arguments.config)] if arguments.config is not None else []
    settings = ["--set", *overrides] if overrides else []
    members: list[Member] = []
    with _Interrupts(members):
        try:
            first = arguments.workdir / "peer-0"
            members.append(_spawn(["start", *config, *settings, "--workdir", str(first), *common], first, threads))
            addresses = _wait_for_addresses(members[0])
            for index in range(1, arguments.peers):
                workdir = arguments.workdir / f"peer-{index}"
                join = ["join", "--initial-peers", *addresses, "--workdir", str(workdir), *common]
                members.append(_spawn(join, workdir, threads))
            say(f"{arguments.peers} peers of {run.name}, {threads} threads each, in {arguments.workdir}")
            _follow(members, open_view(plain=arguments.plain))
        finally:
            _end(members)
    finished = [member for member in members if is_complete(member.workdir)]
    failed = [member for member in members if member.process.returncode != 0]
    for member in failed:
        say(f"{member.workdir.name} ended with exit code {member.process.returncode}: {member.last_words()}")
    if finished:
        for member in failed:
            if not (member.workdir / "run.json").exists():
                say(f"{member.workdir.name} never joined; where the run was over before that, give it more --rounds")
    if not finished:
        say(f"saved; continue with the same command in {arguments.workdir}")
        return 0 if not failed else 3
    if arguments.export is not None:
        trained_model.write_export(finished[0].workdir, arguments.export, instance=None)
    else:
        say(f"done. Write the model: adloco-peer export --workdir {finished[0].workdir} --output DIR")
    return 0 if not failed else 3


def _spawn(arguments: list[str], workdir: Path, threads: int) -> Member:
    with reported(workdir):
        workdir.mkdir(parents=True, exist_ok=True)
    log = workdir / "output.log"
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
    with log.open("wb") as output:
        return Member(workdir=workdir, process=_process(arguments, output, environment), log=log)


def _process(arguments: list[str], output: IO[bytes], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "adloco_p2p", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,  # Ctrl-C reaches the parent alone, which passes it on
    )


def _wait_for_addresses(first: Member) -> list[str]:
    """The address that the first peer prints for others. Raises SwarmError."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        match = _ADDRESSES.search(first.log.read_text(errors="replace"))
        if match:
            return match[1].split()
        if first.process.poll() is not None:
            raise SwarmError(f"the first peer did not start: {first.last_words()}", code="E312")
        time.sleep(POLL_SECONDS)
    raise SwarmError(f"the first peer does not listen after {START_SECONDS:.0f} s; see {first.log}", code="E312")


def _follow(members: list[Member], view: View) -> None:
    """Show the first peer's view until every process has ended."""
    view.start()
    try:
        while any(member.process.poll() is None for member in members):
            for event in members[0].new_events():
                view.update(event)
            time.sleep(POLL_SECONDS)
        for event in members[0].new_events():
            view.update(event)
    finally:
        view.stop()


def _end(members: list[Member]) -> None:
    """No process outlives the command."""
    for member in members:
        if member.process.poll() is None:
            member.process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + STOP_SECONDS
    for member in members:
        with contextlib.suppress(subprocess.TimeoutExpired):
            member.process.wait(max(0.0, deadline - time.monotonic()))
        if member.process.poll() is None:
            member.process.kill()
            member.process.wait()


class _Interrupts:
    """Ctrl-C and SIGTERM go to every member, each time; the parent waits for them."""

    def __init__(self, members: list[Member]) -> None:
        self._members = members
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._pass_on)

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _pass_on(self, number: int, frame: object) -> None:
        del frame
        for member in self._members:
            if member.process.poll() is None:
                member.process.send_signal(number)
