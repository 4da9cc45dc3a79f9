"""How much of an instance one host may be: its samples, and so its weight in the average."""

from collections.abc import Sequence
from math import fsum
from statistics import median_low

LARGEST_PART = 0.25
"""No host is more than this part of the whole, from MIN_CAPPED hosts on."""
MIN_CAPPED = 4
MEDIAN_FACTOR = 2.0
"""No host is more than so many times the median one."""


def capped_parts(amounts: Sequence[float]) -> list[float]:
    """The parts of the whole [n], which sum to one, that hosts of these amounts [n] > 0 get: in proportion to them, but at most
    twice the median part and, among four or more, a quarter. With exactly four that is an equal part for each.

    The excess of one host is spread over the others in proportion, and none overtakes another. So a claim to be fast buys at
    most twice the weight of the median host, for work that nobody checks.
    """
    assert amounts and min(amounts) > 0.0, amounts
    limit = MEDIAN_FACTOR * median_low(amounts)
    lowered = [min(amount, limit) for amount in amounts]
    most = LARGEST_PART if len(amounts) >= MIN_CAPPED else 1.0
    by_size = sorted(range(len(amounts)), key=lambda host: (-lowered[host], host))
    full, rest, free = 0, 1.0, fsum(lowered)
    while full < len(amounts) and rest * (lowered[by_size[full]] / free) > most:
        full += 1
        rest, free = 1.0 - full * most, fsum(lowered[host] for host in by_size[full:])
    capped = set(by_size[:full])
    return [most if host in capped else rest * (amount / free) for host, amount in enumerate(lowered)]
