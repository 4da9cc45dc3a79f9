"""Token buckets, which limit a rate but allow a burst."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

_LEAST_SECONDS = 1e-3
LOOK_SECONDS = 0.25
"""The longest sleep of a waiter, after which it notices a new rate."""


class TokenBucket:
    """Holds at most `burst` tokens and gains `rate` tokens per second; a rate of 0 is no limit. Belongs to one event loop."""

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
        """Set the rate, also for tasks that wait already. A debt stays, but takes no longer to pay back than before. A rate of
        0 would pay nothing back, so it ends the debt."""
        assert rate >= 0 and burst > 0
        self._fill()
        if self._level < 0:
            self._level *= min(1.0, rate / self._rate)
        self._rate, self._burst = rate, burst
        self._level = min(self._level, burst)

    def try_take(self, amount: float) -> bool:
        """Take the tokens if they are there, and return whether they were. An amount above the burst never is."""
        if self._rate == 0:
            return True
        self._fill()
        if amount > self._level:
            return False
        self._level -= amount
        return True

    def has(self, amount: float) -> bool:
        """Return whether the tokens are there, without taking any."""
        self._fill()
        return self._rate == 0 or amount <= self._level

    def debt_seconds(self, amount: float) -> float:
        """Take the tokens, if need be on credit, and return how many seconds to wait before using them."""
        if self._rate == 0:
            return 0.0
        self._fill()
        self._level -= amount
        return max(0.0, -self._level / self._rate)

    def charge(self, amount: float, *, max_debt_seconds: float) -> None:
        """Take the tokens on credit, as far as that makes no debt that takes longer to pay back."""
        if self._rate > 0:
            self._fill()
            self._level = min(self._level, max(self._level - amount, -max_debt_seconds * self._rate))

    async def take(self, amount: float) -> None:
        """Take the tokens, and wait until they are there. Waiters are served in order. Tokens that are charged meanwhile
        delay later waiters only; otherwise a waiter would wait for as long as others go on."""
        async with self._turn:
            seconds = self.debt_seconds(amount)
            end = self._clock() + seconds
            while seconds > 0:
                await self._sleep(min(max(seconds, _LEAST_SECONDS), LOOK_SECONDS))
                seconds = min(end - self._clock(), self.debt_seconds(0.0))

    def _fill(self) -> None:
        now = self._clock()
        self._level = min(self._burst, self._level + (now - self._filled_at) * self._rate)
        self._filled_at = now


def try_take_all(buckets: Sequence[TokenBucket], amounts: Sequence[float]) -> bool:
    """Take the amounts, one from each bucket, if all are there, otherwise nothing. Return whether they were."""
    pairs = list(zip(buckets, amounts, strict=True))
    return all(bucket.has(amount) for bucket, amount in pairs) and all(bucket.try_take(amount) for bucket, amount in pairs)
