"""Curves in a terminal: a line of small bars, and a chart of braille dots with axes. Pure."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style

Point = tuple[float, float]
_LEVELS, _ASCII_LEVELS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588", "_.:-=+*#"
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille character by row and column of its dots."""
_BRAILLE = 0x2800
LABEL = 7
"""Columns of the numbers beside a chart."""


class Sparkline:
    """A line of bars, newest on the right; a bar is the mean of the values that share its column."""

    def __init__(self, values: Sequence[float], width: int) -> None:
        self._bars = _levels(_means(values, max(1, width)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        marks = _ASCII_LEVELS if options.ascii_only else _LEVELS
        yield Segment("".join(marks[bar] for bar in self._bars), Style(color="green"))


def _means(values: Sequence[float], width: int) -> list[float]:
    """Return at most `width` values, each the mean of neighbours."""
    width = min(width, len(values))
    bounds = [len(values) * column // width for column in range(width + 1)]
    return [sum(values[left:right]) / (right - left) for left, right in itertools.pairwise(bounds)]


def _levels(values: Sequence[float]) -> list[int]:
    """Return levels from 0 for the least value to 7 for the greatest; all in the middle where the values are equal."""
    low, high = min(values), max(values)
    return [round(7 * (value - low) / (high - low)) if high > low else 3 for value in values]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A curve: its points by x, with a name and a colour."""

    name: str
    color: str
    points: Sequence[Point]


class Chart:
    """Curves in one chart of exactly `height` lines of `width` columns: their names, the dots, and the range of x. In ASCII,
    and where no colour tells several curves apart, each cell has one mark instead of eight dots."""

    def __init__(self, series: Sequence[Series], width: int, height: int) -> None:
        """Needs at least one series with at least one point, a `width` over LABEL and a `height` of at least 3."""
        self._series = [each for each in series if each.points]
        self._columns, self._rows = width - LABEL - 1, height - 2
        every = [point for each in self._series for point in each.points]
        self._x = min(x for x, _ in every), max(x for x, _ in every)
        self._y = min(y for _, y in every), max(y for _, y in every)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        has_marks = options.ascii_only or (console.no_color and len(self._series) > 1)
        cells = self._cells(*((1, 1) if has_marks else (2, 4)))
        yield from self._names(has_marks)
        for row in range(self._rows):
            yield Segment(f"{self._label(row):>{LABEL}} ", Style(dim=True))
            for column in range(self._columns):
                bits, series = cells.get((column, row), (0, 0))
                mark = "*+ox"[series % 4] if has_marks else chr(_BRAILLE + bits)
                yield Segment(mark if bits else " ", Style(color=self._series[series].color) if bits else None)
            yield Segment.line()
        first, last = (f"{x:g}" for x in self._x)
        gap = max(1, self._columns - len(first) - len(last))
        yield Segment(f"{' ' * (LABEL + 1)}{first}{' ' * gap}{last}"[: LABEL + 1 + self._columns], Style(dim=True))
        yield Segment.line()

    def _names(self, has_marks: bool) -> RenderResult:
        room = self._columns + LABEL + 1
        for index, each in enumerate(self._series):
            text = f"{'*+ox'[index % 4] if has_marks else chr(0x2501) * 2} {each.name}  "[:room]
            room -= len(text)
            yield Segment(text, Style(color=each.color))
        yield Segment.line()

    def _label(self, row: int) -> str:
        """Return the number beside the top, middle or bottom line; empty beside others."""
        low, high = self._y
        if row not in (0, self._rows // 2, self._rows - 1):
            return ""
        return f"{high - (high - low) * row / max(1, self._rows - 1):.3g}"

    def _cells(self, across: int, down: int) -> dict[tuple[int, int], tuple[int, int]]:
        """Return for each (column, row) its dots, and the series that was drawn there last. `across`, `down`: dots of a
        cell."""
        cells: dict[tuple[int, int], tuple[int, int]] = {}
        for index, each in enumerate(self._series):
            places = [self._place(point, across, down) for point in sorted(each.points)]
            for x, y in [places[0], *(dot for ends in itertools.pairwise(places) for dot in _between(*ends))]:
                cell = x // across, y // down
                bits, _ = cells.get(cell, (0, 0))
                cells[cell] = bits | _DOTS[y % down][x % across], index
        return cells

    def _place(self, point: Point, across: int, down: int) -> tuple[int, int]:
        """Return the place of a point's dot, counted from the upper left."""

        def part(value: float, ends: tuple[float, float]) -> float:
            return (value - ends[0]) / (ends[1] - ends[0]) if ends[1] > ends[0] else 0.5

        right, lowest = self._columns * across - 1, self._rows * down - 1
        return round(right * part(point[0], self._x)), round(lowest * (1.0 - part(point[1], self._y)))


def _between(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the dots of a straight line, both ends included."""
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    return [
        (round(start[0] + (end[0] - start[0]) * step / steps), round(start[1] + (end[1] - start[1]) * step / steps))
        for step in range(steps + 1)
    ]
