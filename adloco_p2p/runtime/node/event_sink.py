"""Where the peer's events go: the event file first, then the view."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

UNRECORDED = frozenset({"progress", "phase", "bandwidth", "listening"})
"""Events for the live view only: many, and all of their content is in the event of the finished round."""


class View(Protocol):
    """Shows events as they come."""

    def start(self) -> None: ...

    def recall(self, events: Sequence[dict[str, Any]]) -> None:
        """Earlier events. Only the resulting status is shown; everything else is forgotten."""

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


class CountingSink:
    """Says after every finished round what went over the network since the last time, as an event `traffic`."""

    def __init__(self, sink: Sink, totals: Callable[[], dict[str, tuple[int, int]]]) -> None:
        """`totals`: bytes sent and received by kind, since the process began."""
        self._sink = sink
        self._totals = totals
        self._counted = dict.fromkeys(totals(), (0, 0))
        self._round: object = 0

    def write(self, name: str, fields: dict[str, object]) -> None:
        self._sink.write(name, fields)
        if name in ("round", "finished"):
            self._round = fields.get("round", self._round)
            totals, before = self._totals(), self._counted
            self._counted = totals
            sent = {kind: now[0] - before[kind][0] for kind, now in totals.items()}
            received = {kind: now[1] - before[kind][1] for kind, now in totals.items()}
            if any(sent.values()) or any(received.values()):
                self._sink.write("traffic", {"round": self._round, "sent": sent, "received": received})
