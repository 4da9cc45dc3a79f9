"""Types of the fields that others can fill: names, digests, texts and numbers, with limits that are checked at the border."""

from collections.abc import Iterable
from functools import reduce
from math import isnan
from operator import add
from typing import Annotated, NewType

from annotated_types import Ge, Le, MaxLen, Predicate

MAX_PEER_ID_CHARS = 64
DIGEST_CHARS = 64
LARGEST_INSTANCE = (1 << 31) - 1
PeerId = NewType("PeerId", Annotated[str, MaxLen(MAX_PEER_ID_CHARS)])
InstanceId = NewType("InstanceId", Annotated[int, Ge(0), Le(LARGEST_INSTANCE)])
Digest = NewType("Digest", Annotated[str, MaxLen(DIGEST_CHARS)])
"""Names from other peers have a maximum length, because a peer keeps many of them, even those of strangers."""


def is_digest(text: str) -> bool:
    return len(text) == DIGEST_CHARS and not text.strip("0123456789abcdef")


MAX_LABEL_CHARS = 24


def is_label(text: str) -> bool:
    """letters, digits, inner spaces and . _ + - of ASCII, with a letter or digit first; or nothing"""
    return not text or (
        text.isascii() and text[0].isalnum() and not text.endswith(" ") and all(c.isalnum() or c in " ._+-" for c in text)
    )


def is_printable(text: str) -> bool:
    """printable ones only"""  # no control codes, nothing that turns the reading direction
    return text.isprintable()


def is_plain(text: str) -> bool:
    """printable ones of ASCII only"""  # which others are printable depends on the version of Python
    return text.isascii() and text.isprintable()


def as_label(text: str) -> str:
    """Return as much of the text as fits a label; empty if that part cannot be shown."""
    cut = text[:MAX_LABEL_CHARS].rstrip()
    return cut if is_label(cut) else ""


HexDigest = Annotated[Digest, Predicate(is_digest)]
"""A digest in values of other peers: never arbitrary text."""
LARGEST_COUNT = 1 << 62
Count = Annotated[int, Ge(0), Le(LARGEST_COUNT)]
PositiveCount = Annotated[int, Ge(1), Le(LARGEST_COUNT)]
"""Counts in values of other peers, bounded so that sums of them can still be written. Settings have `NaturalInt` and
`PositiveInt`."""
MAX_TEXT_CHARS = 400
Text = Annotated[str, MaxLen(MAX_TEXT_CHARS)]
Label = Annotated[str, MaxLen(MAX_LABEL_CHARS), Predicate(is_label)]
"""A short name that a peer gives itself. It has no control characters, nothing that changes the reading direction and no
foreign letters that look like others, and it cannot look like a shortened peer id, which begins with dots."""
MAX_ROSTER = 4096
"""Most peers that a plan may count."""
MAX_HOSTS = 256
"""Most hosts of one instance."""
LARGEST_SCALAR = 1e30
NonNegative = Annotated[float, Ge(0), Le(LARGEST_SCALAR)]
Finite = Annotated[float, Ge(-LARGEST_SCALAR), Le(LARGEST_SCALAR)]
MAX_INSTANCES = 64
"""Most live instances of a run."""
MAX_BALLOT_JUMP = 1 << 20
"""No honest peer is this many attempts ahead of others; a larger jump would exhaust the numbers that others can use."""
Fraction = Annotated[float, Ge(0), Le(1)]


def shortened(text: str) -> str:
    """Cut the text to the length of a `Text`."""
    return text if len(text) <= MAX_TEXT_CHARS else text[: MAX_TEXT_CHARS - 3] + "..."


def within_scalars(measured: float) -> float:
    """Return the nearest number that others accept in a report; for NaN, the largest one."""
    return LARGEST_SCALAR if isnan(measured) else min(max(measured, -LARGEST_SCALAR), LARGEST_SCALAR)


def float_sum(values: Iterable[float]) -> float:
    """Return the sum in the given order, rounded to a float after every value.

    All numbers that peers must compute alike are summed with this or with `math.fsum`. The builtin `sum` compensates for
    rounding from Python 3.12 on, so peers with an older version would get other plans.
    """
    return reduce(add, values, 0.0)
