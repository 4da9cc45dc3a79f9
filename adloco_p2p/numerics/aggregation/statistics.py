"""The statistics of the batch test from the Gram matrix (docs/mathematics.md, 4.3). They need no host's statement about its own
norm, and are about the plain mean, whatever the rule made of it."""

from collections.abc import Sequence
from math import fsum

from adloco_p2p.core.model.gradient_statistics import PseudoGradientStatistics
from adloco_p2p.core.model.scalars import within_scalars
from adloco_p2p.numerics.aggregation.rule import Gram, shares


def gram_statistics(gram: Gram, weights: Sequence[int], kept: Sequence[int]) -> tuple[PseudoGradientStatistics, ...]:
    """Return the three scalars of each host of `kept`, in that order, from its contribution and the unclipped weighted mean of
    all of `kept`. Contributions that were left out do not count, because a liar could otherwise choose the noise."""
    parts = shares([weights[host] for host in kept])
    inner_products = [fsum(a * gram[host][other] for a, other in zip(parts, kept, strict=True)) for host in kept]
    averaged_sqnorm = within_scalars(max(0.0, fsum(a * product for a, product in zip(parts, inner_products, strict=True))))
    return tuple(
        PseudoGradientStatistics(
            own_sqnorm=within_scalars(gram[host][host]),
            inner_product=within_scalars(product),
            averaged_sqnorm=averaged_sqnorm,
        )
        for host, product in zip(kept, inner_products, strict=True)
    )
