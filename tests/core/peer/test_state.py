"""What a peer keeps by round goes in one place."""

from dataclasses import fields
from types import SimpleNamespace

from adloco_p2p.core.model.events import Evaluated
from adloco_p2p.core.model.lineage import ProbeVerdict
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.core.peer.hosted_instance import Fetch, HostedInstance
from adloco_p2p.core.peer.state import PeerState
from adloco_p2p.core.planning.round_plan import genesis, next_plan
from adloco_p2p.sim.identities import RUN
from tests.core.peer.story import PEER0, rules
from tests.core.peer.test_peer_churn import CAPACITY, _report

INSTANCE = InstanceId(0)
VERDICT = ProbeVerdict(sources=(), target=INSTANCE, source_losses=(), merged_loss=1.0)
BY_ROUND = ("own_reports", "verdicts", "probing")
OF_AN_INSTANCE = ("rounds", "declined", "untrained")
BY_BOUNDARY = ("saved", "served")


def filled(rounds: int) -> PeerState:
    state = PeerState(PEER0, is_delayed=False, rounds_kept=2)
    plan = genesis(RUN, [(PEER0, CAPACITY)], rules(rounds=100))
    for number in range(rounds):
        state.learn(plan)
        state.own_reports[number] = _report(PEER0, plan, "state")
        state.verdicts[number], state.probing[number] = VERDICT, None
        hosted = state.instance(INSTANCE)
        hosted.rounds[number] = None  # type: ignore[assignment]
        for numbers in (hosted.declined, hosted.untrained, hosted.saved):
            numbers.add(number)
        hosted.served.add((number, PEER0))
        plan = next_plan(plan, (), rules(rounds=100))
    return state


def kept(state: PeerState, name: str) -> list[int]:
    found = getattr(state if name in BY_ROUND else state.known(INSTANCE), name)
    return sorted(number for number, _ in found) if name == "served" else sorted(found)


def test_whatever_is_kept_by_round_is_pruned() -> None:
    state = filled(20)
    state.forget_before(15)
    for name in (*BY_ROUND, *OF_AN_INSTANCE, *BY_BOUNDARY):
        assert kept(state, name) == list(range(15, 20)), name
    by_round = {name for name, value in vars(state).items() if isinstance(value, dict) and set(value) & {*range(5, 20)}}
    assert by_round == set(BY_ROUND), "a dictionary by round that this test does not know"
    of_an_instance = {
        item.name for item in fields(HostedInstance) if isinstance(getattr(HostedInstance(), item.name), dict | set)
    }
    assert of_an_instance == {*OF_AN_INSTANCE, *BY_BOUNDARY}, "a collection that this test does not know"


def test_a_lost_history_leaves_nothing_that_was_decided_or_done_in_it() -> None:
    state = filled(20)
    state.cut(at=15)
    for name in ("own_reports", "verdicts", *OF_AN_INSTANCE):
        assert kept(state, name) == list(range(15)), name
    for name in BY_BOUNDARY:
        assert kept(state, name) == list(range(16)), (
            "the boundary before the first round that is lost belongs to both histories"
        )
    assert max(state.book.plans) == 14


def test_rounds_that_were_done_with_a_state_that_is_given_up_are_done_again() -> None:
    state = filled(9)
    rounds = {number: SimpleNamespace(is_done=number != 3, has_voted=number == 8) for number in range(9)}
    state.instance(INSTANCE).rounds = rounds  # type: ignore[assignment]
    state.instance(INSTANCE).declined.clear()
    state.move_to(7)
    assert kept(state, "rounds") == [0, 1, 2, 4, 5, 6]
    assert kept(state, "declined") == [8], "a round in which this peer has voted is not averaged a second time"


def test_moving_to_another_boundary_raises_the_epoch() -> None:
    state = filled(3)
    state.instance(INSTANCE).rounds.clear()
    state.instance(INSTANCE).boundary, state.opened = 2, 1
    state.final = Evaluated(instance=INSTANCE, round=2, heldout_loss=2.0)
    state.move_to(9)
    assert (state.epoch, state.opened, state.skipped, state.held, state.probing) == (1, 8, 8, {}, {})
    assert state.opening is None and state.final is None
    assert state.instances[INSTANCE].is_stale, "what the device has is of an earlier boundary"


def test_a_fast_forward_keeps_of_an_instance_only_that_an_older_state_is_here() -> None:
    item = HostedInstance(boundary=3, fetch=Fetch(boundary=4, began_at=0.0), no_donor_since=1.0, awaited_since=1.0)
    item.give_up()
    assert item == HostedInstance(is_stale=True)


def test_instances_that_left_this_peer_are_forgotten_and_others_are_not() -> None:
    state = filled(3)
    state.instance(InstanceId(0)).keep(range(0))
    state.instance(InstanceId(0)).saved.clear()
    state.instance(InstanceId(0)).served.clear()
    state.instance(InstanceId(1)).boundary = 2
    state.instance(InstanceId(2)).is_lost = True
    state.instance(InstanceId(3)).boundary = 2
    state.instance(InstanceId(3)).boundary = None
    state.forget_before(1)
    assert sorted(state.instances) == [1, 2]
    assert (state.held, state.lost) == ({1: 2}, [2])


def test_the_end_of_a_round_is_not_awaited_where_the_state_after_it_came_from_others() -> None:
    """A probe would wait for this peer's part of the round, and the next round for the probe."""
    state = filled(3)
    state.opened, hosted = 1, state.instance(INSTANCE)
    plan = state.book.plans[1]
    hosted.rounds.clear()
    hosted.untrained.clear()
    hosted.arrive(1)
    assert state.ending(plan) == [INSTANCE]
    hosted.arrive(2)
    assert state.ending(plan) == []
    hosted.untrained.add(1)
    assert state.ending(plan) == [INSTANCE], "it went through the round here"
