"""Tables of the screen: their columns, and which of them fit. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from adloco_p2p.core.model.telemetry import PeerCard
from adloco_p2p.views import units
from adloco_p2p.views.members import MemberRow
from adloco_p2p.views.pieces import GAP, line, part, title
from adloco_p2p.views.table_rows import InstanceRow, PeerRow

_PHASE_STYLES = {
    "training": "green",
    "trained": "dim",
    "averaging": "cyan",
    "retrying": "yellow",
    "repairing": "yellow",
    "committing": "cyan",
    "applying": "cyan",
    "measuring": "cyan",
    "evaluating": "cyan",
    "probing": "cyan",
    "fetching": "yellow",
    "following": "yellow",
    "done": "dim",
    "waiting": "dim",
    "planned": "dim",
    "by others": "dim",
}
_STATE_STYLES = {"alive": "", "suspected": "yellow", "left": "dim", "joining": "dim", "paused": "yellow"}
Row = TypeVar("Row")


@dataclass(frozen=True, kw_only=True)
class Column(Generic[Row]):
    header: str
    width: int
    cell: Callable[[Row, int], RenderableType]
    """Makes a cell from row and width."""
    priority: int
    """Columns with larger numbers are dropped first."""
    is_right: bool = False
    is_elastic: bool = False
    """Whether the column takes the rest of the width."""


def _steps(row: InstanceRow, width: int) -> RenderableType:
    """Return a bar and `12/32`, or during averaging its seconds of those of the last time; only the numbers where there is no
    room."""
    if row.averaging is not None:
        seconds, usual = round(row.averaging[0]), max(round(row.averaging[1]), 1)
        if seconds > usual:
            return Text(f"{seconds} s, usual {usual}", no_wrap=True)
        return part(seconds, usual, width, unit=" s")
    return part(row.step, row.num_steps, width) if row.num_steps else Text("none this round", "dim")


def _member_steps(row: MemberRow, width: int) -> RenderableType:
    return part(row.step, row.num_steps, width) if row.num_steps else Text("")


INSTANCE_COLUMNS: tuple[Column[InstanceRow], ...] = (
    Column(header="id", width=3, priority=0, is_right=True, cell=lambda row, _: Text(str(row.instance), "bold")),
    Column(header="phase", width=10, priority=1, cell=lambda row, _: Text(row.phase, _PHASE_STYLES.get(row.phase, ""))),
    Column(header="this round", width=15, priority=2, cell=_steps),
    Column(header="loss", width=6, priority=3, is_right=True, cell=lambda row, _: Text(units.loss(row.loss))),
    Column(
        header="held-out", width=8, priority=4, is_right=True, cell=lambda row, _: Text(units.loss(row.heldout_loss), "bold")
    ),
    Column(header="batch", width=11, priority=5, is_right=True, cell=lambda row, _: Text(_batch(row))),
    Column(header="mode", width=10, priority=6, cell=lambda row, _: Text(row.mode)),
    Column(header="hosts", width=5, priority=7, is_right=True, cell=lambda row, _: Text(str(row.num_hosts))),
    Column(header="tokens/s", width=8, priority=8, is_right=True, cell=lambda row, _: Text(units.count(row.tokens_per_second))),
)

PEER_COLUMNS: tuple[Column[PeerRow], ...] = (
    Column(header="peer", width=10, priority=0, cell=lambda row, _: Text(units.short_peer(units.one_line(row.peer)))),
    Column(header="", width=4, priority=1, cell=lambda row, _: Text("this" if row.is_self else "", "dim")),
    Column(header="name", width=12, priority=7, cell=lambda row, width: Text(_of_card(row, width, lambda card: card.nickname))),
    Column(header="state", width=9, priority=2, cell=lambda row, _: Text(row.state, _STATE_STYLES[row.state])),
    Column(
        header="samples/s",
        width=9,
        priority=3,
        is_right=True,
        cell=lambda row, _: Text(units.count(row.samples_per_second)),
    ),
    Column(header="share", width=5, priority=4, is_right=True, cell=lambda row, _: Text(units.percent(row.share))),
    Column(header="last report", width=11, priority=11, is_right=True, cell=lambda row, _: Text(_optional(row.last_report))),
    Column(
        header="uplink/s",
        width=8,
        priority=5,
        is_right=True,
        cell=lambda row, _: Text(units.link_rate(row.upload_bytes_per_second)),
    ),
    Column(header="rtt", width=6, priority=8, is_right=True, cell=lambda row, _: Text(_round_trip(row))),
    Column(header="reach", width=6, priority=9, cell=lambda row, width: Text(_of_card(row, width, lambda card: card.reach))),
    Column(
        header="version", width=8, priority=10, cell=lambda row, width: Text(_of_card(row, width, lambda card: card.version))
    ),
    Column(
        header="trains",
        width=7,
        priority=6,
        is_elastic=True,
        cell=lambda row, width: Text(units.shorten(" ".join(str(instance) for instance in row.instances), width)),
    ),
)


MEMBER_COLUMNS: tuple[Column[MemberRow], ...] = (
    Column(header="peer", width=8, priority=0, cell=lambda row, _: Text(row.name)),
    Column(
        header="phase",
        width=20,
        priority=1,
        is_elastic=True,
        cell=lambda row, width: Text(units.shorten(row.phase, width), _PHASE_STYLES.get(row.phase, "")),
    ),
    Column(header="this round", width=15, priority=2, cell=_member_steps),
    Column(header="loss", width=6, priority=3, is_right=True, cell=lambda row, _: Text(units.loss(row.loss))),
    Column(header="tokens/s", width=8, priority=4, is_right=True, cell=lambda row, _: Text(units.count(row.tokens_per_second))),
    Column(header="up/s", width=8, priority=6, is_right=True, cell=lambda row, _: Text(units.size(row.up_bytes_per_second))),
    Column(
        header="down/s", width=8, priority=7, is_right=True, cell=lambda row, _: Text(units.size(row.down_bytes_per_second))
    ),
    Column(header="id", width=10, priority=5, cell=lambda row, _: Text(units.short_peer(row.peer), "dim")),
)


def table_section(
    heading: str, columns: Sequence[Column[Row]], rows: Sequence[Row], width: int, num_lines: int
) -> list[RenderableType]:
    """Return the heading, a table, and how many rows did not fit: exactly `num_lines` lines where there are enough rows."""
    if num_lines < 3:
        return []
    shown, hidden = cut(rows, num_lines - 2)
    more = [line(f"and {hidden} more", width, "dim")] if hidden else []
    return [title(heading), table(columns, shown, width), *more]


def cut(rows: Sequence[Row], num_lines: int) -> tuple[Sequence[Row], int]:
    """Return the rows that fit, and how many do not; where some do not, one line (but not the only one) is kept to show their
    number."""
    if len(rows) <= num_lines or num_lines == 1:
        return rows[:num_lines], 0
    return rows[: num_lines - 1], len(rows) - num_lines + 1


def table(columns: Sequence[Column[Row]], rows: Sequence[Row], width: int) -> Table:
    """Return a table of the columns that fit, chosen by importance, in their usual order."""
    kept: list[Column[Row]] = []
    used = -GAP
    for column in sorted(columns, key=lambda column: column.priority):
        if used + GAP + column.width > width:
            break
        kept.append(column)
        used += GAP + column.width
    table = Table.grid(padding=(0, GAP, 0, 0))
    shown = [column for column in columns if column in kept]
    widths = [column.width + (width - used if column.is_elastic else 0) for column in shown]
    for column, column_width in zip(shown, widths, strict=True):
        table.add_column(width=column_width, justify="right" if column.is_right else "left", no_wrap=True)
    table.add_row(*(Text(column.header, "dim") for column in shown))
    for row in rows:
        table.add_row(*(column.cell(row, column_width) for column, column_width in zip(shown, widths, strict=True)))
    return table


def _batch(row: InstanceRow) -> str:
    if row.requested_batch is None or row.effective_batch is None:
        return units.MISSING
    if row.requested_batch <= row.effective_batch:
        return str(row.effective_batch)
    return f"{row.effective_batch} of {row.requested_batch}"


def _of_card(row: PeerRow, width: int, field: Callable[[PeerCard], str]) -> str:
    return units.one_line(field(row.card))[:width] if row.card is not None else ""


def _round_trip(row: PeerRow) -> str:
    return "" if row.card is None or row.card.round_trip_seconds is None else units.milliseconds(row.card.round_trip_seconds)


def _optional(number: int | None) -> str:
    return units.MISSING if number is None else str(number)
