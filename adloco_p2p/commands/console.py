"""The only place where a verb prints: results, and the steps that lead to them."""

import contextlib
import functools
import io
import itertools
import json
import os
import select
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from adloco_p2p.errors import ConfigError, SwarmError
from adloco_p2p.views.foreground import is_ours

if TYPE_CHECKING:
    from adloco_p2p.runtime.node.event_sink import View
    from adloco_p2p.views.members import MemberRow
    from adloco_p2p.views.status import Status

FRAME_SECONDS = 0.1
LEAST_SECONDS = 0.5
"""A step that took less time leaves no line behind."""
WRITE_SECONDS = 0.1
"""How long a node waits, once, for its output to take a line."""
_FRAMES = "\u280b\u2819\u2839\u2838\u283c\u2834\u2826\u2827\u2807\u280f"
_ASCII_FRAMES = "|/-\\"


_shown: "Steps | None" = None
"""The steps whose line is on the terminal."""


def say(text: str) -> None:
    """Print text for the user at once, above the step that is under way. It may quote others, such as a ledger."""
    from adloco_p2p.views.wrapping import fitted

    say_exactly(fitted(text, sys.stdout))


def say_exactly(text: str) -> None:
    """Print a result whose line ends are its own, such as a model's text or a document for programs."""
    from adloco_p2p.views.units import printable

    with step_aside(), _written():
        print(printable(text), flush=True)  # noqa: T201


@contextlib.contextmanager
def _written() -> Iterator[None]:
    """Turn the failure of an output, such as a file on a full disk, into a StorageError. A reader that is gone stays a
    BrokenPipeError."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError:
        from adloco_p2p.storage.disk import reported

        with reported(Path("standard output")):
            raise


def remark(text: str) -> None:
    """Print to stderr what a person should know about a result, so that a file or a pipe gets the result alone."""
    from adloco_p2p.views.units import printable
    from adloco_p2p.views.wrapping import fitted

    with step_aside(), contextlib.suppress(OSError):  # nobody can read it
        print(fitted(printable(text), sys.stderr), file=sys.stderr, flush=True)  # noqa: T201


OUTPUT_VERSION = 1
"""The version of the documents that `--json` prints; it grows with every change that a reader would misunderstand
(`docs/json.md`)."""


def say_json(fields: Mapping[str, Any]) -> None:
    """Print a result for a program: one JSON object on a line. Numbers that are not finite, which JSON does not have, are
    null."""
    say_exactly(json.dumps({"output_version": OUTPUT_VERSION, **_finite(fields)}, allow_nan=False))


def _finite(value: Any) -> Any:
    from adloco_p2p.views.units import finite

    match value:
        case Mapping():
            return {key: _finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
        case float():
            return finite(value)
        case _:
            return value


def program() -> str:
    """Return the name by which the user can call this program again; with its path where the shell does not find the name
    alone, as in an environment that is not active."""
    called = Path(sys.argv[0])
    return "adloco-peer" if called.name != "adloco-peer" or shutil.which(called.name) else shlex.quote(sys.argv[0])


def call(*words: object) -> str:
    """Return the command line by which the user can call this program with these words, for copying."""
    return f"{program()} {shlex.join(map(str, words))}"


def as_called(command: str) -> str:
    """Return a command that begins with `adloco-peer`, under the name by which the user's shell finds the program."""
    return command.replace("adloco-peer", program(), 1)


def make_way() -> None:
    """Remove the line of the step that is under way, for a result that others print."""
    with step_aside():
        pass


def step_aside() -> contextlib.AbstractContextManager[None]:
    """Remove the line of the step that is under way while the context lasts."""
    shown = _shown  # another thread may end it
    return contextlib.nullcontext() if shown is None else shown.aside()


class _Lossy:
    """A stream that never waits or fails: if its terminal, pipe or disk fails or takes nothing for a while, the output is
    lost."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._was_free = True

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            if self._is_free():
                self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            if self._is_free():
                self._stream.flush()

    def _is_free(self) -> bool:
        """Return whether a line can be written without waiting, unlike to a terminal after Ctrl-S or a pipe that nobody reads.
        Raises OSError."""
        try:
            number = self._stream.fileno()
        except io.UnsupportedOperation:  # it is no file of the system
            return True
        patience = WRITE_SECONDS if self._was_free else 0.0
        self._was_free = bool(select.select([], [number], [], patience)[1])
        return self._was_free

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def lossy_output() -> Iterator[None]:
    """Make the output lossy for a node, which trains and saves even if its terminal is gone, Ctrl-C has ended its `tee`, or the
    disk of its log is full."""
    with (
        contextlib.redirect_stdout(cast(TextIO, _Lossy(sys.stdout))),
        contextlib.redirect_stderr(cast(TextIO, _Lossy(sys.stderr))),
    ):
        yield


class Steps:
    """Shows what a verb does before it has a result: in a terminal a moving line that counts the seconds, elsewhere a plain
    line per step, or nothing. Imports nothing heavy, so that the first line appears at once."""

    def __init__(self, stream: TextIO, *, is_quiet: bool = False, is_log: bool = True) -> None:
        """`is_log`: whether the steps matter afterwards, too, and are printed where the stream is no terminal; otherwise the
        first result removes them."""
        self._stream = stream
        self._is_live = _is_terminal(stream) and not is_quiet
        self._is_log = is_log
        self._is_plain = is_log and not is_quiet and not self._is_live
        self._frames = _FRAMES if (stream.encoding or "").lower().startswith("utf") else _ASCII_FRAMES
        self._lock = threading.RLock()  # the handler of a signal may print while its thread holds the lock
        self._step: str | None = None
        self._progress = ""
        self._since = 0.0
        self._thread: threading.Thread | None = None

    def enter(self, step: str | None) -> None:
        """Begin a step, which ends the one before; None: there is a result to show from now on."""
        global _shown  # noqa: PLW0603  # there is one terminal
        if step == self._step:
            return
        _shown = self if step is not None else None
        with self._lock:
            self._leave()
            self._step, self._progress, self._since = step, "", time.monotonic()
            if step is not None and self._is_plain:
                print(step, file=self._stream, flush=True)
            if step is not None and self._is_live:
                self._draw(self._frames[0])
        if step is not None and self._is_live and self._thread is None:
            self._thread = threading.Thread(target=self._move, name="steps", daemon=True)
            self._thread.start()

    def show_progress(self, words: str) -> None:
        """Show beside the step how far it has come."""
        self._progress = f" {words}"

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Remove the line while a result is printed; the thread that draws it waits."""
        if not self._is_log:
            self.enter(None)
        with self._lock:
            if self._is_live and self._step is not None:
                self._erase()
            yield

    def _leave(self) -> None:
        seconds = time.monotonic() - self._since
        if self._is_live and self._step is not None:
            self._erase()
            if self._is_log and seconds >= LEAST_SECONDS:
                print(self._cut(f"  {self._step}  {seconds:.1f} s"), file=self._stream, flush=True)

    def _move(self) -> None:
        for frame in itertools.cycle(self._frames):
            time.sleep(FRAME_SECONDS)
            with self._lock:
                if self._step is None:
                    self._thread = None
                    return
                self._draw(frame)

    def _draw(self, frame: str) -> None:
        if not is_ours(self._stream):  # the shell's own lines stand there
            return
        line = self._cut(f"{frame} {self._step}{self._progress}  {time.monotonic() - self._since:.0f} s")
        self._stream.write(f"\r\x1b[2K{line}")
        self._stream.flush()

    def _erase(self) -> None:
        self._stream.write("\r\x1b[2K")
        self._stream.flush()

    @staticmethod
    def _cut(line: str) -> str:
        return line[: max(shutil.get_terminal_size().columns - 1, 1)]


def _is_terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def open_view(
    *,
    plain: bool,
    is_quiet: bool = False,
    members: "Callable[[], Sequence[MemberRow]] | None" = None,
    workdirs: Sequence[Path] = (),
) -> "View":
    """Return the live view in the foreground of a terminal, and one line per round elsewhere. `members`: the peers of a swarm
    on this machine. `workdirs`: the directories of the nodes that the pause key affects."""
    make_way()
    if is_quiet:
        from adloco_p2p.views.plain import PlainView

        return PlainView(Path(os.devnull).open("w"))  # as long as the process lives
    if plain or not _is_terminal(sys.stdout) or not is_ours(sys.stdout):
        from adloco_p2p.views.plain import PlainView

        return PlainView(sys.stdout)

    from adloco_p2p.views.terminal import TerminalView

    return TerminalView(members=members, pause=functools.partial(_pause, workdirs) if workdirs else None)


def _pause(workdirs: Sequence[Path], status: "Status") -> str:
    """Ask the nodes to pause, or paused ones to go on. Returns the last answer, or why there is none."""
    from adloco_p2p.control.client import ControlClient

    try:
        for workdir in workdirs:
            with ControlClient(workdir) as client:
                words = client.command("resume" if status.state in ("paused", "pausing") else "pause")
    except (SwarmError, ConfigError) as error:
        return str(error)
    return words
