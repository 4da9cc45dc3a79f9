"""How long to wait for others, learned from how long they took."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

WINDOW = 16
"""Past waits that are remembered."""
FACTOR = 3.0
"""A wait this many times longer than the longest remembered one is no longer explained by slowness."""
SHORTEST_SECONDS = 5.0
"""Scheduling, garbage collection and a lost packet together may take this long on a healthy peer."""
UNKNOWN_SECONDS = 60.0
"""Allowance on top of the expected computing time while nothing was observed yet."""
LONGEST_EXTRA_SECONDS = 30.0
"""Allowance on top of what twice the computing time and a slow transfer explain: nobody waits longer."""
SLOWEST_SHARE = 0.25
"""Of the median measured uplink: a host that is slower than this is left out in the end."""
UNKNOWN_BYTES_PER_SECOND = 1_000_000.0
"""The uplink that is assumed while none was measured."""


@dataclass(slots=True)
class AdaptiveTimeout:
    """Timeout of the next averaging attempt, from the durations of the last ones that succeeded."""

    waits: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    num_bytes: int = 0
    """What the largest of the averages moved here, sent and received."""

    def observe(self, seconds: float, *, num_bytes: int = 0) -> None:
        """A success that took so long, from the moment this peer was ready, and moved so much."""
        self.waits.append(seconds)
        self.num_bytes = max(self.num_bytes, num_bytes)

    def longest_seconds(self, *, expected_seconds: float, uplinks: Sequence[float]) -> float:
        """More than this no attempt gets, whatever earlier ones took: a host that always ends just before the timeout would
        stretch it without end. `uplinks`: bytes per second, as measured; 0 where unknown."""
        measured = [speed for speed in uplinks if speed > 0]
        speed = SLOWEST_SHARE * (median(measured) if measured else UNKNOWN_BYTES_PER_SECOND)
        return 2.0 * expected_seconds + self.num_bytes / speed + LONGEST_EXTRA_SECONDS

    def timeout_seconds(self, *, expected_seconds: float) -> float:
        """`expected_seconds`: computing time of the slowest host, as the plan estimates it."""
        if not self.waits:
            return UNKNOWN_SECONDS + FACTOR * expected_seconds
        return SHORTEST_SECONDS + FACTOR * max(self.waits)
