"""What a peer answers to hosts that wait for it in rounds that are over for it, and which state it takes where none has any."""

import itertools
from dataclasses import replace

import pytest

from adloco_p2p.core.model import telemetry
from adloco_p2p.core.model.effects import DiscardRound, FetchState, Send
from adloco_p2p.core.model.events import FetchFailed, StateFetched
from adloco_p2p.core.model.messages import NO_AVERAGE, AttemptFailed, AttemptStart, AverageDigest, AveragingMessage
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.report import InstanceReport, Report
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.core.peer.completion import PENDING_SECONDS
from adloco_p2p.core.peer.fetching import NO_DONOR_SECONDS, PATIENCE_ROUNDS, Fetching
from adloco_p2p.core.peer.hosted_instance import Fetch
from adloco_p2p.core.peer.state import PeerState
from adloco_p2p.core.planning.round_plan import genesis, next_plan
from adloco_p2p.sim.identities import RUN
from tests.core.peer.noting import note
from tests.core.peer.story import CAPACITY, PEER0, PEER1, rules

PEER2 = PeerId("peer2")
INSTANCE = InstanceId(0)
DIGEST = Digest("7" * 64)
REPORTED = InstanceReport.without_work(INSTANCE, state_digest=DIGEST)
OVER = AverageDigest(instance=INSTANCE, round=1, attempt=0, contributors=(), digest=NO_AVERAGE, is_answer=True)
"""Unsigned: no vote, only that none will come."""


def state_at(boundary: int) -> PeerState:
    """Of a peer that came back with a checkpoint at this boundary and knows the plans of earlier rounds."""
    state = PeerState(PEER0, is_delayed=False, rounds_kept=2)
    plan: RoundPlan = genesis(RUN, [(peer, CAPACITY) for peer in (PEER0, PEER1)], rules(rounds=20))
    for _ in range(boundary + 1):
        state.learn(plan)
        plan = next_plan(plan, (), rules(rounds=20))
    state.opened, state.skipped = boundary, boundary - 1
    state.instance(INSTANCE).boundary = boundary
    return state


@pytest.mark.parametrize(
    "question",
    [
        AttemptFailed(instance=INSTANCE, round=1, attempt=0, suspects=(PEER1,)),
        AttemptFailed(instance=INSTANCE, round=1, attempt=0, suspects=()),
        AttemptStart(instance=INSTANCE, round=1, attempt=1, members=(PEER0, PEER1)),
        AverageDigest(instance=INSTANCE, round=1, attempt=0, contributors=(), digest=NO_AVERAGE),
    ],
)
def test_a_host_that_came_back_beyond_a_round_answers_that_it_has_no_vote_in_it(question: AveragingMessage) -> None:
    assert Fetching(state_at(3)).decline(PEER1, question) == [Send(peer=PEER1, message=OVER)]


def test_a_vote_that_an_earlier_life_cast_is_the_answer() -> None:
    state = state_at(3)
    vote = AverageDigest(
        instance=INSTANCE, round=1, attempt=0, contributors=(PEER0, PEER1), digest=Digest("7" * 64), signature="signed"
    )
    kept = {(state.book.digests[1], INSTANCE): vote}
    question = AttemptFailed(instance=INSTANCE, round=1, attempt=0, suspects=(PEER1,))
    fetching = Fetching(state, kept_vote=lambda plan, instance: kept.get((plan, instance)))
    assert fetching.decline(PEER1, question) == [Send(peer=PEER1, message=replace(vote, is_answer=True, is_held=False))]


def test_a_host_without_the_state_answers_a_question_with_its_refusal_and_a_bare_refusal_with_nothing() -> None:
    """Two that refuse and ask each other learn it, and stop."""
    state = state_at(3)
    state.instance(INSTANCE).give_up()
    fetching = Fetching(state)
    refusal = AttemptFailed(instance=INSTANCE, round=1, attempt=0, suspects=(PEER1,))
    answer = replace(refusal, suspects=(PEER0,))
    assert fetching.decline(PEER1, replace(refusal, is_question=True)) == [Send(peer=PEER1, message=answer)]
    assert fetching.decline(PEER1, refusal) == []
    assert fetching.decline(PEER1, replace(refusal, suspects=(), is_question=True)) == [Send(peer=PEER1, message=answer)]


@pytest.mark.parametrize(("boundary", "answers"), [(3, True), (4, False)])
def test_a_host_to_which_an_older_state_is_on_its_way_declines_the_round_ahead(boundary: int, *, answers: bool) -> None:
    """It cannot be done with the rounds before in time. With the state of that round's own boundary it may be."""
    state = state_at(3)
    state.instance(INSTANCE).give_up()
    state.instance(INSTANCE).fetch = Fetch(boundary=boundary, began_at=0.0)
    state.learn(next_plan(state.book.plans[3], (), rules(rounds=20)))
    question = AttemptStart(instance=INSTANCE, round=4, attempt=1, members=(PEER0, PEER1))
    assert bool(Fetching(state).decline(PEER1, question)) is answers


def test_a_host_that_fetches_the_state_declines_for_no_contributor_that_only_begins_the_round() -> None:
    """It may have the state before that one is done."""
    state = state_at(3)
    state.instance(INSTANCE).give_up()
    question = AttemptFailed(instance=INSTANCE, round=1, attempt=0, suspects=(), is_question=True)
    assert Fetching(state).decline(PEER1, question) == [] and not state.instance(INSTANCE).declined
    start = AttemptStart(instance=INSTANCE, round=1, attempt=1, members=(PEER0, PEER1))
    assert Fetching(state).decline(PEER1, start) != [], "it waits"
    assert Fetching(state).decline(PEER1, question) != [], "it may not have the refusal"


def test_an_answer_is_not_answered_and_who_does_not_host_the_instance_gets_none() -> None:
    fetching = Fetching(state_at(3))
    assert fetching.decline(PEER1, OVER) == []
    assert fetching.decline(PEER2, AttemptFailed(instance=INSTANCE, round=1, attempt=0, suspects=(PEER2,))) == []


def test_donors_that_refuse_are_asked_less_and_less_often() -> None:
    """In 100 s, where a refusal takes no time: at 0, 2, 6, 14, 30, 62 and 94 s. After a state came, at once again."""
    state = state_at(3)
    state.instance(INSTANCE).boundary = None
    for peer in (PEER0, PEER1):
        note(state.book, Report(peer=peer, round=2, plan=DIGEST, capacity=CAPACITY, instances=(REPORTED,)))
    fetching, asked, now = Fetching(state), [], 0.0
    while now < 100.0:
        asked += [(now, effect.from_peers) for effect in fetching.fetch_missing(now) if isinstance(effect, FetchState)]
        fetching.failed(FetchFailed(instance=INSTANCE, round=3, reason="busy"), now)
        assert fetching.next_deadline is not None
        now = fetching.next_deadline
        fetching.tick(now)
    assert asked == [(at, (PEER1,)) for at in (0.0, 2.0, 6.0, 14.0, 30.0, 62.0, 94.0)]
    fetching.fetch_missing(now)
    fetching.fetched(StateFetched(instance=INSTANCE, round=3, digest=DIGEST), 0.0)
    assert state.instance(INSTANCE).failed_fetches == 0


def test_an_older_state_is_taken_only_once_no_living_peer_may_still_bring_the_agreed_one() -> None:
    """The other host was to train the round before and has not reported it: its state is still to come, however long ago this
    peer began to wait."""
    state = state_at(3)
    item = state.instance(INSTANCE)
    item.boundary, item.is_stale = None, True
    fetching = Fetching(state)
    fetching.fetch_missing(0.0)
    waiting = fetching.fetch_missing(NO_DONOR_SECONDS)
    assert ["waiting for one" in getattr(effect, "message", "") for effect in waiting] == [True] and item.boundary is None
    state.gone[PEER1] = None
    warned, discarded = fetching.fetch_missing(2 * NO_DONOR_SECONDS)
    assert isinstance(warned, telemetry.Warning) and warned.message.endswith("going on from an older one")
    assert not warned.active, "the warning that it waits would stay for good"
    assert discarded == DiscardRound(instance=INSTANCE)
    assert item.boundary == 3 and not item.is_stale


def test_a_newcomer_is_not_warned_while_the_others_train_the_round_before_its_first() -> None:
    state = state_at(3)
    state.instance(INSTANCE).boundary = None
    plan = state.book.plans[3]
    roster = tuple(replace(entry, joined_round=3) if entry.peer == PEER0 else entry for entry in plan.roster)
    state.book.plans[3] = replace(plan, roster=roster)
    fetching = Fetching(state)
    assert [fetching.fetch_missing(number * NO_DONOR_SECONDS) for number in range(3)] == [[], [], []]
    state.gone[PEER1] = None
    (warning,) = fetching.fetch_missing(3 * NO_DONOR_SECONDS)
    assert "no peer has the state of instance 0 before round 3" in getattr(warning, "message", "")


def waiting(*, is_stale: bool) -> tuple[PeerState, Fetching, float]:
    """Peer 0 lacks the state that both reported and peer 1 does not give; and how long it waits for that, in seconds."""
    state = state_at(3)
    item = state.instance(INSTANCE)
    item.boundary, item.is_stale = None, is_stale
    for peer in (PEER0, PEER1):
        note(state.book, Report(peer=peer, round=2, plan=DIGEST, capacity=CAPACITY, instances=(REPORTED,)))
    expected = sum(plan.expected_seconds for number, plan in state.book.plans.items() if number >= state.opened)
    return state, Fetching(state), PENDING_SECONDS + PATIENCE_ROUNDS * expected


def refused(state: PeerState, fetching: Fetching, *, at: float) -> None:
    fetching.fetch_missing(at)
    fetching.failed(FetchFailed(instance=INSTANCE, round=3, reason="no donor"), at)


def test_a_state_that_its_donors_do_not_give_is_awaited_for_a_limited_time() -> None:
    state, fetching, patience = waiting(is_stale=True)
    refused(state, fetching, at=0.0)
    fetching.fetch_missing(patience - 0.1)
    assert state.instance(INSTANCE).boundary is None
    assert DiscardRound(instance=INSTANCE) in fetching.fetch_missing(patience)
    assert state.held == {INSTANCE: 3}


def test_a_transfer_under_way_is_not_given_up_and_its_time_does_not_count() -> None:
    state, fetching, patience = waiting(is_stale=True)
    fetching.fetch_missing(0.0)
    fetching.fetch_missing(10 * patience)
    fetching.failed(FetchFailed(instance=INSTANCE, round=3, reason="cut off"), 10 * patience)
    fetching.fetch_missing(11 * patience - 0.1)
    assert state.held == {}
    fetching.fetch_missing(11 * patience)
    assert state.held == {INSTANCE: 3}


def test_a_host_that_has_given_up_asks_for_no_tick_at_once() -> None:
    """A deadline that stays in the past would keep the processor busy for ever."""
    state, fetching, patience = waiting(is_stale=False)
    state.gone[PEER1] = None
    for now in (0.0, patience, patience + 1.0):
        fetching.fetch_missing(now)
    assert state.instance(INSTANCE).given_up_at == 3
    assert fetching.next_deadline is not None and fetching.next_deadline > patience + 1.0


def test_others_are_given_the_time_that_a_transfer_took_here() -> None:
    state, fetching, patience = waiting(is_stale=True)
    fetching.fetch_missing(0.0)
    fetching.fetched(StateFetched(instance=INSTANCE, round=3, digest=DIGEST), 100.0)
    state.instance(INSTANCE).give_up()
    state.instance(INSTANCE).state_digest = None
    refused(state, fetching, at=200.0)
    fetching.fetch_missing(200.0 + patience + PATIENCE_ROUNDS * 100.0 - 0.1)
    assert state.held == {}
    fetching.fetch_missing(200.0 + patience + PATIENCE_ROUNDS * 100.0)
    assert state.held == {INSTANCE: 3}


@pytest.mark.parametrize("others", [(), (PEER1,)])
def test_a_state_that_was_given_up_is_taken_back_where_it_is_the_one_that_is_wanted(others: tuple[PeerId, ...]) -> None:
    """After a change of histories, or void rounds. A fetch would wait for those that moved on, or have left."""
    state, fetching, _ = waiting(is_stale=True)
    state.gone.update((peer, None) for peer in (PEER0, PEER1) if peer not in others)
    state.instance(INSTANCE).state_digest = DIGEST
    effects = fetching.fetch_missing(0.0)
    assert state.held == {INSTANCE: 3} and state.known(INSTANCE).doubtful_from is None
    assert DiscardRound(instance=INSTANCE) in effects
    assert not any(isinstance(effect, FetchState) for effect in effects)


@pytest.mark.parametrize(("reported", "is_agreed"), [((DIGEST,), True), ((Digest("8" * 64),), False), ((), False)])
def test_reports_that_come_while_a_state_is_on_its_way_show_that_it_is_agreed(
    reported: tuple[Digest, ...], *, is_agreed: bool
) -> None:
    state = state_at(3)
    fetching = Fetching(state)
    state.instance(INSTANCE).fetch = Fetch(boundary=3, began_at=0.0, is_agreed=False)
    for peer, digest in itertools.product((PEER0, PEER1), reported):
        item = InstanceReport.without_work(INSTANCE, state_digest=digest)
        note(state.book, Report(peer=peer, round=2, plan=DIGEST, capacity=CAPACITY, instances=(item,)))
    fetching.fetched(StateFetched(instance=INSTANCE, round=3, digest=DIGEST), 1.0)
    assert (state.known(INSTANCE).doubtful_from is None) is is_agreed


def test_a_plan_begins_the_wait_anew() -> None:
    state, fetching, patience = waiting(is_stale=True)
    refused(state, fetching, at=0.0)
    state.learn(next_plan(state.book.newest, (), rules(rounds=20)))
    fetching.fetch_missing(patience)
    assert state.held == {}


def test_without_an_older_state_the_wait_ends_with_a_report_of_nothing_and_at_the_last_boundary_with_the_run() -> None:
    state, fetching, patience = waiting(is_stale=False)
    refused(state, fetching, at=0.0)
    fetching.fetch_missing(patience)
    assert state.lost == [INSTANCE] and not fetching.has_given_up
    last = replace(state.book.plans[3], is_last=True)
    state.learn(last)
    fetching.fetch_missing(patience + 1.0)
    fetching.failed(FetchFailed(instance=INSTANCE, round=3, reason="no donor"), patience + 1.0)
    fetching.fetch_missing(3 * patience)
    assert fetching.has_given_up


def test_a_round_that_is_over_is_passed_where_a_state_is_known_behind_it_alone() -> None:
    """Nobody is known to have the state before round 3; a host reported the one after it, so this peer asks for that."""
    state = state_at(3)
    state.instance(INSTANCE).boundary = None
    plan = state.book.plans[3]
    (item,) = plan.instances
    mine, others = item.hosts
    state.book.plans[3] = replace(plan, instances=(replace(item, hosts=(replace(mine, inner_steps=0), others)),))
    state.learn(replace(plan, round=4, is_last=True))  # which hands the model to all
    fetching = Fetching(state)
    assert not any(isinstance(effect, FetchState) for effect in fetching.fetch_missing(0.0))
    note(state.book, Report(peer=PEER1, round=3, plan=DIGEST, capacity=CAPACITY, instances=(REPORTED,)))
    asked = [effect for effect in fetching.fetch_missing(1.0) if isinstance(effect, FetchState)]
    assert [(effect.round, effect.from_peers) for effect in asked] == [(4, (PEER1,))]


def test_a_joiner_of_the_same_round_is_asked_too() -> None:
    """It fetches the state as well, and serves what it has of it."""
    state = state_at(3)
    state.instance(INSTANCE).boundary = None
    plan = state.book.plans[3]
    (item,) = plan.instances
    state.book.plans[3] = replace(plan, instances=(replace(item, hosts=(*item.hosts, replace(item.hosts[0], peer=PEER2))),))
    for peer in (PEER0, PEER1):
        note(state.book, Report(peer=peer, round=2, plan=DIGEST, capacity=CAPACITY, instances=(REPORTED,)))
    asked = [effect.from_peers for effect in Fetching(state).fetch_missing(0.0) if isinstance(effect, FetchState)]
    assert asked == [(PEER1, PEER2)]
