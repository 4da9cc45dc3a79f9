"""The plan of one round: the decision of the swarm."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import MaxLen

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.branches import MAX_BRANCHES, PendingBranch
from adloco_p2p.core.model.canonical import ADDED
from adloco_p2p.core.model.course import AS_CONFIGURED, Course
from adloco_p2p.core.model.instance_plan import InstancePlan
from adloco_p2p.core.model.lineage import Fork, Merge
from adloco_p2p.core.model.once import once
from adloco_p2p.core.model.protocol import FIRST_UPGRADABLE
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.roster_entry import Capacity, FormerMember, RosterEntry
from adloco_p2p.core.model.scalars import (
    MAX_INSTANCES,
    MAX_ROSTER,
    Count,
    Digest,
    Fraction,
    HexDigest,
    InstanceId,
    NonNegative,
    PeerId,
    PositiveCount,
    Text,
)

GENESIS_PARENT = Digest("0" * 64)
"""Parent of the first plan."""
MAX_SIGNERS = 16
"""Peers of a run that may invite and ban."""
REPORT_LAG = 2
"""plan(r) is made from the reports of round r - 2: it is decided while round r - 1 computes."""


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
    price: Count = field(default=0, metadata=canonical.ADDED)
    """Of a seat, in attempts at a proof of work that a newcomer makes on average; 0: none."""
    former: Annotated[tuple[FormerMember, ...], MaxLen(MAX_ROSTER)] = ()
    """Sorted by peer."""
    course: Course = AS_CONFIGURED
    protocol: Count = field(default=FIRST_UPGRADABLE, metadata=ADDED)
    """Of the round, its reports and the next plan; see `core/planning/upgrade.py`."""
    upgrade_round: Count | None = field(default=None, metadata=ADDED)
    """The first round of the next protocol, as long as all electors announce that they can follow it; none: not all do."""

    def instance(self, instance: InstanceId) -> InstancePlan:
        """Of an instance that lives in this round."""
        return next(plan for plan in self.instances if plan.instance == instance)

    def find(self, instance: InstanceId) -> InstancePlan | None:
        """None where the instance does not live in this round."""
        return next((plan for plan in self.instances if plan.instance == instance), None)


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


Decide = Callable[[RoundPlan, Sequence[Report], RosterChange], RoundPlan]
"""parent, reports sorted by peer, change of the roster -> the next plan."""


@once
def keepers_of(plan: RoundPlan) -> frozenset[PeerId]:
    """Members that hold states and train nothing."""
    return frozenset(roster_entry.peer for roster_entry in plan.roster if roster_entry.capacity.is_keeper)


@once
def roster_of(plan: RoundPlan) -> tuple[PeerId, ...]:
    return tuple(roster_entry.peer for roster_entry in plan.roster)


@once
def members_of(plan: RoundPlan) -> frozenset[PeerId]:
    """The same, for the question whether a peer is among them: every message asks it."""
    return frozenset(roster_of(plan))
