"""The metrics of a node for experiment trackers: all of them after each round, and the inner loss in between.

Each tracker works in a thread of its own behind a bounded queue. One that fails, or takes nothing for a long time, is switched
off with one warning, so the node never waits for a tracker.
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Mapping

from adloco_p2p.core.model import telemetry
from adloco_p2p.core.model.telemetry import Log, Progress, Round
from adloco_p2p.errors import brief
from adloco_p2p.runtime.node.ports import EventSink
from adloco_p2p.trackers import Tracker
from adloco_p2p.views.metrics import Measure

MAX_QUEUED = 256
"""Points that may wait for one tracker."""
MAX_PEERS = 64
"""The most peers with curves of their own: trackers keep a curve for ever, and identities are free."""
CLOSE_SECONDS = 20.0
"""The time limit for writing queued points when the node ends."""

Point = tuple[int, dict[str, float]]


def flat(measures: Iterable[Measure], peers: set[str]) -> dict[str, float]:
    """Flatten measures to numbers by name; the values of labels follow a slash, as in `adloco_peers/alive`.

    `peers` collects the peers with values of their own; peers beyond the first MAX_PEERS have none.
    """
    found: dict[str, float] = {}
    for measure in measures:
        if measure.name.endswith("_info"):  # its labels are texts, and its value is always 1
            continue
        for labels, value in measure.samples.items():
            about = {label for name, label in zip(measure.label_names, labels, strict=True) if name == "peer"}
            if about <= peers or len(peers) < MAX_PEERS:
                peers |= about
                found["/".join([measure.name, *labels])] = value
    return found


class TrackedSink:
    """Passes events on, then gives the trackers the metrics that follow from them. Used from the event loop's thread."""

    def __init__(
        self,
        sink: EventSink,
        trackers: Mapping[str, Callable[[], Tracker]],
        *,
        measure: Callable[[], Iterable[Measure]],
        inner_steps: int,
    ) -> None:
        """`trackers` has, by name, the function that opens each. A point of round r has the step (r + 1) * `inner_steps`, at
        which the round's inner steps end."""
        self._sink = sink
        self._measure = measure
        self._inner_steps = inner_steps
        self._peers: set[str] = set()
        self._threads = [_TrackerThread(name, open_) for name, open_ in trackers.items()]

    def write(self, event: Log) -> None:
        self._sink.write(event)
        match event:
            case Round():
                self._track((event.round + 1) * self._inner_steps, flat(self._measure(), self._peers))
            case Progress(loss=float(loss)):
                place = event.step / max(1, event.num_steps)  # the plan may give a round other than H steps
                self._track(
                    round((event.round + place) * self._inner_steps),
                    {f"adloco_inner_loss_nats/{event.instance}": loss},
                )

    def close(self) -> None:
        """Write the queued points, for a bounded time."""
        for thread in self._threads:
            thread.close()

    def _track(self, step: int, values: dict[str, float]) -> None:
        for thread in self._threads:
            thread.put((step, values))
            if (problem := thread.new_problem()) is not None:
                self._sink.write(telemetry.Warning(key=f"tracker {thread.name}", message=problem, active=True))


class _TrackerThread:
    """One tracker, opened and used in a thread that never keeps the process alive."""

    def __init__(self, name: str, open_: Callable[[], Tracker]) -> None:
        self.name = name
        self._open = open_
        self._queue: queue.Queue[Point | None] = queue.Queue(MAX_QUEUED)
        self._problem: str | None = None
        self._is_reported = False
        self._thread = threading.Thread(target=self._work, name=f"tracker-{name}", daemon=True)
        self._thread.start()

    def put(self, point: Point) -> None:
        if self._problem is not None:
            return
        try:
            self._queue.put_nowait(point)
        except queue.Full:
            self._problem = f"{self.name} takes nothing: {MAX_QUEUED} points wait; it gets no more until the node starts again"

    def new_problem(self) -> str | None:
        """Return once why the tracker is switched off, otherwise None."""
        if self._is_reported:
            return None
        self._is_reported = self._problem is not None
        return self._problem

    def close(self) -> None:
        if self._problem is not None:
            return
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)
            self._thread.join(CLOSE_SECONDS)

    def _work(self) -> None:
        try:
            tracker = self._open()
            while (point := self._queue.get()) is not None:
                tracker.write(*point)
            tracker.close()
        except Exception as error:  # a foreign library may raise anything; training goes on without it
            words = brief(error) or type(error).__name__
            self._problem = f"{self.name} failed and gets nothing more until the node starts again: {words}"
