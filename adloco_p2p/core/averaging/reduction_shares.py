"""The share of the vector that each member of an all-reduce reduces, by its measured uplink."""

from collections.abc import Sequence
from math import fsum
from statistics import median_low

from adloco_p2p.core.model.averages import largest_share

FASTEST_UPLINK = 4.0
"""The largest multiple of the median as which an uplink counts: a false claim gives a member no more work than that."""
ROUNDING = 1e-9
"""The rounding error by which equal fractions may seem to exceed the largest one."""


def reduction_shares(uplinks: Sequence[float], reachable: Sequence[bool]) -> tuple[float, ...]:
    """Return the fraction of a vector that each member of an average reduces, so that all uplinks finish together.

    A member with fraction f sends 1 + (n - 2) f vectors: its own except for the part that it reduces, and the result of that
    part to all others. So with uplinks b and n members f = (T b - 1) / (n - 2) for the least T at which the fractions, none
    negative, sum to one; a member whose uplink needs longer than T for its own vector alone reduces nothing. An uplink below
    one byte per second is unknown, and counts as the median. An empty result means equal shares: all members reduce, and there
    are fewer than three of them or no uplink is known.

    Members send only to those that reduce. So a member that cannot be dialled reduces nothing if any other can be dialled: two
    such members need no connection to each other.

    No member reduces more than `largest_share`.
    """
    reduces = reachable if any(reachable) else [True] * len(uplinks)
    known = sorted(uplink for uplink in uplinks if uplink >= 1)
    if len(uplinks) < 3 or not known:
        return () if all(reduces) else tuple(float(takes) for takes in reduces)
    middle = median_low(known)
    speeds = [min(uplink, FASTEST_UPLINK * middle) if uplink >= 1 else middle for uplink in uplinks]
    spare = len(uplinks) - 2
    fastest_first = sorted((speed for speed, takes in zip(speeds, reduces, strict=True) if takes), reverse=True)
    largest = largest_share(len(uplinks), len(fastest_first))
    seconds = _seconds(fastest_first, spare, largest)
    fractions = [min(largest, max(0.0, seconds * speed - 1) / spare) for speed in speeds]
    return tuple(fraction if takes else 0.0 for fraction, takes in zip(fractions, reduces, strict=True))


def _seconds(fastest_first: Sequence[float], spare: int, largest: float) -> float:
    """Return T: the `full` fastest members reduce the largest fraction, the next ones up to `taking` what their uplink allows,
    the others nothing."""
    for full in range(len(fastest_first)):
        rest = spare * (1 - full * largest)
        for taking in range(len(fastest_first), full, -1):
            seconds = (rest + taking - full) / fsum(fastest_first[full:taking])
            if seconds * fastest_first[taking - 1] >= 1:
                break
        if seconds * fastest_first[full] - 1 <= spare * largest * (1 + ROUNDING):
            return seconds
    raise AssertionError("the largest fractions of all reducers are a whole")
