"""Whose the terminal is: Ctrl-Z and `bg` leave it to the shell, `fg` gives it back."""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import IO


def is_ours(terminal: IO[str]) -> bool:
    """Return whether this process may draw on a terminal and read from it: not while a shell runs it in the background. True
    for all other files."""
    try:
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except (OSError, ValueError):  # closed, no terminal, or not the one of this session
        return True


class Suspension:
    """Gives the terminal back before Ctrl-Z stops this process: the shell would otherwise go on without a cursor, on a screen
    that cannot be scrolled."""

    def __init__(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        """`before` gives the terminal back; `after` runs once the shell lets the process go on, also in the background."""
        self._before = before
        self._after = after
        self._is_installed = False

    def install(self) -> None:
        """Does nothing outside of the main thread, which alone may handle signals, and where Ctrl-Z is ignored."""
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
            signal.signal(signal.SIGTSTP, self._stop)
            self._is_installed = True

    def remove(self) -> None:
        if self._is_installed and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            self._is_installed = False

    def _stop(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._before()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)  # stands still here; does nothing where no shell could let it go on
        signal.signal(number, self._stop)
        self._after()
