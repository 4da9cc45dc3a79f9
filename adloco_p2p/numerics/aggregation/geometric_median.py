"""The geometric median: the point with the least weighted sum of distances to the contributions (Weiszfeld 1937; as a robust
mean of model updates, Pillutla et al., arXiv 1912.13445)."""

from collections.abc import Sequence
from math import fsum, sqrt

from adloco_p2p.core.model.median import upper_weighted_median
from adloco_p2p.numerics.aggregation.clip import clip_factors
from adloco_p2p.numerics.aggregation.rule import Decision, Gram, shares

PASSES = 32
"""Passes of Weiszfeld's iteration, which converges linearly."""
_SMOOTHING = 1e-6
"""The least distance, as a fraction of the median norm; it avoids a division by zero at a contribution."""


def distances_to(gram: Gram, coefficients: Sequence[float]) -> list[float]:
    """Return the distances [n] of the contributions to sum_j c_j v_j."""
    products = [fsum(c * product for c, product in zip(coefficients, row, strict=True)) for row in gram]
    sqnorm = fsum(c * product for c, product in zip(coefficients, products, strict=True))
    return [sqrt(max(0.0, gram[host][host] - 2 * product + sqnorm)) for host, product in enumerate(products)]


class GeometricMedian:
    """Coefficients c_i proportional to w_i / distance_i, iterated.

    The start is the clipped mean, because one liar can move the plain mean any number of iterations away. Colluders that send
    one vector get more than their weight.
    """

    name = "geometric_median"
    needs_gram = True

    def decide(self, gram: Gram | None, weights: Sequence[int], steps: Sequence[int]) -> Decision:
        assert gram is not None
        parts = shares(weights)
        coefficients = tuple(a * f for a, f in zip(parts, clip_factors(gram, weights, steps), strict=True))
        least = _SMOOTHING * upper_weighted_median([sqrt(gram[host][host]) for host in range(len(weights))], weights)
        if least == 0.0:  # hosts of more than half of the weight sent zero, so that is the median, and also the clipped mean
            return Decision(coefficients=coefficients)
        for _ in range(PASSES):
            distances = distances_to(gram, coefficients)
            coefficients = shares([a / max(least, d) for a, d in zip(parts, distances, strict=True)])
        return Decision(coefficients=coefficients)
