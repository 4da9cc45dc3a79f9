"""The work of one host for one instance in one round: what the plan gives it, and what the peer knows when it begins."""

from dataclasses import dataclass, field

from adloco_p2p.core.averaging.adaptive_timeout import AdaptiveTimeout
from adloco_p2p.core.averaging.commit_votes import Voter
from adloco_p2p.core.averaging.failed_attempts import FailedAttempts
from adloco_p2p.core.model.instance_plan import HostShare, InstancePlan
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.rules import WorkRules
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    me: PeerId
    plan: RoundPlan
    plan_digest: Digest
    instance: InstanceId
    adaptive_timeout: AdaptiveTimeout
    """Fed by all rounds of this peer."""
    failed_attempts: FailedAttempts = field(default_factory=FailedAttempts)
    """Of all rounds of this peer."""
    voter: Voter
    work: WorkRules = field(default_factory=WorkRules)
    is_late: bool = False
    """The others have ended this round already; only its average is wanted."""
    is_carried: bool = False
    """The rounds before it were void, and its pseudo-gradient spans them."""
    may_be_late: bool = False
    """This peer has just come to the instance, or took no part in the round before: the others may be far on in this one."""

    @property
    def instance_plan(self) -> InstancePlan:
        return self.plan.instance(self.instance)

    @property
    def share(self) -> HostShare:
        return next(share for share in self.instance_plan.hosts if share.peer == self.me)

    @property
    def hosts(self) -> tuple[PeerId, ...]:
        return tuple(share.peer for share in self.instance_plan.hosts)

    @property
    def contributors(self) -> tuple[PeerId, ...]:
        """Hosts whose pseudo-gradients belong in the average of this round."""
        return tuple(share.peer for share in self.instance_plan.hosts if share.contributes(self.plan.round))

    @property
    def clients(self) -> frozenset[PeerId]:
        """Members in client mode, which accept no connections."""
        return frozenset(entry.peer for entry in self.plan.roster if not entry.capacity.is_reachable)
