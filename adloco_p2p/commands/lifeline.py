"""Ends a process with the one that started it, however that one ends.

The parent keeps the writing end of a pipe, and the child reads from it. Nothing is ever written: when the parent is gone, even
by SIGKILL, the kernel closes its end.
"""

import os
import signal
import threading
from collections.abc import Callable


def hold(fd: int, *, on_end: Callable[[], None]) -> None:
    """End this process, as SIGKILL does, once the other end of the pipe `fd` is closed; `on_end` is called first.

    The peer does not leave the swarm: the others end at the same time, and the same command finds them all as members again.
    """

    def wait() -> None:
        while os.read(fd, 1):
            pass
        try:
            on_end()
        finally:  # whatever fails: on a disk that is full or was mounted read-only, `on_end` cannot write
            os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()
