"""The values that decisions are made of. All are frozen, comparable and printable; scalars are Python floats (fp64).

Conventions: batches and samples count sequences; an instance's batch is GLOBAL (over all its hosts); a host's batch is what
that host does per inner step. Digests are lower-case hex SHA-256.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt, MaxLen

from adloco_p2p.core.model.certificate import BranchProof
from adloco_p2p.core.model.complaints import Complaint, KnownComplaint, Place
from adloco_p2p.core.model.gradient_statistics import HalfBatchStatistics as HalfBatchStatistics
from adloco_p2p.core.model.gradient_statistics import PseudoGradientStatistics as PseudoGradientStatistics
from adloco_p2p.core.model.scalars import LARGEST_COUNT as LARGEST_COUNT
from adloco_p2p.core.model.scalars import LARGEST_SCALAR as LARGEST_SCALAR
from adloco_p2p.core.model.scalars import MAX_HOSTS as MAX_HOSTS
from adloco_p2p.core.model.scalars import MAX_ROSTER as MAX_ROSTER
from adloco_p2p.core.model.scalars import Count as Count
from adloco_p2p.core.model.scalars import Digest as Digest
from adloco_p2p.core.model.scalars import Finite as Finite
from adloco_p2p.core.model.scalars import HexDigest as HexDigest
from adloco_p2p.core.model.scalars import InstanceId as InstanceId
from adloco_p2p.core.model.scalars import NonNegative as NonNegative
from adloco_p2p.core.model.scalars import PeerId as PeerId
from adloco_p2p.core.model.scalars import PositiveCount as PositiveCount
from adloco_p2p.core.model.scalars import Text as Text
from adloco_p2p.core.model.scalars import is_digest as is_digest
from adloco_p2p.core.model.scalars import shortened as shortened
from adloco_p2p.core.model.scalars import within_scalars as within_scalars
from adloco_p2p.core.model.task_scores import TaskClaim

MAX_SIGNERS = 16
"""Peers of a run that may invite and ban."""
MAX_RISES = 16
"""Outer steps whose effect on the loss a plan remembers."""
MAX_CHANGES = 16
"""Changes of settings that a plan names: those that hold, as one, and those of rounds to come."""
MAX_FACTOR = 100.0
"""By which signers may multiply the learning rate."""
MAX_INSTANCES = 64
"""Live instances of a run."""
FIRST_BRANCH_ID = 1_000_000
"""Keys of branch states begin here; no instance has such a number."""
MAX_BRANCHES = 64
"""States of lost histories that a report or a plan may name."""
MAX_BALLOT_JUMP = 1 << 20
"""No honest peer is so many attempts ahead of others; a larger step would exhaust the numbers that others can use."""
MAX_COMPLAINTS = 16 * MAX_HOSTS
"""Of the hosts of one instance, one per host and round, that a plan remembers."""
MAX_HISTORY = 32
"""Rounds of statistics that a plan carries per instance."""


HostBits = Annotated[int, Ge(0), Lt(1 << MAX_HOSTS)]
"""A set of hosts of one instance, lowest bit first, in the order in which a plan names them."""
GENESIS_PARENT = Digest("0" * 64)
"""Parent of the first plan."""
SwitchMode = Literal["single", "capped", "accumulate"]
"""single: one pass holds the batch. capped: the request is not honoured, one pass of what fits. accumulate: several passes."""


# --- measured: the report of a host about one round -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLosses:
    """What an outer step did, as a host that was drawn for it measured on rows that were drawn with it. Nats per token."""

    before: NonNegative
    after: NonNegative


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceReport:
    """The work of one host for one instance in one round."""

    instance: InstanceId
    samples: Count
    """n_m: samples whose gradient entered the pseudo-gradient; 0 for a host that only received, or whose pseudo-gradient is not
    in the average."""
    tokens: Count
    """Predicted tokens."""
    inner_steps: Count
    """h_m: optimizer steps."""
    batch_samples: Count
    """b_m: effective batch per inner step of this host."""
    accumulation_steps: Count
    train_seconds: NonNegative
    loss: NonNegative | None
    """Mean training loss over the round, nats per predicted token."""
    heldout_loss: NonNegative | None
    """Held-out loss of the outer parameters after the round, nats per predicted token; none where not evaluated."""
    heldout_losses: Annotated[tuple[NonNegative, ...], MaxLen(MAX_INSTANCES)] = ()
    """The same on each data set of the mixture by itself, where instances have data of their own."""
    contributors: HostBits
    """The hosts whose pseudo-gradients are in the committed average, in a void round those that were there, as far as the
    sender knows; see `core/model/report_form.py`."""
    left_out: HostBits = 0
    """The hosts whose pseudo-gradients the aggregation rule left out of it."""
    is_void: bool = False
    """No average got a majority: there was no outer step, and the next pseudo-gradient spans this round, too."""
    has_diverged: bool = False
    """The host has no finite pseudo-gradient to give, or refused the outer step of the committed average, as all hosts do; its
    samples are 0."""
    step: StepLosses | None = None
    """Of a host that was drawn to measure the outer step."""
    complaint: Complaint | None = None
    """Of a host that could not make a part again since its last report; the last one."""
    pseudo_gradient: PseudoGradientStatistics | None
    half_batch: HalfBatchStatistics | None
    digest: HexDigest
    """Outer parameters after the round."""
    state_digest: HexDigest
    """Root of outer parameters and outer momentum after the round: what a joiner verifies against."""
    vector_bytes: Count = 0
    """Of this host's pseudo-gradient as it travels; 0 where it was in no average."""

    @classmethod
    def without_work(
        cls, instance: InstanceId, *, digest: Digest, state_digest: Digest, contributors: HostBits = 0
    ) -> "InstanceReport":
        """Of a host that has the state after the round, and trained nothing in it."""
        return cls(
            instance=instance,
            samples=0,
            tokens=0,
            inner_steps=0,
            batch_samples=0,
            accumulation_steps=0,
            train_seconds=0.0,
            loss=None,
            heldout_loss=None,
            contributors=contributors,
            pseudo_gradient=None,
            half_batch=None,
            digest=digest,
            state_digest=state_digest,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeVerdict:
    """Held-out losses of the sources of a possible merge and of the merged point, nats per token."""

    sources: Annotated[tuple[InstanceId, ...], MaxLen(MAX_INSTANCES)]
    target: InstanceId
    source_losses: Annotated[tuple[NonNegative, ...], MaxLen(MAX_INSTANCES)]
    merged_loss: NonNegative


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
    """The peer finishes this round and goes."""
    upload_bytes_per_second: NonNegative = 0.0
    """Throughput of its uplink in its last averages, as the receivers saw it; 0 where nothing was measured yet."""
    download_bytes_per_second: NonNegative = 0.0
    """At which it last fetched an average that others made; 0 where it never did."""
    is_reachable: bool = True
    """Others can open connections to it. A peer in client mode only has those that it opens itself."""
    is_keeper: bool = False
    """It holds the newest states and the ledger, and neither trains nor votes."""
    scores_tasks: bool = False
    """It can score the run's tasks, as far as it knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchState:
    """One side of a partition's result for an instance: its state at the end of a history that lost."""

    fork: HexDigest
    """The last plan that the lost history and the winning one share, ..."""
    fork_round: Count
    """... and its round: what was trained from this round on was trained apart."""
    branch: HexDigest
    """The first value of the lost history after it: what the votes of its certificate are for."""
    instance: InstanceId
    round: Count
    """The state is that of the boundary before this round of the lost history."""
    state: HexDigest
    samples: Count
    """Trained apart."""

    @property
    def key(self) -> InstanceId:
        """The name of the state where it lies beside instances. A branch has one state per instance."""
        named = hashlib.sha256(f"{self.branch}:{self.instance}".encode("ascii")).digest()
        return InstanceId(FIRST_BRANCH_ID + int.from_bytes(named[:8]) % FIRST_BRANCH_ID)


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class Report:
    """The report of one peer about one round. `round` is the round that ended. A newcomer's first report names no instance.
    `core/model/report_form.py` bounds its size."""

    peer: PeerId
    round: Count
    plan: HexDigest
    """The plan that was carried out."""
    capacity: Capacity
    instances: Annotated[tuple[InstanceReport, ...], MaxLen(MAX_INSTANCES)] = ()
    verdict: ProbeVerdict | None = None
    branches: Annotated[tuple[BranchState, ...], MaxLen(MAX_BRANCHES)] = ()
    """States of lost histories that the peer holds: trained there itself, or fetched for a merge."""
    proof: BranchProof | None = None
    """Of a branch that no plan has named yet."""
    tasks: TaskClaim | None = None
    """Of a peer that was drawn to score the model on tasks and has done so since its last report."""


# --- decided: the round plan -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseSample:
    """Gradient noise of one instance in one round, pooled over its hosts. Every field is about the mean over the whole
    effective batch `batch_samples`, so that a request is `batch_samples` times a ratio of these fields."""

    round: Count
    source: Literal["pseudo_gradient", "micro_batch"]
    batch_samples: PositiveCount
    mean_sqnorm: NonNegative
    """V: squared norm of the mean."""
    noise: NonNegative
    """Variance of the mean: s2/M, or trSigma/B."""
    signal: Finite
    """V minus noise: squared norm of the true vector, unbiased; may be negative."""
    inner_variance: NonNegative
    """Variance of the inner product with the mean, divided by the number of contributions."""
    orthogonal_noise: NonNegative
    """The part of `noise` that is orthogonal to the mean."""


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
    vector_bytes: Count = 0
    """Of a pseudo-gradient as it travels, as most hosts report it; 0 before the first reports."""
    reads: Annotated[tuple[InstanceId, ...], MaxLen(MAX_INSTANCES)] = ()
    """The instances whose data of their own (`instances.data`) it trains on, sorted; empty: all data of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """Copies of a warmed-up instance, made before the round."""

    source: InstanceId
    targets: Annotated[tuple[InstanceId, ...], MaxLen(MAX_INSTANCES)]


Fraction = Annotated[float, Ge(0), Le(1)]
FULL_STANDING = 256
"""Standing of a full member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """Instances that become one. The target is one of the sources and keeps its id; a weight of 0 ends a source without
    taking anything from it. A source may be a branch state, by its key. A probe has the same form and only measures."""

    sources: Annotated[tuple[InstanceId, ...], MaxLen(MAX_INSTANCES)]
    target: InstanceId
    weights: Annotated[tuple[Fraction, ...], MaxLen(MAX_INSTANCES)]
    """One per source, summing to one."""
    reason: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenWeight:
    """What merges gave to states of one branch, and of its fork, in an instance and in those that were merged into it."""

    instance: InstanceId
    branch_weight: Fraction
    fork_weight: Fraction
    """Of all branches of the fork."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingBranch:
    """A branch state that the swarm knows of. Once all hosts of the target hold it, it is merged into the target."""

    branch_state: BranchState
    target: InstanceId
    """The instance of the winning history that it is merged into."""
    won_samples: Count
    """Samples that trained the target since the fork, up to the round of the plan."""
    backing: Fraction
    """Part of the electors of the last common plan whose votes for the branch were shown."""
    claimants: Annotated[tuple[PeerId, ...], MaxLen(MAX_HOSTS)]
    """Peers that reported it first, sorted."""
    holders: Annotated[tuple[PeerId, ...], MaxLen(MAX_ROSTER)]
    """Peers whose last report states that they hold it, sorted."""
    since: Count
    """Round of the first plan that names it."""
    given: Annotated[tuple[GivenWeight, ...], MaxLen(MAX_INSTANCES)] = ()
    """By instance: the target may be merged into any of them."""

    @property
    def branch_weight(self) -> float:
        """What merges gave to states of its branch in the target, ..."""
        return sum(item.branch_weight for item in self.given if item.instance == self.target)

    @property
    def fork_weight(self) -> float:
        """... and to those of all branches of its fork."""
        return sum(item.fork_weight for item in self.given if item.instance == self.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class RosterEntry:
    """A peer that the plan counts."""

    peer: PeerId
    joined_round: Count
    capacity: Capacity
    speeds: Annotated[tuple[NonNegative, ...], MaxLen(8)] = ()
    """The last measured speeds, oldest first; their median shares the work."""
    uplinks: Annotated[tuple[NonNegative, ...], MaxLen(8)] = ()
    """The last measured uplinks in bytes per second, oldest first; the fastest decides in how many averages it is."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FormerMember:
    """A peer that gave up its seat after its probation: for some rounds it need not serve another one."""

    peer: PeerId
    left_round: Count
    """The first plan without it."""
    standing: Annotated[int, Ge(0), Le(FULL_STANDING)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a run that its signers may change while it trains. None: as before."""

    rounds: PositiveCount | None = None
    """The run ends after so many rounds, also where it ended by samples before."""
    samples: PositiveCount | None = None
    """The run ends once its plans have given out so many samples, also where it ended by rounds before."""
    learning_rate_factor: Annotated[float, Gt(0), Le(MAX_FACTOR)] | None = None
    """Times the learning rate of the configuration's schedule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Settings that hold from the plan of a round on."""

    from_round: Count
    settings: Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What signers have ordered of a run beyond its configuration; see `core/ledger/course.py`."""

    paused_from: Count | None = None
    """No plan of this round or a later one before a signer resumes the run."""
    last_round: Count | None = None
    """The run ends after this round at the latest."""
    changes: Annotated[tuple[Change, ...], MaxLen(MAX_CHANGES)] = ()
    """By round. The first one holds already where its round is not after that of the plan."""


AS_CONFIGURED = Course()
"""Nothing was ordered."""


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class RoundPlan:
    """The agreed decision for one round: a value that can be printed, hashed, stored, voted on and replayed.

    `forks` and `merges` are applied before the round. `probe` is measured after it. The plan after the last round has
    `is_last`: its merges are applied and nothing is trained.
    """

    run: HexDigest
    round: Count
    parent: HexDigest
    inner_steps: PositiveCount
    instances: Annotated[tuple[InstancePlan, ...], MaxLen(MAX_INSTANCES)]
    """Sorted by id."""
    roster: Annotated[tuple[RosterEntry, ...], MaxLen(MAX_ROSTER)]
    """Sorted by peer."""
    forks: Annotated[tuple[Fork, ...], MaxLen(MAX_INSTANCES)] = ()
    merges: Annotated[tuple[Merge, ...], MaxLen(MAX_INSTANCES)] = ()
    probe: Merge | None = None
    pending: Merge | None = None
    """The probe of the plan before this one: its verdicts are in the reports that decide the next plan."""
    branches: Annotated[tuple[PendingBranch, ...], MaxLen(MAX_BRANCHES)] = ()
    """By key. Hosts of the targets fetch them."""
    is_last: bool = False
    expected_seconds: NonNegative = 0.0
    """Computing time of the slowest host, from measured speeds; 0 where unknown."""
    progress: Fraction = 0.0
    """Part of the run that lies behind; places the cosine of the learning rate."""
    samples_before: Count = 0
    """Samples that the plans of the rounds before gave out, over all instances."""
    reason: Text = ""
    signers: Annotated[tuple[PeerId, ...], MaxLen(MAX_SIGNERS)] = ()
    """Peers whose invitations and statements count, sorted; at first the author. None: everybody may join."""
    is_ticketed: bool = False
    """A newcomer needs an invitation of a signer."""
    former: Annotated[tuple[FormerMember, ...], MaxLen(MAX_ROSTER)] = ()
    """Sorted by peer."""
    course: Course = AS_CONFIGURED

    def instance(self, instance: InstanceId) -> InstancePlan:
        return next(plan for plan in self.instances if plan.instance == instance)


@dataclass(frozen=True, slots=True, kw_only=True)
class RosterChange:
    """Peers that join and depart with the next plan, branch states accepted with it, and what signers ordered. A peer in both
    lists starts again as a newcomer."""

    joined: Annotated[tuple[tuple[PeerId, Capacity], ...], MaxLen(MAX_ROSTER)] = ()
    departed: Annotated[tuple[PeerId, ...], MaxLen(MAX_ROSTER)] = ()
    """Absent, or banned."""
    branches: Annotated[tuple[PendingBranch, ...], MaxLen(MAX_BRANCHES)] = ()
    """Accepted for the first time."""
    signers: Annotated[tuple[PeerId, ...], MaxLen(MAX_SIGNERS)] | None = None
    """None: those of the plan before."""
    course: Course | None = None
    """None: that of the plan before."""


ROUNDS_KEPT = 2
"""Finished rounds whose averages this peer still vouches for, so that a late host can catch up."""
Decide = Callable[[RoundPlan, Sequence[Report], RosterChange], RoundPlan]
"""parent, reports sorted by peer, change of the roster -> the next plan."""
REPORT_LAG = 2
"""plan(r) is made from the reports of round r - 2: it is decided while round r - 1 computes."""


def keepers_of(plan: RoundPlan) -> frozenset[PeerId]:
    """Members that hold states and train nothing."""
    return frozenset(roster_entry.peer for roster_entry in plan.roster if roster_entry.capacity.is_keeper)


def roster_of(plan: RoundPlan) -> tuple[PeerId, ...]:
    return tuple(roster_entry.peer for roster_entry in plan.roster)


def normalized(amounts: Sequence[float], *, survivor: int) -> tuple[float, ...]:
    """Weights that sum to one; where all amounts are zero, the survivor (an index) as it is."""
    total = fsum(amounts)
    if total <= 0.0:
        return tuple(1.0 if index == survivor else 0.0 for index in range(len(amounts)))
    return tuple(amount / total for amount in amounts)


ROUNDS_OPEN = 16
"""A branch state that not all hosts of its target hold by then is dropped."""
