"""The looks in which this peer takes part, as assessor or as subject (`core/model/assessments.py`)."""

from adloco_p2p.core.averaging.outer_round import OuterRound
from adloco_p2p.core.model.assessments import AssessContribution, ShowContribution
from adloco_p2p.core.model.averages import Average, RepairAverage
from adloco_p2p.core.model.effects import Effect
from adloco_p2p.core.model.measurers import drawn_look
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.peer.state import PeerState


def looks_due(state: PeerState) -> list[Effect]:
    """Start this peer's part in the look of each finished round, once. That happens as soon as the next plan, which the lot
    needs, is known, and so before anything else changes the state."""
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
    plan = following.find(outer.instance)
    if plan is None or not plan.is_assessed:
        return []
    if outer.is_void or outer.average is None or outer.applied is None or outer.applied.is_refused:
        return []
    look = drawn_look(outer.applied.state_digest, plan, following.roster, round=outer.round)
    if look is None or look.subject not in outer.average.contributors:
        return []
    share = outer.instance_plan.share(look.subject)
    if share.every_before > 1:  # the contribution may hold steps of the round before, too
        return []
    if look.subject == me:
        return [ShowContribution(instance=outer.instance, round=outer.round, assessors=look.assessors)]
    if me not in look.assessors:
        return []
    steps = _steps_of(look.subject, outer.average.asked)
    if steps is None:
        return []
    looked = AssessContribution(
        instance=outer.instance,
        round=outer.round,
        subject=look.subject,
        state=outer.applied.state_digest,
        first_sample=share.first_sample,
        samples=share.effective_batch * steps,
        unseen_from=outer.instance_plan.first_sample + sum(share.samples for share in outer.instance_plan.hosts),
        reads=outer.instance_plan.reads,
    )
    return [looked]


def _steps_of(peer: PeerId, average: Average | RepairAverage) -> int | None:
    """Return the inner steps in the peer's contribution; fewer than planned if it ended them early, in which case its rows are
    those of the first steps. All members of the attempt know these numbers, because the key depends on them. None for a host
    that fetched the average: it has no other contributions to compare with, either."""
    if isinstance(average, RepairAverage):
        return None
    members = [member for member, _ in average.weights]
    return dict(zip(members, average.steps, strict=True)).get(peer)
