"""The user's commands to a running peer, apart from the events so that the command line need not import those.

A command consists of an entry here, a case in `core/peer/lifecycle.py`, which performs it, and one in
`runtime/adapters/control_adapter.py`, which answers; the command line and the control API read `COMMANDS`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Command = Literal["pause", "resume", "drain", "leave", "checkpoint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandHelp:
    """Help text of one command."""

    words: str
    example: str = ""
    """Rest of the example after `adloco-peer COMMAND --workdir DIR`."""
    done_in: str = ""
    """State of the node once the command is done, for which a user may wait; empty for a command without a wait."""


COMMANDS: Mapping[Command, CommandHelp] = {
    "pause": CommandHelp(
        words="end the round and pause; others do not wait for this node, which keeps its state and follows the run",
        example="--wait",
        done_in="paused",
    ),
    "resume": CommandHelp(words="take part again after a pause"),
    "drain": CommandHelp(words="end the round, hand over, save and leave", example="--wait", done_in="stopped"),
    "leave": CommandHelp(words="leave at once, without the round under way", done_in="stopped"),
    "checkpoint": CommandHelp(words="save at the next round boundary"),
}


def known_command(name: str) -> Command | None:
    """Return the command of this name, or None if there is none."""
    return next((command for command in COMMANDS if command == name), None)
