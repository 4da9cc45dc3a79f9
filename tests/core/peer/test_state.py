"""What a peer keeps by round goes in one place."""

from dataclasses import fields, replace
from types import SimpleNamespace

import pytest

from adloco_p2p.core.model.events import Evaluated
from adloco_p2p.core.model.lineage import ProbeVerdict
from adloco_p2p.core.model.messages import AverageDigest
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.core.peer.hosted_instance import Fetch, HostedInstance
from adloco_p2p.core.peer.state import PeerState
from adloco_p2p.core.planning.round_plan import genesis, next_plan
from adloco_p2p.sim.identities import RUN
from tests.core.peer.catching_up import catching_up_of
from tests.core.peer.story import PEER0, PEER1, PEER2, rules
from tests.core.peer.test_peer_churn import CAPACITY, _report

INSTANCE = InstanceId(0)
STATE = Digest("7" * 64)
VERDICT = ProbeVerdict(sources=(), target=INSTANCE, source_losses=(), merged_loss=1.0)
BY_ROUND = ("own_reports", "verdicts", "probing")
OF_AN_INSTANCE = ("rounds", "early_votes", "declined", "untrained")
BY_BOUNDARY = ("saved", "served")
DOUBTED = "unproven"
"""Void rounds are pruned, too, and the doubt lasts; see below."""


def filled(rounds: int) -> PeerState:
    state = PeerState(PEER0, is_delayed=False, rounds_kept=2)
    plan = genesis(RUN, [(PEER0, CAPACITY)], rules(rounds=100))
    for number in range(rounds):
        state.learn(plan)
        state.own_reports[number] = _report(PEER0, plan, "state")
        state.verdicts[number], state.probing[number] = VERDICT, None
        hosted = state.instance(INSTANCE)
        hosted.rounds[number] = None  # type: ignore[assignment]
        hosted.early_votes[number] = {}
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
    assert of_an_instance == {*OF_AN_INSTANCE, *BY_BOUNDARY, DOUBTED}, "a collection that this test does not know"


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


@pytest.mark.parametrize("is_cut", [False, True])
def test_void_rounds_are_pruned_and_the_doubt_that_they_left_lasts(*, is_cut: bool) -> None:
    state = filled(20)
    hosted = state.instance(INSTANCE)
    hosted.unproven, hosted.inherited_at = {(INSTANCE, number) for number in range(3, 20)}, 18 if is_cut else 14
    state.cut(at=15) if is_cut else state.forget_before(15)
    assert sorted(number for _, number in hosted.unproven) == list(range(3, 15) if is_cut else range(15, 20))
    assert hosted.doubtful_from == 4 and hosted.inherited_at is None


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


def test_a_transfer_under_way_may_replace_the_older_state() -> None:
    item = HostedInstance(boundary=3, state_digest=STATE, fetch=Fetch(boundary=4, began_at=0.0))
    item.give_up()
    assert item.state_digest is None


@pytest.mark.parametrize(
    ("makers", "gone", "is_doubtful"),
    [
        ((PEER0,), (), True),
        ((PEER0,), (PEER1, PEER2), False),  # nobody is left to doubt
        ((PEER0, PEER1), (), False),  # the other one alone commits nothing
        ((PEER0, PEER1), (PEER1,), True),
        ((PEER0, PEER1, PEER2), (PEER2,), True),
        ((PEER1, PEER2), (PEER2,), False),
    ],
)
def test_an_average_is_doubtful_where_most_that_were_to_make_it_have_left_others_behind(
    makers: tuple[PeerId, ...], gone: tuple[PeerId, ...], *, is_doubtful: bool
) -> None:
    state = PeerState(PEER0, is_delayed=False, rounds_kept=2)
    plan = genesis(RUN, [(peer, CAPACITY) for peer in (PEER0, PEER1, PEER2)], rules(rounds=9))
    (item,) = plan.instances
    hosts = tuple(share if share.peer in makers else replace(share, inner_steps=0) for share in item.hosts)
    plan = replace(plan, instances=(replace(item, hosts=hosts),))
    state.learn(plan)
    state.gone = dict.fromkeys(gone)
    assert state.is_doubtful_without(plan, INSTANCE) is is_doubtful
    state.instance(INSTANCE).rounds[0] = SimpleNamespace(has_voted=True, is_past=False)  # type: ignore[assignment]
    assert not state.is_doubtful_without(plan, INSTANCE), "it has voted"


@pytest.mark.parametrize("is_leaving", [False, True])
def test_one_that_goes_counts_on_no_other_that_goes(*, is_leaving: bool) -> None:
    """Both knew of each other that they go, neither that the other one would begin no round any more."""
    state = PeerState(PEER0, is_delayed=False, rounds_kept=2)
    plan = genesis(RUN, [(peer, CAPACITY) for peer in (PEER0, PEER1, PEER2)], rules(rounds=9))
    seats = [replace(seat, capacity=replace(CAPACITY, is_leaving=is_leaving and seat.peer == PEER1)) for seat in plan.roster]
    plan = replace(plan, roster=tuple(seats))
    state.learn(plan)
    assert state.is_doubtful_without(plan, INSTANCE) is is_leaving


def test_votes_that_come_late_end_the_doubt_about_their_round_alone() -> None:
    """Also where the instance was merged into another one meanwhile (seed 218 of `tests/sim/test_waits_world.py`)."""
    state, target = PeerState(PEER0, is_delayed=False, rounds_kept=2), InstanceId(1)
    source = state.instance(INSTANCE)
    source.unproven = {(INSTANCE, 3), (INSTANCE, 4)}
    state.instance(target).descend(5, [source])
    assert state.known(target).doubtful_from == 4
    assert state.prove(INSTANCE, 3) and state.known(target).doubtful_from == 5
    assert not state.prove(target, 4) and state.known(target).doubtful_from == 5, "votes on another average"
    assert state.prove(INSTANCE, 4) and state.known(target).doubtful_from is None


def test_doubt_that_came_by_a_merge_ends_with_a_plan_that_names_the_state_after_it() -> None:
    """The plan after that of the merge names the state of the target before it."""
    target, source = HostedInstance(boundary=5), HostedInstance(boundary=5, unproven={(INSTANCE, 3)})
    target.descend(5, [target, source])
    target.confirm(5)
    assert target.doubtful_from == 4
    target.descend(6, [target, HostedInstance(boundary=6)])
    target.confirm(6)
    assert target.doubtful_from is None
    target.doubt(6)
    target.descend(7, [target, HostedInstance(boundary=7)])
    target.confirm(7)
    assert target.doubtful_from is None, "its own"


def test_doubt_outlasts_what_is_known_of_the_round() -> None:
    item = HostedInstance(unproven={(INSTANCE, 3), (INSTANCE, 9)})
    item.keep(range(5, 20))
    assert (item.doubtful_from, item.unproven) == (4, {(INSTANCE, 9)})
    item.confirm(4)
    assert item.doubtful_from == 10
    item.confirm(10)
    assert item.doubtful_from is None


def test_void_votes_that_come_before_the_round_begins_are_kept_of_its_contributors() -> None:
    """Without those of others that they bring: nobody has verified them, and 256 take 38 kB. One without a signature shows that
    its sender will not vote, and is kept, too (seed 212)."""
    state = PeerState(PEER0, is_delayed=False, rounds_kept=2)
    state.learn(genesis(RUN, [(PEER0, CAPACITY), (PEER1, CAPACITY)], rules(rounds=9)))
    void = AverageDigest.void(INSTANCE, 0)
    state.keep_early(PEER1, replace(void, backers=((PEER2, "signed"),)))
    state.keep_early(PEER2, void)
    state.keep_early(PEER1, replace(void, round=1))
    state.keep_early(PEER0, replace(void, contributors=(PEER0,)))
    assert state.known(INSTANCE).early_votes == {0: {PEER1: void}}


def test_a_fast_forward_keeps_of_an_instance_only_that_an_older_state_is_here() -> None:
    item = HostedInstance(boundary=3, fetch=Fetch(boundary=4, began_at=0.0), no_donor_since=1.0, awaited_since=1.0)
    item.give_up()
    assert item == HostedInstance(is_stale=True)


@pytest.mark.parametrize("is_resting", [True, False])
def test_the_root_of_the_older_state_is_known_unless_the_device_was_changing_it(*, is_resting: bool) -> None:
    state = filled(3)
    state.instance(INSTANCE).rounds.clear()
    state.instance(INSTANCE).arrive(2, state_digest=STATE)
    state.move_to(9, resting=[INSTANCE] if is_resting else [])
    assert state.known(INSTANCE).state_digest == (STATE if is_resting else None)


@pytest.mark.parametrize("absent", [{PEER1: "is gone"}, {PEER1: "declined"}, {}])
def test_a_host_that_only_receives_is_deserted_where_no_contributor_makes_the_average(absent: dict[PeerId, str]) -> None:
    """Those that went on without the round live, and would be awaited for six timeouts."""
    state = PeerState(PEER0, is_delayed=False, rounds_kept=2)
    state.learn(genesis(RUN, [(PEER0, CAPACITY), (PEER1, CAPACITY)], rules(rounds=9)))
    outer = SimpleNamespace(is_deserted=True, round=0, instance=INSTANCE, hosts=SimpleNamespace(absent=absent))
    assert state.is_deserted(outer) is bool(absent)  # type: ignore[arg-type]


def test_a_peer_that_hands_over_waits_for_no_others() -> None:
    """Its deadline would stay in the past, and keep the processor busy until the handover ends."""
    state = filled(6)
    state.opened = 1
    state.instance(INSTANCE).rounds.clear()
    catching_up = catching_up_of(state)
    catching_up.catch_up(0.0, is_donor=False)
    deadline = catching_up.next_deadline
    assert deadline is not None
    catching_up.catch_up(deadline, is_donor=True)
    assert catching_up.next_deadline is None


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
