"""Rounds that a member goes through with nothing, or without one of its instances, because nobody who lives has the state: it
reports them all the same."""

from adloco_p2p.core.model.effects import CarryOver, Effect, FetchState, RunInner, Transition
from adloco_p2p.core.model.events import (
    Durable,
    Event,
    InnerFinished,
    OuterApplied,
    PeerGone,
    Started,
    Ticked,
    TransitionApplied,
)
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.rules import Rules, WorkRules
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.core.peer.fetching import NO_DONOR_SECONDS
from adloco_p2p.core.peer.peer import Cadence, Peer
from adloco_p2p.core.planning.round_plan import genesis, next_plan
from adloco_p2p.sim.device import hashed
from adloco_p2p.sim.identities import RUN
from tests.core.core_values import inner_result
from tests.core.peer.story import PEER0, PEER1, rules
from tests.core.peer.test_peer_churn import CAPACITY, Scripted


def left_alone(whole: Rules) -> tuple[list[RoundPlan], Scripted, Peer]:
    """The first plans of a run of two, and the one of them that learns at its start that the other is gone."""
    plans = [genesis(RUN, [(peer, CAPACITY) for peer in (PEER0, PEER1)], whole)]
    while len(plans) < 5:
        plans.append(next_plan(plans[-1], (), whole))
    agreement = Scripted()
    agreement.outcomes = [PeerGone(peer=PEER1)]
    peer = Peer(
        me=PEER0, cadence=Cadence(work=WorkRules(rounds=30), evaluation_period=0, checkpoint_period=1), agreement=agreement
    )
    return plans, agreement, peer


def test_a_member_that_is_left_alone_reports_the_rounds_that_it_passed_without_a_state() -> None:
    """The host that had the state is gone. The next plan waits for the report of round 2 or 3, and no other peer sends any:
    without this one's the run stands still for ever."""
    plans, agreement, peer = left_alone(rules(rounds=30))
    effects = peer.handle(Started(durable=Durable(round=2, plans=tuple(plans)), capacity=CAPACITY), 0.0)
    opened = []
    while transitions := [effect for effect in effects if isinstance(effect, Transition)]:
        assert not any(isinstance(effect, FetchState | RunInner) for effect in effects)
        opened.append(transitions[0].round)
        effects = peer.handle(TransitionApplied(round=opened[-1]), 0.0)
    assert opened == [2, 3, 4]
    assert [(report.round, report.instances) for report in agreement.submitted] == [(2, ()), (3, ())]
    peer.handle(Ticked(), NO_DONOR_SECONDS + 1.0)
    assert [report.round for report in agreement.submitted][:3] == [2, 3, 4], "each once, and the one under way once it is lost"


def _answers(effect: Effect) -> list[Event]:
    """Of a device. One of two hosts makes no average: its rounds are void."""
    match effect:
        case Transition(round=round):
            return [TransitionApplied(round=round)]
        case RunInner(plan=plan, round=round):
            return [InnerFinished(instance=plan.instance, round=round, result=inner_result())]
        case CarryOver(instance=instance, round=round):
            state = hashed("state", round)
            return [OuterApplied(instance=instance, round=round, digest=state, state_digest=state)]
    return []


def test_a_round_that_was_ended_without_the_state_of_one_instance_is_reported_with_the_others() -> None:
    """Nobody has the state of instance 1. Plans may end it, or give it to others, before this peer has waited long enough
    to call it lost; the round that it passed without it is reported at once. (Under a flood of names all hosts passed such a
    round, and no plan could follow: `a forgotten half`, seed 8.)"""
    plans, agreement, peer = left_alone(rules(rounds=30, count=2, period=100))
    events: list[Event] = [Started(durable=Durable(round=2, plans=tuple(plans), held=(InstanceId(0),)), capacity=CAPACITY)]
    while events:
        events += [answer for effect in peer.handle(events.pop(0), 0.0) for answer in _answers(effect)]
    reported = [(report.round, [item.instance for item in report.instances]) for report in agreement.submitted]
    assert reported == [(2, [0]), (3, [0])]
