"""Looks at contributions of other hosts, which a device does in its spare time, one forward pass at a time, so that no effect
that ends a round waits for more than one pass.

Spare time is when no job waits for the device, as while an average is in progress. A look that has not found enough of it
within a round continues between inner steps, one pass between two of them. So does every look on a device whose inner steps do
not wait for averages.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from adloco_p2p.core.model.assessments import MAX_WAITING_LOOKS, AssessContribution, ContributionAssessed
from adloco_p2p.core.model.effects import RunInner
from adloco_p2p.core.model.events import Event
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.errors import DeviceError


@dataclass(slots=True, kw_only=True, eq=False)
class _Look:
    asked: AssessContribution
    begin: Callable[[], Iterator[float | None]]
    steps: Iterator[float | None] | None = None
    """The passes, once the look has begun; they give None, and at the end the score."""


class Looks:
    """The looks of one device. `put` is called from the event loop, everything else from the device's thread."""

    def __init__(self, post: Callable[[Event], None]) -> None:
        self._post = post
        self._waiting: deque[_Look] = deque()

    def put(self, asked: AssessContribution, begin: Callable[[], Iterator[float | None]]) -> None:
        """Queue a look. `begin` is called from the device's thread; see `Engine.assess`."""
        self._waiting.append(_Look(asked=asked, begin=begin))
        while len(self._waiting) > MAX_WAITING_LOOKS:
            self._end(self._waiting[0], None, "the device had no time for it")

    def go_on(self) -> bool:
        """Do one more pass; return False if there is none to do."""
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
        """Do one pass if the look must not wait for spare time any longer."""
        if self._waiting and (running.is_ahead or running.round > self._waiting[0].asked.round + 1):
            self.go_on()

    def forget(self, instance: InstanceId) -> None:
        """Drop the looks of an instance that is not here any more."""
        for look in list(self._waiting):  # a copy, because the event loop adds looks meanwhile
            if look.asked.instance == instance:
                self._take(look)

    def _end(self, look: _Look, score: float | None, reason: str = "") -> None:
        if self._take(look):
            self._post(ContributionAssessed(asked=look.asked, score=score, reason=reason))

    def _take(self, look: _Look) -> bool:
        """Remove a look; return False if the other thread has done so meanwhile."""
        try:
            self._waiting.remove(look)  # atomic, because looks are compared by identity
        except ValueError:
            return False
        return True
