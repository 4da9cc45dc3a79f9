"""The clock of the DHT, which shows the swarm's time, whatever the clock of this machine shows.

A record of the DHT expires at an instant, which every node compares with its own clock; hivemind even refuses a peer whose
clock differs by three seconds. A volunteer's clock may be minutes off, and nothing else in a run depends on the time of day.
So the DHT in this process reads this clock instead. It is set once, when joining, to the median clock of the peers through
which this one joins, and advances with the time elapsed since. A machine's clock that is wrong, or corrected during a run, then
does no harm. All peers of a swarm thus share the time of its first peer; it does not matter whether that is right.

hivemind accepts no clock as an argument, so `hivemind_patches.set_dht_clock` replaces the function that its modules call.
"""

import time
from collections.abc import Callable, Iterable
from statistics import median_low

CLOCK_TOLERANCE_SECONDS = 1.0
"""A clock offset that a long round trip alone may cause; hivemind tolerates three seconds."""
MOST_OFFSET_SECONDS = 1e11
"""The most that a clock may be off, three thousand years, so that a machine whose clock begins in 1970 can join. A peer that
states more lies."""


def elapsed_seconds() -> float:
    """Return the seconds since the machine started, including its sleep where the system counts it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class DhtClock:
    """A callable that returns the seconds since the epoch by the swarm's time."""

    def __init__(self, *, wall_clock: Callable[[], float] = time.time, elapsed: Callable[[], float] = elapsed_seconds) -> None:
        self._elapsed = elapsed
        self._zero = wall_clock() - elapsed()
        self.correction_seconds = 0.0
        """Seconds added to this machine's own clock."""

    def __call__(self) -> float:
        return self._zero + self.correction_seconds + self._elapsed()

    def shift(self, seconds: float) -> None:
        """Advance the clock by this many seconds."""
        self.correction_seconds += seconds


def correction(offsets: Iterable[float]) -> float:
    """Return the seconds by which to shift the clock: the median of what other clocks are ahead by, the lower one of two; 0
    where a round trip may have caused that. Impossible offsets do not count."""
    possible = [seconds for seconds in offsets if abs(seconds) <= MOST_OFFSET_SECONDS]
    seconds = median_low(possible) if possible else 0.0
    return seconds if abs(seconds) > CLOCK_TOLERANCE_SECONDS else 0.0
