"""Parts that failed attempts brought to a reducer and back from it: the next attempt at the same average need not send them
again.

Nothing here is taken on trust. A contributor commits itself anew in every attempt, and a reducer counts as held only bytes that
hash to that commitment (`uploads.py`); so a liar can neither bring in another contribution by an old one nor be given that of
another peer.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.swarm.allreduce.allreduce_spec import AllReduceSpec, Part
from adloco_p2p.swarm.allreduce.returned_parts import ReturnedParts


class UploadKey(NamedTuple):
    """One contributor's encoded values of one part, by their places in the vector."""

    contributor: PeerId
    first: int
    size: int


Kept = dict[UploadKey, np.ndarray]
"""uint8, at least as long as the part is when encoded."""


def upload_key(contributor: PeerId, part: Part) -> UploadKey:
    return UploadKey(contributor, part.first, part.size)


class HeldUploads:
    """Of one peer. At most what its failed attempts of one round held."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, InstanceId], Kept] = {}
        """By round and instance."""
        self._returned: dict[tuple[int, InstanceId], tuple[AllReduceSpec, ReturnedParts]] = {}

    def begin(self, spec: AllReduceSpec) -> Kept:
        """The remains of earlier attempts at this average, which pass to the new attempt. Those of other rounds are dropped."""
        found = self._kept.pop((spec.round, spec.instance), {})
        self._kept = {average: kept for average, kept in self._kept.items() if average[0] == spec.round}
        self._returned = {average: kept for average, kept in self._returned.items() if average[0] == spec.round}
        return found if spec.is_retry else {}

    def keep(self, spec: AllReduceSpec, kept: Kept) -> None:
        """The attempt has failed, and leaves these."""
        self._kept[spec.round, spec.instance] = {**self._kept.get((spec.round, spec.instance), {}), **kept}

    def returned(self, spec: AllReduceSpec) -> ReturnedParts | None:
        """Averaged parts that came back in the attempt before this one, which the caller has now, where its members are the
        same ones."""
        earlier, parts = self._returned.pop((spec.round, spec.instance), (None, None))
        is_same = earlier is not None and replace(spec, key=earlier.key, attempt=earlier.attempt).digest == earlier.digest
        return parts if is_same and spec.is_retry else None

    def keep_returned(self, spec: AllReduceSpec, parts: ReturnedParts) -> None:
        """The attempt has failed, and leaves these."""
        self._returned[spec.round, spec.instance] = (spec, parts)

    def drop(self, round: int, instance: InstanceId) -> None:
        """There is no further attempt at this average."""
        self._kept.pop((round, instance), None)
        self._returned.pop((round, instance), None)
