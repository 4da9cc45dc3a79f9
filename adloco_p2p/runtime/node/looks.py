"""Contributions of other hosts that a device looks at in its spare time, one forward pass after the other: nothing that ends a
round waits for more than one.

Spare is the time in which nothing waits for the device, as while an average is under way. A look that has not found enough of
it within a round, and any look where the device has no such time because its inner steps do not wait for averages, goes on
between inner steps: one pass between two of them.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from adloco_p2p.core.model.assessments import AssessContribution, ContributionAssessed
from adloco_p2p.core.model.events import Event, RunInner
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.errors import DeviceError

MOST_LOOKS = 2
"""That wait for a device, each with vectors as large as the model (`training/memory_need.py`); the oldest goes."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Look:
    asked: AssessContribution
    begin: Callable[[], Iterator[float | None]]
    steps: Iterator[float | None] | None = None
    """Once it has begun; gives the score at last, and before that None."""


class Looks:
    """Of one device: `put` is called from the event loop, all else from the device's thread."""

    def __init__(self, post: Callable[[Event], None]) -> None:
        self._post = post
        self._waiting: deque[_Look] = deque()

    def put(self, asked: AssessContribution, begin: Callable[[], Iterator[float | None]]) -> None:
        """`begin` is called from the device's thread. See `Engine.assess`."""
        self._waiting.append(_Look(asked=asked, begin=begin))
        while len(self._waiting) > MOST_LOOKS:
            self._end(self._waiting[0], None, "the device had no time for it")

    def go_on(self) -> bool:
        """Do one more pass; False where there is none to do."""
        if not self._waiting:
            return False
        look = self._waiting[0]
        try:
            if look.steps is None:
                look.steps = look.begin()
            score = next(look.steps)
        except DeviceError as error:
            self._end(look, None, str(error))
            return True
        if score is not None:
            self._end(look, score)
        return True

    def go_on_between_steps(self, running: RunInner) -> None:
        """Do one pass where the look may wait no longer."""
        if self._waiting and (running.is_ahead or running.round > self._waiting[0].asked.round + 1):
            self.go_on()

    def forget(self, instance: InstanceId) -> None:
        """The instance is here no longer."""
        for look in list(self._waiting):  # at once: the event loop puts others in meanwhile
            if look.asked.instance == instance:
                self._take(look)

    def _end(self, look: _Look, score: float | None, reason: str = "") -> None:
        if self._take(look):
            self._post(ContributionAssessed(asked=look.asked, score=score, reason=reason))

    def _take(self, look: _Look) -> bool:
        """Let it go; False where the other thread has done so meanwhile."""
        try:
            self._waiting.remove(look)  # in one piece: looks are compared by identity
        except ValueError:
            return False
        return True
