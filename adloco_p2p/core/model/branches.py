"""States of histories that lost a fork, as reports name them and as plans settle them."""

import hashlib
from dataclasses import dataclass
from typing import Annotated

from annotated_types import MaxLen

from adloco_p2p.core.model.scalars import MAX_HOSTS, MAX_INSTANCES, MAX_ROSTER, Count, Fraction, HexDigest, InstanceId, PeerId

FIRST_BRANCH_ID = 1_000_000
"""Keys of branch states begin here; no instance has such a number."""
MAX_BRANCHES = 64
"""States of lost histories that a report or a plan may name."""
ROUNDS_OPEN = 16
"""A branch state that not all hosts of its target hold by then is dropped."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenWeight:
    """Weights that merges gave to states of one branch, and of its fork, in an instance and in those that were merged into
    it."""

    instance: InstanceId
    branch_weight: Fraction
    fork_weight: Fraction
    """Of all branches of the fork."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingBranch:
    """A branch state in the swarm's plans. Once all hosts of the target hold it, it is merged into the target."""

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
        """Weights that merges gave to states of its branch in the target, ..."""
        return sum(item.branch_weight for item in self.given if item.instance == self.target)

    @property
    def fork_weight(self) -> float:
        """... and to those of all branches of its fork."""
        return sum(item.fork_weight for item in self.given if item.instance == self.target)
