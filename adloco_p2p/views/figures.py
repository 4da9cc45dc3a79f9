"""The pictures of the report, drawn with matplotlib without its global state. Each function returns a figure; `run_report.py`
names and saves them. Colours are the Okabe-Ito palette, which colour-blind readers can distinguish."""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Curve
from matplotlib.ticker import FuncFormatter, MaxNLocator

from adloco_p2p.core.model.words import plural
from adloco_p2p.views import progress, run_losses, table_rows, units
from adloco_p2p.views.records import Decision, Life, RoundResult
from adloco_p2p.views.status import Status

if TYPE_CHECKING:
    from adloco_p2p.views.comparison import Band

INSTANCE_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
PHASE_COLOURS = {
    "training": "#009E73",
    "trained": "#DDDDDD",
    "averaging": "#0072B2",
    "retrying": "#882255",
    "committing": "#56B4E9",
    "repairing": "#332288",
    "applying": "#CC79A7",
    "measuring": "#AA4499",
    "evaluating": "#F0E442",
    "probing": "#E69F00",
    "fetching": "#D55E00",
    "waiting": "#BBBBBB",
}
MODE_COLOURS = {"capped": "#FBE3C0", "accumulate": "#D3E6F3"}
QUIET = "#666666"
DOTS_PER_INCH = 130
MAX_PANELS = 12
"""The most instances in the picture of batches."""
MAX_MARKERS = 40
"""The most marked points of a line; with more, the line alone reads better."""
LINE_HEIGHT = 0.05
"""The least distance between two labels, as a part of the height of the axes."""


# --- shared ----------------------------------------------------------------------------------------------------------


def _heading(figure: Figure, left: float, title: str, subtitle: str) -> None:
    """Write the heading, at the same distance from the top in all pictures; `left` is a part of the width."""
    height = figure.get_figheight()
    figure.text(left, 1 - 0.27 / height, title, fontsize=14, fontweight="bold", color="#222222", va="center")
    figure.text(left, 1 - 0.56 / height, subtitle, fontsize=9.5, color=QUIET, va="center")


def _axes(figure: Figure, title: str, subtitle: str, *, left: float, right: float) -> Axes:
    """Return one pair of axes under a heading; `left` and `right` are parts of the width."""
    height = figure.get_figheight()
    axes = figure.add_axes((left, 0.62 / height, right - left, 1 - 1.62 / height))
    _dress(axes)
    _heading(figure, left, title, subtitle)
    return axes


def _dress(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#999999")
    axes.tick_params(colors=QUIET, labelsize=9)
    axes.xaxis.label.set_color("#333333")
    axes.yaxis.label.set_color("#333333")
    axes.grid(visible=True, axis="y", color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)


def _round_axis(axes: Axes, rounds: Sequence[int]) -> None:
    """Show whole rounds only, even where there are few."""
    axes.set_xlim(min(rounds) - 0.6, max(max(rounds) + 0.6, min(rounds) + 2.4))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins="auto", min_n_ticks=1))
    axes.set_xlabel("outer round")


def colour(instance: int) -> str:
    return INSTANCE_COLOURS[instance % len(INSTANCE_COLOURS)]


def _bare(number: str) -> str:
    """Drop digits that a tick does not need: 10.0k -> 10k, 2.50 MB -> 2.5 MB."""
    return re.sub(r"\.(\d*?)0+(?!\d)", lambda match: f".{match[1]}" if match[1] else "", number)


def _by_instance(status: Status) -> dict[int, list[RoundResult]]:
    """Return the results of each instance, by round."""
    found: dict[int, list[RoundResult]] = {}
    for result in sorted(status.results.values(), key=lambda result: (result.instance, result.round)):
        found.setdefault(result.instance, []).append(result)
    return found


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Move label heights in [0, 1] apart to at least `gap` (less where they are too many), keeping their order."""
    gap = min(gap, 1.0 / max(len(heights), 1))
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    placed = [0.0] * len(heights)
    floor = 0.0
    for index in order:
        placed[index] = max(heights[index], floor)
        floor = placed[index] + gap
    ceiling = 1.0
    for index in reversed(order):
        placed[index] = min(placed[index], ceiling)
        ceiling = placed[index] - gap
    return placed


def _margin_labels(axes: Axes, labels: Sequence[tuple[float, str, str]]) -> None:
    """Write (height in data units, text, colour) to the right of the axes, each beside its line, without overlaps."""
    low, high = axes.get_ylim()
    heights = [(height - low) / (high - low) for height, _, _ in labels]
    for place, (_, text, paint) in zip(spread(heights, LINE_HEIGHT), labels, strict=True):
        axes.text(1.015, place, text, transform=axes.transAxes, color=paint, fontsize=9.5, va="center")


# --- loss ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Abscissa:
    """The horizontal axis of a loss curve."""

    name: str
    label: str
    at_boundary: Mapping[int, float]
    """The abscissa by boundary, that is, by the number of finished rounds."""


def abscissas(status: Status) -> tuple[Abscissa, Abscissa, Abscissa]:
    """Return samples, rounds and time as abscissas, over all instances, so that these compare at equal cost. The status of a
    ledger names no peer."""
    rounds = sorted({result.round for result in status.results.values()})
    samples = dict.fromkeys([*rounds, *(round_ + 1 for round_ in rounds)], 0.0)
    seconds = dict(samples)
    done, clock = 0, 0.0
    for round_ in rounds:
        samples[round_], seconds[round_] = done, clock
        results = [result for result in status.results.values() if result.round == round_]
        done += sum(result.samples for result in results)
        clock = max(clock, *(result.elapsed_seconds for result in results))
        samples[round_ + 1], seconds[round_ + 1] = done, clock
    unit, divisor = ("hours", 3600.0) if clock > 7200 else ("minutes", 60.0) if clock > 120 else ("seconds", 1.0)
    return (
        Abscissa(name="samples", label=f"samples of {'this peer' if status.peer else 'all peers'}", at_boundary=samples),
        Abscissa(name="rounds", label="outer rounds", at_boundary={boundary: float(boundary) for boundary in samples}),
        Abscissa(
            name="time",
            label=f"running time, {unit}",
            at_boundary={boundary: value / divisor for boundary, value in seconds.items()},
        ),
    )


def loss(status: Status, abscissa: Abscissa) -> Figure:
    """Draw training loss thin and held-out loss thick, one colour per instance."""
    figure = Figure(figsize=(9.6, 5.4))
    has_heldout = any(result.heldout_loss is not None for result in status.results.values())
    axes = _axes(
        figure,
        f"Loss against {abscissa.name}",
        "thick: held-out loss of the outer parameters; thin: training loss of the round" if has_heldout else "training loss",
        left=0.075,
        right=0.77,
    )
    labels = []
    for instance, results in _by_instance(status).items():
        trained = _points(results, abscissa, [result.loss for result in results])
        measured = _points(results, abscissa, [result.heldout_loss for result in results])
        _curve(axes, trained, colour(instance), is_thick=not has_heldout)
        _curve(axes, measured, colour(instance), is_thick=True)
        if measured or trained:
            last = (measured or trained)[-1][1]
            labels.append((last, f"instance {instance}  {last:.3f}{_until(status, instance)}", colour(instance)))
    if status.unigram_entropy is not None:
        axes.axhline(status.unigram_entropy, color=QUIET, linestyle=(0, (5, 4)), linewidth=1.1)
        text = f"unigram entropy  {status.unigram_entropy:.3f}"
        labels.append((status.unigram_entropy, text, QUIET))
    start, end = min(abscissa.at_boundary.values()), max(abscissa.at_boundary.values())
    air = 0.02 * (end - start) or 1.0
    axes.set_xlim(start - air, end + air)
    axes.margins(y=0.06)
    axes.set_xlabel(abscissa.label)
    axes.set_ylabel("loss, nats per token")
    if abscissa.name == "rounds":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if abscissa.name == "samples":
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _bare(units.count(value))))
    _boundaries(axes, status, abscissa)
    _margin_labels(axes, labels)
    return figure


def comparison(runs: "Sequence[Band]", *, name: str, label: str) -> Figure:
    """Draw held-out loss, a line and a band for each label."""
    figure = Figure(figsize=(9.6, 5.4))
    seeds = "line: mean of the runs with the same label; band: lowest to highest of them"
    axes = _axes(figure, f"Held-out loss against {name}", seeds, left=0.075, right=0.77)
    labels = []
    for index, run in enumerate(runs):
        _curve(axes, run.mean, colour(index), is_thick=True)
        if run.num_runs > 1:
            places = [x for x, _ in run.mean]
            lowest, highest = ([y for _, y in points] for points in (run.lowest, run.highest))
            axes.fill_between(places, lowest, highest, color=colour(index), alpha=0.2, linewidth=0)
        last = run.mean[-1][1]
        labels.append((last, f"{units.shorten(run.label, 24)}  {last:.3f}, {plural(run.num_runs, 'run')}", colour(index)))
    axes.set_xlabel(label)
    axes.set_ylabel("loss, nats per token")
    if name == "rounds":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _bare(units.count(value))))
    _margin_labels(axes, labels)
    return figure


def _points(results: Sequence[RoundResult], abscissa: Abscissa, losses: Sequence[float | None]) -> list[tuple[float, float]]:
    """Return the points (abscissa at the end of the round, loss) with a finite loss."""
    return [
        (abscissa.at_boundary[result.round + 1], value)
        for result, value in zip(results, losses, strict=True)
        if value is not None and math.isfinite(value)
    ]


def _curve(axes: Axes, points: Sequence[tuple[float, float]], paint: str, *, is_thick: bool) -> None:
    marker = "o" if len(points) == 1 or (is_thick and len(points) <= MAX_MARKERS) else None
    axes.plot(
        [x for x, _ in points],
        [y for _, y in points],
        color=paint,
        linewidth=2.2 if is_thick else 1.0,
        alpha=1.0 if is_thick else 0.5,
        marker=marker,
        markersize=4,
        solid_capstyle="round",
    )


def _until(status: Status, instance: int) -> str:
    """Describe how an instance ended, if it did not live to the end."""
    end = next((merge for merge in _merges(status) if instance in merge.sources and instance not in merge.targets), None)
    return "" if end is None else f", to round {end.round}"


def _merges(status: Status) -> list[Decision]:
    return [decision for decision in status.decisions if decision.kind == "merge"]


def _boundaries(axes: Axes, status: Status, abscissa: Abscissa) -> None:
    """Mark where instances were forked and merged."""
    decisions = [decision for decision in status.decisions if decision.kind in {"merge", "fork"}]
    low, high = axes.get_xlim()
    free_from = 0.0  # the part of the width that names already occupy
    for decision in sorted(decisions, key=lambda decision: decision.round):
        where = abscissa.at_boundary.get(decision.round)
        if where is None:
            continue
        axes.axvline(where, color="#BBBBBB", linewidth=0.9, linestyle=":", zorder=0)
        part = (where - low) / (high - low)
        if part >= free_from:
            text = decision.kind if decision.kind == "fork" else f"merge {units.instances(decision.sources)}"
            axes.text(part, 1.015, text, transform=axes.transAxes, fontsize=8.5, color=QUIET, va="bottom")
            free_from = part + 0.02 + 0.0115 * len(text)


# --- batches ---------------------------------------------------------------------------------------------------------


def batches(status: Status) -> Figure:
    """Draw one panel per instance: the requested batch and the batch in use; the background shows the switch
    mode."""
    found = dict(list(_by_instance(status).items())[:MAX_PANELS])
    columns = min(3, len(found))
    rows = math.ceil(len(found) / columns)
    height = 1.5 + 2.7 * rows
    figure = Figure(figsize=(9.6, height))
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    figure.subplots_adjust(left=0.075, right=0.975, top=1 - 1.05 / height, bottom=0.55 / height, hspace=0.3, wspace=0.08)
    hidden = len(_by_instance(status)) - len(found)
    more = f"; {hidden} more instances are not shown" if hidden else ""
    _heading(figure, 0.075, "Batch growth", f"dashed: requested; solid: used{more}")
    _mode_key(figure, 1 - 0.56 / height, {result.mode for results in found.values() for result in results})
    for index, panel in enumerate(panels.flat):
        panel.set_visible(index < len(found))
    for panel, (instance, results) in zip(panels.flat, found.items(), strict=False):
        _batch_panel(panel, instance, results)
    _round_axis(panels[0, 0], [round_ for round_, instance in status.results if instance in found])
    for panel in panels[:, 0]:
        panel.set_ylabel("samples per inner step")
    for index, panel in enumerate(panels.flat[: len(found)]):
        is_lowest = index + columns >= len(found)
        panel.set_xlabel("outer round" if is_lowest else "")
        panel.tick_params(labelbottom=is_lowest)
    return figure


def _mode_key(figure: Figure, height: float, modes: Collection[str]) -> None:
    """Explain the backgrounds that occur, right of the subtitle; nothing where only the plain one does."""
    if not MODE_COLOURS.keys() & modes:
        return
    box = {"boxstyle": "round,pad=0.3", "edgecolor": "#CCCCCC", "linewidth": 0.6}
    for name, right in (("single", 0.80), ("capped", 0.87), ("accumulate", 0.97)):
        if name not in modes:
            continue
        paint = {**box, "facecolor": MODE_COLOURS.get(name, "white")}
        figure.text(right, height, name, fontsize=9, color="#333333", va="center", ha="right", bbox=paint)


def _batch_panel(panel: Axes, instance: int, results: Sequence[RoundResult]) -> None:
    _dress(panel)
    rounds = [result.round for result in results]
    for result in results:
        if result.mode in MODE_COLOURS:
            panel.axvspan(result.round - 0.5, result.round + 0.5, color=MODE_COLOURS[result.mode], linewidth=0, zorder=0)
    marker = "o" if len(results) <= MAX_MARKERS else None
    effective = [result.effective_batch for result in results]
    panel.plot(rounds, [result.requested_batch for result in results], color="#444444", linestyle=(0, (4, 3)), linewidth=1.2)
    panel.plot(rounds, effective, color=colour(instance), linewidth=2.2, marker=marker, markersize=3.5)
    panel.set_yscale("log", base=2)
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.margins(y=0.12)
    last = results[-1]
    passes = f", {last.accumulation_steps} passes" if last.accumulation_steps > 1 else ""
    grown = f"{effective[0]} to {effective[-1]}" if effective[0] != effective[-1] else f"{effective[0]}"
    title = f"instance {instance}: {grown}{passes}"
    panel.set_title(title, loc="left", fontsize=10, color=colour(instance), fontweight="bold")


# --- family tree -----------------------------------------------------------------------------------------------------


def family(status: Status) -> Figure:
    """Draw a lane per instance, from its birth to its end; curves are copies and merges."""
    lanes = {instance: row for row, instance in enumerate(sorted(status.lives))}
    height = 2.0 + (0.66 if len(lanes) <= 12 else 0.3) * max(len(lanes), 2)
    figure = Figure(figsize=(9.6, height))
    subtitle = "instances over the rounds; thickness: effective batch; a cross is a failed averaging attempt"
    axes = _axes(figure, "Family tree", subtitle, left=0.1, right=0.85)
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    first = min(life.start for life in status.lives.values())
    last = max(life.end for life in status.lives.values())
    shortest = min(max(life.end - life.start, 1) for life in status.lives.values())
    reach = min(max(0.5, 0.02 * (last - first)), shortest / 2)
    axes.set_xlim(first - 0.01 * (last - first), last + 0.01 * (last - first))
    axes.set_ylim(len(lanes) - 0.4, -0.6)
    _lanes(axes, status, lanes, reach)
    _curves(axes, status, lanes, reach)
    for incident in status.incidents:
        if incident.kind == "average failed" and incident.instance in lanes:
            axes.plot(incident.round + 0.5, lanes[incident.instance], marker="x", color="#222222", markersize=7, zorder=5)
    axes.set_yticks(list(lanes.values()), [f"instance {instance}" for instance in lanes])
    axes.tick_params(axis="y", length=0)
    for tick, instance in zip(axes.get_yticklabels(), lanes, strict=True):
        tick.set_color(colour(instance))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("outer rounds that are over")
    for instance, row in lanes.items():
        value = run_losses.latest_heldout(status, instance)
        if value is not None:
            axes.text(
                1.015, row, f"held-out {value:.3f}", transform=axes.get_yaxis_transform(), fontsize=9, va="center", color=QUIET
            )
    return figure


def _lanes(axes: Axes, status: Status, lanes: Mapping[int, int], reach: float) -> None:
    """Draw lines whose thickness follows the batch."""
    born = {target: decision.round for decision in status.decisions if decision.kind == "fork" for target in decision.targets}
    biggest = max((result.effective_batch for result in status.results.values()), default=1)
    for instance, life in status.lives.items():
        is_copy = born.get(instance) == life.start and not _is_source(status, instance, life.start)
        start = life.start + (reach if is_copy else 0.0)
        for left, right, batch in _stretches(status, instance, life):
            width = 2.5 + 7.0 * math.log2(1 + batch) / math.log2(1 + biggest)
            ends = (max(start, left), min(right + reach / 8, life.end))  # a little overlap, or a seam shows
            if ends[0] < ends[1]:
                axes.plot(ends, [lanes[instance]] * 2, color=colour(instance), linewidth=width, solid_capstyle="butt")


def _stretches(status: Status, instance: int, life: Life) -> list[tuple[int, int, int]]:
    """Return (first boundary, last boundary, effective batch) of successive rounds with the same batch; 0 where it is not
    known."""
    stretches: list[tuple[int, int, int]] = []
    for round_ in range(life.start, life.end):
        result = status.results.get((round_, instance))
        batch = result.effective_batch if result is not None else stretches[-1][2] if stretches else 0
        if stretches and stretches[-1][2] == batch:
            stretches[-1] = (stretches[-1][0], round_ + 1, batch)
        else:
            stretches.append((round_, round_ + 1, batch))
    return stretches


def _is_source(status: Status, instance: int, boundary: int) -> bool:
    """Return whether the instance itself was copied there."""
    forks = (decision for decision in status.decisions if decision.kind == "fork" and decision.round == boundary)
    return any(instance in fork.sources for fork in forks)


def _curves(axes: Axes, status: Status, lanes: Mapping[int, int], reach: float) -> None:
    links = [decision for decision in status.decisions if decision.kind in {"fork", "merge"}]
    for decision in links:
        for source in decision.sources:
            for target in decision.targets:
                if source == target or source not in lanes or target not in lanes:
                    continue
                paint = colour(target if decision.kind == "fork" else source)
                _link(axes, decision.round, lanes[source], lanes[target], reach, paint)
    _name_merges(axes, status, lanes)


def _name_merges(axes: Axes, status: Status, lanes: Mapping[int, int]) -> None:
    """Name each merge above the lane of the survivor, where no other name stands."""
    low, high = axes.get_xlim()
    used_to: dict[int, float] = {}
    for merge in sorted(_merges(status), key=lambda decision: decision.round):
        lane = lanes.get(merge.targets[0])
        part = (merge.round - low) / (high - low)
        text = f"merge {table_rows.subject(merge)}\n{units.weights(merge.weights)}"
        width = 0.03 + 0.01 * len(text.split("\n", maxsplit=1)[0])
        if lane is None or part - width < used_to.get(lane, -width):
            continue
        point = (merge.round, lane)  # left of the curve, which leads to the right
        name = axes.annotate(text, point, xytext=(-6, 9), textcoords="offset points", ha="right", va="bottom")
        name.set(fontsize=8, color=QUIET)
        used_to[lane] = part


def _link(axes: Axes, boundary: float, start: float, end: float, reach: float, paint: str) -> None:
    """Draw an S from one lane to another."""
    middle = boundary + reach / 2
    points = [(boundary, start), (middle, start), (middle, end), (boundary + reach, end)]
    curve = Curve(points, [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4])
    axes.add_patch(PathPatch(curve, facecolor="none", edgecolor=paint, linewidth=2.2, zorder=3))


# --- seconds and bytes -----------------------------------------------------------------------------------------------


def seconds(status: Status) -> Figure:
    """Draw where the time of each round went."""
    figure = Figure(figsize=(9.6, 4.6))
    axes = _axes(
        figure,
        "Seconds per phase",
        "per outer round, all instances of this peer added up; averaging runs beside the training of other instances",
        left=0.075,
        right=0.795,
    )
    rounds = sorted({result.round for result in status.results.values()})
    spent = _spent(status)
    base = [0.0] * len(rounds)
    labels = []
    total = sum(sum(by_round.values()) for by_round in spent.values()) or 1.0
    for phase, by_round in spent.items():
        heights = [by_round.get(round_, 0.0) for round_ in rounds]
        axes.bar(rounds, heights, bottom=base, width=_bar_width(rounds), color=_phase_colour(phase), linewidth=0)
        base = [low + height for low, height in zip(base, heights, strict=True)]
        labels.append((phase, sum(heights) / total))
    _round_axis(axes, rounds)
    axes.set_ylabel("seconds")
    for index, (phase, part) in enumerate(reversed(labels)):
        text = f"{phase}  {100 * part:.0f}%" if part >= 0.005 else f"{phase}  <1%"
        place = 0.95 - 0.085 * index
        axes.text(1.06, place, text, transform=axes.transAxes, fontsize=9.5, color="#333333", va="center")
        axes.plot(1.033, place, "s", transform=axes.transAxes, color=_phase_colour(phase), markersize=9, clip_on=False)
    return figure


def utilisation(status: Status) -> Figure:
    """Draw the part of each round in which the devices computed."""
    figure = Figure(figsize=(9.6, 3.6))
    mean = progress.compute_utilisation(status)
    axes = _axes(
        figure,
        "Share of time computing",
        f"of this peer, per outer round; {units.percent(mean)} of its running time in all",
        left=0.075,
        right=0.975,
    )
    points = progress.utilisation_by_round(status)
    rounds = [round_ for round_, _ in points] or [0]
    axes.bar([round_ for round_, _ in points], [100 * part for _, part in points], width=_bar_width(rounds), color="#009E73")
    axes.set_ylim(0, 100)
    axes.set_ylabel("percent")
    _round_axis(axes, rounds)
    return figure


def durations(status: Status) -> Figure:
    """Draw a histogram of the rounds' durations."""
    figure = Figure(figsize=(9.6, 3.6))
    bins = progress.duration_histogram(status)
    mean = units.duration(progress.mean_duration(status))
    axes = _axes(figure, "Duration of rounds", f"of this peer; {mean} on average", left=0.075, right=0.975)
    axes.bar(
        [start for start, _, _ in bins],
        [count for _, _, count in bins],
        width=[end - start for start, end, _ in bins],
        align="edge",
        color="#0072B2",
        edgecolor="white",
    )
    axes.set_xlabel("seconds")
    axes.set_ylabel("rounds")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _spent(status: Status) -> dict[str, dict[int, float]]:
    """Return the seconds of each phase by round, with phases in the order of a round."""
    spent: dict[str, dict[int, float]] = {phase: {} for phase in PHASE_COLOURS}
    for result in status.results.values():
        for phase, value in result.seconds.items():
            by_round = spent.setdefault(phase, {})
            by_round[result.round] = by_round.get(result.round, 0.0) + value
    return {phase: by_round for phase, by_round in spent.items() if any(by_round.values())}


def _phase_colour(phase: str) -> str:
    return PHASE_COLOURS.get(phase, "#8C6D46")


def _bar_width(rounds: Sequence[int]) -> float:
    """Return a width that leaves gaps between bars, while there is room for them."""
    return 0.82 if len(rounds) <= 80 else 1.0


def traffic(status: Status) -> Figure:
    """Draw the bytes of committed averages: sent upwards, received downwards."""
    rounds = sorted({result.round for result in status.results.values()})
    sent, received = dict.fromkeys(rounds, 0), dict.fromkeys(rounds, 0)
    for result in status.results.values():
        sent[result.round] += result.bytes_sent
        received[result.round] += result.bytes_received
    figure = Figure(figsize=(9.6, 4.2))
    sums = f"{units.size(sum(sent.values()))} sent and {units.size(sum(received.values()))} received"
    axes = _axes(figure, "Bytes of averages", f"of the averages that counted, per outer round; {sums}", left=0.095, right=0.875)
    width = _bar_width(rounds)
    axes.bar(rounds, [sent[round_] for round_ in rounds], width=width, color="#D55E00", linewidth=0)
    axes.bar(rounds, [-received[round_] for round_ in rounds], width=width, color="#0072B2", linewidth=0)
    axes.axhline(0, color="#666666", linewidth=0.8)
    reach = 1.08 * max(1, *sent.values(), *received.values())
    axes.set_ylim(-reach, reach)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _bare(units.size(abs(value)))))
    _round_axis(axes, rounds)
    axes.set_ylabel("bytes")
    for text, place, paint in (("sent", 0.75, "#D55E00"), ("received", 0.25, "#0072B2")):
        axes.text(1.02, place, text, transform=axes.transAxes, fontsize=10.5, color=paint, va="center", fontweight="bold")
    return figure
