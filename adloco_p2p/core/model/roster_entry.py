"""The peers that a plan counts: the capacity of each, its turn, its standing."""

from dataclasses import dataclass, field
from statistics import median
from typing import Annotated

from annotated_types import Ge, Le, MaxLen

from adloco_p2p.core.model.canonical import ADDED
from adloco_p2p.core.model.protocol import FIRST_UPGRADABLE
from adloco_p2p.core.model.scalars import Count, NonNegative, PeerId, PositiveCount

FULL_STANDING = 256
"""Standing of a full member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The capacity that a peer offers for the coming rounds."""

    samples_per_second: NonNegative
    """Measured speed over the last round, all hosted instances together; 0 where nothing was measured yet."""
    micro_batch_limit: PositiveCount
    """b_max,m: largest micro-batch that fits, in samples."""
    max_instances: PositiveCount
    """How many instances the peer's memory holds."""
    is_leaving: bool = False
    """The peer finishes this round and leaves."""
    upload_bytes_per_second: NonNegative = 0.0
    """Throughput of its uplink in its last averages, as the receivers saw it; 0 where nothing was measured yet."""
    download_bytes_per_second: NonNegative = 0.0
    """At which it last fetched an average that others made; 0 where it never did."""
    is_reachable: bool = True
    """Others can open connections to it. A peer in client mode only has those that it opens itself."""
    is_keeper: bool = False
    """It holds the newest states and the ledger, and neither trains nor votes."""
    scores_tasks: bool = False
    """It can score the run's tasks, as far as it can check."""
    newest_protocol: Count = field(default=FIRST_UPGRADABLE, metadata=ADDED)
    """The newest protocol that the peer can follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RosterEntry:
    """A peer that the plan counts."""

    peer: PeerId
    joined_round: Count
    capacity: Capacity
    speeds: Annotated[tuple[NonNegative, ...], MaxLen(8)] = ()
    """The last measured speeds, oldest first; their median shares the work."""
    uplinks: Annotated[tuple[NonNegative, ...], MaxLen(8)] = ()
    """The last measured uplinks in bytes per second, oldest first; the fastest decides in how many averages it is, their median
    how much it reduces."""
    last_report: Count | None = None
    """The last round this peer reported."""
    probation: Count = 0
    """Reports that it still owes until it votes, proposes and reduces; see `core/planning/standing.py`."""
    standing: Annotated[int, Ge(0), Le(FULL_STANDING)] = FULL_STANDING
    """How much its samples weigh in an average, of `FULL_STANDING`."""
    is_waiting: bool = False
    """It is on the bench: it has no work, because others have their turn. See `core/planning/bench.py`."""
    turn_from: Count = 0
    """The plan since which it works or waits; where it waits until a later one, it may work from that one on."""

    @property
    def speed(self) -> float:
        """Samples per second; 0 where it is not known."""
        return float(median(self.speeds)) if self.speeds else 0.0

    @property
    def uplink(self) -> float:
        """Bytes per second, the median of those measured of late: single ones are off by up to a half on busy machines. As
        reported where none is remembered; 0 where it is not known."""
        return float(median(self.uplinks)) if self.uplinks else self.capacity.upload_bytes_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class FormerMember:
    """A peer that gave up its seat after its probation: for some rounds it need not serve another one."""

    peer: PeerId
    left_round: Count
    """The first plan without it."""
    standing: Annotated[int, Ge(0), Le(FULL_STANDING)]
