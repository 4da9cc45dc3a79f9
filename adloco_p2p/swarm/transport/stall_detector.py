"""How long a stream may be silent before its peer is given up: learned from stalls that ended. Pure.

On a busy machine, or a bad line, live peers are silent for seconds too. A stall several times as long as any that has
ended lately is no longer explained by that. The limits on both sides are fixed: a peer that dies among quick ones is found
quickly, and no peer can make the others wait for it indefinitely.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any

FACTOR = 3.0
"""As for the deadlines of whole averages; see `core/averaging/adaptive_timeout.py`."""
WINDOW = 16
"""Averages whose stalls are remembered."""


class StallDetector:
    """The stalls that a peer has seen in its last averages, and in those under way."""

    def __init__(self, *, least_seconds: float, most_seconds: float) -> None:
        self._least_seconds, self._most_seconds = least_seconds, most_seconds
        self._ended: deque[Watch] = deque(maxlen=WINDOW)

    @property
    def limit_seconds(self) -> float:
        """A stall that is longer means that the peer is gone."""
        longest = max((watch.longest_seconds for watch in self._ended), default=0.0)
        return min(max(self._least_seconds, FACTOR * longest), self._most_seconds)

    def watch(self) -> "Watch":
        """For one average, to look at its streams again and again."""
        self._ended.append(Watch())
        return self._ended[-1]


class Watch:
    """The stalls of one average's streams."""

    def __init__(self) -> None:
        self.longest_seconds = 0.0
        """Of those that ended, as far as they were seen."""
        self._seen: dict[Any, float] = {}

    def look(self, silent_seconds: Mapping[Any, float]) -> None:
        """How long every stream has been silent by now. One that was silent for longer at the last look has sent since."""
        ended = [seen for stream, seen in self._seen.items() if silent_seconds.get(stream, seen) < seen]
        self.longest_seconds = max([self.longest_seconds, *ended])
        self._seen = dict(silent_seconds)

    def reset(self) -> None:
        """This process did not run, so earlier observations do not count."""
        self._seen = {}
