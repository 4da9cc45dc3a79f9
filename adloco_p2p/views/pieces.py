"""Small parts of the screen: lines, bars, and text that fits a width."""

import textwrap
from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.rule import Rule
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from adloco_p2p.views import units

GAP = 2
"""Columns between the columns of a table, and between words."""


class Bar:
    """A bar of exactly `width` cells, in ASCII where the terminal has nothing better."""

    def __init__(self, fraction: float, width: int) -> None:
        self._filled = round(width * min(max(fraction, 0.0), 1.0))
        self._width = width

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        full, empty = ("#", ".") if options.ascii_only else ("\u2501", "\u2500")
        yield Segment(full * self._filled, Style(color="green"))
        yield Segment(empty * (self._width - self._filled), Style(dim=True))


def title(title: str) -> Rule:
    return Rule(Text(title, "bold"), align="left", style="dim")


def line(text: str, width: int, style: str = "") -> Text:
    return Text(units.shorten(text, width), style, no_wrap=True)


def fitting(pieces: Sequence[tuple[str, str]], width: int) -> Text:
    """Return the pieces that fit, in their order; a first piece that is too long is shortened."""
    text = Text(no_wrap=True)
    for content, style in (piece for piece in pieces if piece[0]):
        gap = GAP if len(text) else 0
        if len(text) + gap + len(content) > width:
            if not len(text):
                text.append(units.shorten(content, width), style)
            break
        text.append(" " * gap)
        text.append(content, style)
    return text


def wrapped(label: str, text: str, width: int, style: str) -> list[Text]:
    """Return the label, with the text beside it cut into lines at words."""
    room = max(width - len(label), 1)
    lines = textwrap.wrap(text, room, break_on_hyphens=False) or [""]
    return [
        Text.assemble((label if index == 0 else " " * len(label), "dim"), (line, style), no_wrap=True)
        for index, line in enumerate(lines)
    ]


def part(done: int, total: int, width: int, *, unit: str = "") -> RenderableType:
    numbers = f"{done}/{total}{unit}"
    bar = width - len(numbers) - 1
    if bar < 4:
        return Text(numbers)
    grid = Table.grid(padding=0)
    grid.add_column(width=bar + 1)
    grid.add_column(width=len(numbers), no_wrap=True)
    grid.add_row(Bar(done / total, bar), numbers)
    return grid


def bar_line(left: str, fraction: float, right: str, width: int) -> RenderableType:
    """Return a bar between two texts; only the texts where there is no room."""
    bar = width - len(left) - len(right) - 2 * GAP
    if bar < 8:
        return line(f"{left}  {right}", width)
    grid = Table.grid(padding=0)
    for column in (len(left) + GAP, bar + GAP, len(right)):
        grid.add_column(width=column, no_wrap=True)
    grid.add_row(Text(left, "bold"), Bar(fraction, bar), Text(right))
    return grid
