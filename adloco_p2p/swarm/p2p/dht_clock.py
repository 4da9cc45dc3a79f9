"""The clock of the DHT: the swarm's time, whatever the clock of this machine shows.

A record of the DHT ends at an instant, and every node compares it with its own clock; hivemind even refuses a peer whose clock
differs by three seconds. A volunteer's clock may be minutes off, and nothing else in a run depends on the time of day. So the
DHT in this process reads this clock instead: it is set once, at joining, to the median of the peers through which this one
joins, and advances with the time elapsed since. A clock that is wrong, or set right in the middle of a run, then does no harm.
All peers of a swarm thus share the time of its first peer; whether that is right does not matter.

hivemind has no way to be given a clock; `hivemind_patches.set_dht_clock` replaces the function that its modules call.
"""

import time
from collections.abc import Callable


def elapsed_seconds() -> float:
    """Seconds since the machine started, those of its sleep included where the system counts them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class DhtClock:
    """Seconds since the epoch, as the swarm counts them."""

    def __init__(self, *, wall_clock: Callable[[], float] = time.time, elapsed: Callable[[], float] = elapsed_seconds) -> None:
        self._elapsed = elapsed
        self._zero = wall_clock() - elapsed()
        self.correction_seconds = 0.0
        """Seconds added to this machine's own clock."""

    def __call__(self) -> float:
        return self._zero + self.correction_seconds + self._elapsed()

    def shift(self, seconds: float) -> None:
        """Advance it by this many seconds."""
        self.correction_seconds += seconds
