"""`adloco-peer` and `python -m adloco_p2p`."""

import contextlib
import ctypes
import logging
import os
import platform
import sys
from typing import NoReturn

from adloco_p2p import cli

_M_ARENA_MAX = -8
"""Of glibc's `mallopt` (malloc.h)."""


def main() -> NoReturn:
    """Run the verb and end the process at once: all that must last is on the disk by then, and taking torch and all the other
    modules apart takes seconds, of which a supervisor that sent SIGTERM grants few."""
    share_one_arena()
    code = cli.main()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # the reader, or the terminal, is gone
            stream.flush()
    os._exit(code)


def share_one_arena() -> None:
    """Let all threads to come allocate from one pool of memory, where glibc would give several their own: what one thread has
    freed, such as the activations of the memory search, then serves the others, and a peer stays hundreds of megabytes smaller.
    Changes nothing with other C libraries."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


if __name__ == "__main__":
    main()
