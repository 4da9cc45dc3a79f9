"""Work of one host, as tests of an average's parts give it."""

from adloco_p2p.core.averaging.adaptive_timeout import AdaptiveTimeout
from adloco_p2p.core.averaging.assignment import Assignment
from adloco_p2p.core.averaging.attempt import Attempts
from adloco_p2p.core.averaging.commit_votes import Voter
from adloco_p2p.core.averaging.host_views import HostViews
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.sim.identities import sign, verify
from tests.core.core_values import peer


def voter_of(me: PeerId) -> Voter:
    """One that has no journal."""
    return Voter(sign=lambda payload: sign(me, payload), verify=verify, keep=lambda _vote: [], kept=None)


def attempts_of(plan: RoundPlan) -> Attempts:
    """Of the first instance, on peer 0."""
    assignment = Assignment(
        me=peer(0),
        plan=plan,
        plan_digest=canonical.digest(plan),
        instance=InstanceId(0),
        adaptive_timeout=AdaptiveTimeout(),
        voter=voter_of(peer(0)),
    )
    return Attempts(assignment, HostViews(assignment))
