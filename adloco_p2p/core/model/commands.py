"""The user's commands to a running peer. Apart from the events, so that the command line need not import them.

A command is an entry here, a case in `core/peer/lifecycle.py`, which does it, and one in `runtime/adapters/control_adapter.py`,
which answers; the command line and the control API take it from `COMMANDS`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Command = Literal["pause", "resume", "drain", "leave", "checkpoint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandHelp:
    """One command on the command line."""

    words: str
    example: str = ""
    """What follows `adloco-peer COMMAND --workdir DIR` in its example."""
    done_in: str = ""
    """The state of the node once it is done, for which a user may wait; empty: at once."""


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
    """The command of this name, if there is one."""
    return next((command for command in COMMANDS if command == name), None)
