"""Centered clipping: the mean of the contributions' differences from a centre, each clipped to a radius (Karimireddy et al.,
ICML 2021, arXiv 2012.10333)."""

from collections.abc import Sequence
from math import fsum

from adloco_p2p.core.model.median import upper_weighted_median
from adloco_p2p.numerics.aggregation.clip import clip_factors
from adloco_p2p.numerics.aggregation.geometric_median import distances_to
from adloco_p2p.numerics.aggregation.rule import Decision, Gram, shares

PASSES = 5


class CenteredClip:
    """Iterates x <- x + sum_i a_i (v_i - x) min(1, radius / distance_i).

    It starts from the clipped mean of the round, where the paper starts from the last average. The radius is the weighted
    median of the distances to that start.
    """

    name = "centered_clip"
    needs_gram = True

    def decide(self, gram: Gram | None, weights: Sequence[int], steps: Sequence[int]) -> Decision:
        assert gram is not None
        parts = shares(weights)
        centre = [a * f for a, f in zip(parts, clip_factors(gram, weights, steps), strict=True)]
        distances = distances_to(gram, centre)
        radius = upper_weighted_median(distances, weights)
        for _ in range(PASSES):
            taken = [a * (1.0 if d <= radius else radius / d) for a, d in zip(parts, distances, strict=True)]
            rest = max(0.0, 1.0 - fsum(taken))
            centre = [c * rest + t for c, t in zip(centre, taken, strict=True)]
            distances = distances_to(gram, centre)
        return Decision(coefficients=tuple(centre))
