"""The mean at each place of those that name it, for contributions of which most values are not there.

Divided by the weights of all hosts, a place that one of n hosts names moves by an n-th of what that host has gathered there,
and waits for many rounds. Divided by the weights of those that name it, it moves by all of that, and a liar has the whole
weight where only it names a place. So no value counts as larger than twice the middle host's largest one nearby: without liars
that changes next to nothing.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from adloco_p2p.core.model.median import upper_weighted_median
from adloco_p2p.numerics.aggregation.rule import AggregationRule, Decision, Gram, shares


class PerPlace:
    """Another rule's decision, with the sum divided by the weights of the hosts that name a place; hosts that the rule leaves
    out do not count."""

    needs_gram = True
    """The statistics of the batch test are about the plain mean, which is not formed."""

    def __init__(self, rule: AggregationRule) -> None:
        self.name = f"{rule.name}, per place"
        self._rule = rule

    def decide(self, gram: Gram | None, weights: Sequence[int], steps: Sequence[int]) -> Decision:
        decision = self._rule.decide(gram, weights, steps)
        kept = set(decision.kept)
        return replace(decision, divisors=shares([weight if host in kept else 0 for host, weight in enumerate(weights)]))


BOUND = 2.0
"""Of the middle host's largest magnitude in a block."""
_MOST = float(np.finfo(np.float32).max)


def bounds(vectors: Sequence[np.ndarray], divisors: Sequence[float]) -> list[float]:
    """Of n decoded pieces of one vector, [blocks, values] float32 each: by block `BOUND` times the upper weighted median of
    their largest magnitudes."""
    tops = np.stack([np.abs(vector).max(axis=1, initial=0.0) for vector in vectors])
    return [min(BOUND * upper_weighted_median(column, divisors), _MOST) for column in tops.T.tolist()]


def per_place_mean(
    vectors: Sequence[np.ndarray], coefficients: Sequence[float], divisors: Sequence[float], block: int
) -> torch.Tensor:
    """sum_i c_i v_i / sum of d_i over those whose v_i is not 0, at each place of n float32 vectors [size]; 0 where no vector
    names the place. Every v_i is cut to the `bounds` of its block of `block` values first.

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
