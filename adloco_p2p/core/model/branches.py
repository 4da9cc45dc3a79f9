"""Branch states, from histories that lost a fork, as reports name them and plans settle them."""

import hashlib
from dataclasses import dataclass
from typing import Annotated

from annotated_types import MaxLen

from adloco_p2p.core.model.scalars import (
    MAX_HOSTS,
    MAX_INSTANCES,
    MAX_ROSTER,
    Count,
    Fraction,
    HexDigest,
    InstanceId,
    PeerId,
    float_sum,
)

FIRST_BRANCH_ID = 1_000_000
"""Branch states have keys from here on; no instance has such a number."""
MAX_BRANCHES = 64
"""Most branch states that a report or a plan may name."""
ROUNDS_OPEN = 16
"""Rounds after which a branch state is dropped if not all hosts of its target hold it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchState:
    """An instance's state at the end of a lost history: what one side of a partition trained."""

    fork: HexDigest
    """Digest of the last plan that the lost and the winning history share."""
    fork_round: Count
    """Round of that plan; from it on, the two sides trained apart."""
    branch: HexDigest
    """Digest of the first value after the fork in the lost history, for which the votes of its certificate are."""
    instance: InstanceId
    round: Count
    """The state is that of the boundary before this round of the lost history."""
    state: HexDigest
    samples: Count
    """Samples that were trained apart."""

    @property
    def key(self) -> InstanceId:
        """The key of the state beside the ids of instances. A branch has one state per instance."""
        named = hashlib.sha256(f"{self.branch}:{self.instance}".encode("ascii")).digest()
        return InstanceId(FIRST_BRANCH_ID + int.from_bytes(named[:8]) % FIRST_BRANCH_ID)


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenWeight:
    """Weights that merges gave to states of one branch, and of its whole fork, in one instance; merges into an instance that
    was later merged into it count, too."""

    instance: InstanceId
    branch_weight: Fraction
    fork_weight: Fraction
    """Weight of all branches of the fork together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingBranch:
    """A branch state that plans keep until all hosts of the target hold it; then it is merged into the target."""

    branch_state: BranchState
    target: InstanceId
    """Instance of the winning history into which the state is merged."""
    won_samples: Count
    """Samples that trained the target from the fork to the round of the plan."""
    backing: Fraction
    """Part of the electors of the last common plan that provably voted for the branch."""
    claimants: Annotated[tuple[PeerId, ...], MaxLen(MAX_HOSTS)]
    """Peers that reported the state first, sorted."""
    holders: Annotated[tuple[PeerId, ...], MaxLen(MAX_ROSTER)]
    """Peers whose last report says that they hold the state, sorted."""
    since: Count
    """Round of the first plan that names the state."""
    given: Annotated[tuple[GivenWeight, ...], MaxLen(MAX_INSTANCES)] = ()
    """Weights by instance, because the target may be merged into any of them."""

    @property
    def branch_weight(self) -> float:
        """Total weight that merges gave to states of this branch in the target."""
        return float_sum(item.branch_weight for item in self.given if item.instance == self.target)

    @property
    def fork_weight(self) -> float:
        """Total weight that merges gave to states of all branches of this fork in the target."""
        return float_sum(item.fork_weight for item in self.given if item.instance == self.target)
