"""Token buckets: how much may pass per second, with a burst."""

import asyncio
import time
from collections.abc import Callable


class TokenBucket:
    """Holds at most `burst` tokens and gains `rate` tokens per second; a rate of 0 means no limit. For one event loop."""

    def __init__(self, rate: float, *, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        assert rate >= 0 and burst > 0
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._level = burst
        self._filled_at = clock()

    def try_take(self, amount: float) -> bool:
        """Take the tokens if they are there. What is asked at once must fit in the burst."""
        if self._rate == 0:
            return True
        self._fill()
        if amount > self._level:
            return False
        self._level -= amount
        return True

    def debt_seconds(self, amount: float) -> float:
        """Take the tokens, on credit where they are missing, and say how long to wait before using them."""
        if self._rate == 0:
            return 0.0
        self._fill()
        self._level -= amount
        return max(0.0, -self._level / self._rate)

    async def take(self, amount: float) -> None:
        """Wait until the tokens are there. Waiters are served in the order in which they came."""
        seconds = self.debt_seconds(amount)
        if seconds > 0:
            await asyncio.sleep(seconds)

    def _fill(self) -> None:
        now = self._clock()
        self._level = min(self._burst, self._level + (now - self._filled_at) * self._rate)
        self._filled_at = now
