"""How much of the vector each member of an all-reduce reduces, by its measured uplink."""

from collections.abc import Sequence
from math import fsum
from statistics import median_low

FASTEST_UPLINK = 4.0
"""An uplink counts for at most this many times the median one: a false claim gives a member no more work than that."""


def reduction_shares(uplinks: Sequence[float], reachable: Sequence[bool]) -> tuple[float, ...]:
    """How much of a vector each member of an average reduces, as fractions of one, so that all uplinks are done together.

    A member with fraction f sends 1 + (n - 2) f vectors: its own except for the part that it reduces, and the result of that
    part to all others. So with uplinks b and n members f = (T b - 1) / (n - 2) for the least T at which the fractions, none
    negative, sum to one; a member whose uplink needs longer than T for its own vector alone reduces nothing. 0, and less than a
    byte per second, means unknown, and counts as the median. An empty result means equal shares: all members reduce, and there
    are fewer than three of them or no uplink is known.

    Members send only to those that reduce. So a member that cannot be dialled reduces nothing, as long as any other can be: two
    such members need no connection to each other.
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
