"""The live view in a terminal: what is on the screen, and what the keys do."""

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from rich.console import Console, RenderableType
from rich.live import Live

from adloco_p2p.core.model.telemetry import Stamped
from adloco_p2p.views import plain
from adloco_p2p.views.foreground import Suspension, is_ours
from adloco_p2p.views.keyboard import Keyboard, draws_on
from adloco_p2p.views.machine import machine_words
from adloco_p2p.views.members import MemberRow
from adloco_p2p.views.screen import Around, render
from adloco_p2p.views.status import Status
from adloco_p2p.views.status_fold import apply, replay

REFRESHES_PER_SECOND = 3
"""How often the screen is drawn: it costs some milliseconds of processor time that training could use."""
MACHINE_SECONDS = 2.0
"""Seconds between two looks at the load of the machine."""
HIDING_SECONDS = 2.0
"""The longest time for which Ctrl-Z waits until the screen is given back: a terminal that takes no output must not block it."""
NOTICE_SECONDS = 10.0
"""How long the answer to a key stays on the screen."""
MAX_LOG = 500
"""The most lines that the log keeps."""
PAGES = {"?": "help", "h": "help", "l": "log", "r": "reasons", "\x1b": ""}
"""The page of each key; the same key again leads back."""
LEAVING = "leaving after this round; Ctrl-C once more ends at once"


class TerminalView:
    """Keeps the view on the screen up to date. Uses the terminal's second screen, and leaves the last view on the first.

    One thread has the screen between `start` and `stop`. While the process is in the background of a shell, the terminal is the
    shell's, and nothing is drawn."""

    def __init__(
        self,
        console: Console | None = None,
        *,
        members: Callable[[], Sequence[MemberRow]] | None = None,
        pause: Callable[[Status], str] | None = None,
    ) -> None:
        """`console`: where to draw; None: the standard output. `members`: see `Around`. `pause`: pauses the node, or resumes
        it, and returns words about what will happen."""
        self._members = members if members is not None else tuple
        self._pause = pause
        self._console = Console() if console is None else console
        self._status = Status()
        self._live: Live | None = None
        self._keyboard = Keyboard(self.press)
        self._has_keys = False
        self._thread: threading.Thread | None = None
        self._is_over, self._is_suspended = threading.Event(), threading.Event()
        self._is_drawn, self._is_hidden = threading.Event(), threading.Event()
        self._look = threading.Event()
        self._suspension = Suspension(self._suspend, self._go_on)
        self._page = ""
        self._log: deque[str] = deque(maxlen=MAX_LOG)
        self._notice, self._notice_until = "", 0.0
        self._load, self._load_until = "", 0.0
        self._is_leaving = False

    def start(self) -> None:
        assert self._thread is None
        self._is_over.clear()
        self._is_drawn.clear()
        self._suspension.install()
        self._thread = threading.Thread(target=self._draw, name="screen", daemon=True)
        self._thread.start()
        self._is_drawn.wait()

    def recall(self, events: Iterable[Stamped]) -> None:
        """Take earlier events, and forget everything else."""
        self._status = replay(events)

    def update(self, stamped: Stamped) -> None:
        """Note an event, which is on the screen within one refresh. Never blocks on the terminal."""
        self._status = apply(self._status, stamped)
        if (words := plain.line(stamped.event, self._status)) is not None:
            self._log.append(words.rstrip())

    def press(self, key: str) -> None:
        """Perform a key's action; unknown keys do nothing."""
        if key in PAGES:
            self._page = "" if self._page == PAGES[key] else PAGES[key]
        elif key == "q" and not self._is_leaving:
            self._is_leaving = True
            self._say(LEAVING)
            os.kill(os.getpid(), signal.SIGINT)  # as Ctrl-C does, wherever this view is shown
        elif key == "p":
            self._say("asking the node")
            self._say(self._pause(self._status) if self._pause is not None else "there is nothing to pause here")

    def stop(self) -> None:
        """Give the terminal back. May be called twice."""
        if self._thread is not None:
            self._suspension.remove()
            self._is_over.set()
            self._look.set()
            self._thread.join()
            self._thread = None
            self._page = ""
            self._console.print(self._render())

    def _draw(self) -> None:
        try:
            while not self._is_over.is_set():
                if self._is_suspended.is_set() or not is_ours(self._console.file):
                    self._hide()
                    self._is_hidden.set()
                else:
                    self._show()
                self._is_drawn.set()
                self._look.wait(1 / REFRESHES_PER_SECOND)
                self._look.clear()
            self._hide()
        finally:
            self._is_drawn.set()
            self._is_hidden.set()

    def _show(self) -> None:
        if self._live is None:
            self._live = Live(
                console=self._console,
                screen=True,
                get_renderable=self._render,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
            draws_on(self._console.file)
            self._keyboard = Keyboard(self.press)
            self._has_keys = self._keyboard.start()
        self._live.refresh()

    def _hide(self) -> None:
        if self._live is not None:
            self._live.stop()
            draws_on(None)
            self._keyboard.stop()
            self._live, self._has_keys = None, False

    def _suspend(self) -> None:
        self._is_hidden.clear()
        self._is_suspended.set()
        self._look.set()
        self._is_hidden.wait(HIDING_SECONDS)

    def _go_on(self) -> None:
        self._is_suspended.clear()
        self._look.set()

    def _say(self, notice: str) -> None:
        self._notice, self._notice_until = notice, time.monotonic() + NOTICE_SECONDS

    def _render(self) -> RenderableType:
        now = time.monotonic()
        if now >= self._load_until:
            self._load, self._load_until = machine_words(), now + MACHINE_SECONDS
        width, height = self._console.size
        around = Around(
            members=self._members(),
            page=self._page,
            log=tuple(self._log),
            load=self._load,
            notice=self._notice if now < self._notice_until else "",
            has_keys=self._has_keys,
        )
        return render(self._status, width, height - 1, around)
