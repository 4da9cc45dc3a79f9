"""Where the peer's events go: the event file first, then the view."""

import time
from typing import Any, Protocol

UNRECORDED = frozenset({"progress", "phase"})
"""Events for the live view only: many, and nothing that a finished round does not say again."""


class View(Protocol):
    """Shows events as they come."""

    def start(self) -> None: ...

    def update(self, event: dict[str, Any]) -> None: ...

    def stop(self) -> None: ...


class Log(Protocol):
    """Keeps events."""

    def append(self, event: dict[str, Any]) -> None: ...


class Sink:
    """Stamps each event with the wall clock. Used from the event loop's thread."""

    def __init__(self, *, log: Log, view: View) -> None:
        self._log = log
        self._view = view

    def write(self, name: str, fields: dict[str, object]) -> None:
        event = {"event": name, "time": time.time(), **fields}
        if name not in UNRECORDED:
            self._log.append(event)
        self._view.update(event)
