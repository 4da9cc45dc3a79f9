"""The decision of an attempt, by which a retry completes it: a member that dies after the barrier stays in the mean.

Once a member has the commitments of all contributors and the inner products of all reducers, every reducer holds all
contributions to its parts, and the coefficients are fixed. A death then takes away only the parts that the dead member
reduces. So the attempt fails and is not closed: the members that are left still return the parts that they reduce, under the
commitments, the products and the receipts of that attempt. The retry averages the lost parts alone, over the members that are
left, by the same coefficients, which are scaled there to their old sum. Its result is bound by the decision
(`GramBarrier.binding`), so no host commits a mixture of two attempts; it does not give the statistics of the batch test,
because its parts are not means of the same contributions.
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
    """Of an attempt that has decided; `inputs` is `inputs_digest`, of commitments and coefficients."""
    return canonical.digest(["decision", spec.key, spec.digest.hex(), inputs])


def decision_of_rest(decision: Decision, rest: Sequence[int]) -> Decision:
    """For the contributions at these indices alone, ascending. Raises AveragingError where all of them were left out."""
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
    """An aggregation rule: what an earlier attempt decided, of the contributions that are left."""

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
