"""The peers that a plan counts, with their capacity, their turn and their standing."""

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
    """Measured speed over the last round, all hosted instances together; 0 if nothing was measured yet."""
    micro_batch_limit: PositiveCount
    """b_max,m: the largest micro-batch that fits, in samples."""
    max_instances: PositiveCount
    """How many instances the peer's memory holds."""
    is_leaving: bool = False
    """The peer finishes this round and leaves."""
    upload_bytes_per_second: NonNegative = 0.0
    """Throughput of the peer's uplink in its last averages, as the receivers saw it; 0 if nothing was measured yet."""
    download_bytes_per_second: NonNegative = 0.0
    """Rate at which the peer last fetched an average that others made; 0 if it never did."""
    is_reachable: bool = True
    """Others can open connections to the peer. A peer in client mode only has connections that it opens itself."""
    is_keeper: bool = False
    """The peer holds the newest states and the ledger, and neither trains nor votes."""
    scores_tasks: bool = False
    """The peer can score the run's tasks, as far as it can tell."""
    newest_protocol: Count = field(default=FIRST_UPGRADABLE, metadata=ADDED)
    """The newest protocol that the peer can follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RosterEntry:
    """A peer that the plan counts."""

    peer: PeerId
    joined_round: Count
    capacity: Capacity
    speeds: Annotated[tuple[NonNegative, ...], MaxLen(8)] = ()
    """The last measured speeds, oldest first; work is shared by their median."""
    uplinks: Annotated[tuple[NonNegative, ...], MaxLen(8)] = ()
    """The last measured uplinks in bytes per second, oldest first. The fastest decides how often the peer takes part in
    averages, their median how much it reduces."""
    last_report: Count | None = None
    """The last round that this peer reported."""
    probation: Count = 0
    """Reports that the peer still owes until it votes, proposes and reduces; see `core/planning/standing.py`."""
    standing: Annotated[int, Ge(0), Le(FULL_STANDING)] = FULL_STANDING
    """Weight of the peer's samples in an average, out of `FULL_STANDING`."""
    is_waiting: bool = False
    """The peer is on the bench: it has no work, because others have their turn. See `core/planning/bench.py`."""
    turn_from: Count = 0
    """Round of the plan since which the peer works or waits. For a waiting peer it may be a later round, before which it may
    not work."""

    @property
    def speed(self) -> float:
        """Samples per second; 0 if unknown."""
        return float(median(self.speeds)) if self.speeds else 0.0

    @property
    def uplink(self) -> float:
        """Bytes per second: the median of the last measurements, because single ones are off by up to a half on busy machines.
        Without any, the reported value; 0 if unknown."""
        return float(median(self.uplinks)) if self.uplinks else self.capacity.upload_bytes_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class FormerMember:
    """A peer that gave up its seat after its probation and, for some rounds, need not serve another one."""

    peer: PeerId
    left_round: Count
    """Round of the first plan without the peer."""
    standing: Annotated[int, Ge(0), Le(FULL_STANDING)]
