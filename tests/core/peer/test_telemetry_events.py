"""Events for the views that only the core knows of: who joined, who is suspected, whose device ran out of memory."""

from dataclasses import replace

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.events import Decided, Durable, Effect, InnerFinished, Received, Started
from adloco_p2p.core.model.telemetry import Log
from adloco_p2p.core.model.types import RosterChange
from adloco_p2p.core.peer.peer import Peer
from adloco_p2p.core.planning.round_plan import genesis, next_plan
from tests.core.agreement.test_consensus import Swarm
from tests.core.agreement.test_membership import TIMING
from tests.core.peer.test_peer import PEER0, PEER1, PEER2, rules
from tests.core.peer.test_peer_churn import CAPACITY, INSTANCE, Scripted, _cadence, _result
from tests.core.world import RUN


def logged(effects: list[Effect], name: str) -> list[dict[str, object]]:
    return [canonical.to_plain(effect) for effect in effects if isinstance(effect, Log) and effect.event == name]


def started(peer: Peer) -> list[Effect]:
    first = genesis(RUN, [(PEER0, CAPACITY), (PEER1, CAPACITY)], rules(rounds=30))
    return peer.handle(Started(durable=Durable(round=0, plans=(first,), held=(INSTANCE,)), capacity=CAPACITY), 0.0)


def test_a_peer_that_a_plan_admits_has_joined_and_the_founders_have_not() -> None:
    agreement = Scripted()
    peer = Peer(me=PEER0, cadence=_cadence(), agreement=agreement)
    assert logged(started(peer), "joined") == []
    first = genesis(RUN, [(PEER0, CAPACITY), (PEER1, CAPACITY)], rules(rounds=30))
    second = next_plan(first, (), rules(rounds=30), roster=RosterChange(joined=((PEER2, CAPACITY),)))
    agreement.outcomes = [Decided(plan=second)]
    effects = peer.handle(Received(sender=PEER1, message="news"), 1.0)
    assert logged(effects, "joined") == [{"peer": PEER2, "round": 1}]


def test_a_limit_that_shrank_in_training_is_out_of_memory_once() -> None:
    peer = Peer(me=PEER0, cadence=_cadence(), agreement=Scripted())
    started(peer)
    result = replace(_result(), micro_batch_limit=CAPACITY.micro_batch_limit // 2)
    effects = peer.handle(InnerFinished(instance=INSTANCE, round=0, result=result), 2.0)
    assert logged(effects, "out_of_memory") == [{"instance": 0, "round": 0, "micro_batch_limit": 4}]
    effects = peer.handle(InnerFinished(instance=INSTANCE, round=0, result=result), 3.0)
    assert logged(effects, "out_of_memory") == []


def test_a_silent_member_is_suspected_before_it_is_gone_and_returns() -> None:
    swarm = Swarm(4)
    swarm.deliver()
    silent, *others = swarm.order
    told: list[tuple[str, object]] = []
    for _ in range(int(TIMING.lease(4) / 2) + 2):
        swarm.now += 1.0
        for name in others:
            outcomes = swarm.peers[name].tick(swarm.now)
            swarm.take(name, outcomes)
            if name == others[0]:
                told += [(effect.event, effect.peer) for effect in outcomes if isinstance(effect, Log)]
        swarm.deliver(to=others)
    assert told == [("suspected", silent)] and not swarm.gone
    swarm.now += 1.0
    swarm.take(silent, swarm.peers[silent].tick(swarm.now))
    swarm.deliver()
    outcomes = swarm.peers[others[0]].tick(swarm.now)
    assert [(effect.event, effect.peer) for effect in outcomes if isinstance(effect, Log)] == [("returned", silent)]
