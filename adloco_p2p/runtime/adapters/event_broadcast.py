"""Between the sink and the view: keeps the status of the node, and passes every event on to the watchers outside."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from adloco_p2p.core.model.telemetry import LIVE_ONLY, Stamped, Started, Stopped, to_line
from adloco_p2p.runtime.node.event_sink import View
from adloco_p2p.views.status import Status
from adloco_p2p.views.status_fold import apply, replay

MAX_HISTORY_BYTES = 8 << 20
"""The end of the event file that a watcher gets."""
MAX_QUEUED = 4096
"""Events that may wait for one watcher; a slower one is cut off, and may come again."""
BATCH_BYTES = 256 << 10
"""Events are handed over in batches of about this size."""


class EventBroadcaster:
    """A view that passes every event on to another one. Used from the event loop."""

    def __init__(self, view: View, *, events_path: Path) -> None:
        self.status = Status()
        self._view = view
        self._events_path = events_path
        self._queues: dict[asyncio.Queue[str | None], None] = {}
        self._started: str | None = None
        self._latest: dict[tuple[str, object], str] = {}
        """The last ones of the events that the file does not hold, by name and instance."""

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
        """Batches of events and whether they are past ones, from the event file; then those of the present. Ends with the
        node."""
        queue: asyncio.Queue[str | None] = asyncio.Queue(MAX_QUEUED)
        self._queues[queue] = None
        size = self._events_path.stat().st_size if self._events_path.exists() else 0
        latest = list(self._latest.values())
        try:
            past = await asyncio.to_thread(self._read, size)
            for batch in _batches(past):
                yield batch, True
            yield latest, False  # also where there is none: the past is complete
            is_over = False
            while not is_over:
                lines = [await queue.get()]
                while not queue.empty():
                    lines.append(queue.get_nowait())
                is_over = lines[-1] is None  # after it nothing is put
                for batch in _batches([line for line in lines if line is not None]):
                    yield batch, False
        finally:
            self._queues.pop(queue, None)

    def _read(self, size: int) -> list[str]:
        """Events before the watcher came. Where the first event is too long ago, it is sent first all the same."""
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
        """Watchers are notified that the node ends."""
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
