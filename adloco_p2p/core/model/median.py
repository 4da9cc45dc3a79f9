"""The weighted median, by comparisons and sums of Python floats only, so that every host finds the same."""

from collections.abc import Sequence

from adloco_p2p.core.model.scalars import float_sum


def upper_weighted_median(values: Sequence[float], weights: Sequence[float]) -> float:
    """Return the least of `values` [n] such that it and those below it have more than half of the weight. Raises ValueError if
    no weight is positive.

    Hosts with less than half of the weight cannot push it outside the range of the other hosts' values.
    """
    total, below = float_sum(weights), 0.0
    for value, weight in sorted(zip(values, weights, strict=True)):
        below += weight
        if 2 * below > total:
            return value
    raise ValueError("no positive weight")
