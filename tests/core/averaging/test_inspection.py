"""What follows from complaints in the averages of the rounds after them: which parts are made again, and which hosts reduce."""

from dataclasses import replace

from adloco_p2p.core.averaging.adaptive_timeout import AdaptiveTimeout
from adloco_p2p.core.model.averages import Average
from adloco_p2p.core.model.complaints import KnownComplaint
from adloco_p2p.core.model.instance_plan import InstancePlan
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.core.planning.round_plan import genesis
from tests.core.averaging.test_outer_round import CAPACITY, RULES, A, B, C, D, inner_result, outer_round

PLAN = genesis(Digest("5" * 64), [(peer, CAPACITY) for peer in (A, B, C, D)], RULES)


def average(item: InstancePlan, *, round: int) -> Average:
    """That A begins in a round whose plan has this instance."""
    plan: RoundPlan = replace(PLAN, round=round, instances=(item,))
    outer = outer_round(A, plan, AdaptiveTimeout())
    outer.start(0.0, progress_end=0.1)
    [begun] = [effect for effect in outer.inner_finished(inner_result(outer), 10.0) if isinstance(effect, Average)]
    return begun


def test_reducers_that_complaints_name_are_inspected_where_they_are_members() -> None:
    [item] = PLAN.instances
    said = [KnownComplaint(peer=A, round=3, contributor=D, reducer=reducer) for reducer in (C, D, C, PeerId("gone"))]
    assert average(item, round=0).inspected == ()
    assert average(replace(item, complaints=tuple(said)), round=0).inspected == (C, D)


def test_a_host_that_was_suspended_reduces_nothing_for_sixty_four_rounds_more() -> None:
    [item] = PLAN.instances
    hosts = tuple(replace(share, suspensions=1, suspended_until=20) if share.peer == B else share for share in item.hosts)
    was_suspended = replace(item, hosts=hosts)
    assert average(was_suspended, round=83).shares == (1.0, 0.0, 1.0, 1.0)
    assert average(was_suspended, round=84).shares == average(item, round=84).shares == ()
    everybody = tuple(replace(share, suspensions=1, suspended_until=20) for share in item.hosts)
    assert average(replace(item, hosts=everybody), round=30).shares == (), "where no other is left all reduce"
