"""Clipping: no contribution has a larger norm per inner step than the median one."""

from collections.abc import Sequence
from math import sqrt

from adloco_p2p.core.model.median import upper_weighted_median
from adloco_p2p.numerics.aggregation.rule import Decision, Gram, shares

MIN_CLIPPED = 3
"""The fewest contributions that are clipped. Of two, the longer one may be the honest one."""


def clip_factors(gram: Gram, weights: Sequence[int], steps: Sequence[int]) -> tuple[float, ...]:
    """Return the factors [n], in [0, 1], that bring each norm per planned inner step down to the upper weighted median.

    Pseudo-gradients grow with the number of steps, so a host with more planned steps may send a longer one.
    """
    if len(weights) < MIN_CLIPPED:
        return (1.0,) * len(weights)
    lengths = [sqrt(gram[host][host]) / count for host, count in enumerate(steps)]
    limit = upper_weighted_median(lengths, weights)
    return tuple(1.0 if length <= limit else limit / length for length in lengths)


class Clip:
    """The weighted mean of the clipped contributions: it bounds their length, and not their direction."""

    name = "clip"
    needs_gram = True

    def decide(self, gram: Gram | None, weights: Sequence[int], steps: Sequence[int]) -> Decision:
        assert gram is not None
        factors = clip_factors(gram, weights, steps)
        return Decision(coefficients=tuple(a * f for a, f in zip(shares(weights), factors, strict=True)))
