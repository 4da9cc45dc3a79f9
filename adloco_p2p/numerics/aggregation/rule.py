"""The interface of an aggregation rule: from inner products and weights to one coefficient per contribution.

A rule reads the Gram matrix of the contributions and no vector, so its cost is negligible beside the reduction. The parts of a
vector may lie on different reducers, because Gram matrices add over parts. The average is sum_i c_i v_i. Rules use Python
floats and correctly rounded operations only (`+ * /`, `math.sqrt`, `math.fsum`), so all hosts with the same matrix come to the
same decision, to the byte.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from typing import Protocol

Gram = Sequence[Sequence[float]]
"""The inner products [n][n] of n decoded contributions, finite and symmetric, in the order of the hosts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A rule's decision about n contributions."""

    coefficients: tuple[float, ...]
    """[n], at least 0: the average is sum_i c_i v_i. A contribution with the coefficient 0 is ignored, NaNs included."""
    left_out: tuple[int, ...] = ()
    """Indices of the contributions that the rule refused, ascending; their coefficients are 0."""
    reasons: tuple[str, ...] = ()
    """One phrase for each of `left_out`."""
    parts: tuple[float, ...] = ()
    """[n], or empty: the parts of the whole before clipping, where a rule counts contributions otherwise than by weight."""
    divisors: tuple[float, ...] = ()
    """[n], or empty. At each place the sum is divided by the divisors of the contributions that are not 0 there
    (`per_place.py`)."""

    def __post_init__(self) -> None:
        assert len(self.left_out) == len(self.reasons) < len(self.coefficients)
        assert len(self.divisors) in (0, len(self.coefficients))
        assert all(self.coefficients[host] == 0.0 for host in self.left_out)

    @property
    def kept(self) -> tuple[int, ...]:
        """Indices of the contributions that were not left out, ascending."""
        return tuple(host for host in range(len(self.coefficients)) if host not in self.left_out)


class AggregationRule(Protocol):
    """A rule, which decides once per average, after the set of contributors is fixed."""

    @property
    def name(self) -> str:
        """The name in a run's configuration."""

    @property
    def needs_gram(self) -> bool:
        """Whether `decide` reads the Gram matrix, so that the reduction has to wait for all uploads."""

    def decide(self, gram: Gram | None, weights: Sequence[int], steps: Sequence[int]) -> Decision:
        """Decide on n >= 1 contributions.

        `gram` is [n][n], and may be None for a rule that does not need it; `weights` [n] are at least 1; `steps` [n] are the
        inner steps that the plan gave each host, at least 1. Permuting the hosts permutes the decision.
        """


def shares(weights: Sequence[float]) -> tuple[float, ...]:
    """Return the weights [n] divided by their sum."""
    total = fsum(weights)
    return tuple(weight / total for weight in weights)
