"""Reads keys while a view is on the screen: one by one, without Return, and without showing them."""

import contextlib
import os
import select
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable
from typing import IO, Any

from adloco_p2p.views.foreground import is_ours

SECOND_SCREEN_ENDS = "\x1b[?1049l\x1b[?25h"
"""Shows the terminal's first screen again, and the cursor."""
LOOK_SECONDS = 0.2
"""The longest time for which a keyboard is still read after it is given back."""

_before: tuple[int, list[Any]] | None = None
"""The terminal that is being read, and its earlier settings."""
_second_screen: IO[str] | None = None
"""The terminal on whose second screen a view is drawn."""


class Keyboard:
    """Calls `press` with every key, from a thread of its own. Does nothing where the input is no terminal or belongs to another
    job of the shell, because a background process that touches its terminal would be stopped."""

    def __init__(self, press: Callable[[str], None]) -> None:
        self._press = press
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> bool:
        """Start to read keys, and return whether that works."""
        global _before  # noqa: PLW0603  # there is one terminal
        try:
            terminal = sys.stdin.fileno()
            if not os.isatty(terminal) or not is_ours(sys.stdin):
                return False
            _before = terminal, termios.tcgetattr(terminal)
            tty.setcbreak(terminal, termios.TCSANOW)  # Ctrl-C stays a signal
        except (OSError, ValueError, termios.error):  # closed, replaced, or no terminal of this process
            return False
        self._thread = threading.Thread(target=self._read, args=(terminal,), name="keyboard", daemon=True)
        self._thread.start()
        return True

    def stop(self) -> None:
        self._is_over.set()
        release()

    def _read(self, terminal: int) -> None:
        while not self._is_over.is_set():
            if not select.select([terminal], [], [], LOOK_SECONDS)[0]:
                continue
            if self._is_over.is_set() or not is_ours(sys.stdin):  # what is typed is the shell's now
                time.sleep(LOOK_SECONDS)
                continue
            try:
                typed = os.read(terminal, 64)
            except OSError:  # the terminal is gone
                return
            if not typed:
                return
            if typed[:1] != b"\x1b" or len(typed) == 1:  # arrows and the like send an escape and more
                for key in typed.decode("ascii", "ignore"):
                    self._press(key)


def draws_on(terminal: IO[str] | None) -> None:
    """Note that a view is drawn on the second screen of this terminal; None: no longer."""
    global _second_screen  # noqa: PLW0603
    _second_screen = terminal


def release() -> None:
    """Restore the terminal's settings and its first screen, even for a process that ends at once. May be called twice."""
    global _before  # noqa: PLW0603
    if _before is not None:
        terminal, settings = _before
        _before = None
        with contextlib.suppress(OSError, termios.error):  # the terminal is gone
            if os.tcgetpgrp(terminal) == os.getpgrp():  # otherwise the shell has restored them
                termios.tcsetattr(terminal, termios.TCSANOW, settings)
    if _second_screen is not None:
        screen = _second_screen
        draws_on(None)
        with contextlib.suppress(OSError):
            screen.write(SECOND_SCREEN_ENDS)
            screen.flush()
