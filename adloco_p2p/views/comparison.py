"""Several runs side by side: their held-out losses in pictures, and tables. Runs with the same label are seeds of the same
experiment: a line shows their mean, and a band the range between the lowest and the highest."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from adloco_p2p.errors import ConfigError
from adloco_p2p.views import run_losses, units
from adloco_p2p.views.html_report import Rows
from adloco_p2p.views.run_report import Report
from adloco_p2p.views.status import Status

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Points = list[tuple[float, float]]
"""Points (abscissa, loss), by abscissa."""
CAPTIONS = {
    "loss_by_samples.png": "Held-out loss against the samples of all peers: the fair comparison, because batches grow. "
    "Of its last rounds, whose reports are in no plan, a run counts the samples of its own peer.",
    "loss_by_rounds.png": "Held-out loss against outer rounds.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    label: str
    seed: int
    own: Status
    """The status from the events of one peer."""
    of_all: Status
    """The status by the ledger, with the losses and samples of all peers; `own` where there is no ledger."""

    @property
    def num_samples(self) -> int:
        return sum(result.samples for result in self.of_all.results.values())

    def curve(self, *, by_samples: bool) -> Points:
        """Return the held-out loss, averaged over the instances, at the end of each round that has one. The end of a finished
        run has the loss of the model into which its instances were merged, as in the tables."""
        results = self.of_all.results.values()
        points: Points = []
        samples = 0
        for round_ in sorted({result.round for result in results}):
            here = [result for result in results if result.round == round_]
            samples += sum(result.samples for result in here)
            losses = [loss for result in here if (loss := units.finite(result.heldout_loss)) is not None]
            if losses:
                points.append((float(samples if by_samples else round_ + 1), fmean(losses)))
        final = run_losses.final_heldout(self.own) if points and self.own.finish is not None else None
        return points if final is None else [*points[:-1], (points[-1][0], final)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """The runs of one label, at the points where each of them has a loss, measured or between two measured ones."""

    label: str
    num_runs: int
    lowest: Points
    mean: Points
    highest: Points


def bands(runs: Sequence[ComparedRun], *, by_samples: bool) -> list[Band]:
    """Return one band per label, in the order of their first runs; none for a label whose runs have no point in common."""
    found = []
    for label in dict.fromkeys(run.label for run in runs):
        curves = [curve for run in runs if run.label == label and (curve := run.curve(by_samples=by_samples))]
        if not curves:
            continue
        first, last = max(curve[0][0] for curve in curves), min(curve[-1][0] for curve in curves)
        places = sorted({x for curve in curves for x, _ in curve if first <= x <= last})
        losses = {x: [_between(curve, x) for curve in curves] for x in places}
        if places:
            lowest, mean, highest = ([(x, of(losses[x])) for x in places] for of in (min, fmean, max))
            found.append(Band(label=label, num_runs=len(curves), lowest=lowest, mean=mean, highest=highest))
    return found


def _between(curve: Points, x: float) -> float:
    """Return the value at `x`, which lies within the curve, on the straight line between two points."""
    after = bisect_left(curve, (x, float("-inf")))
    (right, high) = curve[after]
    if right == x:
        return high
    left, low = curve[after - 1]
    return low + (high - low) * (x - left) / (right - left)


def draw_comparison(runs: Sequence[ComparedRun], output: Path, *, formats: Sequence[str], as_html: bool = False) -> list[Path]:
    """Draw several runs as `draw_report` does. Raises ConfigError where one of them has no held-out loss, or comes twice."""
    seen: dict[str, str] = {}
    for run in runs:
        if run.own.run in seen:
            both = f"{seen[run.own.run]} and {run.label}"
            raise ConfigError(f"{output}: no comparison, because {both} are the same run; name one peer of each", code="E200")
        seen[run.own.run] = run.label
        if not run.curve(by_samples=False):
            raise ConfigError(
                f"{output}: no comparison, because {run.label} (seed {run.seed}) has no held-out loss", code="E212"
            )
    summary = summarise_runs(runs)
    heading = f"{len(runs)} runs side by side"
    sections = [("Labels", _label_rows(summary)), ("Runs", _run_rows(summary))]
    drawn = Report(heading=heading, sections=sections, figures=_figures(runs), captions=CAPTIONS, numbers=summary)
    return drawn.write(output, formats=formats, as_html=as_html)


def _figures(runs: Sequence[ComparedRun]) -> "dict[str, Figure]":
    from adloco_p2p.views.figures import comparison

    by_samples, by_rounds = (bands(runs, by_samples=flag) for flag in (True, False))
    return {
        "loss_by_samples.png": comparison(by_samples, name="samples", label="samples of all peers"),
        "loss_by_rounds.png": comparison(by_rounds, name="rounds", label="outer rounds"),
    }


def summarise_runs(runs: Sequence[ComparedRun]) -> dict[str, Any]:
    """Return the numbers of the runs, ready for JSON."""
    rows = [
        {
            "label": run.label,
            "seed": run.seed,
            "run": run.own.run,
            "name": run.own.name,
            "is_finished": run.own.finish is not None,
            "rounds": len({result.round for result in run.of_all.results.values()}),
            "samples": run.num_samples,
            "heldout_loss": run_losses.final_heldout(run.own) if run.own.lives else None,
        }
        for run in runs
    ]
    labels = []
    for label in dict.fromkeys(run.label for run in runs):
        known = [loss for row in rows if row["label"] == label and isinstance(loss := row["heldout_loss"], float)]
        labels.append(
            {
                "label": label,
                "runs": sum(run.label == label for run in runs),
                "mean_heldout_loss": fmean(known) if known else None,
                "lowest_heldout_loss": min(known, default=None),
                "highest_heldout_loss": max(known, default=None),
            }
        )
    return {"labels": labels, "runs": rows}


def _label_rows(summary: dict[str, Any]) -> Rows:
    losses = ("mean_heldout_loss", "lowest_heldout_loss", "highest_heldout_loss")
    return [
        ("label", "runs", "held-out loss, mean", "lowest", "highest"),
        *((row["label"], str(row["runs"]), *(units.loss(row[name]) for name in losses)) for row in summary["labels"]),
    ]


def _run_rows(summary: dict[str, Any]) -> Rows:
    return [
        ("label", "seed", "run", "rounds", "samples", "held-out loss", "state"),
        *(
            (
                row["label"],
                str(row["seed"]),
                f"{units.one_line(row['name'])} {units.short_digest(row['run'])}",
                str(row["rounds"]),
                units.count(row["samples"]),
                units.loss(row["heldout_loss"]),
                "finished" if row["is_finished"] else "not finished",
            )
            for row in summary["runs"]
        ),
    ]
