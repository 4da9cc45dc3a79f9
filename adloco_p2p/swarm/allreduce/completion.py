"""The decision of an attempt, by which a retry completes it, so that a member that dies after the barrier stays in the mean.

Once a member has the commitments of all contributors and the inner products of all reducers, every reducer holds all
contributions to its parts, and the coefficients are fixed. A death then takes away only the parts that the dead member
reduces. So the failed attempt is not closed: the remaining members still return the parts that they reduce, under the
commitments, products and receipts of that attempt. The retry averages only the lost parts, over the remaining members, with the
same coefficients, scaled to their old sum. The decision binds its result (`GramBarrier.binding`), so no host commits a mixture
of two attempts. The result gives no statistics of the norm test, because its parts are not means of the same contributions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import fsum

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.scalars import Digest
from adloco_p2p.errors import AveragingError
from adloco_p2p.numerics.aggregation.rule import Decision, Gram
from adloco_p2p.swarm.allreduce.allreduce_spec import AllReduceSpec


def decision_digest(spec: AllReduceSpec, inputs: Digest) -> Digest:
    """Return the decision of an attempt; `inputs` is the `inputs_digest` of its commitments and coefficients."""
    return canonical.digest(["decision", spec.key, spec.digest.hex(), inputs])


def decision_of_rest(decision: Decision, rest: Sequence[int]) -> Decision:
    """Restrict a decision to the contributions at these indices, ascending. Raises AveragingError if all were left out."""
    coefficients = [decision.coefficients[index] for index in rest]
    if not any(coefficients):
        raise AveragingError("no contribution that the decision keeps is left")
    scale = 1.0 if decision.divisors else fsum(decision.coefficients) / fsum(coefficients)
    judged = {index: reason for index, reason in zip(decision.left_out, decision.reasons, strict=True) if index in rest}
    return replace(
        decision,
        coefficients=tuple(scale * coefficient for coefficient in coefficients),
        left_out=tuple(rest.index(index) for index in judged),
        reasons=tuple(judged.values()),
        divisors=tuple(decision.divisors[index] for index in rest) if decision.divisors else (),
    )


@dataclass(frozen=True, slots=True)
class DecidedRule:
    """An aggregation rule that repeats the decision of an earlier attempt for the remaining contributions."""

    decision: Digest
    of_rest: Decision

    @property
    def name(self) -> str:
        return f"decided {self.decision}"

    @property
    def needs_gram(self) -> bool:
        return False

    def decide(self, gram: Gram | None, weights: Sequence[int], steps: Sequence[int]) -> Decision:
        """See `AggregationRule.decide`."""
        del gram, weights, steps
        return self.of_rest
