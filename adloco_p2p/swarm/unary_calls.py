"""What has to be mended in hivemind's persistent connection to its daemon: every unary call goes over it, the DHT's and ours.

One task reads that connection. It looks up the future of the call that is answered and sets its result, without looking
whether the caller has given up in the same turn of the event loop (a timeout; after a suspend, many at once). Then the task
ends with InvalidStateError: the peer hears nobody any more, its own calls get no answers, and nothing says so. Its table of
running handlers forgets nothing that was cancelled, with the request's bytes. Both tables are replaced by ones that behave
(`bindings/control.py` of hivemind 1.1.12, `_read_from_persistent_conn` and `_handle_persistent_request`).
"""

import asyncio
from typing import Any
from uuid import UUID

from hivemind.p2p.p2p_daemon_bindings.control import ControlClient


class AwaitedCalls(dict[UUID, "asyncio.Future[Any]"]):
    """A call is in it as long as somebody waits for the answer."""

    def __contains__(self, call_id: object) -> bool:
        future = self.get(call_id)  # type: ignore[call-overload]
        return future is not None and not future.done()


class RunningHandlers(dict[UUID, "asyncio.Task[None]"]):
    """A handler is in it as long as it runs, however it ends."""

    def __setitem__(self, call_id: UUID, task: "asyncio.Task[None]") -> None:
        super().__setitem__(call_id, task)
        task.add_done_callback(lambda _: self.pop(call_id, None))


def mend(control: ControlClient) -> None:
    """To be called once, when the connection has been opened and before anything is asked of it."""
    control._pending_calls = AwaitedCalls(control._pending_calls)
    control._handler_tasks = RunningHandlers()
