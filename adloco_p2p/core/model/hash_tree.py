"""Hash trees over vectors: contributors and reducers sign their roots, and a short proof shows that a slice is in the vector.

A vector is cut into shards, one per reducer, shards into parts, and parts into slices. Each leaf names the index of its first
value, so a slice cannot stand in for another one; leaves, inner nodes and shards hash under different tags, so none can stand
in for another kind. A reducer that has checked every slice of its own shard against a root has all that can be proven about
that shard, because its name stands in the root's tree once.

A proof is the path from a slice up to the root: the side and the hash of the neighbour at each step, 33 bytes.
"""

import hashlib
from collections.abc import Sequence

from adloco_p2p.core.model.scalars import PeerId

LEAST_SLICE_VALUES = 512
SCALE_ROUNDING, LEAST_VALUE = 1e-6, 1e-44
"""Relative and absolute tolerance between values of a sign mean: machines sum its scale in different orders."""
STEP_BYTES = 33
MAX_STEPS = 40
"""Most steps of a proof, more than 256 shards of 131072 parts of 4096 slices need."""
_LEAF, _NODE, _SHARD = b"\0", b"\1", b"\2"
_LEFT, _RIGHT = 0, 1


def slice_values(group: int) -> int:
    """Return the values per slice under a codec that encodes `group` values together; the last slice of a part may be
    shorter."""
    return max(LEAST_SLICE_VALUES, group)


def leaf_hash(first: int, data: bytes | bytearray | memoryview) -> bytes:
    """Return the hash of a slice: `first` is the index of its first value in the vector, `data` its encoding."""
    hashed = hashlib.sha256(_LEAF + first.to_bytes(8, "little"))
    hashed.update(data)
    return hashed.digest()


def shard_hash(reducer: PeerId, shard: bytes) -> bytes:
    """Return the hash of a shard, from the root of its tree and the name of its reducer."""
    return hashlib.sha256(_SHARD + reducer.encode("utf-8") + b"\0" + shard).digest()


def tree_root(hashes: Sequence[bytes]) -> bytes:
    """Return the root of a tree, 32 bytes; for no hashes, that of nothing."""
    return _levels(hashes)[-1][0] if hashes else hashlib.sha256(_LEAF).digest()


def proof(hashes: Sequence[bytes], index: int) -> bytes:
    """Return the path from one of the hashes to their root."""
    steps = []
    for level in _levels(hashes)[:-1]:
        neighbour = index ^ 1
        if neighbour < len(level):
            steps.append(bytes([_LEFT if neighbour < index else _RIGHT]) + level[neighbour])
        index //= 2
    return b"".join(steps)


def climb(start: bytes, way: bytes) -> bytes:
    """Return the root to which a proof leads. Raises ValueError if it is malformed."""
    if len(way) % STEP_BYTES or len(way) > MAX_STEPS * STEP_BYTES:
        raise ValueError("a proof of another length")
    for at in range(0, len(way), STEP_BYTES):
        side, neighbour = way[at], way[at + 1 : at + STEP_BYTES]
        if side not in (_LEFT, _RIGHT):
            raise ValueError("a neighbour on no side")
        pair = neighbour + start if side == _LEFT else start + neighbour
        start = hashlib.sha256(_NODE + pair).digest()
    return start


def _levels(hashes: Sequence[bytes]) -> list[list[bytes]]:
    """Return the levels of the tree, from the given hashes to the root; the last node of an odd level moves up as it is."""
    levels = [list(hashes)]
    while len(levels[-1]) > 1:
        level = levels[-1]
        pairs = [hashlib.sha256(_NODE + level[at] + level[at + 1]).digest() for at in range(0, len(level) - 1, 2)]
        levels.append(pairs + level[len(level) - len(level) % 2 :])
    return levels
