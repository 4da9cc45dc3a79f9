"""Computes the figures of a table from records of runs. Pure arithmetic."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from statistics import mean, stdev

from benchmarks.method.clock import Profile, round_seconds
from benchmarks.method.store import Record

STUDENT_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Two-sided 95 % quantiles of Student's t for 1 to 9 degrees of freedom."""

SAMPLES, ROUNDS, STEPS, BYTES, SECONDS, LOSS = range(6)
"""Columns of a record's curve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over seeds and half the width of its 95 % confidence interval (None for a single seed)."""

    mean: float
    half_width: float | None

    def shown(self, digits: int) -> str:
        return (
            f"{self.mean:.{digits}f}" if self.half_width is None else f"{self.mean:.{digits}f} +- {self.half_width:.{digits}f}"
        )


def estimate(values: Sequence[float]) -> Estimate:
    """Return the estimate by Student's t; up to ten values."""
    assert 1 <= len(values) <= len(STUDENT_95) + 1
    if len(values) == 1:
        return Estimate(mean=values[0], half_width=None)
    return Estimate(mean=mean(values), half_width=STUDENT_95[len(values) - 2] * stdev(values) / sqrt(len(values)))


def losses_of(records: Iterable[Record]) -> dict[int, float]:
    """Return final losses by seed."""
    return {record["seed"]: record["loss"] for record in records}


def tried_words(losses: Mapping[str, float], best: str | None) -> str:
    """Return the losses by the constants that were tried, with the best marked."""
    return ", ".join(f"{one}: **{loss:.3f}**" if one == best else f"{one}: {loss:.3f}" for one, loss in losses.items())


def paired(left: Mapping[int, float], right: Mapping[int, float]) -> Estimate | None:
    """Return left - right over the seeds that both have. The same text in the same order from the same weights cancels the
    effect of the seed."""
    common = sorted(left.keys() & right.keys())
    return estimate([left[seed] - right[seed] for seed in common]) if common else None


def at_loss(curve: Sequence[Sequence[float]], target: float, column: int) -> float | None:
    """Return the cost at which the loss first falls to `target`, linear between two measurements; None where it never does."""
    before: Sequence[float] | None = None
    for point in curve:
        if point[LOSS] <= target:
            if before is None:
                return point[column]
            part = (before[LOSS] - target) / (before[LOSS] - point[LOSS])
            return before[column] + part * (point[column] - before[column])
        before = point
    return None


def at_samples(curve: Sequence[Sequence[float]], samples: float) -> float:
    """Return the loss after so many samples; see `at_cost`."""
    return at_cost(curve, samples, SAMPLES)


def at_cost(curve: Sequence[Sequence[float]], cost: float, column: int) -> float:
    """Return the loss at this cost, linear between two measurements; beyond the curve, the loss at its end."""
    if cost <= curve[0][column]:
        return curve[0][LOSS]
    for before, after in pairwise(curve):
        if cost <= after[column]:
            part = (cost - before[column]) / (after[column] - before[column])
            return before[LOSS] + part * (after[LOSS] - before[LOSS])
    return curve[-1][LOSS]


def timed(record: Record, profile: Profile) -> list[list[float]]:
    """Return the record's curve with the seconds of another machine and link, from its counts in each round; equal peers
    only."""
    ends, now = [0.0], 0.0
    for line in record["log"]:
        now += round_seconds([(batch, steps, hosts) for _, batch, steps, hosts in line], profile)
        ends.append(now)
    return [[*point[:SECONDS], ends[int(point[ROUNDS])], point[LOSS]] for point in with_end(record)]


def with_end(record: Record) -> list[list[float]]:
    """Return the curve, ended by the final model."""
    end = [record["samples"], record["rounds"], record["inner_steps"], record["bytes_per_peer"], record["seconds"]]
    curve = [point for point in record["curve"] if point[ROUNDS] < record["rounds"]]
    return [*curve, [*end, record["loss"]]]


def front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return the names of the points (cost, loss) that no other beats in both, cheapest first."""
    ranked = sorted(points, key=lambda name: (points[name], name))
    kept: list[str] = []
    lowest = float("inf")
    for name in ranked:
        if points[name][1] < lowest:
            kept.append(name)
            lowest = points[name][1]
    return kept
