"""Services beside the loop of a node."""

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from typing import Any

from adloco_p2p.runtime.node.loop import Node


@contextlib.contextmanager
def in_background(node: Node, works: Sequence[Coroutine[Any, Any, None]]):  # type: ignore[no-untyped-def]
    """Services beside the loop: what ends one of them ends the node, except troubles of the network, which pass."""

    def reap(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            node.post(error)

    tasks = [asyncio.get_running_loop().create_task(work) for work in works]
    for task in tasks:
        task.add_done_callback(reap)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
