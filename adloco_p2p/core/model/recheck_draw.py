"""Which parts of an average a member makes again after it is there, to see whether their reducers lied. Pure.

Each member draws for itself, by a secret that it tells nobody: a draw by the result alone could be chosen by the reducer whose
part came last, and drawn checkers could be its friends.
"""

import hashlib
from collections.abc import Sequence


def drawn_parts(secret: bytes, others: Sequence[int], *, rate: float, num_parts: int, num_members: int) -> tuple[int, ...]:
    """Of `others`, the parts of the `num_parts` that other members reduced, those that this member makes again, ascending.

    All members together make again `rate` times the parts of the average, and at least one part of each, in expectation; two
    may draw the same part. A `rate` of 0 draws nothing, one of `num_members - 1` everything, for every member.
    """
    if rate <= 0 or not others:
        return ()
    expected = max(1.0, rate * num_parts) * len(others) / (num_parts * (num_members - 1))
    count = int(expected) + (_unit(secret, "count") < expected - int(expected))
    ranked = sorted(others, key=lambda part: _unit(secret, f"part {part}"))
    return tuple(sorted(ranked[:count]))


def _unit(secret: bytes, word: str) -> float:
    """Uniform in [0, 1)."""
    return int.from_bytes(hashlib.sha256(secret + word.encode("ascii")).digest()[:6], "little") / 2**48
