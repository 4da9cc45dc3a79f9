"""The end of one attempt on one member: its tasks, its outcome, and on failure the first reason and the suspects."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.errors import AveragingError, RemoteProtocolError, SwarmError
from adloco_p2p.numerics.reduction import BadPart
from adloco_p2p.swarm.allreduce.allreduce_spec import AllReduceSpec
from adloco_p2p.swarm.allreduce.handshake import HelloReply

T = TypeVar("T")


class AttemptEnd:
    """Runs the tasks of one attempt and determines its outcome. Belongs to one event loop."""

    def __init__(
        self,
        spec: AllReduceSpec,
        *,
        timeout_seconds: float,
        grace_seconds: float,
        local_fault: Callable[[], Awaitable[str | None]],
        awaited: Callable[[], set[int]],
    ) -> None:
        """`grace_seconds` is the wait after a stream has ended, because a note may name the true cause. `awaited` returns the
        members that hold up the result here."""
        self._loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[None] = self._loop.create_future()
        """Done without an error once the whole result is here."""
        self.deadline = self._loop.time() + timeout_seconds
        self._spec = spec
        self._grace_seconds = grace_seconds
        self._local_fault, self._awaited = local_fault, awaited
        self._tasks: set[asyncio.Task[Any]] = set()
        self._lost: dict[int, str] = {}
        self.late: dict[PeerId, str] = {}
        """Members that failed after the end here; a retry that completes this attempt still needs their averaged parts."""
        self.on_late: Callable[[], None] = lambda: None

    def spawn(self, work: Coroutine[None, None, T], *, member: int | None) -> asyncio.Task[T]:
        """Run a task of the attempt. Its exception ends the attempt; the loss of a stream does so only after the grace."""

        def finished(task: asyncio.Task[T]) -> None:
            self._tasks.discard(task)
            error = None if task.cancelled() else task.exception()
            if isinstance(error, AveragingError):
                self.fail(str(error), tuple(PeerId(peer) for peer in error.suspects))
            elif isinstance(error, BadPart):
                peer = self._spec.members[error.member]
                self.fail(f"{peer} sent {error}", (peer,))
            elif isinstance(error, (SwarmError, RemoteProtocolError)) and member is not None:
                self.lose(member, str(error))
            elif error is not None and not self.outcome.done():
                self.outcome.set_exception(error)

        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(finished)
        return task

    async def wait(self) -> None:
        """Wait for the outcome. Raises AveragingError."""
        alarm = self._loop.call_at(self.deadline, self._meet_deadline)
        try:
            await self.outcome
        finally:
            alarm.cancel()

    def fail(self, reason: str, suspects: tuple[PeerId, ...] = (), because: PeerId | None = None) -> None:
        """End the attempt without a result; the first reason stands."""
        if not self.outcome.done():
            self.outcome.set_exception(AveragingError(reason, suspects=suspects, because=because))
        elif suspects:
            self.late.update(dict.fromkeys(suspects, reason))
            self.on_late()

    def lose(self, member: int, reason: str) -> None:
        """Handle the loss of a member. It may have failed because of another one, so its note gets a moment to arrive."""
        if self.outcome.done():
            self.fail(reason, (self._spec.members[member],))
        if self.outcome.done() or member in self._lost:
            return
        self._lost[member] = reason
        if len(self._lost) == 1:
            self.spawn(self._fail_for_lost(), member=None)

    async def _fail_for_lost(self) -> None:
        await asyncio.sleep(self._grace_seconds)
        if (trouble := await self._local_fault()) is not None:
            raise AveragingError(trouble)
        suspects = tuple(self._spec.members[member] for member in sorted(self._lost))
        raise AveragingError("; ".join(self._lost[member] for member in sorted(self._lost)), suspects=suspects)

    def on_remote_failure(self, reporter: PeerId, spec: bytes, reply: HelloReply) -> None:
        """Handle another member's report that the average has failed. A report about another spec ends the attempt, too: the
        members do not agree."""
        members = self._spec.members
        if reporter not in members or self.outcome.done():
            return
        if spec != self._spec.digest:
            self.fail(f"the members do not agree: {reporter} means another average", (reporter,))
            return  # its suspects are members of that other average
        named = tuple(peer for peer in reply.suspects if peer in members)
        if 2 * len([peer for peer in named if peer != reporter]) >= len(members) > 2:
            named = ()  # no single report may make half of the members suspects
        self.fail(f"{reporter} reports: {reply.reason}", named, because=reporter)

    def _meet_deadline(self) -> None:
        if self.outcome.done():
            return
        names = tuple(self._spec.members[member] for member in sorted(self._awaited()))
        self.fail(f"the deadline passed, waiting for {', '.join(names) or 'no member'}", names)

    def close(self) -> None:
        """Cancel all tasks. Idempotent."""
        self._awaited = set  # breaks a cycle: the callable refers to the state of the attempt, which refers to this object
        if not self.outcome.done():
            self.outcome.cancel()
        for task in tuple(self._tasks):
            task.cancel()
        if not self.outcome.cancelled() and (error := self.outcome.exception()) is not None:
            error.__traceback__ = None  # it refers to the frame of `Butterfly.run`, whose buffers are as large as the model

    async def closed(self) -> None:
        """Wait until no task of this attempt holds its buffers any more."""
        if self._tasks:
            await asyncio.wait(self._tasks)
