"""The interface of an aggregation rule: from inner products and weights to one coefficient per contribution.

A rule uses the Gram matrix of the contributions and no vector, so it costs nothing beside the reduction, and the parts of a
vector may lie on different reducers: Gram matrices add over parts. The average is sum_i c_i v_i. Rules are arithmetic on Python
floats with correctly rounded operations only (`+ * /`, `math.sqrt`, `math.fsum`), so every host that holds the same matrix
decides the same, to the byte.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from typing import Protocol

Gram = Sequence[Sequence[float]]
"""[n][n], finite and symmetric: the inner products of n contributions as they were decoded, in the order of the hosts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A rule's decision about n contributions."""

    coefficients: tuple[float, ...]
    """[n], at least 0: the average is sum_i c_i v_i. A coefficient of 0 takes nothing, not even what is not a number."""
    left_out: tuple[int, ...] = ()
    """Indices of the contributions that the rule judged and refused, ascending; their coefficients are 0."""
    reasons: tuple[str, ...] = ()
    """One phrase for each of `left_out`."""
    divisors: tuple[float, ...] = ()
    """[n], or none: at each place the sum is divided by those of the contributions that are not 0 there (`per_place.py`)."""

    def __post_init__(self) -> None:
        assert len(self.left_out) == len(self.reasons) < len(self.coefficients)
        assert len(self.divisors) in (0, len(self.coefficients))
        assert all(self.coefficients[host] == 0.0 for host in self.left_out)

    @property
    def kept(self) -> tuple[int, ...]:
        """Indices of the contributions that were not left out, ascending."""
        return tuple(host for host in range(len(self.coefficients)) if host not in self.left_out)


class AggregationRule(Protocol):
    """Decides once per average, after the set of contributors is fixed."""

    @property
    def name(self) -> str:
        """The name in a run's configuration."""

    @property
    def needs_gram(self) -> bool:
        """Whether `decide` reads the Gram matrix: only then does an average wait for all uploads before it is reduced."""

    def decide(self, gram: Gram | None, weights: Sequence[int], steps: Sequence[int]) -> Decision:
        """The coefficients of n contributions, of which there is at least one.

        `gram` is [n][n], and may be None for a rule that does not need it; `weights` [n] are at least 1; `steps` [n] are the
        inner steps that the plan gave each host, at least 1. Permuting the hosts permutes the decision.
        """


def shares(weights: Sequence[float]) -> tuple[float, ...]:
    """[n] weights over their sum."""
    total = fsum(weights)
    return tuple(weight / total for weight in weights)
