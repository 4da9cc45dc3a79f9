"""The work of one instance in one round: its batch, the gradient noise that asked for it, and the share of every host."""

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
"""single: one pass holds the batch. capped: the request is not honoured, one pass of what fits. accumulate: several passes."""
MAX_RISES = 16
"""Outer steps whose effect on the loss a plan remembers."""
MAX_COMPLAINTS = 16 * MAX_HOSTS
"""Of the hosts of one instance, one per host and round, that a plan remembers."""
MOST_STEP_SPREAD = 8
"""The most inner steps of a contribution over the fewest, beyond which the statistic of the batch test is refused."""
MAX_SCORES = 4
"""Scores of a host's contributions that a plan remembers."""
MAX_HISTORY = 32
"""Rounds of statistics that a plan carries per instance."""


def is_due(every: int, round: int) -> bool:
    """Whether a host that is in every so many averages is in that of this round. All such hosts are due together."""
    return round % every == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostShare:
    """The work assigned to one host for one instance in one round. `batch_samples` 0: it only receives the average (a
    member that is new to the instance, or a host in backoff)."""

    peer: PeerId
    batch_samples: Count
    inner_steps: Count
    micro_batch_size: Count
    accumulation_steps: Count
    first_sample: Count
    """Where this host's samples begin in the instance's sample order."""
    missed_averages: Count = 0
    """Rounds running in which it had work and was in no committed average, as far as reports show."""
    works_from: Count = 0
    """It has work from this round on; a later round than the plan's: not yet."""
    suspensions: Count = 0
    """How often it was suspended, ..."""
    suspended_until: Count = 0
    """... and, the last time, until when: it has no work before this round."""
    scores: Annotated[tuple[ScoreTenths, ...], MaxLen(MAX_SCORES)] = ()
    """Of its contributions that were looked at, the last ones, oldest first; see `core/planning/assessment.py`."""
    place_before: Place | None = None
    """Its place among the instance's hosts in the plan before; none where it was not there. Reports on that plan, from which
    the next one is made, name hosts by these places."""
    averages_every: PositiveCount = 1
    """It is in the averages of the rounds that this divides: more than 1 for a link that would hold the others up. Between
    them it takes the others' averages, and its next pseudo-gradient spans these rounds; `core/planning/link_periods.py`."""
    every_before: PositiveCount = 1
    """The same in the plan before."""

    def contributes(self, round: int) -> bool:
        """It has work in the plan of this round, and its pseudo-gradient is for the average of this round."""
        return self.samples > 0 and is_due(self.averages_every, round)

    def had_work(self, round: int) -> bool:
        """In the plan before, which is of this round, it worked for the average; as far as it was a host then."""
        return self.works_from <= round and is_due(self.every_before, round)

    def spanned(self, round: int) -> bool:
        """Its pseudo-gradient in the average of this round, that of the plan before, is of several rounds."""
        return self.every_before > 1 and self.had_work(round)

    @property
    def effective_batch(self) -> int:
        """Samples per inner step that are really used; less than `batch_samples` only where the device caps it."""
        return min(self.batch_samples, self.micro_batch_size * self.accumulation_steps)

    @property
    def samples(self) -> int:
        return self.effective_batch * self.inner_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class InstancePlan:
    """One live instance in one round."""

    instance: InstanceId
    requested_batch: PositiveCount
    """B: the batch that the norm test asks for, global."""
    effective_batch: PositiveCount
    """Sum over hosts of what one inner step really uses."""
    mode: SwitchMode
    reason: Text
    hosts: Annotated[tuple[HostShare, ...], MaxLen(MAX_HOSTS)]
    """Sorted by peer."""
    first_sample: Count
    """Samples of this instance's order that earlier rounds were given."""
    inner_steps_before: Count
    """Optimizer steps of H per round that this lineage has behind it; ..."""
    lineage_samples: Count = 0
    """... and samples: unlike `first_sample`, a copy goes on from those of its source. Both place the warm-up."""
    shrink_streak: Count = 0
    """Rounds in a row whose test asked for less than half the batch."""
    orphaned_rounds: Count = 0
    """Rounds in a row of which all hosts reported, and none of them had the instance."""
    history: Annotated[tuple[NoiseSample, ...], MaxLen(MAX_HISTORY)] = ()
    """Statistics of past rounds, oldest first; at most `BatchRules.window_rounds`."""
    state_digest: HexDigest | None = None
    """State after round `round - 2`, as the reports of that round agree on it; none before the first."""
    measurers: Annotated[int, Ge(0), Le(MAX_HOSTS)] = 0
    """How many hosts measure the outer step after the round; 0: the run has no guard."""
    measurers_before: Annotated[int, Ge(0), Le(MAX_HOSTS)] = 0
    """As many as that in the plan before: reports on that one decide the next."""
    rises: Annotated[tuple[NonNegative, ...], MaxLen(MAX_RISES)] = ()
    """By how much the last outer steps that were accepted raised the loss, oldest first; 0 for one that did not."""
    judged_from: Count = 0
    """No outer step of an earlier round is gone back on."""
    rewind: HexDigest | None = None
    """Before the round the hosts go back to this state, the one before round `round - 2`."""
    strict_before: Count = 0
    """Rounds before this one are averaged by the stricter rule."""
    complaints: Annotated[tuple[KnownComplaint, ...], MaxLen(MAX_COMPLAINTS)] = ()
    """Those that count, oldest first; see `core/planning/suspension.py`."""
    is_assessed: bool = False
    """A contribution to the average of the round before is looked at. The round before that was not void, so contributions hold
    no inner steps of it."""
    looks: Annotated[tuple[Look, ...], MaxLen(MAX_LOOKS)] = ()
    """Contributions of earlier rounds that are looked at, oldest first."""
    vector_bytes: Count = 0
    """Of a pseudo-gradient as it travels, as most hosts report it; 0 before the first reports."""
    reads: Annotated[tuple[InstanceId, ...], MaxLen(MAX_INSTANCES)] = ()
    """The instances whose data of their own (`instances.data`) it trains on, sorted; empty: all data of the run."""

    @property
    def peers(self) -> tuple[PeerId, ...]:
        """The hosts by their names."""
        return tuple(share.peer for share in self.hosts)

    def share(self, peer: PeerId) -> HostShare:
        """The share of a host."""
        return next(share for share in self.hosts if share.peer == peer)

    def contributors(self, round: int) -> tuple[PeerId, ...]:
        """Hosts whose pseudo-gradients belong in the average of this round, which is that of the plan."""
        return tuple(share.peer for share in self.hosts if share.contributes(round))

    @property
    def least_steps(self) -> int:
        """A host contributes at least so many inner steps, or nothing: fewer would void the statistic of the batch test."""
        return -(-max(share.inner_steps for share in self.hosts) // MOST_STEP_SPREAD)
