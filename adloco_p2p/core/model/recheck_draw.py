"""The parts of an average that a member makes again after it is there, to check their reducers. Pure.

Each member draws for itself, by a secret of its own: a draw by the result alone could be chosen by the reducer whose part came
last, and drawn checkers could be its friends.
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


MOST_INSPECTED = 2
"""Reducers of which a member makes one more part again, of those that complaints name: false ones buy no more work."""


def inspected_parts(secret: bytes, shards: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """One part of each of up to MOST_INSPECTED reducers, ascending. `shards`: the parts of those that complaints name."""
    ranked = sorted((shard for shard in shards if shard), key=lambda shard: _unit(secret, f"shard {shard[0]}"))
    chosen = [min(shard, key=lambda part: _unit(secret, f"inspected {part}")) for shard in ranked[:MOST_INSPECTED]]
    return tuple(sorted(chosen))


def _unit(secret: bytes, word: str) -> float:
    """Uniform in [0, 1)."""
    return int.from_bytes(hashlib.sha256(secret + word.encode("ascii")).digest()[:6], "little") / 2**48
