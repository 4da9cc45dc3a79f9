"""A command in a terminal of its own: what it draws, when, and keys for it."""

import codecs
import contextlib
import fcntl
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from tests.e2e.processes import ENVIRONMENT, REPOSITORY
from tests.e2e.swarm_processes import WAIT_LIMIT_SECONDS

COLUMNS, LINES = 80, 24
OPENS = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""Ctrl-C reaches the foreground of a controlling terminal only."""
CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
HOME = "\x1b[H"
"""The live view begins each frame in the upper left corner."""


@dataclass
class Terminal:
    process: subprocess.Popen[bytes]
    keyboard: int
    begun: float = field(default_factory=time.monotonic)
    drawn: list[tuple[float, str]] = field(default_factory=list)
    """Seconds after the command, and what was written then."""
    news: threading.Condition = field(default_factory=threading.Condition)

    def read(self) -> None:
        """Until the terminal is closed. A reader that is late gets pieces that begin and end anywhere, also within a letter."""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        with contextlib.suppress(OSError):
            while chunk := os.read(self.keyboard, 1 << 16):
                with self.news:
                    self.drawn.append((time.monotonic() - self.begun, decoder.decode(chunk)))
                    self.news.notify_all()
        with self.news:
            self.news.notify_all()

    @property
    def text(self) -> str:
        """All that was written, without colours and moves of the cursor."""
        return CONTROL.sub("", "".join(piece for _, piece in self.drawn))

    @property
    def frames(self) -> list[tuple[float, str]]:
        """Seconds after the command, and the screen as it was drawn then, of the live view."""
        ends = [*accumulate(len(piece) for _, piece in self.drawn)]
        before, *begun = "".join(piece for _, piece in self.drawn).split(HOME)
        found, place = list[tuple[float, str]](), len(before)
        for text in begun:
            place += len(HOME)
            found.append((self.drawn[bisect_left(ends, place)][0], CONTROL.sub("", text)))
            place += len(text)
        return found

    def press(self, keys: str) -> None:
        os.write(self.keyboard, keys.encode())

    def wait_for(self, pattern: str, *, count: int = 1) -> None:
        """Until so much of what was written fits."""
        self.wait_until(lambda: len(re.findall(pattern, self.text)) >= count, pattern)

    def wait_for_frame(self, fits: Callable[[str], object], what: str) -> None:
        """Until a whole frame fits."""
        self.wait_until(lambda: any(fits(frame) for _, frame in self.frames[:-1]), what)

    def wait_until(self, is_there: Callable[[], bool], what: str) -> None:
        """With the news of each piece that is drawn."""
        with self.news:
            found = self.news.wait_for(lambda: is_there() or self.process.poll() is not None, WAIT_LIMIT_SECONDS)
        assert found and is_there(), f"no {what} on the screen:\n{self.text[-3000:]}"

    def end(self) -> int:
        return self.process.wait(WAIT_LIMIT_SECONDS)


def terminal(*arguments: object, folder: Path) -> contextlib.AbstractContextManager[Terminal]:
    """`adloco-peer ARGUMENTS` in a terminal of 80 columns and 24 lines; killed at the end."""
    return opened(sys.executable, "-m", "adloco_p2p", *arguments, folder=folder)


@contextlib.contextmanager
def opened(*command: object, folder: Path) -> Iterator[Terminal]:
    """A command in a terminal of 80 columns and 24 lines; killed at the end."""
    outer, inner = os.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-c", OPENS, *map(str, command)],
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": str(REPOSITORY), "TERM": "xterm-256color"},
        cwd=folder,
        stdin=inner,
        stdout=inner,
        stderr=inner,
        start_new_session=True,
    )
    os.close(inner)
    shown = Terminal(process=process, keyboard=outer)
    reader = threading.Thread(target=shown.read, daemon=True)
    reader.start()
    try:
        yield shown
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        reader.join()
        os.close(outer)
