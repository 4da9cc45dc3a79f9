"""Background work beside the loop of a node."""

import contextlib
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

from adloco_p2p.background import BackgroundTasks
from adloco_p2p.runtime.node.loop import Node


@contextlib.contextmanager
def in_background(node: Node, works: Sequence[Coroutine[Any, Any, None]]) -> Iterator[None]:
    """Run coroutines beside the loop, within the block. An error of one of them ends the node."""
    tasks = BackgroundTasks(node.post)
    for work in works:
        tasks.begin(work)
    try:
        yield
    finally:
        tasks.cancel()
