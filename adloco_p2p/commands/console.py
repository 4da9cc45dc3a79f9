"""The one place where a verb prints."""

import os
import sys

from adloco_p2p.runtime.node.event_sink import View


def say(text: str) -> None:
    """One piece of text to the user, at once."""
    print(text, flush=True)  # noqa: T201


def open_view(*, plain: bool) -> View:
    """The live view in a terminal, one line per round elsewhere."""
    if plain or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        from adloco_p2p.views.plain import PlainView

        return PlainView(sys.stdout)

    from adloco_p2p.views.terminal import TerminalView

    return TerminalView()
