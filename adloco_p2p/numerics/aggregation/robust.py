"""Clipping, leaving out the hosts that most others contradict, and counting near copies once.

An own rule, from the cosines of contributions to each other, which follow from the Gram matrix. How well a host agrees with
the others is the weighted median of its cosines to them, so hosts of less than half of the weight cannot vouch for each other,
as they can where each is compared with the mean of the others: of sparse contributions, which have little in common, two equal
ones are most of that mean. Near copies are what colluders gain from sending one vector (FoolsGold, arXiv 1808.04866,
weighs such hosts down over rounds; here it is within one). What stays within the honest cosine is not seen.
"""

from collections.abc import Sequence
from math import sqrt

from adloco_p2p.core.model.median import upper_weighted_median
from adloco_p2p.numerics.aggregation.clip import clip_factors
from adloco_p2p.numerics.aggregation.rule import Decision, Gram, shares

MIN_JUDGED = 4
"""The number of contributions from which on hosts are left out. Of three, two cannot be distinguished from the one that they
contradict."""
LEAST_AGREEMENT = 0.1
"""Of the median one; less than that is a contradiction. Honest hosts on uneven data come down to 0.18 of it."""
PASSES = 2
"""The second one judges by those that the first one kept."""
COPY_DISTANCE = 0.1
"""Two hosts are near copies whose distance (one minus the cosine) is less than this part of the distance that both have to
most others. Honest ones come down to 0.34 of it, and their cosine up to 0.94, so no fixed cosine would do."""
_ROUNDING = 1e-9
"""Cosines of equal contributions differ by less than this, which counts as no distance."""


def cosines(gram: Gram) -> list[list[float]]:
    """[n][n], of each contribution to each; 0 where either is zero."""
    lengths = [sqrt(gram[host][host]) for host in range(len(gram))]
    products = [[one * other for other in lengths] for one in lengths]
    return [
        [value / product if product > 0.0 else 0.0 for value, product in zip(row, row_products, strict=True)]
        for row, row_products in zip(gram, products, strict=True)
    ]


def agreements(cosines: Sequence[Sequence[float]], weights: Sequence[int], kept: Sequence[int]) -> list[float]:
    """[n]: the lower weighted median of each contribution's cosines to those of `kept` but itself; 1 where there is none.

    So its cosine to hosts of at least half of their weight is that or less: friends of less than half cannot raise it above
    what the others show.
    """
    found = []
    for host, row in enumerate(cosines):
        others = [other for other in kept if other != host]
        found.append(_lower_weighted_median([row[j] for j in others], [weights[j] for j in others]) if others else 1.0)
    return found


def weights_without_copies(cosines: Sequence[Sequence[float]], weights: Sequence[int]) -> list[float]:
    """[n]: the weights, but near copies, and copies of copies, together have that of the heaviest of them.

    Honest hosts of more than half of the weight that are near to each other are no copies: the distance to most others is then
    that to each other.
    """
    hosts = range(len(weights))
    group = list(hosts)
    for (one, other), (distance, usual) in distances_beside_usual(cosines, weights).items():
        if distance + _ROUNDING < COPY_DISTANCE * usual:
            group = [group[other] if number == group[one] else number for number in group]
    members = {number: [weights[host] for host in hosts if group[host] == number] for number in group}
    return [weights[host] * max(members[group[host]]) / sum(members[group[host]]) for host in hosts]


def distances_beside_usual(
    cosines: Sequence[Sequence[float]], weights: Sequence[int]
) -> dict[tuple[int, int], tuple[float, float]]:
    """Of each two hosts: their distance, and the lesser one of their lower weighted median distances to all others."""
    hosts = range(len(weights))
    distances = [[1.0 - cosine for cosine in row] for row in cosines]
    usual = [
        _lower_weighted_median([distances[i][j] for j in hosts if j != i], [weights[j] for j in hosts if j != i]) for i in hosts
    ]
    return {(one, other): (distances[one][other], min(usual[one], usual[other])) for one in hosts for other in range(one)}


def _lower_weighted_median(values: Sequence[float], weights: Sequence[int]) -> float:
    return -upper_weighted_median([-value for value in values], weights)


class Robust:
    """The clipped mean of the hosts that most others do not contradict, near copies counted once. The median agreement is the
    yardstick. Never less than half of the weight is kept, so that many light hosts cannot take the place of the others."""

    needs_gram = True

    def __init__(self, name: str = "robust", *, least_agreement: float = LEAST_AGREEMENT) -> None:
        self.name, self._least_agreement = name, least_agreement

    def decide(self, gram: Gram | None, weights: Sequence[int], steps: Sequence[int]) -> Decision:
        assert gram is not None
        clipped = clip_factors(gram, weights, steps)
        if len(weights) < MIN_JUDGED:
            return Decision(coefficients=tuple(a * f for a, f in zip(shares(weights), clipped, strict=True)))
        between = cosines(gram)
        kept, found = self._judge(between, weights)
        counted = weights_without_copies(between, weights)
        parts = shares([counted[host] if host in kept else 0.0 for host in range(len(weights))])
        left_out = tuple(host for host in range(len(weights)) if host not in kept)
        return Decision(
            coefficients=tuple(a * f for a, f in zip(parts, clipped, strict=True)),
            left_out=left_out,
            reasons=tuple(f"cosine {found[host]:.2f} to most others" for host in left_out),
        )

    def _judge(self, between: Sequence[Sequence[float]], weights: Sequence[int]) -> tuple[list[int], list[float]]:
        """The hosts that are kept, ascending, and the agreements by which the last pass judged."""
        hosts = list(range(len(weights)))
        kept, found = hosts, [1.0] * len(weights)
        for _ in range(PASSES):
            found = agreements(between, weights, kept)
            middle = upper_weighted_median([found[host] for host in kept], [weights[host] for host in kept])
            if middle <= 0.0:
                break
            kept = [host for host in hosts if found[host] >= self._least_agreement * middle]
            best_first = sorted(hosts, key=lambda host: -found[host])
            while 2 * sum(weights[host] for host in kept) < sum(weights):
                kept = sorted(best_first[: len(kept) + 1])
        return kept, found
