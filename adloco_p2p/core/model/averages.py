"""Effects that make, cancel or fetch an average."""

from dataclasses import dataclass
from typing import NamedTuple

from adloco_p2p.core.model.quorum import Quorum
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId

LEAST_KEPT_BYTES = 1 << 26
HELD_BYTES = 1 << 28
"""Most bytes of contributions that a reducer holds for a retry after it has computed their means."""


def results_kept(rounds_kept: int) -> int:
    """Return for how many rounds before the newest one a peer serves the averages. The next round of a fetching peer is at most
    two after its last report."""
    return rounds_kept + 2


def kept_bytes(num_parameters: int) -> int:
    """Return the most bytes of these averages that a peer keeps on its disk; those of the newest round are in memory, whatever
    their size."""
    return max(LEAST_KEPT_BYTES, 12 * num_parameters)


class LostShare(NamedTuple):
    """The share of a peer that took part in the first attempt at an average but not in this one."""

    place: int
    """Number of this attempt's members that come before the peer in the order of the first attempt."""
    share: float
    """How much of the vector the peer was to reduce, in the unit of the members' shares."""


def largest_share(num_members: int, num_reducers: int) -> float:
    """Return the largest part of the vector that one member reduces: 2 / n or, if fewer than half of the members reduce, an
    equal part. A false reducer does not add to the mean of its part, it writes it."""
    return max(2 / num_members, 1 / num_reducers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Average:
    """Average the pseudo-gradient over the named peers into a scratch buffer."""

    instance: InstanceId
    round: int
    attempt: int
    key: Digest
    """Digest of all that the members must agree on, such as plan, attempt, members and the decision that it completes: peers
    that disagree cannot meet (`Attempts.key`)."""
    plan: Digest
    """Digest of the round's plan."""
    weights: tuple[tuple[PeerId, int], ...]
    """Samples, times the standing where standings differ, by peer, sorted by peer; every weight is positive."""
    steps: tuple[int, ...]
    """Inner steps in each peer's contribution, over all rounds that it spans."""
    timeout_seconds: float
    shares: tuple[float, ...] = ()
    """How much of the vector each peer reduces; empty for equal shares."""
    lost: tuple[LostShare, ...] = ()
    """For a retry, which cuts the vector as the first attempt did: shares of lost peers, which the members reduce, too."""
    completes: Digest | None = None
    """Decision of an earlier attempt; only the parts that its lost members were to reduce are averaged."""
    quorum: Quorum | None = None
    """When the attempt goes on without its slowest contributors; None to wait for all."""
    is_strict: bool = False
    """Use the stricter aggregation rule instead of the run's."""
    inspected: tuple[PeerId, ...] = ()
    """Reducers whose parts could not be made again lately; every member makes one more part of each again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelAverage:
    """Give up the attempt, or the repair of it; its end is not reported."""

    instance: InstanceId
    round: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairAverage:
    """Fetch a committed average, which others hold, into the scratch buffer; it ends like an `Average`."""

    instance: InstanceId
    round: int
    attempt: int
    key: Digest
    """Key of the attempt that made the average."""
    digest: Digest
    contributors: tuple[PeerId, ...]
    from_peers: tuple[PeerId, ...]
    timeout_seconds: float
