"""Timeouts of averaging attempts, from the durations of earlier ones."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

WINDOW = 16
"""Past durations that count."""
FACTOR = 3.0
"""Slowness does not explain an attempt this many times longer than the longest one that counts."""
SHORTEST_SECONDS = 5.0
"""Scheduling, garbage collection and a lost packet together may take this long on a healthy peer."""
SPREAD = 0.5
"""Of the expected computing time: healthy hosts begin an attempt so far apart. Plans estimate from earlier rounds, and this
time a machine may be a fifth faster, another one a fifth slower."""
UNKNOWN_SECONDS = 60.0
"""Allowance on top of the expected computing time and of the transfer before the first observed attempt."""
LONGEST_EXTRA_SECONDS = 30.0
"""Allowance of the longest timeout on top of twice the computing time and a slow transfer."""
SLOWEST_SHARE = 0.25
"""Of the median measured uplink: attempts time out on a host that is slower than this share."""
UNKNOWN_BYTES_PER_SECOND = 1_000_000.0
"""The uplink that is assumed before any is measured: the first attempt may take what a link of 8 Mbit/s takes."""

LONGEST_UNKNOWN_SECONDS = 3600.0
"""The allowance for that transfer at most. A larger vector needs a faster link, or retries."""


def slow_transfer_seconds(num_bytes: int) -> float:
    """Allowance for a transfer over a link of which nothing is known."""
    return min(LONGEST_UNKNOWN_SECONDS, num_bytes / UNKNOWN_BYTES_PER_SECOND)


@dataclass(slots=True)
class AdaptiveTimeout:
    """Timeout of the next averaging attempt, from the last ones that succeeded."""

    vector_bytes: int = 0
    """Of a whole vector as it travels, from this peer's own configuration: what others claim changes no timeout by it."""
    waits: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    num_bytes: int = 0
    """Sent and received by this host in the largest of the averages."""

    def observe(self, seconds: float, *, num_bytes: int = 0) -> None:
        """An attempt succeeded, this long after this peer was ready for it; `num_bytes` were sent and received."""
        self.waits.append(seconds)
        self.num_bytes = max(self.num_bytes, num_bytes)

    @property
    def patience_seconds(self) -> float:
        """Of a wait in which no vector has to travel."""
        return SHORTEST_SECONDS + FACTOR * max(self.waits) if self.waits else UNKNOWN_SECONDS

    def longest_seconds(self, *, expected_seconds: float, uplinks: Sequence[float]) -> float:
        """Upper bound of every timeout, in seconds: without it a host that always ends just before the timeout would stretch it
        without end. `uplinks`: bytes per second, as measured; less than 1 where unknown."""
        measured = [speed for speed in uplinks if speed >= 1]
        speed = SLOWEST_SHARE * (median(measured) if measured else UNKNOWN_BYTES_PER_SECOND)
        return 2.0 * expected_seconds + self.num_bytes / speed + LONGEST_EXTRA_SECONDS

    def timeout_seconds(self, *, expected_seconds: float) -> float:
        """Of an attempt, in seconds. `expected_seconds`: computing time of the slowest host, as the plan estimates it.

        A member sends two vectors and receives as many, at most three where it reduces twice the mean share, which only a host
        with a fast link does."""
        if not self.waits:
            return self.patience_seconds + FACTOR * expected_seconds + slow_transfer_seconds(2 * self.vector_bytes)
        return SHORTEST_SECONDS + max(FACTOR * max(self.waits), SPREAD * expected_seconds)
