"""Token buckets: how much may pass per second, with a burst."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

_LEAST_SECONDS = 1e-3
_LOOK_SECONDS = 0.25
"""The delay after which waiters notice another rate."""


class TokenBucket:
    """Holds at most `burst` tokens and gains `rate` tokens per second; a rate of 0 means no limit. For one event loop."""

    def __init__(
        self,
        rate: float,
        *,
        burst: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        assert rate >= 0 and burst > 0
        self._rate = rate
        self._burst = burst
        self._clock, self._sleep = clock, sleep
        self._level = burst
        self._filled_at = clock()
        self._turn = asyncio.Lock()

    @property
    def rate(self) -> float:
        return self._rate

    def set_rate(self, rate: float, *, burst: float) -> None:
        """Set the rate, for those that wait as well; a debt stays."""
        assert rate >= 0 and burst > 0
        self._fill()
        self._rate, self._burst = rate, burst
        self._level = min(self._level, burst)

    def try_take(self, amount: float) -> bool:
        """Take the tokens if they are there. One request must fit in the burst."""
        if self._rate == 0:
            return True
        self._fill()
        if amount > self._level:
            return False
        self._level -= amount
        return True

    def has(self, amount: float) -> bool:
        """Whether the tokens are there; takes none."""
        self._fill()
        return self._rate == 0 or amount <= self._level

    def debt_seconds(self, amount: float) -> float:
        """Take the tokens, on credit where they are missing, and return how long to wait before using them."""
        if self._rate == 0:
            return 0.0
        self._fill()
        self._level -= amount
        return max(0.0, -self._level / self._rate)

    async def take(self, amount: float) -> None:
        """Wait until the tokens are there. Waiters are served in the order in which they came."""
        async with self._turn:
            seconds = self.debt_seconds(amount)
            while seconds > 0:
                await self._sleep(min(max(seconds, _LEAST_SECONDS), _LOOK_SECONDS))
                seconds = self.debt_seconds(0.0)

    def _fill(self) -> None:
        now = self._clock()
        self._level = min(self._burst, self._level + (now - self._filled_at) * self._rate)
        self._filled_at = now


def try_take_all(buckets: Sequence[TokenBucket], amounts: Sequence[float]) -> bool:
    """Take the amounts, one from each bucket, if all are there; otherwise take nothing."""
    pairs = list(zip(buckets, amounts, strict=True))
    return all(bucket.has(amount) for bucket, amount in pairs) and all(bucket.try_take(amount) for bucket, amount in pairs)
