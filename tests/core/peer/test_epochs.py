"""Ends of jobs on the device that the peer gave up: a reorg abandons a transition, and asks for one of the same round again."""

from adloco_p2p.core.model.effects import Effect, FetchState, RunInner, Transition
from adloco_p2p.core.model.events import AverageFailed, Durable, InnerFinished, Received, Started, TransitionApplied
from adloco_p2p.core.model.ledger_entry import Reorg
from adloco_p2p.core.model.outcomes import Decided
from adloco_p2p.core.model.plan import RosterChange
from adloco_p2p.core.peer.peer import Peer
from adloco_p2p.core.planning.round_plan import genesis, next_plan
from adloco_p2p.sim.identities import RUN
from tests.core.averaging.test_outer_round import asked
from tests.core.core_values import inner_result
from tests.core.peer.story import PEER0, PEER1, PEER2, Story, rules
from tests.core.peer.test_peer_churn import CAPACITY, INSTANCE, NEWS, Scripted, _cadence, _entry, _report


def transitions(effects: list[Effect]) -> list[Transition]:
    return [effect for effect in effects if isinstance(effect, Transition)]


def reorg_within_a_transition() -> tuple[Peer, Transition, Transition]:
    """The peer, the transition that it gave up, and the one that it wants now."""
    whole = rules(rounds=30)
    plans = [genesis(RUN, [(PEER0, CAPACITY), (PEER1, CAPACITY)], whole)]
    plans.append(next_plan(plans[0], (), whole))
    agreement = Scripted()
    agreement.outcomes = [Decided(plan=plans[1])]
    peer = Peer(me=PEER0, cadence=_cadence(), agreement=agreement)
    durable = Durable(round=1, plans=tuple(plans), held=(INSTANCE,))
    (given_up,) = transitions(peer.handle(Started(durable=durable, capacity=CAPACITY), 0.0))
    other = next_plan(plans[0], (), whole, roster=RosterChange(joined=((PEER2, CAPACITY),)))
    reports = tuple(_report(name, plans[0], "after round 0") for name in (PEER0, PEER1))
    newest = next_plan(other, reports, whole)
    agreement.outcomes = [Reorg(fork=plans[0], lost=(), won=(_entry(other), _entry(newest, reports)))]
    news = Received(sender=PEER1, message=NEWS)
    (wanted,) = transitions(peer.handle(news, 1.0))
    return peer, given_up, wanted


def test_the_end_of_an_abandoned_transition_opens_no_boundary() -> None:
    peer, given_up, wanted = reorg_within_a_transition()
    assert (given_up.round, wanted.round) == (1, 1)
    assert given_up.epoch < wanted.epoch
    assert peer.handle(TransitionApplied(round=1, epoch=given_up.epoch), 2.0) == []
    effects = peer.handle(TransitionApplied(round=1, epoch=wanted.epoch), 2.0)
    assert any(isinstance(effect, FetchState) for effect in effects)


def test_an_abandoned_job_that_never_ends_does_not_swallow_the_end_of_a_later_one() -> None:
    peer, _, wanted = reorg_within_a_transition()
    effects = peer.handle(TransitionApplied(round=1, epoch=wanted.epoch), 2.0)
    assert any(isinstance(effect, FetchState) for effect in effects)


def test_inner_steps_of_an_earlier_epoch_end_without_consequence() -> None:
    peer, given_up, wanted = reorg_within_a_transition()
    peer.handle(TransitionApplied(round=1, epoch=wanted.epoch), 2.0)
    finished = InnerFinished(instance=INSTANCE, round=1, result=inner_result(), epoch=given_up.epoch)
    assert not any(isinstance(effect, RunInner) for effect in peer.handle(finished, 2.0))


def test_an_average_that_ends_after_its_round_does_not_end_the_round_again() -> None:
    story = Story(rules=rules(rounds=4))
    late, machine = AverageFailed(asked=asked(), reason="late"), story.machine(PEER0)
    story.at(2.0, lambda: machine.feed(late, machine.process))  # type: ignore[arg-type]
    rounds = story.play().rounds_logged(PEER0)
    assert rounds == sorted(set(rounds))
