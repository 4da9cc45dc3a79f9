"""The entry point of `adloco-peer` and `python -m adloco_p2p`."""

import contextlib
import io
import logging
import os
import platform
import sys
from typing import NoReturn

_M_ARENA_MAX = -8
"""The constant of glibc's `mallopt` (malloc.h)."""
_STDERR = 2
"""The highest number of a standard stream."""
_INTERRUPTED = 130
"""The exit code of a process that Ctrl-C ended before training began."""


def main() -> NoReturn:
    """Run the verb and end the process at once. All that must last is on the disk by then, and unloading torch and all other
    modules takes seconds, of which a supervisor grants few after SIGTERM."""
    open_streams()
    share_one_arena()
    start_by_fork()
    try:
        from adloco_p2p import cli  # takes some time, in which Ctrl-C ends the process as well

        code = cli.main()
    except SystemExit as end:  # of the parser; the interpreter would fail once more at an output that cannot be written
        code = int(end.code or 0)
    except KeyboardInterrupt:
        code = _INTERRUPTED
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # the reader, or the terminal, is gone
            stream.flush()
    os._exit(code)


def open_streams() -> None:
    """Connect the standard streams that were closed before the start to the null device, where files of the run would otherwise
    get their numbers, and let the output escape characters that its encoding lacks, as errors do."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def start_by_fork() -> None:
    """Let `multiprocessing` fork, as it does on Linux before Python 3.14. The locks that hivemind makes at its import then need
    no process beside this one, which would report them as leaked when this one ends at once. No process is started in this
    way."""
    if sys.platform == "linux" and sys.version_info >= (3, 14):
        import multiprocessing

        multiprocessing.set_start_method("fork", force=True)  # also where hivemind is imported already


def share_one_arena() -> None:
    """Let all later threads allocate from one pool of memory, where glibc would give several their own. Memory that one thread
    frees, such as the activations of the memory search, then serves the others, and a peer stays hundreds of megabytes smaller.
    Changes nothing with other C libraries."""
    if platform.libc_ver()[0] == "glibc":
        import ctypes  # libffi may keep a file open, with the number of a standard stream if that is closed

        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


if __name__ == "__main__":
    main()
