"""Attempts that failed after their members had decided on a mean, and that a retry may complete (`completion.py`)."""

import asyncio
from collections.abc import Callable

from adloco_p2p.core.model.scalars import Digest, InstanceId
from adloco_p2p.errors import AveragingError
from adloco_p2p.swarm.allreduce.allreduce_spec import AllReduceSpec
from adloco_p2p.swarm.allreduce.attempt_register import AttemptRegister
from adloco_p2p.swarm.allreduce.held_uploads import HeldUploads
from adloco_p2p.swarm.allreduce.topology import Attempt


class DecidedAttempts:
    """Keeps one peer's decided attempts, at most one per round and instance. Belongs to one event loop."""

    def __init__(self, attempts: AttemptRegister, held: HeldUploads, *, close: Callable[[Attempt], None]) -> None:
        """`close` closes the streams of an attempt that no retry completes, in the background."""
        self._attempts, self._held, self._close = attempts, held, close
        self._kept: dict[tuple[int, InstanceId], Attempt] = {}
        self._expiries: dict[tuple[int, InstanceId], asyncio.TimerHandle] = {}

    def keep(self, attempt: Attempt) -> None:
        """Keep a failed attempt, whose streams stay open."""
        self._kept[attempt.spec.round, attempt.spec.instance] = attempt

    def is_kept(self, key: Digest) -> bool:
        return any(attempt.spec.key == key for attempt in self._kept.values())

    def to_complete(self, spec: AllReduceSpec) -> Attempt:
        """Return the attempt that `spec` completes. Raises AveragingError."""
        earlier = self._kept.get((spec.round, spec.instance))
        if earlier is None or earlier.decision != spec.completes or not spec.reducers:
            raise AveragingError("what this attempt completes is not here, or is missing nothing")
        return earlier

    def take(self, spec: AllReduceSpec) -> Attempt | None:
        """Remove and return the earlier attempt at an average that has its result, if one is kept; the caller closes it."""
        return self._kept.pop((spec.round, spec.instance), None)

    def let_go(self, round: int, instance: InstanceId) -> None:
        """Let go of attempts that no retry completes any more: those of this instance, and those before the previous round."""
        for average in tuple(self._kept):
            if average[1] == instance or average[0] < round - 1:
                self._let_go(average)
                if average != (round, instance):
                    self._held.drop(*average)

    def stay(self, round: int, instance: InstanceId) -> None:
        """Keep the attempt while a retry is in progress, however long that takes."""
        expiry = self._expiries.pop((round, instance), None)
        if expiry is not None:
            expiry.cancel()

    def expire_later(self, round: int, instance: InstanceId, seconds: float) -> None:
        """Let go of a kept attempt after `seconds`, the time of an attempt. A retry begins by then or not at all: the round may
        be void, or the instance hosted elsewhere."""
        self.stay(round, instance)
        if (round, instance) in self._kept:
            loop = asyncio.get_running_loop()
            self._expiries[round, instance] = loop.call_later(seconds, self._expire, round, instance)

    def stop(self) -> None:
        for expiry in self._expiries.values():
            expiry.cancel()

    def _expire(self, round: int, instance: InstanceId) -> None:
        del self._expiries[round, instance]
        if (round, instance) in self._kept and not self._attempts.is_average_coming(round, instance):
            self._let_go((round, instance))
            self._held.drop(round, instance)

    def _let_go(self, average: tuple[int, InstanceId]) -> None:
        attempt = self._kept.pop(average)
        attempt.let_go()
        self._close(attempt)
