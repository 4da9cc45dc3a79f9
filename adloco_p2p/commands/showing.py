"""The view of a verb that shows a run."""

import os
import sys

from adloco_p2p.runtime.sink import View


def open_view(*, plain: bool) -> View:
    """The live view in a terminal, one line per round elsewhere."""
    if plain or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        from adloco_p2p.views.plain import PlainView

        return PlainView(sys.stdout)

    from adloco_p2p.views.terminal import TerminalView

    return TerminalView()
