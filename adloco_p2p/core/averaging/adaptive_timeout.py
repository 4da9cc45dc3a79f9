"""Timeouts of averaging attempts, from the durations of earlier ones."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import median, median_low

WINDOW = 16
"""The number of past durations that count."""
FACTOR = 3.0
"""The multiple of the longest duration that counts beyond which slowness no longer explains an attempt."""
SHORTEST_SECONDS = 5.0
"""The time that scheduling, garbage collection and a lost packet together may take on a healthy peer."""
SPREAD = 0.5
"""The part of the expected computing time by which healthy hosts may begin an attempt apart. Plans estimate from earlier
rounds, and in this one a machine may be a fifth faster, another one a fifth slower."""
UNKNOWN_SECONDS = 60.0
"""The allowance, beside the expected computing time and the transfer, before the first observed attempt."""
LONGEST_EXTRA_SECONDS = 30.0
"""The allowance of the longest timeout, beside twice the computing time and a slow transfer."""
SLOWEST_SHARE = 0.25
"""The part of the median uplink below which attempts time out on a host."""
UNKNOWN_BYTES_PER_SECOND = 1_000_000.0
"""The uplink that is assumed before any is measured: the first attempt may take as long as a link of 8 Mbit/s does."""

LONGEST_UNKNOWN_SECONDS = 3600.0
"""The largest allowance for a transfer over an unknown link. A larger vector needs a faster link, or retries."""


def slow_transfer_seconds(num_bytes: int) -> float:
    """Return the allowance for a transfer over a link of which nothing is known."""
    return min(LONGEST_UNKNOWN_SECONDS, num_bytes / UNKNOWN_BYTES_PER_SECOND)


def _known(uplinks: Sequence[float], unknown: float) -> list[float]:
    """Return the uplinks with this number in the place of those that nobody has measured, so that a minority of false claims
    does not move a median of them further than to an honest one or to `unknown`, even while the others are unknown."""
    return [speed if speed >= 1 else unknown for speed in uplinks] or [unknown]


@dataclass(slots=True)
class AdaptiveTimeout:
    """The timeout of the next averaging attempt, from the last ones that succeeded."""

    vector_bytes: int = 0
    """The bytes of a whole vector on the wire, by this peer's own configuration, so that no claim of others counts."""
    waits: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    num_bytes: int = 0
    """The bytes that this host sent and received in the largest of the averages."""

    def observe(self, seconds: float, *, num_bytes: int = 0) -> None:
        """Note an attempt that succeeded `seconds` after this peer was ready for it, with `num_bytes` sent and received."""
        self.waits.append(seconds)
        self.num_bytes = max(self.num_bytes, num_bytes)

    @property
    def patience_seconds(self) -> float:
        """The timeout of a wait in which no vector has to travel."""
        return SHORTEST_SECONDS + FACTOR * max(self.waits) if self.waits else UNKNOWN_SECONDS

    def longest_seconds(self, *, expected_seconds: float, uplinks: Sequence[float]) -> float:
        """Return the upper bound of every timeout, in seconds: without it a host that always ends just before the timeout could
        stretch it without limit. `uplinks` are the measured bytes per second, less than 1 if unknown."""
        speed = SLOWEST_SHARE * median_low(_known(uplinks, UNKNOWN_BYTES_PER_SECOND))
        return 2.0 * expected_seconds + self.num_bytes / speed + LONGEST_EXTRA_SECONDS

    def transfer_seconds(self, uplinks: Sequence[float]) -> float:
        """Return how long a host with the median of these uplinks sends in an average, in seconds; 0 while most of them are
        unknown. A host with a slow link does not lengthen it."""
        return self.num_bytes / 2 / median(_known(uplinks, inf))

    def timeout_seconds(self, *, expected_seconds: float) -> float:
        """Return the timeout of an attempt, in seconds. `expected_seconds` is the computing time of the slowest host, as the
        plan estimates it.

        A member sends and receives two vectors, or at most three if it reduces twice the mean share, which only a host with a
        fast link does."""
        if not self.waits:
            return self.patience_seconds + FACTOR * expected_seconds + slow_transfer_seconds(2 * self.vector_bytes)
        return SHORTEST_SECONDS + max(FACTOR * max(self.waits), SPREAD * expected_seconds)
