"""Effects of the core that make, end or fetch an average."""

from dataclasses import dataclass
from typing import NamedTuple

from adloco_p2p.core.model.quorum import Quorum
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId

LEAST_KEPT_BYTES = 1 << 26
HELD_BYTES = 1 << 28
"""Contributions that a reducer holds for a retry although their means are made."""


def results_kept(rounds_kept: int) -> int:
    """Rounds before the newest one whose averages a peer serves: its next one is at most two rounds after its last report."""
    return rounds_kept + 2


def kept_bytes(num_parameters: int) -> int:
    """Of the averages of these rounds, on its disk; those of the newest one are in memory, whatever their size."""
    return max(LEAST_KEPT_BYTES, 12 * num_parameters)


class LostShare(NamedTuple):
    """Of a peer that was in the first attempt at an average and is not in this one."""

    place: int
    """How many members of this attempt stood before it."""
    share: float
    """How much of the vector it was to reduce, in the unit of the members' shares."""


def largest_share(num_members: int, num_reducers: int) -> float:
    """Of the vector, that one member reduces: 2 / n or, where fewer than half of the members reduce, an equal part of it. A
    false reducer does not add to the mean of its part, it writes it."""
    return max(2 / num_members, 1 / num_reducers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Average:
    """Average the pseudo-gradient over the named peers into a scratch buffer. Weights are samples."""

    instance: InstanceId
    round: int
    attempt: int
    key: Digest
    """Digest of run, instance, round, plan, attempt and members: peers that disagree cannot meet."""
    plan: Digest
    """Of the round."""
    weights: tuple[tuple[PeerId, int], ...]
    """Sorted by peer; every weight is positive."""
    steps: tuple[int, ...]
    """Inner steps in the contribution of each of them, of all rounds that it spans."""
    timeout_seconds: float
    shares: tuple[float, ...] = ()
    """How much of the vector each of them reduces; empty: equally much."""
    lost: tuple[LostShare, ...] = ()
    """Of a retry, which cuts the vector as the first attempt did: what its members reduce besides."""
    completes: Digest | None = None
    """The decision of an earlier attempt: only the parts that its lost members were to reduce are averaged."""
    quorum: Quorum | None = None
    """When it ends without its slowest contributors; none: it waits for all of them."""
    is_strict: bool = False
    """By the stricter rule instead of the run's."""
    inspected: tuple[PeerId, ...] = ()
    """Reducers of whose parts every member makes one more again; those whose parts could not be made again lately."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelAverage:
    """Give the attempt, or the repair of it, up; its end is not reported."""

    instance: InstanceId
    round: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairAverage:
    """Fetch the committed average, which others hold, into the scratch buffer; ends like an `Average`."""

    instance: InstanceId
    round: int
    attempt: int
    key: Digest
    """Key of the attempt that made it."""
    digest: Digest
    contributors: tuple[PeerId, ...]
    from_peers: tuple[PeerId, ...]
    timeout_seconds: float
