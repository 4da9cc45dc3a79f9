"""How much of the vector each member of an all-reduce reduces, by its measured uplink."""

from collections.abc import Sequence
from math import fsum
from statistics import median_low

FASTEST_UPLINK = 4.0
"""An uplink counts for at most this many times the median one: who claims more would get work that it cannot do."""


def reduction_shares(uplinks: Sequence[float], reachable: Sequence[bool]) -> tuple[float, ...]:
    """How much of a vector each member of an average reduces, as fractions of one, so that all uplinks are done together.

    A member with fraction f sends 1 + (n - 2) f vectors: its own but for what it reduces itself, and its part of the result to
    everybody else. So with uplinks b and n members f = (T b - 1) / (n - 2) for the least T at which the fractions, none
    negative, sum to one; whose uplink needs longer than T for its own vector alone reduces nothing. 0, and less than a byte
    per second, means unknown, and counts as the median. Empty, which means equally, where nothing is known or depends on it.

    Members send to those who reduce and to nobody else. So who cannot be dialled reduces nothing, as long as anybody can be:
    two of them need no connection to each other.
    """
    reduces = reachable if any(reachable) else [True] * len(uplinks)
    known = sorted(uplink for uplink in uplinks if uplink >= 1)
    if len(uplinks) < 3 or not known:
        return () if all(reduces) else tuple(float(takes) for takes in reduces)
    middle = median_low(known)
    speeds = [min(uplink, FASTEST_UPLINK * middle) if uplink >= 1 else middle for uplink in uplinks]
    spare = len(uplinks) - 2
    fastest_first = sorted((speed for speed, takes in zip(speeds, reduces, strict=True) if takes), reverse=True)
    taking = len(fastest_first)
    while True:  # the fastest `taking` members reduce something: sum over them of T b - 1 is the spare
        seconds = (spare + taking) / fsum(fastest_first[:taking])
        if taking == 1 or seconds * fastest_first[taking - 1] >= 1:
            break
        taking -= 1
    fractions = [max(0.0, seconds * speed - 1) / spare for speed in speeds]
    return tuple(fraction if takes else 0.0 for fraction, takes in zip(fractions, reduces, strict=True))
