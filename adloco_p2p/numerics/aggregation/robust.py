"""The robust rule: it clips, leaves out the hosts that most others contradict, and counts near copies once.

The rule is our own. It works on the cosines between contributions, which follow from the Gram matrix. A host's median cosine is
the weighted median of its cosines to the others, so hosts of less than half of the weight cannot vouch for each other. A
comparison with the mean of the others would let them: of sparse contributions, which have little in common, two equal ones make
up most of that mean. Counting near copies once takes the gain from colluders that send one vector (FoolsGold, arXiv 1808.04866,
lowers the weights of such hosts over rounds; this rule does so within one). A lie within the honest range of cosines is not
detected.
"""

from collections.abc import Sequence
from math import sqrt

from adloco_p2p.core.model.median import upper_weighted_median
from adloco_p2p.numerics.aggregation.clip import clip_factors
from adloco_p2p.numerics.aggregation.rule import Decision, Gram, shares

MIN_JUDGED = 4
"""The fewest contributions of which some are left out. Of three, nothing shows whether the two that agree or the third lies."""
LEAST_COSINE = 0.1
"""The least median cosine of a kept host, as a fraction of the median host's. Honest hosts on uneven data come down to 0.18."""
PASSES = 2
"""Passes of the judgement: the second compares hosts with those that the first one kept."""
COPY_DISTANCE = 0.1
"""Two hosts are near copies if their distance (one minus the cosine) is less than this fraction of the distance that both have
to most others. Honest hosts come down to 0.34 of it, and their cosines up to 0.94, so no fixed cosine would do."""
_ROUNDING = 1e-9
"""The distance between equal contributions stays below this because of rounding, and counts as zero."""


def cosines(gram: Gram) -> list[list[float]]:
    """Return the cosines [n][n] between contributions; 0 where either contribution is zero."""
    lengths = [sqrt(gram[host][host]) for host in range(len(gram))]
    products = [[one * other for other in lengths] for one in lengths]
    return [
        [value / product if product > 0.0 else 0.0 for value, product in zip(row, row_products, strict=True)]
        for row, row_products in zip(gram, products, strict=True)
    ]


def median_cosines(cosines: Sequence[Sequence[float]], weights: Sequence[int], kept: Sequence[int]) -> list[float]:
    """Return the median cosines [n]: the lower weighted median of a contribution's cosines to the others of `kept`; 1 if there
    is none.

    A contribution's cosine to hosts of at least half of their weight is at most its median cosine, so colluders of less than
    half cannot raise its median cosine above its cosines to the others.
    """
    found = []
    for host, row in enumerate(cosines):
        others = [other for other in kept if other != host]
        found.append(_lower_weighted_median([row[j] for j in others], [weights[j] for j in others]) if others else 1.0)
    return found


def weights_without_copies(cosines: Sequence[Sequence[float]], weights: Sequence[int]) -> list[float]:
    """Return the weights [n], scaled so that near copies, and copies of copies, together weigh as much as the heaviest of them.

    Honest hosts of more than half of the weight that are close to each other are no copies: their distance to most others is
    then the distance to each other.
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
    """Return, for each pair of hosts, their distance and the smaller of their lower weighted median distances to all others."""
    hosts = range(len(weights))
    distances = [[1.0 - cosine for cosine in row] for row in cosines]
    usual = [
        _lower_weighted_median([distances[i][j] for j in hosts if j != i], [weights[j] for j in hosts if j != i]) for i in hosts
    ]
    return {(one, other): (distances[one][other], min(usual[one], usual[other])) for one in hosts for other in range(one)}


def _lower_weighted_median(values: Sequence[float], weights: Sequence[int]) -> float:
    return -upper_weighted_median([-value for value in values], weights)


class Robust:
    """The clipped mean of the hosts that most others do not contradict, with near copies counted once.

    A host is measured against the median host. At least half of the weight is always kept, so that many light hosts cannot
    displace the others.
    """

    needs_gram = True

    def __init__(self, name: str = "robust", *, least_cosine: float = LEAST_COSINE) -> None:
        self.name, self._least_cosine = name, least_cosine

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
            parts=parts,
            left_out=left_out,
            reasons=tuple(f"cosine {found[host]:.2f} to most others" for host in left_out),
        )

    def _judge(self, between: Sequence[Sequence[float]], weights: Sequence[int]) -> tuple[list[int], list[float]]:
        """Return the kept hosts, ascending, and the median cosines of the last pass."""
        hosts = list(range(len(weights)))
        kept, found = hosts, [1.0] * len(weights)
        for _ in range(PASSES):
            found = median_cosines(between, weights, kept)
            middle = upper_weighted_median([found[host] for host in kept], [weights[host] for host in kept])
            if middle <= 0.0:
                break
            kept = [host for host in hosts if found[host] >= self._least_cosine * middle]
            best_first = sorted(hosts, key=lambda host: -found[host])
            while 2 * sum(weights[host] for host in kept) < sum(weights):
                kept = sorted(best_first[: len(kept) + 1])
        return kept, found
