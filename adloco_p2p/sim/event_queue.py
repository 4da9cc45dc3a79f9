"""Virtual time: a queue of coming events, which serves a whole world."""

import heapq
from collections.abc import Callable


class EventQueue:
    """The queue of a world, with `now` in seconds since it began. Events of one instant happen in the order of their calls."""

    def __init__(self) -> None:
        self.now = 0.0
        self.num_events = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._heap)

    def at(self, time: float, act: Callable[..., None], *arguments: object) -> None:
        self._count += 1
        heapq.heappush(self._heap, (max(time, self.now), self._count, act, arguments))

    def after(self, seconds: float, act: Callable[..., None], *arguments: object) -> None:
        self.at(self.now + seconds, act, *arguments)

    def step(self) -> None:
        self.now, _, act, arguments = heapq.heappop(self._heap)
        self.num_events += 1
        act(*arguments)
