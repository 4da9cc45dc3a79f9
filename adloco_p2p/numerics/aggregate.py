"""One average of whole vectors in one process, computed part by part with the functions that reducers use.

Peers in one process, simulated swarms and benchmarks use it. The result is that of a networked average, up to the rounding of
sums over parts that are cut differently.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from adloco_p2p.core.model.gradient_statistics import PseudoGradientStatistics
from adloco_p2p.numerics.aggregation.gram import partial_gram, summed_gram
from adloco_p2p.numerics.aggregation.rule import AggregationRule, Decision, Gram
from adloco_p2p.numerics.aggregation.statistics import gram_statistics
from adloco_p2p.numerics.reduction import combined, decoded_parts, part_statistics, statistics_of
from adloco_p2p.numerics.tensor_codec import TensorCodec

_PART = 1 << 20
"""Values in one part: a multiple of every codec's group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """The average of n contributions."""

    vector: torch.Tensor
    """float32 [P], as every host decodes it."""
    decision: Decision
    statistics: tuple[PseudoGradientStatistics | None, ...]
    """[n], one for each contribution; None where the contribution was left out."""
    residuals: tuple[torch.Tensor | None, ...]
    """[n] of float32 [P]: what each contribution lost on its way into the average; None if the codec's loss is negligible."""


def aggregate(
    vectors: Sequence[torch.Tensor],
    weights: Sequence[int],
    steps: Sequence[int],
    *,
    rule: AggregationRule,
    codec: TensorCodec,
) -> Aggregate:
    """Return the average of `vectors`, [n] of float32 [P], with positive weights [n] and planned inner steps [n].

    Raises BadPart for a contribution that is not finite or exceeds the range of the codec.
    """
    num_hosts, size = len(vectors), vectors[0].numel()
    parts = [slice(first, min(first + _PART, size)) for first in range(0, size, _PART)]
    encoded = [[(host, codec.encode(vector[part])) for host, vector in enumerate(vectors)] for part in parts]
    gram: Gram | None = None
    if rule.needs_gram or not codec.returns_mean:
        packed = [
            partial_gram(decoded_parts(codec, contributions, part.stop - part.start))
            for part, contributions in zip(parts, encoded, strict=True)
        ]
        gram = summed_gram(packed, num_hosts)
    decision = rule.decide(gram, weights, steps)
    result = torch.empty(size)
    residuals = tuple(torch.empty(size) if codec.needs_feedback else None for _ in vectors)
    sums: list[list[tuple[float, float, float]]] = [[] for _ in vectors]
    mean_codec = codec.mean_codec
    taken = [host for host, coefficient in enumerate(decision.coefficients) if coefficient != 0]
    for part, contributions in zip(parts, encoded, strict=True):
        decoded = decoded_parts(codec, contributions, part.stop - part.start)
        average = combined(
            codec,
            [decoded[host] for host in taken],
            [decision.coefficients[host] for host in taken],
            part.stop - part.start,
            divisors=[decision.divisors[host] for host in taken if decision.divisors],
        )
        result[part] = mean_codec.decode(mean_codec.encode(average))
        for host, transmitted in enumerate(decoded):
            values, residual = torch.from_numpy(transmitted), residuals[host]
            if residual is not None:
                kept = values if host not in decision.left_out else 0.0
                torch.sub(vectors[host][part], kept, out=residual[part])
            if gram is None:
                sums[host].append(part_statistics(values, result[part]))
    if gram is None:
        statistics: list[PseudoGradientStatistics | None] = [statistics_of(rows) for rows in sums]
    else:
        known = dict(zip(decision.kept, gram_statistics(gram, weights, decision.kept), strict=True))
        statistics = [known.get(host) for host in range(num_hosts)]
    return Aggregate(vector=result, decision=decision, statistics=tuple(statistics), residuals=residuals)
