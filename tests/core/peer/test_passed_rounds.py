"""Rounds that a member goes through with nothing, because nobody who lives has the state: it reports them all the same."""

from adloco_p2p.core.model.events import Durable, FetchState, PeerGone, RunInner, Started, Ticked, Transition, TransitionApplied
from adloco_p2p.core.model.rules import WorkRules
from adloco_p2p.core.peer.fetching import NO_DONOR_SECONDS
from adloco_p2p.core.peer.peer import Cadence, Peer
from adloco_p2p.core.planning.round_plan import genesis, next_plan
from adloco_p2p.sim.identities import RUN
from tests.core.peer.story import PEER0, PEER1, rules
from tests.core.peer.test_peer_churn import CAPACITY, Scripted


def test_a_member_that_is_left_alone_reports_the_rounds_that_it_passed_without_a_state() -> None:
    """The host that had the state is gone. The next plan waits for the report of round 2 or 3, and no other peer sends any:
    without this one's the run stands still for ever."""
    whole = rules(rounds=30)
    plans = [genesis(RUN, [(peer, CAPACITY) for peer in (PEER0, PEER1)], whole)]
    while len(plans) < 5:
        plans.append(next_plan(plans[-1], (), whole))
    agreement = Scripted()
    agreement.outcomes = [PeerGone(peer=PEER1)]
    peer = Peer(
        me=PEER0, cadence=Cadence(work=WorkRules(rounds=30), evaluation_period=0, checkpoint_period=1), agreement=agreement
    )
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
