"""The user's commands to a running peer. Apart from the events, so that the command line need not import them."""

from typing import Literal, get_args

Command = Literal["pause", "resume", "drain", "leave", "checkpoint"]
"""pause: end the round, leave the roster, keep following. resume: take part again. drain: end the round, save, leave, stop.
leave: the same at once, without the round under way. checkpoint: save at the next boundary."""
COMMANDS: tuple[Command, ...] = get_args(Command)
