"""The weighted median that every host must find alike: by comparisons and sums, of Python floats."""

from collections.abc import Sequence


def upper_weighted_median(values: Sequence[float], weights: Sequence[float]) -> float:
    """The least of `values` [n] such that it and those below it weigh more than half. Raises ValueError where no weight is
    positive.

    Hosts of less than half of the weight cannot push it outside of what the other hosts show.
    """
    total, below = sum(weights), 0.0
    for value, weight in sorted(zip(values, weights, strict=True)):
        below += weight
        if 2 * below > total:
            return value
    raise ValueError("no positive weight")
