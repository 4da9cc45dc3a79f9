"""The sinks of the peer's events: the event file first, then the view."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from adloco_p2p.core.model.telemetry import LIVE_ONLY, Finished, Log, Round, Stamped, Traffic
from adloco_p2p.runtime.node.ports import EventSink


class View(Protocol):
    """Shows the events of a node."""

    def start(self) -> None: ...

    def recall(self, events: Sequence[Stamped]) -> None:
        """Replay earlier events, of which only the resulting status is shown."""

    def update(self, stamped: Stamped) -> None: ...

    def stop(self) -> None: ...


class EventFile(Protocol):
    """Keeps events."""

    def append(self, stamped: Stamped) -> None: ...


def stamp(event: Log) -> Stamped:
    """Stamp an event with the current wall-clock time."""
    return Stamped(time=time.time(), event=event)


class Sink:
    """Stamps each event, writes it to the file, and shows it. Used from the event loop's thread."""

    def __init__(self, *, log: EventFile, view: View) -> None:
        self._log = log
        self._view = view

    def write(self, event: Log) -> None:
        stamped = stamp(event)
        if not isinstance(event, LIVE_ONLY):
            self._log.append(stamped)
        self._view.update(stamped)


class CountingSink:
    """Passes events on, and after every finished round adds one about the traffic since the last one."""

    def __init__(self, sink: EventSink, totals: Callable[[], dict[str, tuple[int, int]]]) -> None:
        """`totals` returns the bytes sent and received by kind since the process began."""
        self._sink = sink
        self._totals = totals
        self._counted = dict.fromkeys(totals(), (0, 0))

    def write(self, event: Log) -> None:
        self._sink.write(event)
        if isinstance(event, Round | Finished):
            totals, before = self._totals(), self._counted
            self._counted = totals
            sent = {kind: now[0] - before[kind][0] for kind, now in totals.items()}
            received = {kind: now[1] - before[kind][1] for kind, now in totals.items()}
            if any(sent.values()) or any(received.values()):
                self._sink.write(Traffic(round=event.round, sent=sent, received=received))
