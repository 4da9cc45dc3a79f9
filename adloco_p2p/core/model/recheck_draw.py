"""The draw of the parts of a finished average that a member makes again to check their reducers. Pure.

Each member draws by a secret of its own. A draw by the result alone could be steered by the reducer whose part came last, and
checkers drawn in common could be its friends.
"""

import hashlib
from collections.abc import Sequence


def drawn_parts(secret: bytes, others: Sequence[int], *, rate: float, num_parts: int, num_members: int) -> tuple[int, ...]:
    """Draw the parts that this member makes again, ascending, from `others`: those of the `num_parts` that other members
    reduced.

    In expectation all members together make again `rate` times the parts of the average, at least one part; two members may
    draw the same part. A `rate` of 0 draws nothing; a rate of `num_members - 1` makes every member draw everything.
    """
    if rate <= 0 or not others:
        return ()
    expected = max(1.0, rate * num_parts) * len(others) / (num_parts * (num_members - 1))
    count = int(expected) + (_unit(secret, "count") < expected - int(expected))
    ranked = sorted(others, key=lambda part: _unit(secret, f"part {part}"))
    return tuple(sorted(ranked[:count]))


MOST_INSPECTED = 2
"""Reducers named by complaints of which a member makes one more part again: false complaints cause no more work than that."""


def inspected_parts(secret: bytes, shards: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Draw one part of each of up to MOST_INSPECTED reducers, ascending. `shards` are the parts of each reducer named by
    complaints."""
    ranked = sorted((shard for shard in shards if shard), key=lambda shard: _unit(secret, f"shard {shard[0]}"))
    chosen = [min(shard, key=lambda part: _unit(secret, f"inspected {part}")) for shard in ranked[:MOST_INSPECTED]]
    return tuple(sorted(chosen))


def _unit(secret: bytes, word: str) -> float:
    """Return a number that is uniform in [0, 1)."""
    return int.from_bytes(hashlib.sha256(secret + word.encode("ascii")).digest()[:6], "little") / 2**48
