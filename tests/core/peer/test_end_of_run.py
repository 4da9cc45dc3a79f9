"""Which model the run has, where peers end it with different states."""

from dataclasses import replace

import pytest

from adloco_p2p.core.model.events import Commanded, Durable, Evaluated, SaveCheckpoint, Started, Stop, TransitionApplied
from adloco_p2p.core.model.messages import RunComplete
from adloco_p2p.core.model.scalars import Digest
from adloco_p2p.core.peer.completion import COMPLETION_SECONDS, CompletionBarrier
from adloco_p2p.core.peer.lifecycle import voters_of
from adloco_p2p.core.peer.peer import Peer
from adloco_p2p.core.peer.plan_book import PlanBook
from adloco_p2p.core.planning.round_plan import genesis, next_plan
from adloco_p2p.sim.device import hashed
from adloco_p2p.sim.identities import RUN
from tests.core.peer.story import CAPACITY, PEER0, PEER1, PEER2, PEER3, rules
from tests.core.peer.test_peer_churn import INSTANCE, LAST, Scripted, _cadence

ONE, OTHER, THIRD = (hashed(text) for text in ("one state", "another", "a third"))
ALL = (PEER0, PEER1, PEER2, PEER3)


def claim(state: Digest | None, *, is_agreed: bool = False, plan: Digest = LAST) -> RunComplete:
    return RunComplete(plan=plan, state=state, is_agreed=is_agreed)


def barrier(own: RunComplete, *others: RunComplete) -> CompletionBarrier:
    """Of the first peer; the others sent these."""
    completion = CompletionBarrier(PEER0)
    completion.begin(own, ALL, 0.0)
    for peer, message in zip(ALL[1:], others, strict=False):
        completion.received(peer, message)
    return completion


@pytest.mark.parametrize(
    ("own", "others", "expected", "is_agreed"),
    [
        (claim(ONE), [claim(OTHER)] * 3, OTHER, True),
        (claim(ONE), [claim(OTHER, is_agreed=True)], OTHER, True),
        (claim(ONE), [claim(OTHER, is_agreed=True), claim(ONE), claim(ONE)], ONE, True),
        (claim(ONE), [claim(OTHER), claim(OTHER)], OTHER, False),
        (claim(ONE), [claim(OTHER), claim(THIRD)], ONE, False),
        (claim(ONE), [claim(OTHER, plan=hashed("of another history"))] * 3, ONE, False),
        (claim(None), [claim(OTHER), claim(None)], OTHER, False),
        (claim(ONE, is_agreed=True), [], ONE, True),
    ],
)
def test_the_state_of_a_run(own: RunComplete, others: list[RunComplete], expected: Digest, is_agreed: bool) -> None:
    """More than half of the planned hosts; else the word of one that a majority agreed on it; else most; else the first."""
    found = barrier(own, *others).final_state(ALL)
    assert found is not None and (found.digest, found.is_agreed) == (expected, is_agreed)


def test_claims_of_peers_without_work_in_the_last_round_do_not_count() -> None:
    found = barrier(claim(ONE), claim(OTHER), claim(OTHER), claim(OTHER, is_agreed=True)).final_state([PEER0, PEER1])
    assert found is not None and found.digest == ONE


def test_claims_of_peers_without_work_are_no_majority_where_no_voter_has_a_state() -> None:
    found = barrier(claim(ONE, is_agreed=True), claim(OTHER), claim(OTHER)).final_state([PEER3])
    assert found is not None and (found.digest, found.is_of_most) == (ONE, False)


def test_a_peer_with_the_state_of_the_run_stays_for_those_that_fetch_it() -> None:
    completion = barrier(claim(ONE), claim(ONE), claim(ONE), claim(OTHER))
    assert completion.is_over(1.0, {}) and not completion.may_go(1.0, {})
    assert completion.may_go(1.0, {PEER3: None}) and completion.may_go(COMPLETION_SECONDS, {})
    completion.received(PEER3, claim(ONE))
    assert completion.may_go(1.0, {})


def test_the_hosts_of_the_last_round_decide_in_the_order_of_their_joining() -> None:
    whole = rules(rounds=2)
    first = genesis(RUN, [(PEER1, CAPACITY), (PEER0, CAPACITY)], whole)
    second = next_plan(first, (), whole)
    last = next_plan(second, (), whole)
    book = PlanBook(PEER0)
    newcomer = replace(last.roster[0], peer=PEER2, joined_round=2)
    last = replace(last, roster=(replace(last.roster[0], joined_round=1), last.roster[1], newcomer))
    assert set(voters_of(book, last)) == {PEER0, PEER1, PEER2}, "the plan before is not known"
    book.remember(second)
    assert voters_of(book, last) == [PEER1, PEER0]


def test_what_is_doubtful_stays_so_after_a_restart() -> None:
    """A peer alone with the last plan that went on from an older state: neither this start of it nor the next one takes its
    model for that of the run."""
    whole = rules(rounds=2)
    plans = [genesis(RUN, [(PEER0, CAPACITY), (PEER1, CAPACITY)], whole)]
    plans += [first := next_plan(plans[0], (), whole), next_plan(first, (), whole)]
    for doubtful in ((), (INSTANCE,)):
        peer = Peer(me=PEER0, cadence=replace(_cadence(), work=whole.work), agreement=Scripted())
        durable = Durable(round=2, plans=tuple(plans), held=(INSTANCE,), doubtful=doubtful)
        peer.handle(Started(durable=durable, capacity=CAPACITY), 0.0)
        item = peer._state.known(INSTANCE)
        assert (item.doubtful_from is not None) is bool(doubtful)
        item.confirm(1)
        assert (item.doubtful_from is not None) is bool(doubtful), "a plan names an earlier state"
        item.confirm(2)
        assert item.doubtful_from is None


@pytest.mark.parametrize("is_doubtful", [False, True])
@pytest.mark.parametrize("command", ["drain", "leave"])
def test_a_peer_that_is_stopped_while_it_waits_is_finished_only_with_the_model_of_the_run(
    command: str, is_doubtful: bool
) -> None:
    peer = _at_the_end(is_doubtful=is_doubtful)
    effects = peer.handle(Evaluated(instance=INSTANCE, round=2, heldout_loss=2.0, state_digest=ONE), 1.0)
    assert any(isinstance(effect, SaveCheckpoint) for effect in effects) is not is_doubtful
    effects = peer.handle(Commanded(command=command, reason="the user"), 2.0)  # type: ignore[arg-type]
    assert [effect.is_finished for effect in effects if isinstance(effect, Stop)] == [not is_doubtful]


def _at_the_end(*, is_doubtful: bool) -> Peer:
    """One of three, which has carried out the last plan and evaluates."""
    whole = rules(rounds=2)
    plans = [genesis(RUN, [(peer, CAPACITY) for peer in ALL[:3]], whole)]
    plans += [first := next_plan(plans[0], (), whole), next_plan(first, (), whole)]
    peer = Peer(me=PEER0, cadence=replace(_cadence(), work=whole.work), agreement=Scripted())
    durable = Durable(round=2, plans=tuple(plans), held=(INSTANCE,), doubtful=(INSTANCE,) if is_doubtful else ())
    peer.handle(Started(durable=durable, capacity=CAPACITY), 0.0)
    peer.handle(TransitionApplied(round=2), 0.5)
    return peer
