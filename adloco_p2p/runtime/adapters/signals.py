"""The handling of Ctrl-C, SIGTERM, and SIGHUP from a closed terminal, which counts as SIGTERM. All end the process in order. A
second signal ends it at once, unless it is SIGHUP, which both a shell and the kernel may send for one closed terminal.

Ctrl-C comes from a person, who sees how long the round still takes, so the round is ended, saved and handed over. SIGTERM comes
from a supervisor, which kills the process after a while, so the round may end within a grace, and then the node leaves at once.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable

from adloco_p2p.runtime.node.loop import Node
from adloco_p2p.views.keyboard import release

EXIT_INTERRUPTED = 130
"""The exit code after a second signal."""
AT_ONCE = "stopped at once; the last checkpoint stands: the same command goes on"
CTRL_C = "on request (Ctrl-C: at once)"
"""The reason shown after Ctrl-C or the key `q`, with the way out for a user who cannot wait for the end of the round."""


def install(loop: asyncio.AbstractEventLoop, stop: Callable[[], None], *, terminate: Callable[[], None] | None = None) -> None:
    """Call `stop` on Ctrl-C, and `terminate`, by default `stop`, on SIGTERM. Must run after everything that sets signal
    handlers of its own."""
    is_asked = False

    def handle(answer: Callable[[], None]) -> None:
        nonlocal is_asked
        if is_asked:
            release()
            sys.stderr.write(f"\n{AT_ONCE}\n")
            sys.stderr.flush()
            os._exit(EXIT_INTERRUPTED)
        is_asked = True
        answer()

    def hang_up() -> None:
        if not is_asked:
            handle(terminate or stop)

    loop.add_signal_handler(signal.SIGINT, handle, stop)
    loop.add_signal_handler(signal.SIGTERM, handle, terminate or stop)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it for processes that outlive their terminal
        loop.add_signal_handler(signal.SIGHUP, hang_up)


def install_for(node: Node, loop: asyncio.AbstractEventLoop, *, grace_seconds: float) -> None:
    """Let signals end the node: Ctrl-C drains it; SIGTERM drains it, and after `grace_seconds` lets it leave."""

    def terminate() -> None:
        if grace_seconds == 0:
            node.command("leave", reason="SIGTERM")
            return
        node.command("drain", reason=f"SIGTERM, {grace_seconds:g} s of grace")
        loop.call_later(grace_seconds, lambda: node.command("leave", reason="the grace after SIGTERM is over"))

    install(loop, lambda: node.command("drain", reason=CTRL_C), terminate=terminate)
