"""The live view in a terminal: what is on the screen, and what the keys do."""

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from rich.console import Console, RenderableType
from rich.live import Live

from adloco_p2p.core.model.telemetry import Stamped
from adloco_p2p.views import plain
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
NOTICE_SECONDS = 10.0
"""How long the answer to a key stays on the screen."""
MAX_LOG = 500
"""The most lines that the log keeps."""
PAGES = {"?": "help", "h": "help", "l": "log", "r": "reasons", "\x1b": ""}
"""The page of each key; the same key again leads back."""
LEAVING = "leaving after this round; Ctrl-C once more ends at once"


class TerminalView:
    """Keeps the view on the screen up to date. Uses the terminal's second screen, and leaves the last view on the first."""

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
        self._page = ""
        self._log: deque[str] = deque(maxlen=MAX_LOG)
        self._notice, self._notice_until = "", 0.0
        self._load, self._load_until = "", 0.0
        self._is_leaving = False

    def start(self) -> None:
        assert self._live is None
        self._live = Live(
            console=self._console,
            screen=True,
            get_renderable=self._render,
            refresh_per_second=REFRESHES_PER_SECOND,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()
        draws_on(self._console.file)
        self._has_keys = self._keyboard.start()

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
        if self._live is not None:
            self._live.stop()
            draws_on(None)
            self._keyboard.stop()
            self._live = None
            self._has_keys, self._page = False, ""
            self._console.print(self._render())

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
