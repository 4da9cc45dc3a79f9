"""Text that fits a terminal: lines end at spaces only, and what people copy stays on one line."""

import re
import shutil
import textwrap
from typing import TextIO

_COPIED = re.compile(r"`[^`\n]+`|(?:^ *|(?<=: ))(?:'[^'\n]*/|\S*/)?adloco-peer'? [a-z].*", re.MULTILINE)
"""Commands: those in quotes, and those that a line begins with or ends in."""
_HELD_SPACE = "\0"
"""Stands for a space at which no line ends. Printed text has none of its own."""
DEEPER = 2
"""By how many columns the rest of a long line is indented below its beginning."""


def fitted(text: str, stream: TextIO) -> str:
    """Return the text with lines that fit the stream, if it is a terminal. Files and pipes get it unchanged."""
    return wrapped(text, shutil.get_terminal_size().columns) if stream.isatty() else text


def wrapped(text: str, width: int, *, hanging: int | None = None) -> str:
    """Return the text with lines of at most `width` columns. A longer word, such as a path or a link, overflows whole.

    `hanging`: the columns that are taken before the text, and stay free below; None: each line has its own indentation.
    """
    held = _COPIED.sub(lambda found: found[0].replace(" ", _HELD_SPACE), text)
    below = "\n" + " " * (hanging or 0)
    return below.join(_wrapped_line(line, width, hanging) for line in held.split("\n")).replace(_HELD_SPACE, " ")


def _wrapped_line(line: str, width: int, hanging: int | None) -> str:
    first = hanging or 0
    if first + len(line) <= width:
        return line
    own = len(line) - len(line.lstrip(" "))
    lines = textwrap.wrap(
        line,
        max(width, 1),
        initial_indent=" " * first,
        subsequent_indent=" " * (first + (own + DEEPER if own or hanging is None else 0)),
        expand_tabs=False,
        replace_whitespace=False,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines)[first:]
