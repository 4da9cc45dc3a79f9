"""Ctrl-C and SIGTERM: the first asks the node to end its round and save, the second ends the process at once."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable

EXIT_INTERRUPTED = 130
"""Exit code after a second signal."""


def install(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """Call `stop` on the first signal. Must run after everything that sets signal handlers of its own."""
    is_asked = False

    def handle() -> None:
        nonlocal is_asked
        if is_asked:
            sys.stderr.write("\nstopped at once; the last checkpoint stands\n")
            sys.stderr.flush()
            os._exit(EXIT_INTERRUPTED)
        is_asked = True
        stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, handle)
