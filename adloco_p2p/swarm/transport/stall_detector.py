"""The stall detector, which learns from stalls that ended how long a stream may be silent before its peer is given up. Pure.

On a busy machine or a bad link, live peers are silent for seconds, too. That does not explain a stall several times as long as
any that has ended lately. The limit has fixed bounds on both sides: a peer that dies among quick ones is found quickly, and no
peer can make the others wait for it indefinitely.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any

FACTOR = 3.0
"""The limit in multiples of the longest stall, as for the deadlines of averages (`core/averaging/adaptive_timeout.py`)."""
WINDOW = 16
"""The number of averages whose stalls are remembered."""


class StallDetector:
    """Remembers the stalls of a peer's last averages, those in progress included."""

    def __init__(self, *, least_seconds: float, most_seconds: float) -> None:
        self._least_seconds, self._most_seconds = least_seconds, most_seconds
        self._ended: deque[Watch] = deque(maxlen=WINDOW)

    @property
    def limit_seconds(self) -> float:
        """The longest stall of a live peer."""
        longest = max((watch.longest_seconds for watch in self._ended), default=0.0)
        return min(max(self._least_seconds, FACTOR * longest), self._most_seconds)

    def watch(self) -> "Watch":
        """Return the watch of one average, which looks at its streams again and again."""
        self._ended.append(Watch())
        return self._ended[-1]


class Watch:
    """The stalls of one average's streams."""

    def __init__(self) -> None:
        self.longest_seconds = 0.0
        """The longest stall that was seen and has ended."""
        self._seen: dict[Any, float] = {}

    def look(self, silent_seconds: Mapping[Any, float]) -> None:
        """Take how long every stream has been silent by now. If that was longer at the last look, the stall has ended."""
        ended = [seen for stream, seen in self._seen.items() if silent_seconds.get(stream, seen) < seen]
        self.longest_seconds = max([self.longest_seconds, *ended])
        self._seen = dict(silent_seconds)

    def reset(self) -> None:
        """Forget earlier observations, because this process did not run."""
        self._seen = {}
