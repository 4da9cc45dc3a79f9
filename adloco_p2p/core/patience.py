"""How long to wait for others, learned from how long they took."""

from collections import deque
from dataclasses import dataclass, field

WINDOW = 16
"""Past waits that are remembered."""
FACTOR = 3.0
"""A wait this many times longer than the longest remembered one is no longer explained by slowness."""
SHORTEST_SECONDS = 5.0
"""Scheduling, garbage collection and a lost packet together may take this long on a healthy peer."""
UNKNOWN_SECONDS = 60.0
"""Allowance on top of the expected computing time while nothing was observed yet."""


@dataclass(slots=True)
class Patience:
    """Timeout of the next averaging attempt, from the durations of the last ones that succeeded."""

    waits: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def observe(self, seconds: float) -> None:
        """A success that took so long, from the moment this peer was ready."""
        self.waits.append(seconds)

    def timeout_seconds(self, *, expected_seconds: float) -> float:
        """`expected_seconds`: computing time of the slowest host, as the plan estimates it."""
        if not self.waits:
            return UNKNOWN_SECONDS + FACTOR * expected_seconds
        return SHORTEST_SECONDS + FACTOR * max(self.waits)
