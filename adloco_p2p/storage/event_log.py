"""`events.jsonl`: the events of a peer, one JSON object per line, for views, plots and people; a resumed run does not need it.

`core/model/telemetry.py` declares the events.
"""

import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from adloco_p2p.core.model.telemetry import Stamped, to_line
from adloco_p2p.decode import EventOfAnotherVersion, decode_event
from adloco_p2p.errors import ConfigError
from adloco_p2p.storage.disk import replace_file, reported, write_all
from adloco_p2p.storage.workdir import meant_workdir

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class EventLog:
    """An open event file. One thread writes; others may read the file at any time with `read_events`."""

    path: Path
    _file: FileIO

    @classmethod
    def open(cls, path: Path) -> "EventLog":
        """Open or create the file, and cut off a last line that a crash tore. Raises StorageError."""
        with reported(path):
            path.with_name(path.name + ".tmp").unlink(missing_ok=True)
            if path.exists():
                content = path.read_bytes()
                os.truncate(path, content.rfind(b"\n") + 1)
            return cls(path=path, _file=path.open("ab", buffering=0))

    def append(self, stamped: Stamped) -> None:
        """Append one line, which the operating system has when this returns. Raises StorageError."""
        with reported(self.path):
            write_all(self._file, to_line(stamped).encode("ascii") + b"\n")

    def rewind(self, round: int) -> None:
        """Remove the events of `round` and later, all or none, because a resumed run repeats these rounds. The checkpoint
        before `round` stays: the run resumes from it.

        Raises StorageError.
        """
        with reported(self.path):
            kept = [line for line in self.path.read_bytes().splitlines(keepends=True) if not _is_from(line, round)]
            self._file.close()
            replace_file(self.path, b"".join(kept))
            self._file = self.path.open("ab", buffering=0)

    def close(self) -> None:
        self._file.close()


def read_events(path: Path) -> Iterator[Stamped]:
    """Yield the events in a file, oldest first; none if there is no file. A line that this version cannot read is logged and
    skipped. Raises StorageError."""
    with reported(path):
        content = path.read_bytes() if path.exists() else b""
    for number, event in _events(content):
        if isinstance(event, ValueError):
            logger.warning("a line of the events is not readable", extra={"path": str(path), "line": number})
        elif event is not None:
            yield event


def recorded_events(path: Path, *, option: str = "--workdir") -> list[Stamped]:
    """Return the events in the file of a directory that the user named, by `option`. Those of another version are skipped, and
    counted in a warning. Raises ConfigError if there are none, or if a line is no event."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        meant = meant_workdir(path.parent)
        instead = f"did you mean {meant}?" if meant else "name the working directory of a peer that has trained"
        raise ConfigError(
            f"{option} {path.parent}: no events of a run lie here ({path.name} is missing); {instead}", code="E212"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path}: the events of the run cannot be read: {error.strerror}", code="E212") from None
    events: list[Stamped] = []
    num_skipped = 0
    for number, event in _events(content):
        match event:
            case Stamped():
                events.append(event)
            case None | EventOfAnotherVersion():
                num_skipped += 1
            case ValueError():
                raise ConfigError(f"{path}, line {number}: damaged: {event}; restore it, or remove the line", code="E212")
    if num_skipped:
        were = "event of another version was" if num_skipped == 1 else "events of another version were"
        logger.warning("%d %s skipped", num_skipped, were, extra={"path": str(path)})
    if not events:
        raise ConfigError(f"{path}: holds no events; did the run start?", code="E212")
    return events


def _events(content: bytes) -> Iterator[tuple[int, Stamped | ValueError | None]]:
    """Yield the lines with their numbers, each as an event, as the reason why it is none that this version can read, or None
    for an event of an unknown kind. A last line without its end, which is being written or was torn, is skipped."""
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            event = decode_event(line)
        except ValueError as error:
            yield number, error
        else:
            yield number, event


def _is_from(line: bytes, round: int) -> bool:
    """Return whether a line, which another version may have written, is an event of this round or a later one."""
    try:
        event = json.loads(line)
    except ValueError:
        return False
    if not isinstance(event, dict) or not isinstance(found := event.get("round"), int):
        return False
    return found > round if event.get("event") == "checkpoint" else found >= round
