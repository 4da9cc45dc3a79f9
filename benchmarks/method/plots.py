"""The plots of docs/results/method.md, as small SVG files."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.method.figures import BYTES, LOSS, ROUNDS, SAMPLES, STEPS, Estimate, at_samples, estimate, front, with_end
from benchmarks.method.store import Record

COSTS = (("outer rounds", ROUNDS, 1.0), ("MB sent per peer", BYTES, 1e-6), ("inner steps", STEPS, 1.0))
"""Label, column of a curve, and unit of each cost."""
LINES = ("-", "--")
GRID = 24
"""Points of a mean curve."""
FEWEST_SEEDS = 3
"""A row with fewer seeds is on no front and has no interval in a plot: the interval would be wider than the differences of
rows."""
WIDEST_LOSS = 0.35
"""The most nats above the best final loss that a panel shows."""


def save(figure: Figure, path: Path) -> None:
    """Save the figure; the same figure always gives the same bytes."""
    with mpl.rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None})


def plot_pareto(
    rows: Mapping[str, Sequence[Record]], losses: Mapping[str, Estimate], groups: Mapping[str, str], path: Path
) -> None:
    """Plot the paired difference of the final loss against each cost, one point per row with its confidence interval, the front
    joined, coloured by group."""
    figure = Figure(figsize=(13, 4.6), layout="constrained")
    panels = figure.subplots(1, len(COSTS), sharey=True)
    colours = {group: f"C{index}" for index, group in enumerate(dict.fromkeys(groups.values()))}
    numbers = {name: number for number, name in enumerate(losses, start=1)}
    for panel, (label, column, unit) in zip(panels, COSTS, strict=True):
        costs = {name: estimate([with_end(record)[-1][column] * unit for record in rows[name]]) for name in losses}
        for name in losses:
            _point(panel, costs[name], losses[name], colours[groups[name]], has_bars=len(rows[name]) >= FEWEST_SEEDS)
            panel.annotate(f" {numbers[name]}", (costs[name].mean, losses[name].mean), fontsize=7)
        known = [name for name in losses if len(rows[name]) >= FEWEST_SEEDS]
        compared = [name for name in known if column == STEPS or rows[name][0]["bytes_per_peer"] > 0]
        best = front({name: (costs[name].mean, losses[name].mean) for name in compared})
        panel.plot([costs[name].mean for name in best], [losses[name].mean for name in best], "k:", linewidth=0.8)
        panel.set_xlabel(label)
        panel.grid(alpha=0.3)
    least = min((loss.mean for loss in losses.values()), default=0.0)
    panels[0].set_ylim(least - 0.03, least + WIDEST_LOSS)
    panels[0].set_ylabel("final held-out loss, nats per byte,\nminus that of DiLoCo of the same start")
    handles = [
        mpl.lines.Line2D([], [], color=colour, marker="o", linestyle="", label=group) for group, colour in colours.items()
    ]
    legend = "   ".join(f"{number} {name}" for name, number in numbers.items())
    figure.legend(handles=handles, fontsize=7, loc="outside lower center", ncols=len(handles))
    figure.suptitle("\n".join(_wrapped(legend, 190)), fontsize=7)
    save(figure, path)


def _point(panel: Axes, cost: Estimate, loss: Estimate, colour: str, *, has_bars: bool) -> None:
    width, height = (cost.half_width, loss.half_width) if has_bars else (None, None)
    panel.errorbar(cost.mean, loss.mean, xerr=width, yerr=height, fmt="o", color=colour, markersize=3, linewidth=0.8)


def plot_curves(rows: Mapping[str, Sequence[Record]], path: Path) -> None:
    """Plot held-out loss during training against samples and against each cost: means over the seeds at equal samples."""
    figure = Figure(figsize=(13, 4.6), layout="constrained")
    columns = (("samples", SAMPLES, 1.0), *COSTS)
    panels = figure.subplots(1, len(columns), sharey=True)
    for index, (name, records) in enumerate(rows.items()):
        curves = [with_end(record) for record in records]
        total = records[0]["samples"]
        grid = [total * (step + 2) / (GRID + 1) for step in range(GRID)]
        losses = [estimate([at_samples(curve, at) for curve in curves]) for at in grid]
        for panel, (label, column, unit) in zip(panels, columns, strict=True):
            costs = [sum(_cost_at(curve, at, column) for curve in curves) / len(curves) * unit for at in grid]
            means = [loss.mean for loss in losses]
            panel.plot(costs, means, LINES[index // 10], color=f"C{index}", linewidth=1.1, label=name)
            if len(records) >= FEWEST_SEEDS:
                low, high = zip(*[(x.mean - (x.half_width or 0), x.mean + (x.half_width or 0)) for x in losses], strict=True)
                panel.fill_between(costs, low, high, color=f"C{index}", alpha=0.15, linewidth=0)
            panel.set_xlabel(label)
            panel.grid(alpha=0.3)
    least = min(estimate([record["loss"] for record in records]).mean for records in rows.values())
    panels[0].set_ylim(least - 0.03, least + 1.0)
    panels[0].set_ylabel("held-out loss, nats per byte")
    figure.legend(*panels[0].get_legend_handles_labels(), fontsize=7, loc="outside lower center", ncols=4)
    save(figure, path)


def _cost_at(curve: Sequence[Sequence[float]], samples: float, column: int) -> float:
    """Return the cost after so many samples, by the same interpolation as the loss."""
    return at_samples([[point[SAMPLES], *point[1:LOSS], point[column]] for point in curve], samples)


def mean_curve(records: Sequence[Record], column: int, *, unit: float) -> tuple[list[float], list[float]]:
    """Return costs, in units, and losses: means over the records at equal samples."""
    curves = [with_end(record) for record in records]
    total = records[0]["samples"]
    grid = [total * (step + 2) / (GRID + 1) for step in range(GRID)]
    costs = [sum(_cost_at(curve, at, column) for curve in curves) / len(curves) * unit for at in grid]
    return costs, [sum(at_samples(curve, at) for curve in curves) / len(curves) for at in grid]


def plot_unequal(rows: Mapping[str, Sequence[Record]], seconds: int, path: Path) -> None:
    """Plot held-out loss against the time of the clock, one line per row (its first seed's times, the mean of the losses)."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    panel = figure.subplots()
    for name, records in rows.items():
        times, losses = mean_curve(records, seconds, unit=1 / 3600)
        panel.plot(times, losses, linewidth=1.1, label=name)
    panel.set_xlabel("hours of the emulated clock")
    panel.set_ylabel("held-out loss, nats per byte")
    panel.grid(alpha=0.3)
    panel.legend(fontsize=7)
    save(figure, path)


def _wrapped(text: str, width: int) -> list[str]:
    lines, line = [], ""
    for part in text.split("   "):
        if line and len(line) + len(part) > width:
            lines.append(line)
            line = ""
        line = f"{line}   {part}" if line else part
    return [*lines, line]
