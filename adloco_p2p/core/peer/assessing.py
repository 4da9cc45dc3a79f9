"""Contributions that this peer is drawn to look at, or to show (`core/model/assessments.py`)."""

from adloco_p2p.core.averaging.outer_round import OuterRound
from adloco_p2p.core.model.assessments import AssessContribution, ShowContribution
from adloco_p2p.core.model.events import Effect
from adloco_p2p.core.model.measurers import drawn_look
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.peer.state import PeerState


def looks_due(state: PeerState) -> list[Effect]:
    """Of each round that is done the look that this peer has a part in, once: as soon as the plan of the next round is here,
    which the lot needs, and so before anything else changes the state."""
    effects: list[Effect] = []
    for outer in state.rounds:
        following = state.book.get(outer.round + 1)
        if outer.is_done and not outer.is_looked_at and following is not None:
            outer.is_looked_at = True
            effects += _look(outer, following, state.me)
    return effects


def _look(outer: OuterRound, following: RoundPlan, me: PeerId) -> list[Effect]:
    if following.is_last:
        return []  # no plan would follow from the scores
    plan = next((item for item in following.instances if item.instance == outer.instance and item.is_assessed), None)
    if plan is None or outer.is_void or outer.average is None or outer.applied is None or outer.applied.is_refused:
        return []
    look = drawn_look(outer.applied.state_digest, plan, following.roster, round=outer.round)
    if look is None or look.subject not in outer.average.contributors:
        return []
    if look.subject == me:
        return [ShowContribution(instance=outer.instance, round=outer.round, assessors=look.assessors)]
    if me not in look.assessors:
        return []
    share = next(share for share in outer.instance_plan.hosts if share.peer == look.subject)
    looked = AssessContribution(
        instance=outer.instance,
        round=outer.round,
        subject=look.subject,
        state=outer.applied.state_digest,
        first_sample=share.first_sample,
        samples=share.samples,
        unseen_from=outer.instance_plan.first_sample + sum(share.samples for share in outer.instance_plan.hosts),
        reads=outer.instance_plan.reads,
    )
    return [looked]
