"""The work of one host for one instance in one round: its part of the plan, and what the peer knows at the beginning."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from adloco_p2p.core.averaging.adaptive_timeout import AdaptiveTimeout
from adloco_p2p.core.averaging.commit_votes import Voter
from adloco_p2p.core.averaging.failed_attempts import FailedAttempts
from adloco_p2p.core.model.electorate import deciding_contributors
from adloco_p2p.core.model.instance_plan import HostShare, InstancePlan
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.rules import WorkRules
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Everything with which one host begins the round of one instance."""

    me: PeerId
    plan: RoundPlan
    plan_digest: Digest
    instance: InstanceId
    adaptive_timeout: AdaptiveTimeout
    """The timeout, which all rounds of this peer share."""
    failed_attempts: FailedAttempts = field(default_factory=FailedAttempts)
    """The failed attempts, which all rounds of this peer share."""
    voter: Voter
    work: WorkRules = field(default_factory=WorkRules)
    is_late: bool = False
    """Whether the others have ended this round already, so that only its average is wanted."""
    is_carried: bool = False
    """Whether the rounds before it were void, so that its pseudo-gradient spans them."""
    was_passed_over: bool = False
    """Whether the last average to which this peer gave something was made without it, because it held the others up."""
    may_be_late: bool = False
    """Whether the others may be far ahead, because this peer is new to the instance or missed the round before."""

    @property
    def instance_plan(self) -> InstancePlan:
        return self.plan.instance(self.instance)

    @property
    def share(self) -> HostShare:
        return self.instance_plan.share(self.me)

    @property
    def hosts(self) -> tuple[PeerId, ...]:
        return self.instance_plan.peers

    @property
    def contributors(self) -> tuple[PeerId, ...]:
        return self.instance_plan.contributors(self.plan.round)

    @property
    def deciding(self) -> frozenset[PeerId]:
        """The contributors whose commit votes count."""
        return deciding_contributors(self.plan, self.instance)

    @property
    def transfer_seconds(self) -> float:
        """How long a contributor with the median uplink sends in an average; 0 while that is unknown."""
        return self.adaptive_timeout.transfer_seconds(self.uplinks(self.contributors))

    def uplinks(self, peers: Iterable[PeerId]) -> list[float]:
        """Return the uplinks in bytes per second; less than 1 means unknown."""
        seats = {entry.peer: entry for entry in self.plan.roster}
        return [seats[peer].uplink if peer in seats else 0.0 for peer in peers]

    @property
    def clients(self) -> frozenset[PeerId]:
        """The members in client mode, which accept no connections."""
        return frozenset(entry.peer for entry in self.plan.roster if not entry.capacity.is_reachable)
