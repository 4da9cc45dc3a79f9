"""The entry point of `adloco-peer` and `python -m adloco_p2p`."""

import contextlib
import ctypes
import logging
import os
import platform
import sys
from typing import NoReturn

from adloco_p2p import cli

_M_ARENA_MAX = -8
"""The constant of glibc's `mallopt` (malloc.h)."""


def main() -> NoReturn:
    """Run the verb and end the process at once. All that must last is on the disk by then, and unloading torch and all other
    modules takes seconds, of which a supervisor grants few after SIGTERM."""
    share_one_arena()
    code = cli.main()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # the reader, or the terminal, is gone
            stream.flush()
    os._exit(code)


def share_one_arena() -> None:
    """Let all later threads allocate from one pool of memory, where glibc would give several their own. Memory that one thread
    frees, such as the activations of the memory search, then serves the others, and a peer stays hundreds of megabytes smaller.
    Changes nothing with other C libraries."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


if __name__ == "__main__":
    main()
