"""Events for the views that only the core knows of: who joined, who is suspected, whose device ran out of memory."""

import io
from dataclasses import replace

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.effects import Effect
from adloco_p2p.core.model.events import Durable, InnerFinished, Received, Started
from adloco_p2p.core.model.outcomes import Decided
from adloco_p2p.core.model.plan import RosterChange
from adloco_p2p.core.model.telemetry import Log, Returned, Stamped, Suspected, to_line
from adloco_p2p.core.peer.peer import Peer
from adloco_p2p.core.planning.round_plan import genesis, next_plan
from adloco_p2p.decode import decode_event
from adloco_p2p.sim.identities import RUN
from adloco_p2p.views import table_rows
from adloco_p2p.views.plain import PlainView
from adloco_p2p.views.status import Status
from adloco_p2p.views.status_fold import apply
from tests.core.agreement.test_consensus import Swarm
from tests.core.agreement.test_membership import TIMING
from tests.core.core_values import inner_result
from tests.core.peer.story import PEER0, PEER1, PEER2, rules
from tests.core.peer.test_peer_churn import CAPACITY, INSTANCE, NEWS, Scripted, _cadence


def logged(effects: list[Effect], name: str) -> list[dict[str, object]]:
    return [canonical.to_plain(effect) for effect in effects if isinstance(effect, Log) and effect.event == name]


def shown(*events: Log) -> tuple[str, Status]:
    """The lines that the plain view prints, and the status behind all views."""
    stream, status = io.StringIO(), Status()
    view = PlainView(stream)
    for event in events:
        stamped = decode_event(to_line(Stamped(time=1.0, event=event)))
        assert stamped is not None
        view.update(stamped)
        status = apply(status, stamped)
    return stream.getvalue(), status


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
    effects = peer.handle(Received(sender=PEER1, message=NEWS), 1.0)
    assert logged(effects, "joined") == [{"peer": PEER2, "round": 1}]
    text, status = shown(*(effect for effect in effects if isinstance(effect, Log)))
    assert f"peer      {PEER2}  joined" in text
    assert [row.state for row in table_rows.peer_rows(status) if row.peer == PEER2] == ["alive"]


def test_a_limit_that_shrank_in_training_is_out_of_memory_once() -> None:
    peer = Peer(me=PEER0, cadence=_cadence(), agreement=Scripted())
    started(peer)
    result = replace(inner_result(), micro_batch_limit=CAPACITY.micro_batch_limit // 2)
    effects = peer.handle(InnerFinished(instance=INSTANCE, round=0, result=result), 2.0)
    assert logged(effects, "out_of_memory") == [{"instance": 0, "round": 0, "micro_batch_limit": 4}]
    text, status = shown(*(effect for effect in effects if isinstance(effect, Log)))
    assert "memory    instance 0  micro-batch limit now 4" in text
    assert (status.incidents[-1].kind, status.micro_batch_limit) == ("out of memory", 4)
    effects = peer.handle(InnerFinished(instance=INSTANCE, round=0, result=result), 3.0)
    assert logged(effects, "out_of_memory") == []


def test_a_silent_member_is_suspected_before_it_is_gone_and_returns() -> None:
    swarm = Swarm(4)
    swarm.deliver()
    silent, *others = swarm.order
    told: list[Log] = []
    for _ in range(int(TIMING.lease(4) / 2) + 2):
        swarm.now += 1.0
        for name in others:
            outcomes = swarm.peers[name].tick(swarm.now)
            swarm.take(name, outcomes)
            if name == others[0]:
                told += [effect for effect in outcomes if isinstance(effect, Log)]
        swarm.deliver(to=others)
    assert told == [Suspected(peer=silent)] and not swarm.gone
    text, status = shown(*told)
    assert f"peer      {silent}  suspected" in text and status.incidents[-1].message == f"{silent} fell silent"
    assert {row.state for row in table_rows.peer_rows(status) if row.peer == silent} <= {"suspected"}
    swarm.now += 1.0
    swarm.take(silent, swarm.peers[silent].tick(swarm.now))
    swarm.deliver()
    outcomes = swarm.peers[others[0]].tick(swarm.now)
    assert [effect for effect in outcomes if isinstance(effect, Log)] == [Returned(peer=silent)]
