"""`events.jsonl`: what happened, one JSON object a line, for views, plots and people. Not needed to resume.

Every line has "event" (its name) and "time" (unix seconds, given by the caller); most have "round".
"""

import json
import logging
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from adloco_p2p.core.model import canonical
from adloco_p2p.storage.disk import replace_file, reported, write_all

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class EventLog:
    """An open event file. One thread writes; others may read the file at any time with `read_events`."""

    path: Path
    _file: FileIO

    @classmethod
    def open(cls, path: Path) -> "EventLog":
        """Open or create; a last line that a crash tore is cut off. Raises StorageError."""
        with reported(path):
            path.with_name(path.name + ".tmp").unlink(missing_ok=True)
            if path.exists():
                content = path.read_bytes()
                os.truncate(path, content.rfind(b"\n") + 1)
            return cls(path=path, _file=path.open("ab", buffering=0))

    def append(self, event: dict[str, Any]) -> None:
        """One line, handed to the operating system before this returns. Numbers that are not finite become null.

        Raises StorageError.
        """
        assert "event" in event and "time" in event
        line = json.dumps(_finite(canonical.to_plain(event)), allow_nan=False, separators=(",", ":"))
        with reported(self.path):
            write_all(self._file, line.encode("ascii") + b"\n")

    def rewind(self, round: int) -> None:
        """Forget the events of `round` and later: a resumed run does these rounds again. All or nothing.

        Raises StorageError.
        """
        kept = [event for event in read_events(self.path) if not _is_from(event, round)]
        lines = b"".join(json.dumps(event, separators=(",", ":")).encode("ascii") + b"\n" for event in kept)
        with reported(self.path):
            self._file.close()
            replace_file(self.path, lines)
            self._file = self.path.open("ab", buffering=0)

    def close(self) -> None:
        self._file.close()


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """The events in a file, oldest first; none where there is no file. A last line without its end is skipped, because
    it is being written or was torn; any other unreadable line is logged and skipped. Raises StorageError."""
    with reported(path):
        content = path.read_bytes() if path.exists() else b""
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            event = json.loads(line)
        except ValueError:
            event = None
        if isinstance(event, dict) and "event" in event and "time" in event:
            yield event
        else:
            logger.warning("event unreadable", extra={"path": str(path), "line": number})


def _is_from(event: dict[str, Any], round: int) -> bool:
    found = event.get("round")
    return isinstance(found, int) and found >= round


def _finite(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return None
        case dict():
            return {key: _finite(item) for key, item in value.items()}
        case list():
            return [_finite(item) for item in value]
        case _:
            return value
