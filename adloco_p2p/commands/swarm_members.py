"""The processes of a swarm on this machine: started, watched over their control sockets, ended."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from adloco_p2p.core.model import telemetry
from adloco_p2p.core.model.telemetry import Stamped
from adloco_p2p.errors import StorageError, SwarmError
from adloco_p2p.runtime.node.event_sink import View, stamp
from adloco_p2p.storage.disk import reported
from adloco_p2p.storage.workdir import ENDING, READY, holder_of
from adloco_p2p.views.members import MemberRow, member_row
from adloco_p2p.views.status import Status
from adloco_p2p.views.status_fold import apply, replay

LOOK_SECONDS = 0.2
STOP_SECONDS = 120.0
"""How long a peer may take to end its round after Ctrl-C."""
ENDING_SECONDS = 60.0
"""How long the peers of a killed swarm may take to end."""
NOTICE_SECONDS = 5.0
"""How long they may take to say that they end: on a busy machine the same command may be back sooner."""
LAST_EVENTS_SECONDS = 5.0
"""How long the last events of a node may take to arrive here after its process has ended."""


@dataclass(slots=True)
class Member:
    """One peer process of the swarm."""

    workdir: Path
    process: subprocess.Popen[bytes]
    log: Path
    lifeline: int
    """This process's end of a pipe; see `lifeline.py`."""
    status: Status = field(default_factory=Status)
    """The status of the node, folded from its events."""
    is_connected: bool = False

    @property
    def name(self) -> str:
        return self.workdir.name

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    @property
    def phase(self) -> str | None:
        """The step of its start; None once it can train, and after its end."""
        try:
            holder = holder_of(self.workdir)
        except StorageError:
            return None
        return holder.starting if holder is not None else None

    @property
    def is_ready(self) -> bool:
        """Whether it has all that it needs to train; it may wait for the others."""
        return self.is_connected or (self.phase or "").startswith(READY)

    def row(self) -> MemberRow:
        outside = ""
        if not self.is_running and self.status.state not in ("stopped", "finished"):
            outside = f"ended, exit code {self.process.returncode}"
        elif not self.is_connected and self.is_running:
            outside = self.phase or "starting"
        return member_row(self.name, self.status, is_ready=self.is_ready, outside=outside)

    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        begins = [index for index, line in enumerate(lines) if line.startswith("adloco-peer: E")]
        if not begins:
            return (lines or ["no output"])[-1]
        message = lines[begins[-1] :]  # an error may fill several lines; cause and remedy follow it
        return "\n".join(itertools.takewhile(lambda line: not line.startswith("  cause:"), message))


def spawn(arguments: Sequence[str], workdir: Path, *, threads: int) -> Member:
    """Start a peer in a process that ends with this one. Raises StorageError."""
    with reported(workdir):
        workdir.mkdir(parents=True, exist_ok=True)
    log = workdir / "output.log"
    reading, writing = os.pipe()
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "adloco_p2p", *arguments, "--lifeline", str(reading)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"},
                pass_fds=(reading,),
                start_new_session=True,  # Ctrl-C reaches only the parent, which passes it on
            )
    finally:
        os.close(reading)
    return Member(workdir=workdir, process=process, log=log, lifeline=writing)


def wait_for_ending(workdirs: Sequence[Path]) -> None:
    """Wait until the peers of a killed swarm have ended. Raises StorageError where another process uses a directory."""
    began = time.monotonic()
    for workdir in workdirs:
        while (holder := holder_of(workdir)) is not None:
            if time.monotonic() > began + (ENDING_SECONDS if holder.starting == ENDING else NOTICE_SECONDS):
                raise StorageError(
                    f"{workdir}: in use by another adloco-peer (process {holder.pid}); stop it, or choose another --workdir",
                    code="E404",
                )
            time.sleep(LOOK_SECONDS)


class Patience:
    """A wait that ends only where nothing moves on: how long a start takes depends on the machine, the text and the model."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._steps: object = None
        self._deadline = time.monotonic() + seconds

    def is_over(self, steps: object) -> bool:
        """Return whether the steps have been the same for so long."""
        if steps != self._steps:
            self._steps, self._deadline = steps, time.monotonic() + self._seconds
        return time.monotonic() > self._deadline


def wait_until_ready(members: Sequence[Member], *, seconds: float, interrupts: "Interrupts") -> None:
    """Wait until all of them can train, as long as one of them begins another step within `seconds`. Raises SwarmError that
    names each one which ended or is late, and why."""
    patience = Patience(seconds)
    while not all(member.is_ready for member in members) and not interrupts.is_asked:
        ended = [member for member in members if not member.is_running]
        if ended and all(member.process.returncode == 0 for member in ended):
            return  # the run is over already
        if ended:
            raise SwarmError("\n".join(f"{each.name} did not start: {each.last_words()}" for each in ended), code="E312")
        if patience.is_over([member.phase for member in members]):
            late = [f"{each.name}, at \u201c{each.phase}\u201d, see {each.log}" for each in members if not each.is_ready]
            raise SwarmError(
                f"not ready, and no step further in {seconds:.0f} s: {'; '.join(late)}; with --no-wait the others begin"
                " without",
                code="E312",
            )
        time.sleep(LOOK_SECONDS)


def check_first(members: Sequence[Member]) -> None:
    """Raise SwarmError where the first peer did not start, and the others look for its run in vain."""
    first, *others = members
    if first.is_running or first.process.returncode == 0 or first.is_connected:
        return
    if not any((member.workdir / "run.json").exists() for member in others):
        raise SwarmError(f"{first.name} did not start: {first.last_words()}", code="E312")


class Watch:
    """Follows every member over its control socket, each in a thread; the view shows the first one's events."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._threads: list[threading.Thread] = []

    def add(self, member: Member, *, is_shown: bool) -> None:
        follow = threading.Thread(
            target=_watch, args=(member, self._view if is_shown else None), name=f"watch {member.name}", daemon=True
        )
        self._threads.append(follow)
        follow.start()

    def finish(self) -> None:
        """Wait for the last events of the nodes."""
        deadline = time.monotonic() + LAST_EVENTS_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))


class _MemberView:
    """Keeps the status of a member, and shows its events where a view is given: those before this command as the past, all
    later ones one by one."""

    def __init__(self, member: Member, shown: View | None) -> None:
        self._member, self._shown = member, shown
        began = stamp(telemetry.Starting(phase=f"waiting for {member.name}"))
        self._since = began.time
        if shown is not None:
            shown.update(began)

    def recall(self, events: Sequence[Stamped]) -> None:
        past = [event for event in events if event.time < self._since]
        self._member.status = replay(past)
        self._member.is_connected = True
        if self._shown is not None:
            self._shown.recall(past)
        for event in events[len(past) :]:
            self.update(event)

    def update(self, stamped: Stamped) -> None:
        self._member.status = apply(self._member.status, stamped)
        self._member.is_connected = True
        self._since = stamped.time
        if self._shown is not None:
            self._shown.update(stamped)

    def start(self) -> None:
        """Do nothing: the verb starts the view on the screen."""

    def stop(self) -> None:
        """Do nothing; see `start`."""


def _watch(member: Member, shown: View | None) -> None:
    """Follow the member until its process has ended."""
    from adloco_p2p.commands.control import follow
    from adloco_p2p.control.client import ControlClient

    view = _MemberView(member, shown)
    while member.is_running:
        if member.phase is None:
            with contextlib.suppress(SwarmError, StorageError):
                follow(ControlClient(member.workdir), view)
        time.sleep(LOOK_SECONDS)


def end(members: Sequence[Member]) -> None:
    """End all processes, so that none outlives the command."""
    for member in members:
        if member.is_running:
            member.process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + STOP_SECONDS
    for member in members:
        with contextlib.suppress(subprocess.TimeoutExpired):
            member.process.wait(max(0.0, deadline - time.monotonic()))
        if member.is_running:
            member.process.kill()
            member.process.wait()
        os.close(member.lifeline)


class Interrupts:
    """Passes Ctrl-C, SIGTERM and SIGHUP on to every member, each time; the parent waits for them."""

    def __init__(self, members: list[Member]) -> None:
        self._members = members
        self._before: dict[int, Any] = {}
        self.is_asked = False

    def __enter__(self) -> "Interrupts":
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._pass_on)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.is_asked = True
        for member in self._members:
            if member.is_running:
                member.process.send_signal(number)
