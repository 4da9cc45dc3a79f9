"""The broadcaster between the sink and the view: it keeps the status of the node, and passes every event on to watchers."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from adloco_p2p.core.model.telemetry import LIVE_ONLY, Stamped, Started, Stopped, to_line
from adloco_p2p.runtime.node.event_sink import View
from adloco_p2p.views.status import Status
from adloco_p2p.views.status_fold import apply, replay

MAX_HISTORY_BYTES = 8 << 20
"""Bytes at the end of the event file that a watcher gets."""
MAX_QUEUED = 4096
"""Events that may wait for one watcher; a slower one is cut off, and may begin again."""
BATCH_BYTES = 256 << 10
"""The approximate size of a batch of events."""


class EventBroadcaster:
    """A view that passes every event on to another view and to watchers. Used from the event loop."""

    def __init__(self, view: View, *, events_path: Path) -> None:
        self.status = Status()
        self._view = view
        self._events_path = events_path
        self._queues: dict[asyncio.Queue[str | None], None] = {}
        self._started: str | None = None
        self._latest: dict[tuple[str, object], str] = {}
        """The last of the events that the file does not contain, by name and instance."""

    def start(self) -> None:
        self._view.start()

    def recall(self, events: Sequence[Stamped]) -> None:
        self.status = replay(events)
        self._view.recall(events)

    def update(self, stamped: Stamped) -> None:
        self.status = apply(self.status, stamped)
        self._view.update(stamped)
        event = stamped.event
        if self._queues or isinstance(event, (*LIVE_ONLY, Started)):
            line = to_line(stamped)
            if isinstance(event, Started):
                self._started, self._latest = line, {}
            elif isinstance(event, LIVE_ONLY):
                self._latest[event.event, getattr(event, "instance", None)] = line
            self._hand_out(line)
        if isinstance(event, Stopped):
            self._end()

    def stop(self) -> None:
        self._end()
        self._view.stop()

    async def watch(self) -> AsyncIterator[tuple[list[str], bool]]:
        """Yield batches of events, each with whether they are past: first those of the event file, then new ones. Ends with the
        node."""
        queue: asyncio.Queue[str | None] = asyncio.Queue(MAX_QUEUED)
        self._queues[queue] = None
        size = self._events_path.stat().st_size if self._events_path.exists() else 0
        latest = list(self._latest.values())
        try:
            past = await asyncio.to_thread(self._read, size)
            for batch in _batches(past):
                yield batch, True
            yield latest, False  # even if empty, it shows that the past is complete
            is_over = False
            while not is_over:
                lines = [await queue.get()]
                while not queue.empty():
                    lines.append(queue.get_nowait())
                is_over = lines[-1] is None  # nothing is put after None
                for batch in _batches([line for line in lines if line is not None]):
                    yield batch, False
        finally:
            self._queues.pop(queue, None)

    def _read(self, size: int) -> list[str]:
        """Return the events before the watcher came. If the end of the file lacks the first event, that is put in front."""
        if not size:
            return []
        with self._events_path.open("rb") as file:
            file.seek(max(0, size - MAX_HISTORY_BYTES))
            lines = file.read(min(size, MAX_HISTORY_BYTES)).decode("ascii", "replace").splitlines()
        if size <= MAX_HISTORY_BYTES:
            return lines
        return [*([self._started] if self._started is not None else []), *lines[1:]]

    def _hand_out(self, line: str) -> None:
        for queue in [*self._queues]:
            try:
                queue.put_nowait(line)
            except asyncio.QueueFull:
                self._cut_off(queue)

    def _end(self) -> None:
        """Tell all watchers that the node ends."""
        for queue in [*self._queues]:
            self._cut_off(queue)

    def _cut_off(self, queue: asyncio.Queue[str | None]) -> None:
        self._queues.pop(queue, None)
        if queue.full():
            queue.get_nowait()
        queue.put_nowait(None)


def _batches(lines: list[str]) -> list[list[str]]:
    batches: list[list[str]] = [[]]
    num_bytes = 0
    for line in lines:
        if num_bytes > BATCH_BYTES:
            batches.append([])
            num_bytes = 0
        batches[-1].append(line)
        num_bytes += len(line)
    return [batch for batch in batches if batch]
