"""The live view of one peer in a terminal. `render` is pure: status and size in, something rich can print out."""

import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Generic, TypeVar

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.rule import Rule
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from adloco_p2p.core.model.telemetry import Stamped
from adloco_p2p.views import derived, units
from adloco_p2p.views.derived import InstanceRow, PeerRow
from adloco_p2p.views.members import MemberRow
from adloco_p2p.views.metrics import Measure, measures
from adloco_p2p.views.records import Decision, Incident
from adloco_p2p.views.status import Status, apply, replay
from adloco_p2p.views.summary import traffic_words

REFRESHES_PER_SECOND = 3
"""A screen costs some milliseconds of processor time that training could use."""
MAX_DECISIONS = 60
"""Newest decisions that the view offers."""
MAX_PAST = 3
"""Newest troubles that the view offers, beside all conditions that hold now."""
MAX_ENDING_CHARS = 64
"""Of the words beside the progress of the run."""
LEAST_LINES = 2
"""Of a section: a title and something under it."""
PEERS_WIDTH = 76
"""Of the peers' table where it stands beside the decisions."""
MARGIN = 1
"""Columns left free on either side."""
GAP = 2
"""Columns between columns of a table."""
WIDE = 140
"""From this width on, peers and decisions stand side by side."""
TALL = 16
"""From this height on, the header has room for a line of metrics."""
MAX_METRIC_LINES = 4
"""Of a screen twice as tall."""
HEADLINE = ("adloco_tokens_per_second", "adloco_tokens_total")
"""Metrics that stand beside the traffic."""

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
_KIND_STYLES = {"merge": "bold", "fork": "bold", "switch": "", "probe": "dim"}


def render(status: Status, width: int, height: int, members: Sequence[MemberRow] = ()) -> RenderableType:
    """Return the whole view: at most `height` lines, none wider than `width`. Columns and rows that do not fit are left
    out, least important first. `members`: the peers of a swarm on this machine, which replace those that the plan names."""
    inner = max(width - 2 * MARGIN, 1)
    measured = measures(status)
    more = 0 if height < TALL else 1 if height < 2 * TALL else MAX_METRIC_LINES
    header = [*_header(status, measured, inner), *_so_far(status, measured, inner)[:more]][: max(height, 0)]
    lines = _Lines(max(height - len(header), 0))
    body = _wide(status, inner, lines, members) if inner >= WIDE else _narrow(status, inner, lines, members)
    page = Table.grid(padding=0)
    page.add_column(width=MARGIN)
    page.add_column(width=inner)
    page.add_row("", Group(*header, *body))
    return page


class TerminalView:
    """Keeps the view on the screen up to date. Uses the terminal's second screen, and leaves the last view on the first."""

    def __init__(self, console: Console | None = None, *, members: Callable[[], Sequence[MemberRow]] | None = None) -> None:
        """`console`: where to draw; none: the standard output. `members`: see `render`."""
        self._members = members if members is not None else tuple
        self._console = Console() if console is None else console
        self._status = Status()
        self._live: Live | None = None

    def start(self) -> None:
        assert self._live is None
        self._live = Live(
            console=self._console,
            screen=True,
            get_renderable=self._render,
            refresh_per_second=REFRESHES_PER_SECOND,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    def recall(self, events: Iterable[Stamped]) -> None:
        """Earlier events; forgets everything else."""
        self._status = replay(events)

    def update(self, stamped: Stamped) -> None:
        """Take note of an event; it is on the screen within one refresh. Never blocks on the terminal."""
        self._status = apply(self._status, stamped)

    def stop(self) -> None:
        """Give the terminal back. May be called twice."""
        if self._live is not None:
            self._live.stop()
            self._live = None
            self._console.print(self._render())

    def _render(self) -> RenderableType:
        width, height = self._console.size
        return render(self._status, width, height - 1, self._members())


# --- the page --------------------------------------------------------------------------------------------------------


class _Lines:
    """Lines that are still free, handed out to sections, the most important first."""

    def __init__(self, free: int) -> None:
        self.free = free

    def take(self, wanted: int, *, others_want: int) -> int:
        """Hand out up to `wanted` lines; while others want some too, they are left up to half of what is free. Under
        LEAST_LINES a section is of no use: then none."""
        taken = min(wanted, self.free - min(others_want, self.free // 2))
        taken = taken if taken >= LEAST_LINES else 0
        self.free -= taken
        return taken


def _narrow(status: Status, width: int, lines: _Lines, members: Sequence[MemberRow]) -> list[RenderableType]:
    """One section below the other."""
    rows = derived.instance_rows(status)
    peers, section = _peers(status, members)
    notes, decisions = _notes(status, width), _decisions(status, width)
    wanted = [len(rows) + 2, _with_title(notes), len(peers) + 2, _with_title(decisions)]
    taken = [lines.take(want, others_want=sum(wanted[index + 1 :])) for index, want in enumerate(wanted)]
    reasons = _reasons(rows, width)
    left = lines.take(_with_title(reasons), others_want=0)
    return [
        *_section(f"Instances ({len(rows)})", _INSTANCE_COLUMNS, rows, width, taken[0]),
        *section(width, taken[2]),
        *_list("Decisions", decisions, taken[3]),
        *_list("Reasons of the batches", reasons, left),
        *_list("Warnings", notes, taken[1]),
    ]


def _wide(status: Status, width: int, lines: _Lines, members: Sequence[MemberRow]) -> list[RenderableType]:
    """Peers beside decisions."""
    right = width - PEERS_WIDTH - 2 * GAP
    rows = derived.instance_rows(status)
    peers, section = _peers(status, members)
    notes, decisions = _notes(status, width), _decisions(status, right)
    wanted = [len(rows) + 2, _with_title(notes), max(len(peers) + 2, _with_title(decisions))]
    taken = [lines.take(want, others_want=sum(wanted[index + 1 :])) for index, want in enumerate(wanted)]
    reasons = _reasons(rows, width)
    left = lines.take(_with_title(reasons), others_want=0)
    pair = Table.grid(padding=0)
    for column in (PEERS_WIDTH, 2 * GAP, right):
        pair.add_column(width=column)
    pair.add_row(Group(*section(PEERS_WIDTH, taken[2])), "", Group(*_list("Decisions", decisions, taken[2])))
    return [
        *_section(f"Instances ({len(rows)})", _INSTANCE_COLUMNS, rows, width, taken[0]),
        *([pair] if taken[2] >= 3 else []),
        *_list("Reasons of the batches", reasons, left),
        *_list("Warnings", notes, taken[1]),
    ]


def _peers(status: Status, members: Sequence[MemberRow]) -> tuple[Sequence[object], Callable[[int, int], list[RenderableType]]]:
    """The rows of the peers, and what draws them in so many columns and lines."""
    if members:
        title = f"Peers of this swarm ({len(members)})"
        return members, lambda width, num_lines: _section(title, _MEMBER_COLUMNS, members, width, num_lines)
    peers = derived.peer_rows(status)
    return peers, lambda width, num_lines: _section(f"Peers ({len(peers)})", _PEER_COLUMNS, peers, width, num_lines)


def _header(status: Status, measured: Sequence[Measure], width: int) -> list[RenderableType]:
    if not status.run:
        return [_line(f"the node is starting: {status.starting or 'waiting for the run'}", width, "dim")]
    speed, tokens = (measure.text for measure in measured if measure.name in HEADLINE)
    who = [
        (units.one_line(status.name), "bold"),
        (f"run {units.short_digest(status.run)}", ""),
        (f"peer {units.short_peer(status.peer)}", ""),
        (status.mode, ""),
        (f"running {units.duration(status.elapsed_seconds)}", "dim"),
        (f"on {status.device}", "dim"),
        (f"{units.count(status.parameters)} parameters", "dim"),
    ]
    rates = [
        (speed, ""),
        *((words, "") for words in traffic_words(asdict(derived.bandwidth(status)))),
        (tokens, ""),
    ]
    arriving = derived.download_fraction(status)
    download = [] if arriving is None else [_bar_line("state", arriving, derived.download_words(status), width)]
    return [_pieces(who, width), _run_line(status, width), *download, _pieces(rates, width)]


def _so_far(status: Status, measured: Sequence[Measure], width: int) -> list[RenderableType]:
    """The other metrics of the node, as many as fit each line."""
    is_alone = bool(status.join_link) and [row.is_self for row in derived.peer_rows(status)] == [True]
    words = ["alone; links for others: adloco-peer invite"] if is_alone else []
    words += [measure.text for measure in measured if measure.text and measure.name not in HEADLINE] if status.run else []
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + GAP + len(word) <= width:
            lines[-1] += " " * GAP + word
        else:
            lines.append(word)
    return [_line(line, width, "dim") for line in lines]


def _run_line(status: Status, width: int) -> RenderableType:
    fraction = derived.run_fraction(status)
    return _bar_line(derived.position(status), fraction, f"{units.percent(fraction)}  {_ending(status)}", width)


def _bar_line(left: str, fraction: float, right: str, width: int) -> RenderableType:
    """A bar between two texts; without it where there is no room."""
    bar = width - len(left) - len(right) - 2 * GAP
    if bar < 8:
        return _line(f"{left}  {right}", width)
    grid = Table.grid(padding=0)
    for column in (len(left) + GAP, bar + GAP, len(right)):
        grid.add_column(width=column, no_wrap=True)
    grid.add_row(Text(left, "bold"), _Bar(fraction, bar), Text(right))
    return grid


def _ending(status: Status) -> str:
    if status.finish is not None:
        end = f"finished in {units.duration(status.finish.seconds)}"
        loss = status.finish.heldout_loss
        return end if loss is None else f"{end}, perplexity {units.perplexity(loss)}"
    if status.state == "paused":
        return "paused"
    if status.state == "starting":
        return f"starting: {status.starting}"
    if status.stopping is not None:
        why = units.one_line(status.stopping)
        return units.shorten(why if why.startswith(status.state) else f"{status.state}: {why}", MAX_ENDING_CHARS)
    if words := derived.joining(status):
        return words
    seconds = derived.eta_seconds(status)
    return "time left unknown" if seconds is None else f"{units.duration(seconds)} left"


# --- sections --------------------------------------------------------------------------------------------------------


Row = TypeVar("Row")


@dataclass(frozen=True, kw_only=True)
class _Column(Generic[Row]):
    header: str
    width: int
    cell: Callable[[Row, int], RenderableType]
    """Row and width in, cell out."""
    priority: int
    """Columns with larger numbers are dropped first."""
    is_right: bool = False
    is_elastic: bool = False
    """Takes what is left of the width."""


def _steps(row: InstanceRow, width: int) -> RenderableType:
    """A bar and `12/32`; only the numbers where there is no room."""
    return _part(row.step, row.num_steps, width) if row.num_steps else Text("none this round", "dim")


def _member_steps(row: MemberRow, width: int) -> RenderableType:
    return _part(row.step, row.num_steps, width) if row.num_steps else Text("")


def _part(done: int, total: int, width: int) -> RenderableType:
    numbers = f"{done}/{total}"
    bar = width - len(numbers) - 1
    if bar < 4:
        return Text(numbers)
    grid = Table.grid(padding=0)
    grid.add_column(width=bar + 1)
    grid.add_column(width=len(numbers), no_wrap=True)
    grid.add_row(_Bar(done / total, bar), numbers)
    return grid


_INSTANCE_COLUMNS: tuple[_Column[InstanceRow], ...] = (
    _Column(header="id", width=3, priority=0, is_right=True, cell=lambda row, _: Text(str(row.instance), "bold")),
    _Column(header="phase", width=10, priority=1, cell=lambda row, _: Text(row.phase, _PHASE_STYLES.get(row.phase, ""))),
    _Column(header="inner steps", width=15, priority=2, cell=_steps),
    _Column(header="loss", width=6, priority=3, is_right=True, cell=lambda row, _: Text(units.loss(row.loss))),
    _Column(
        header="held-out", width=8, priority=4, is_right=True, cell=lambda row, _: Text(units.loss(row.heldout_loss), "bold")
    ),
    _Column(header="asked -> batch", width=14, priority=5, is_right=True, cell=lambda row, _: Text(_batch(row))),
    _Column(header="mode", width=10, priority=6, cell=lambda row, _: Text(row.mode)),
    _Column(header="hosts", width=5, priority=7, is_right=True, cell=lambda row, _: Text(str(row.num_hosts))),
    _Column(
        header="tokens/s", width=8, priority=8, is_right=True, cell=lambda row, _: Text(units.count(row.tokens_per_second))
    ),
)

_PEER_COLUMNS: tuple[_Column[PeerRow], ...] = (
    _Column(header="peer", width=10, priority=0, cell=lambda row, _: Text(units.short_peer(units.one_line(row.peer)))),
    _Column(header="", width=4, priority=1, cell=lambda row, _: Text("this" if row.is_self else "", "dim")),
    _Column(header="state", width=9, priority=2, cell=lambda row, _: Text(row.state, _STATE_STYLES[row.state])),
    _Column(
        header="samples/s",
        width=9,
        priority=3,
        is_right=True,
        cell=lambda row, _: Text(units.count(row.samples_per_second)),
    ),
    _Column(header="share", width=5, priority=4, is_right=True, cell=lambda row, _: Text(units.percent(row.share))),
    _Column(header="last report", width=11, priority=6, is_right=True, cell=lambda row, _: Text(_optional(row.last_report))),
    _Column(
        header="up/s", width=8, priority=7, is_right=True, cell=lambda row, _: Text(units.size(row.upload_bytes_per_second))
    ),
    _Column(
        header="hosts instances",
        width=15,
        priority=5,
        is_elastic=True,
        cell=lambda row, width: Text(units.shorten(" ".join(str(instance) for instance in row.instances), width)),
    ),
)


_MEMBER_COLUMNS: tuple[_Column[MemberRow], ...] = (
    _Column(header="peer", width=8, priority=0, cell=lambda row, _: Text(row.name)),
    _Column(
        header="phase",
        width=20,
        priority=1,
        is_elastic=True,
        cell=lambda row, width: Text(units.shorten(row.phase, width), _PHASE_STYLES.get(row.phase, "")),
    ),
    _Column(header="inner steps", width=15, priority=2, cell=_member_steps),
    _Column(header="loss", width=6, priority=3, is_right=True, cell=lambda row, _: Text(units.loss(row.loss))),
    _Column(
        header="tokens/s", width=8, priority=4, is_right=True, cell=lambda row, _: Text(units.count(row.tokens_per_second))
    ),
    _Column(header="up/s", width=8, priority=5, is_right=True, cell=lambda row, _: Text(units.size(row.up_bytes_per_second))),
    _Column(
        header="down/s", width=8, priority=6, is_right=True, cell=lambda row, _: Text(units.size(row.down_bytes_per_second))
    ),
    _Column(header="id", width=10, priority=7, cell=lambda row, _: Text(units.short_peer(row.peer), "dim")),
)


def _section(
    title: str, columns: Sequence[_Column[Row]], rows: Sequence[Row], width: int, num_lines: int
) -> list[RenderableType]:
    """A title, a table, and how many rows did not fit; exactly `num_lines` lines where there are rows enough."""
    if num_lines < 3:
        return []
    shown, hidden = _cut(rows, num_lines - 2)
    more = [_line(f"and {hidden} more", width, "dim")] if hidden else []
    return [_title(title), _table(columns, shown, width), *more]


def _cut(rows: Sequence[Row], num_lines: int) -> tuple[Sequence[Row], int]:
    """The rows that fit, and how many do not; where some do not, one line (but not the only one) is kept to show their
    number."""
    if len(rows) <= num_lines or num_lines == 1:
        return rows[:num_lines], 0
    return rows[: num_lines - 1], len(rows) - num_lines + 1


def _table(columns: Sequence[_Column[Row]], rows: Sequence[Row], width: int) -> Table:
    """Keep the columns that fit, the most important first, in the order in which they stand."""
    kept: list[_Column[Row]] = []
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


def _list(title: str, items: Sequence[Sequence[Text]], num_lines: int) -> list[RenderableType]:
    """A title and the items that fit as a whole; a first one that does not fit is shortened."""
    if num_lines < 2 or not items:
        return []
    shown: list[Text] = []
    for item in items:
        if shown and len(shown) + len(item) > num_lines - 1:
            break
        shown.extend(item)
    if len(shown) > num_lines - 1:
        cut = shown[num_lines - 2].plain
        shown = [*shown[: num_lines - 2], Text(units.shorten(f"{cut} and more", len(cut)), no_wrap=True)]
    return [_title(title), *shown]


def _with_title(items: Sequence[Sequence[Text]]) -> int:
    """Lines that a list would like to have."""
    return 1 + sum(len(item) for item in items) if items else 0


def _decisions(status: Status, width: int) -> list[list[Text]]:
    """The newest first: what was decided, before which round, and why."""
    return [_decision(decision, width) for decision in status.decisions[: -MAX_DECISIONS - 1 : -1]]


def _reasons(rows: Sequence[InstanceRow], width: int) -> list[list[Text]]:
    """Why each instance has the batch that it has; shown where lines are left."""
    return [_wrapped(f"instance {row.instance}  ", units.one_line(row.reason), width, "dim") for row in rows if row.reason]


def _decision(decision: Decision, width: int) -> list[Text]:
    reason = units.short_peers(decision.reason)
    if decision.weights:
        reason = f"weights {units.weights(decision.weights)}, {reason}"
    label = f"round {decision.round:<4} {decision.kind:<6}  "
    return _wrapped(label, f"{derived.subject(decision)}  {reason}", width, _KIND_STYLES[decision.kind])


def _notes(status: Status, width: int) -> list[list[Text]]:
    """Conditions that hold now, then what went wrong lately, the newest first."""
    now = [_wrapped("now         ", units.short_peers(message), width, "bold yellow") for message in status.warnings.values()]
    return [*now, *(_past(incident, width) for incident in status.incidents[: -MAX_PAST - 1 : -1])]


def _past(incident: Incident, width: int) -> list[Text]:
    where = "" if incident.instance is None else f"instance {incident.instance}, "
    return _wrapped(f"round {incident.round:<4}  ", where + units.short_peers(incident.message), width, "dim")


def _wrapped(label: str, text: str, width: int, style: str) -> list[Text]:
    """The label, and the text beside it, cut into lines at words."""
    room = max(width - len(label), 1)
    lines = textwrap.wrap(text, room) or [""]
    return [
        Text.assemble((label if index == 0 else " " * len(label), "dim"), (line, style), no_wrap=True)
        for index, line in enumerate(lines)
    ]


# --- pieces ----------------------------------------------------------------------------------------------------------


class _Bar:
    """A bar of exactly `width` cells; ASCII where the terminal knows no better."""

    def __init__(self, fraction: float, width: int) -> None:
        self._filled = round(width * min(max(fraction, 0.0), 1.0))
        self._width = width

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        full, empty = ("#", ".") if options.ascii_only else ("\u2501", "\u2500")
        yield Segment(full * self._filled, Style(color="green"))
        yield Segment(empty * (self._width - self._filled), Style(dim=True))


def _batch(row: InstanceRow) -> str:
    if row.requested_batch is None or row.effective_batch is None:
        return units.MISSING
    return f"{row.requested_batch} -> {row.effective_batch}"


def _optional(number: int | None) -> str:
    return units.MISSING if number is None else str(number)


def _title(title: str) -> Rule:
    return Rule(Text(title, "bold"), align="left", style="dim")


def _line(text: str, width: int, style: str = "") -> Text:
    return Text(units.shorten(text, width), style, no_wrap=True)


def _pieces(pieces: Sequence[tuple[str, str]], width: int) -> Text:
    """The pieces that fit, in their order; a first one that is too long is shortened."""
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
