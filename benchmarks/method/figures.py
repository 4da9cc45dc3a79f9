"""Computes the figures of a table from records of runs. Pure arithmetic."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import atan, pi, sqrt
from statistics import mean, stdev

from benchmarks.method.clock import Profile, round_seconds
from benchmarks.method.store import Record

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


def estimate(values: Sequence[float], comparisons: int = 1) -> Estimate:
    """Return the estimate by Student's t. `comparisons`: so many intervals hold at once in 95 % of cases (Bonferroni)."""
    assert values
    if len(values) == 1:
        return Estimate(mean=values[0], half_width=None)
    width = student(len(values) - 1, comparisons) * stdev(values) / sqrt(len(values))
    return Estimate(mean=mean(values), half_width=width)


@cache
def student(degrees: int, comparisons: int = 1) -> float:
    """Return the two-sided quantile of Student's t at 5 % over the number of comparisons."""
    low, high = 0.0, 1e6
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if _within(middle, degrees) > 1 - 0.05 / comparisons else (middle, high)
    return high


def _within(bound: float, degrees: int) -> float:
    """Return the probability that Student's t is at most `bound`, without its sign: the finite series of Abramowitz and Stegun,
    26.7.3 and 26.7.4."""
    sine, cosine = bound / sqrt(degrees + bound**2), sqrt(degrees / (degrees + bound**2))
    is_odd = degrees % 2
    term, total = (cosine if is_odd else 1.0), 0.0
    for place in range(1, degrees // 2 + 1):
        total += term
        term *= cosine**2 * (2 * place - 1 + is_odd) / (2 * place + is_odd)
    return 2 / pi * (atan(bound / sqrt(degrees)) + sine * total) if is_odd else sine * total


def losses_of(records: Iterable[Record]) -> dict[int, float]:
    """Return final losses by seed."""
    return {record["seed"]: record["loss"] for record in records}


def tried_words(losses: Mapping[str, float], best: str | None) -> str:
    """Return the losses by the constants that were tried, with the best marked."""
    return ", ".join(f"{one}: **{loss:.3f}**" if one == best else f"{one}: {loss:.3f}" for one, loss in losses.items())


def paired(left: Mapping[int, float], right: Mapping[int, float], comparisons: int = 1) -> Estimate | None:
    """Return left - right over the seeds that both have. The same text in the same order from the same weights cancels the
    effect of the seed."""
    common = sorted(left.keys() & right.keys())
    return estimate([left[seed] - right[seed] for seed in common], comparisons) if common else None


def shown(left: Mapping[int, float], right: Mapping[int, float], comparisons: int = 1) -> str:
    """Return the paired difference for a table; empty where no seed is common."""
    difference = paired(left, right, comparisons)
    return difference.shown(3) if difference is not None else ""


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
