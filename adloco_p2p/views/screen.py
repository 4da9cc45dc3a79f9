"""The screen of the live view. `render` is pure: it turns status and size into something that rich can print."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from adloco_p2p.views import looks, own_part, progress, run_losses, table_rows, traffic, units
from adloco_p2p.views.chart import LABEL, Chart, Series, Sparkline
from adloco_p2p.views.members import MemberRow
from adloco_p2p.views.metrics import Measure, measures
from adloco_p2p.views.node_status import traffic_words
from adloco_p2p.views.pages import KEYS, help_page, log_page, reasons_page
from adloco_p2p.views.pieces import GAP, bar_line, fitting, line, title, wrapped
from adloco_p2p.views.records import Decision, Incident
from adloco_p2p.views.status import Status
from adloco_p2p.views.tables import INSTANCE_COLUMNS, MEMBER_COLUMNS, PEER_COLUMNS, table_section

MAX_DECISIONS = 60
"""The newest decisions that the view offers."""
MAX_PAST = 3
RECENT_ROUNDS = 5
"""Past troubles are shown of so many last rounds, MAX_PAST of them at most, beside all present conditions."""
MAX_ENDING_CHARS = 64
"""The longest words beside the progress of the run."""
LEAST_LINES = 2
"""The lines that a section needs: a title and something under it."""
PEERS_WIDTH = (78, 108)
"""The least and the greatest width of the peers' table beside the decisions; in between, a little more than half."""
MARGIN = 1
"""Columns left free on either side."""
WIDE = 140
"""From this width on, peers and decisions stand side by side."""
TALL = 16
"""From this height on, the header has room for a line of metrics, the screen for the curve of the loss and the keys."""
MAX_METRIC_LINES = 4
"""The most lines of metrics, on a screen twice as tall."""
CHART_LINES = (9, 26)
"""The least and the greatest height of the chart of the losses, which takes what nothing else needs."""
MAX_POINTS = 1000
"""The most points of a curve in the chart, several for each of its dots; every dot takes time at every refresh."""
ALONE = {True: "alone; links for others: adloco-peer invite", False: "alone; a signer of the run can invite others"}
"""Words for a peer that is alone, by whether it may invite."""
HEADLINE = ("adloco_tokens_per_second", "adloco_tokens_total")
"""Metrics that stand beside the traffic."""

_KIND_STYLES = {"merge": "bold", "fork": "bold", "switch": "", "probe": "dim"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """The content of the screen beside the status of the node."""

    members: Sequence[MemberRow] = ()
    """The peers of a swarm on this machine, in place of those that the plan names."""
    page: str = ""
    """The page on the screen: help, log, reasons; empty for the run."""
    log: Sequence[str] = ()
    load: str = ""
    """The load of the machine, in words."""
    notice: str = ""
    """The answer to a key."""
    has_keys: bool = False


NOTHING = Around()


def render(status: Status, width: int, height: int, around: Around = NOTHING) -> RenderableType:
    """Return the whole view: at most `height` lines, none wider than `width`. Columns and rows that do not fit are left out,
    least important first."""
    inner = max(width - 2 * MARGIN, 1)
    measured = measures(status)
    more = 0 if height < TALL else 1 if height < 2 * TALL else MAX_METRIC_LINES
    header = [*_header(status, measured, around.members, inner), *_so_far(status, measured, around.load, inner)[:more]][
        : max(height, 0)
    ]
    footer = [line(around.notice or KEYS, inner, "yellow" if around.notice else "dim")]
    footer = footer if height >= TALL and (around.has_keys or around.notice) else []
    free = max(height - len(header) - len(footer), 0)
    page = Table.grid(padding=0)
    page.add_column(width=MARGIN)
    page.add_column(width=inner)
    page.add_row("", Group(*header, *_page(status, inner, free, around), *footer))
    return page


def _page(status: Status, width: int, free: int, around: Around) -> list[RenderableType]:
    match around.page:
        case "help":
            return help_page(width, free)
        case "log":
            return log_page(around.log, width, free)
        case "reasons":
            return reasons_page(status, width, free)
    trained = run_losses.training_losses(status)
    kept = 1 if len(trained) > 1 and free >= TALL - LEAST_LINES else 0  # kept for the curve, however much else there is
    lines = _Lines(free - kept)
    body = _sections(status, width, lines, around.members)
    return [*body, *_losses(status, width, lines.free + kept)] if kept else body


# --- the page --------------------------------------------------------------------------------------------------------


class _Lines:
    """The free lines of the screen, handed out to sections, the most important first."""

    def __init__(self, free: int) -> None:
        self.free = free

    def take(self, wanted: int, *, others_want: int) -> int:
        """Hand out up to `wanted` lines; while other sections want some too, these keep up to half of the free lines. Hands out
        none rather than fewer than LEAST_LINES."""
        taken = min(wanted, self.free - min(others_want, self.free // 2))
        taken = taken if taken >= LEAST_LINES else 0
        self.free -= taken
        return taken

    def share(self, wanted: Mapping[str, int], *, last: str) -> dict[str, int]:
        """Hand out lines to sections by name, in their order, except that `last` comes last."""
        order = sorted(wanted, key=lambda name: name == last)
        behind = [sum(wanted[name] for name in order[place + 1 :]) for place in range(len(order))]
        return {name: self.take(wanted[name], others_want=want) for name, want in zip(order, behind, strict=True)}


def _sections(status: Status, width: int, lines: _Lines, members: Sequence[MemberRow]) -> list[RenderableType]:
    """Return the sections one below the other; on a wide screen the decisions stand beside the peers."""
    least, most = PEERS_WIDTH
    left, right = width, width
    if is_wide := width >= WIDE:
        left = max(least, min(most, width * 11 // 20))
        right = width - left - 2 * GAP
    rows, (peers, section) = table_rows.instance_rows(status), _peers(status, members)
    notes, decisions = _notes(status, width), _decisions(status, right)
    heights = {"peers": len(peers) + 2, "decisions": _with_title(decisions)}
    wanted = {"instances": len(rows) + 2}
    if members and not is_wide:
        wanted["peers"] = heights["peers"]  # the user's own peers stay on the screen, however many warnings there are
    wanted["notes"] = _with_title(notes)
    wanted |= {"pair": max(heights.values())} if is_wide else heights
    least_urgent = "" if status.warnings else "notes"  # past troubles, where no condition holds now
    taken = lines.share(wanted, last=least_urgent)
    if not is_wide:
        middle = [*section(width, taken["peers"]), *_list("Decisions", decisions, taken["decisions"])]
    elif taken["pair"] >= 3:
        pair = Table.grid(padding=0)
        for column in (left, 2 * GAP, right):
            pair.add_column(width=column)
        pair.add_row(Group(*section(left, taken["pair"])), "", Group(*_list("Decisions", decisions, taken["pair"])))
        middle = [pair]
    else:
        middle = []
    return [
        *table_section(f"Instances ({len(rows)})", INSTANCE_COLUMNS, rows, width, taken["instances"]),
        *middle,
        *_list("Warnings", notes, taken["notes"]),
    ]


def _peers(status: Status, members: Sequence[MemberRow]) -> tuple[Sequence[object], Callable[[int, int], list[RenderableType]]]:
    """Return the rows of the peers, and what draws them in given columns and lines."""
    if members:
        own = {member.peer for member in members}
        have_names = all(own)
        others = sum(row.peer not in own for row in table_rows.peer_rows(status)) if have_names else 0
        heading = f"Peers of this swarm ({len(members)}{f', and {others} from elsewhere' if others else ''})"
        return members, lambda width, num_lines: table_section(heading, MEMBER_COLUMNS, members, width, num_lines)
    peers = table_rows.peer_rows(status)
    return peers, lambda width, num_lines: table_section(f"Peers ({len(peers)})", PEER_COLUMNS, peers, width, num_lines)


def _header(status: Status, measured: Sequence[Measure], members: Sequence[MemberRow], width: int) -> list[RenderableType]:
    if not status.run:
        return [line(_starting(status, members), width, "dim")]
    speed, tokens = (measure.text for measure in measured if measure.name in HEADLINE)
    who = [
        (units.one_line(status.name), "bold"),
        (f"run {units.short_digest(status.run)}", ""),
        (f"peer {units.short_peer(status.peer)}", ""),
        (status.mode, ""),
        (f"{'ran' if status.state in ('stopped', 'finished') else 'running'} {units.duration(status.elapsed_seconds)}", "dim"),
        (f"on {status.device}", "dim"),
        (f"{units.count(status.parameters)} parameters", "dim"),
    ]
    rates = [
        (speed, ""),
        *((words, "") for words in traffic_words(asdict(traffic.bandwidth(status)))),
        (tokens, ""),
    ]
    arriving = traffic.download_fraction(status)
    download = [] if arriving is None else [bar_line("state", arriving, traffic.download_words(status), width)]
    return [fitting(who, width), _run_line(status, width), *download, fitting(rates, width)]


def _starting(status: Status, members: Sequence[MemberRow]) -> str:
    if not members:
        return f"the node is starting: {status.starting or 'waiting for the run'}"
    return f"the swarm is starting: {sum(member.is_ready for member in members)} of {units.plural(len(members), 'peer')} ready"


def _so_far(status: Status, measured: Sequence[Measure], load: str, width: int) -> list[RenderableType]:
    """Return this peer's part in the swarm, its machine, and the other metrics of the node, as many as fit each line."""
    is_alone = bool(status.join_link) and [row.is_self for row in table_rows.peer_rows(status)] == [True]
    words = [ALONE[status.may_invite]] if is_alone else [table_rows.standing(status)]
    rate = progress.swarm_tokens_per_second(status)
    words += [f"swarm {units.count(rate)} tokens/s"] if rate is not None and not is_alone else []
    words.append(looks.look_words(status.current_plan, status.peer))
    words += load.split("  ")
    words += [measure.text for measure in measured if measure.text and measure.name not in HEADLINE] if status.run else []
    lines: list[str] = []
    for word in filter(None, words):
        if lines and len(lines[-1]) + GAP + len(word) <= width:
            lines[-1] += " " * GAP + word
        else:
            lines.append(word)
    return [line(each, width, "dim") for each in lines]


def _run_line(status: Status, width: int) -> RenderableType:
    fraction = progress.run_fraction(status)
    return bar_line(progress.position(status), fraction, f"{units.percent(fraction)}  {_ending(status)}", width)


def _ending(status: Status) -> str:
    if status.finish is not None:
        order = " by a signer's order" if own_part.ended_by_signer(status) else ""
        end = f"finished in {units.duration(status.finish.seconds)}{order}"
        loss = status.finish.heldout_loss
        return end if loss is None else f"{end}, held-out loss {units.loss(loss)}"
    if status.state == "paused":
        return "paused"
    if status.state == "starting":
        return f"starting: {status.starting}"
    if status.stopping is not None:
        why = units.one_line(status.stopping)
        return units.shorten(why if why.startswith(status.state) else f"{status.state}: {why}", MAX_ENDING_CHARS)
    if words := own_part.paused_by_signer(status) or own_part.joining(status):
        return words
    seconds = progress.eta_seconds(status)
    return "time left unknown" if seconds is None else f"{units.duration(seconds)} left"


def _losses(status: Status, width: int, free: int) -> list[RenderableType]:
    """Return the losses by round in at most so many lines: a chart, or one line of bars where they are few."""
    trained, heldout = run_losses.training_losses(status), run_losses.heldout_losses(status)
    least, most = CHART_LINES
    if free < least or width <= 3 * LABEL:
        return [_curve([loss for _, loss in trained], width)]
    curves = [("training loss", "green", trained), ("held-out loss", "cyan", heldout)]
    series = [Series(name=name, color=color, points=run_losses.thinned(points, MAX_POINTS)) for name, color, points in curves]
    return [title("Loss by round"), Chart(series, width, min(free, most) - 1)]


def _curve(losses: Sequence[float], width: int) -> RenderableType:
    """Return the line `loss 4.381 (bars) 1.982`."""
    first, last = f"loss {units.loss(losses[0])}", units.loss(losses[-1])
    room = width - len(first) - len(last) - 2 * GAP
    if room < GAP:
        return line(f"{first}  {last}", width)
    room = min(room, len(losses))
    grid = Table.grid(padding=0)
    for column in (len(first) + GAP, room + GAP, len(last)):
        grid.add_column(width=column, no_wrap=True)
    grid.add_row(Text(first), Sparkline(losses, room), Text(last))
    return grid


# --- sections --------------------------------------------------------------------------------------------------------


def _list(heading: str, items: Sequence[Sequence[Text]], num_lines: int) -> list[RenderableType]:
    """Return a title and the items that fit as a whole; a first item that does not fit is shortened."""
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
    return [title(heading), *shown]


def _with_title(items: Sequence[Sequence[Text]]) -> int:
    """Return the number of lines that the whole list needs."""
    return 1 + sum(len(item) for item in items) if items else 0


def _decisions(status: Status, width: int) -> list[list[Text]]:
    """Return the newest decisions first: what was decided, before which round, and why."""
    return [_decision(decision, width) for decision in status.decisions[: -MAX_DECISIONS - 1 : -1]]


def _decision(decision: Decision, width: int) -> list[Text]:
    reason = units.short_peers(decision.reason)
    if decision.weights:
        reason = f"weights {units.weights(decision.weights)}, {reason}"
    label = f"round {decision.round:<4} {decision.kind:<6}  "
    return wrapped(label, f"{table_rows.subject(decision)}  {reason}", width, _KIND_STYLES[decision.kind])


def _notes(status: Status, width: int) -> list[list[Text]]:
    """Return present conditions, then recent troubles, the newest first."""
    since = progress.round_shown(status) - RECENT_ROUNDS
    past = [incident for incident in status.incidents[: -MAX_PAST - 1 : -1] if incident.round >= since]
    now = [wrapped("now         ", units.short_peers(message), width, "bold yellow") for message in status.warnings.values()]
    return [*now, *(_past(incident, width) for incident in past)]


def _past(incident: Incident, width: int) -> list[Text]:
    where = "" if incident.instance is None else f"instance {incident.instance}, "
    return wrapped(f"round {incident.round:<4}  ", where + units.short_peers(incident.message), width, "dim")
