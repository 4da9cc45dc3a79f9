"""The plan of one round, which is the decision of the swarm."""

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
"""Most signers of a run: peers that may invite and ban."""
REPORT_LAG = 2
"""plan(r) is made from the reports of round r - 2, because it is decided while round r - 1 computes."""


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class RoundPlan:
    """The agreed decision for one round: a value that can be printed, hashed, stored, voted on and replayed.

    `forks` and `merges` are applied before the round; `probe` is measured after it. The plan after the last round has
    `is_last`: its merges are applied, and nothing is trained.
    """

    run: HexDigest
    round: Count
    parent: HexDigest
    inner_steps: PositiveCount
    instances: Annotated[tuple[InstancePlan, ...], MaxLen(MAX_INSTANCES)]
    """Live instances, sorted by id."""
    roster: Annotated[tuple[RosterEntry, ...], MaxLen(MAX_ROSTER)]
    """Members, sorted by peer."""
    forks: Annotated[tuple[Fork, ...], MaxLen(MAX_INSTANCES)] = ()
    merges: Annotated[tuple[Merge, ...], MaxLen(MAX_INSTANCES)] = ()
    probe: Merge | None = None
    pending: Merge | None = None
    """The probe of the plan before this one, whose verdicts are in the reports that decide the next plan."""
    branches: Annotated[tuple[PendingBranch, ...], MaxLen(MAX_BRANCHES)] = ()
    """Branch states that hosts of the targets fetch, sorted by key."""
    is_last: bool = False
    expected_seconds: NonNegative = 0.0
    """Computing time of the slowest host, from measured speeds; 0 if unknown."""
    progress: Fraction = 0.0
    """Part of the run that lies behind; it places the cosine of the learning rate."""
    samples_before: Count = 0
    """Samples that the plans of earlier rounds gave out, over all instances."""
    reason: Text = ""
    signers: Annotated[tuple[PeerId, ...], MaxLen(MAX_SIGNERS)] = ()
    """Peers whose invitations and statements count, sorted; at first only the author. Empty if everybody may join."""
    is_ticketed: bool = False
    """A newcomer needs a signer's invitation."""
    price: Count = field(default=0, metadata=canonical.ADDED)
    """Price of a seat: attempts at a proof of work that a newcomer makes on average; 0 for none."""
    former: Annotated[tuple[FormerMember, ...], MaxLen(MAX_ROSTER)] = ()
    """Former members that served their probation, sorted by peer."""
    course: Course = AS_CONFIGURED
    protocol: Count = field(default=FIRST_UPGRADABLE, metadata=ADDED)
    """Protocol of the round, its reports and the next plan; see `core/planning/upgrade.py`."""
    upgrade_round: Count | None = field(default=None, metadata=ADDED)
    """The first round of the next protocol, as long as all electors announce that they can follow it; None if not all do."""

    def instance(self, instance: InstanceId) -> InstancePlan:
        """Return the plan of an instance that lives in this round; raises StopIteration for any other."""
        return next(plan for plan in self.instances if plan.instance == instance)

    def find(self, instance: InstanceId) -> InstancePlan | None:
        """Return the plan of an instance, or None if it does not live in this round."""
        return next((plan for plan in self.instances if plan.instance == instance), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RosterChange:
    """Peers that join and depart with the next plan, branch states that it accepts, and what signers ordered. A peer in both
    lists starts again as a newcomer."""

    joined: Annotated[tuple[tuple[PeerId, Capacity], ...], MaxLen(MAX_ROSTER)] = ()
    departed: Annotated[tuple[PeerId, ...], MaxLen(MAX_ROSTER)] = ()
    """Peers that are absent or banned."""
    branches: Annotated[tuple[PendingBranch, ...], MaxLen(MAX_BRANCHES)] = ()
    """Branch states accepted for the first time."""
    signers: Annotated[tuple[PeerId, ...], MaxLen(MAX_SIGNERS)] | None = None
    """The new signers; None for those of the plan before."""
    course: Course | None = None
    """The new course; None for that of the plan before."""


Decide = Callable[[RoundPlan, Sequence[Report], RosterChange], RoundPlan]
"""Make the next plan from its parent, the reports sorted by peer, and the change of the roster."""


@once
def keepers_of(plan: RoundPlan) -> frozenset[PeerId]:
    """Return the members that hold states and train nothing."""
    return frozenset(roster_entry.peer for roster_entry in plan.roster if roster_entry.capacity.is_keeper)


@once
def roster_of(plan: RoundPlan) -> tuple[PeerId, ...]:
    return tuple(roster_entry.peer for roster_entry in plan.roster)


@once
def members_of(plan: RoundPlan) -> frozenset[PeerId]:
    """Return the members as a set, because every message asks whether its sender is one of them."""
    return frozenset(roster_of(plan))
