"""An event loop whose clock jumps to the next timer, so that minutes of waiting cost nothing and repeat exactly."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class _Skipping(selectors.DefaultSelector):
    """Does not wait until the next timer, but says how long that would have been."""

    waited_seconds = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.waited_seconds += timeout or 0.0
        return super().select(0)


class VirtualTime(asyncio.SelectorEventLoop):
    """The loop. What is given to a thread runs at once and takes no time."""

    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.waited_seconds

    def run_in_executor(  # type: ignore[override]
        self,
        executor: Any,  # noqa: ARG002
        func: Callable[..., Any],
        *args: Any,
    ) -> asyncio.Future[Any]:
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # as every executor does
            future.set_exception(error)
        return future


def play(scenario: Coroutine[Any, Any, Result]) -> Result:
    """Run the scenario in virtual time, and return what it returns."""
    with asyncio.Runner(loop_factory=VirtualTime) as runner:
        return runner.run(scenario)
