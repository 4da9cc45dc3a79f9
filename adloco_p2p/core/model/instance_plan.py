"""The work of one instance in one round: its batch, the noise statistics behind it, and the share of every host."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le, MaxLen

from adloco_p2p.core.model.assessments import MAX_LOOKS, Look, ScoreTenths
from adloco_p2p.core.model.complaints import KnownComplaint, Place
from adloco_p2p.core.model.gradient_statistics import NoiseSample
from adloco_p2p.core.model.scalars import (
    MAX_HOSTS,
    MAX_INSTANCES,
    Count,
    HexDigest,
    InstanceId,
    NonNegative,
    PeerId,
    PositiveCount,
    Text,
)

SwitchMode = Literal["single", "capped", "accumulate"]
"""single: one pass holds the batch. capped: one pass of what fits, less than requested. accumulate: several passes."""
MAX_RISES = 16
"""Most outer steps whose effect on the loss a plan remembers."""
MAX_COMPLAINTS = 16 * MAX_HOSTS
"""Most complaints of the hosts of one instance, one per host and round, that a plan remembers."""
MOST_STEP_SPREAD = 8
"""Greatest ratio of inner steps between contributions for which the statistic of the batch test is used."""
MAX_SCORES = 4
"""Most scores of a host's contributions that a plan remembers."""
MAX_HISTORY = 32
"""Most rounds of statistics that a plan carries per instance."""


def is_due(every: int, round: int) -> bool:
    """Return whether a host that takes part in one of `every` averages takes part in that of this round. All such hosts are due
    together."""
    return round % every == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostShare:
    """The work of one host for one instance in one round. A host with `batch_samples` 0 only receives the average: it is new to
    the instance, or in backoff."""

    peer: PeerId
    batch_samples: Count
    inner_steps: Count
    micro_batch_size: Count
    accumulation_steps: Count
    first_sample: Count
    """Start of this host's samples in the instance's sample order."""
    missed_averages: Count = 0
    """Rounds in a row in which the host had work and was in no committed average, as far as reports show."""
    works_from: Count = 0
    """First round in which the host has work; it may be later than the plan's."""
    suspensions: Count = 0
    """How often the host was suspended."""
    suspended_until: Count = 0
    """The round at which its last suspension ends; it has no work before."""
    scores: Annotated[tuple[ScoreTenths, ...], MaxLen(MAX_SCORES)] = ()
    """The last scores of the host's contributions, oldest first; see `core/planning/assessment.py`."""
    place_before: Place | None = None
    """The host's place in the plan before, or None if it was not in it. The next plan is made from reports on that plan, which
    name hosts by these places."""
    averages_every: PositiveCount = 1
    """The host takes part in the averages of rounds that this number divides; it is more than 1 for a link that would hold the
    others up. In between, the host takes the others' averages, and its next pseudo-gradient spans all these rounds; see
    `core/planning/link_periods.py`."""
    every_before: PositiveCount = 1
    """`averages_every` of the plan before."""

    def contributes(self, round: int) -> bool:
        """Return whether the host has work and its pseudo-gradient belongs in the average of the plan's round."""
        return self.samples > 0 and is_due(self.averages_every, round)

    def had_work(self, round: int) -> bool:
        """Return whether the host worked for the average of the plan before, which is of this round."""
        return self.place_before is not None and self.works_from <= round and is_due(self.every_before, round)

    def spanned(self, round: int) -> bool:
        """Return whether the host's pseudo-gradient in the average of the plan before, which is of this round, spans several
        rounds."""
        return self.every_before > 1 and self.had_work(round)

    @property
    def effective_batch(self) -> int:
        """Samples per inner step that are really used; less than `batch_samples` only if the device caps it."""
        return min(self.batch_samples, self.micro_batch_size * self.accumulation_steps)

    @property
    def samples(self) -> int:
        return self.effective_batch * self.inner_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class InstancePlan:
    """One live instance in one round."""

    instance: InstanceId
    requested_batch: PositiveCount
    """B: the global batch that the norm test asks for."""
    effective_batch: PositiveCount
    """Samples that one inner step really uses, over all hosts."""
    mode: SwitchMode
    reason: Text
    hosts: Annotated[tuple[HostShare, ...], MaxLen(MAX_HOSTS)]
    """Hosts with their shares, sorted by peer."""
    first_sample: Count
    """Samples of this instance's order that earlier rounds were given."""
    inner_steps_before: Count
    """Optimizer steps behind this lineage, H per round; they place the warm-up."""
    lineage_samples: Count = 0
    """Samples behind this lineage. Unlike `first_sample`, a copy continues the count of its source. They place the warm-up,
    too."""
    shrink_streak: Count = 0
    """Rounds in a row in which the test asked for less than half the batch."""
    orphaned_rounds: Count = 0
    """Rounds in a row of which all hosts reported and none of them had the instance."""
    history: Annotated[tuple[NoiseSample, ...], MaxLen(MAX_HISTORY)] = ()
    """Statistics of past rounds, oldest first; at most `BatchRules.window_rounds`."""
    state_digest: HexDigest | None = None
    """Root of the state after round `round - 2` that most hosts with work in that round reported; None if there is none."""
    measurers: Annotated[int, Ge(0), Le(MAX_HOSTS)] = 0
    """How many hosts measure the outer step after the round; 0 if the run has no guard."""
    measurers_before: Annotated[int, Ge(0), Le(MAX_HOSTS)] = 0
    """`measurers` of the plan before; the reports on that plan decide the next one."""
    rises: Annotated[tuple[NonNegative, ...], MaxLen(MAX_RISES)] = ()
    """By how much the last accepted outer steps raised the loss, oldest first; 0 for a step that did not raise it."""
    judged_from: Count = 0
    """First round whose outer step may still be undone."""
    rewind: HexDigest | None = None
    """State to which the hosts go back before the round: that of the boundary before round `round - 2`. None if there is no
    rewind."""
    strict_before: Count = 0
    """First round that is no longer averaged by the stricter rule."""
    complaints: Annotated[tuple[KnownComplaint, ...], MaxLen(MAX_COMPLAINTS)] = ()
    """Complaints that still count, oldest first; see `core/planning/suspension.py`."""
    is_assessed: bool = False
    """A contribution to the average of the round before is to be looked at. The round before that one was not void, so
    contributions hold no inner steps of it."""
    looks: Annotated[tuple[Look, ...], MaxLen(MAX_LOOKS)] = ()
    """Contributions of earlier rounds that are being looked at, oldest first."""
    vector_bytes: Count = 0
    """Size of a pseudo-gradient on the wire, as most hosts report it; 0 before the first reports."""
    reads: Annotated[tuple[InstanceId, ...], MaxLen(MAX_INSTANCES)] = ()
    """Instances whose own data (`instances.data`) this one trains on, sorted; empty for all data of the run."""

    @property
    def peers(self) -> tuple[PeerId, ...]:
        """Peer ids of the hosts, in the order of the plan."""
        return tuple(share.peer for share in self.hosts)

    def share(self, peer: PeerId) -> HostShare:
        """Return the share of a host; raises StopIteration for a peer that is no host."""
        return next(share for share in self.hosts if share.peer == peer)

    def contributors(self, round: int) -> tuple[PeerId, ...]:
        """Return the hosts whose pseudo-gradients belong in the average of the plan's round."""
        return tuple(share.peer for share in self.hosts if share.contributes(round))

    def workers_before(self, round: int) -> frozenset[PeerId]:
        """Return the hosts that worked for the average of the plan before, which is of this round."""
        return frozenset(share.peer for share in self.hosts if share.had_work(round))

    @property
    def least_steps(self) -> int:
        """The fewest inner steps with which a host may contribute: fewer would void the statistic of the batch test."""
        return -(-max(share.inner_steps for share in self.hosts) // MOST_STEP_SPREAD)
