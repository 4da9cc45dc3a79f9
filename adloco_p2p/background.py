"""Tasks of an event loop that their starter does not await."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class BackgroundTasks:
    """The background tasks of one owner, who waits for or cancels them. For one event loop."""

    def __init__(self, on_error: Callable[[BaseException], None] | None = None) -> None:
        """`on_error` takes the error of a task; without it the loop's exception handler does."""
        self._on_error = on_error
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._on_error is not None and not task.cancelled() and (error := task.exception()) is not None:
            self._on_error(error)

    async def settled(self, *, timeout_seconds: float | None = None) -> None:
        """Wait until all tasks have ended, also those that begin meanwhile; with a timeout, until the present ones have ended
        or the time has passed."""
        while self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_seconds)
            if timeout_seconds is not None:
                return

    def cancel(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
