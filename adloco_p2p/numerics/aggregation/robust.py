"""Clipping, and leaving out the hosts that the mean of the others contradicts.

An own rule: the cosine of each contribution to the mean of the others separates reversed, random and zero vectors from honest
ones, however the honest hosts scatter, and follows from the Gram matrix. What stays within the honest cosine is not seen.
"""

from collections.abc import Sequence
from math import fsum, sqrt

from adloco_p2p.numerics.aggregation.clip import clip_factors
from adloco_p2p.numerics.aggregation.rule import Decision, Gram, shares, upper_weighted_median

MIN_JUDGED = 4
"""From so many contributors on. Of three, two cannot be told from the one that they contradict."""
LEAST_COSINE = 0.1
"""Of the median cosine; less than that is a contradiction. Honest hosts on uneven data come down to 0.13 of it."""
PASSES = 2
"""The second one judges by the mean without those that the first one left out."""


def cosines_to_others(gram: Gram, factors: Sequence[float], kept: Sequence[int]) -> list[float]:
    """[n]: cosine of each contribution v_i to sum_j f_j v_j over the hosts j of `kept` but i; 0 where either is zero."""
    whole = [factors[j] * fsum(factors[k] * gram[j][k] for k in kept) for j in kept]
    whole_sqnorm = fsum(whole)
    inside = set(kept)
    cosines = []
    for host, row in enumerate(gram):
        own = row[host]
        factor = factors[host] if host in inside else 0.0
        product = fsum(factors[j] * row[j] for j in kept if j != host)
        # norm2(others) from norm2(others + f v) = norm2(others) + 2 f <v, others> + f^2 norm2(v)
        sqnorm = max(0.0, whole_sqnorm - 2 * factor * product - factor * factor * own)
        length = sqrt(own) * sqrt(sqnorm)
        cosines.append(product / length if length > 0.0 else 0.0)
    return cosines


class Robust:
    """The clipped mean of the hosts that the others do not contradict; the median host's agreement is the yardstick, and never
    less than half of the weight is kept, so that many light hosts cannot take the place of the others."""

    needs_gram = True

    def __init__(self, name: str = "robust", *, least_cosine: float = LEAST_COSINE) -> None:
        self.name, self._least_cosine = name, least_cosine

    def decide(self, gram: Gram | None, weights: Sequence[int], steps: Sequence[int]) -> Decision:
        assert gram is not None
        clipped = clip_factors(gram, weights, steps)
        kept, cosines = self._judge(gram, weights, clipped)
        parts = shares([weight if host in kept else 0 for host, weight in enumerate(weights)])
        left_out = tuple(host for host in range(len(weights)) if host not in kept)
        return Decision(
            coefficients=tuple(a * f for a, f in zip(parts, clipped, strict=True)),
            left_out=left_out,
            reasons=tuple(f"cosine {cosines[host]:.2f} to the mean of the others" for host in left_out),
        )

    def _judge(self, gram: Gram, weights: Sequence[int], clipped: Sequence[float]) -> tuple[list[int], list[float]]:
        """Who is kept, ascending, and the cosines by which the last pass judged."""
        hosts = list(range(len(weights)))
        kept, cosines = hosts, [1.0] * len(weights)
        if len(weights) < MIN_JUDGED:
            return kept, cosines
        factors = [weight * factor for weight, factor in zip(weights, clipped, strict=True)]
        for _ in range(PASSES):
            cosines = cosines_to_others(gram, factors, kept)
            middle = upper_weighted_median([cosines[host] for host in kept], [weights[host] for host in kept])
            if middle <= 0.0:
                break
            kept = [host for host in hosts if cosines[host] >= self._least_cosine * middle]
            best_first = sorted(hosts, key=lambda host: -cosines[host])
            while 2 * sum(weights[host] for host in kept) < sum(weights):
                kept = sorted(best_first[: len(kept) + 1])
        return kept, cosines
