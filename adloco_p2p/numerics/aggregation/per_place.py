"""The mean per place: for sparse contributions, the mean at each place over the hosts that name it.

Divided by the weights of all hosts, a place that one of n hosts names moves by only an n-th of the value that the host has
gathered there, and the rest waits for many rounds. Divided by the weights of the hosts that name it, it moves by the whole
value, but a liar has the whole weight where only it names a place. So every value is clipped to twice the median host's largest
value nearby, which changes next to nothing without liars.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from adloco_p2p.core.model.median import upper_weighted_median
from adloco_p2p.numerics.aggregation.rule import AggregationRule, Decision, Gram, shares


class PerPlace:
    """Takes another rule's decision, and divides the sum at each place by the weights of the kept hosts that name it, in which
    near copies count once if the rule counts them so."""

    needs_gram = True
    """Always true: the statistics of the norm test are about the plain mean, which is not formed here."""

    def __init__(self, rule: AggregationRule) -> None:
        self.name = f"{rule.name}, per place"
        self._rule = rule

    def decide(self, gram: Gram | None, weights: Sequence[int], steps: Sequence[int]) -> Decision:
        decision = self._rule.decide(gram, weights, steps)
        kept = set(decision.kept)
        by_weight = shares([weight if host in kept else 0 for host, weight in enumerate(weights)])
        return replace(decision, divisors=decision.parts or by_weight)


BOUND = 2.0
"""The multiple of the median host's largest magnitude in a block to which values of that block are clipped."""
_MOST = float(np.finfo(np.float32).max)


def bounds(vectors: Sequence[np.ndarray], divisors: Sequence[float]) -> list[float]:
    """Return the bound of each block for n decoded vectors, float32 [blocks, values] each: `BOUND` times the upper weighted
    median of their largest magnitudes in the block."""
    tops = np.stack([np.abs(vector).max(axis=1, initial=0.0) for vector in vectors])
    return [min(BOUND * upper_weighted_median(column, divisors), _MOST) for column in tops.T.tolist()]


def per_place_mean(
    vectors: Sequence[np.ndarray], coefficients: Sequence[float], divisors: Sequence[float], block: int
) -> torch.Tensor:
    """Return, at each place of n float32 vectors [size], sum_i c_i v_i over the sum of those d_i whose v_i is not 0.

    The result is 0 where no vector names the place. Every v_i is first clipped to the `bounds` of its block of `block` values.
    Products, sums and quotients are rounded to float32. Coefficients and divisors are positive.
    """
    size = len(vectors[0])
    blocks = -(-size // block)
    cut = [np.pad(vector, (0, blocks * block - size)).reshape(blocks, block) for vector in vectors]
    limits = np.array(bounds(cut, divisors), dtype=np.float32)[:, None]
    summed, named = np.zeros_like(cut[0]), np.zeros_like(cut[0])
    for vector, coefficient, divisor in zip(cut, coefficients, divisors, strict=True):
        summed += np.clip(vector, -limits, limits) * np.float32(coefficient)
        named += np.where(vector != 0, np.float32(divisor), np.float32(0))
    mean = np.divide(summed, named, out=np.zeros_like(summed), where=named > 0)
    return torch.from_numpy(mean.reshape(-1)[:size])
