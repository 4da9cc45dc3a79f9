"""States after all that trained are gone: what those report that have them, and what others then fetch from them."""

from dataclasses import replace

import pytest

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.report import InstanceReport, Report
from adloco_p2p.core.model.roster_entry import Capacity
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.core.peer.reporting import Reporting
from adloco_p2p.core.peer.state import PeerState
from adloco_p2p.core.planning.claims import claims_by_instance
from adloco_p2p.core.planning.round_plan import genesis, next_plan
from adloco_p2p.sim.identities import RUN
from tests.core.peer.noting import note
from tests.core.peer.story import PEER0, PEER1, rules
from tests.core.peer.test_peer_churn import CAPACITY

KEEPER = PeerId("peer2")
INSTANCE = InstanceId(0)
STATE = Digest("7" * 64)
OFFER = replace(CAPACITY, is_keeper=True)
REPORTED = InstanceReport.without_work(INSTANCE, contributors=3, state_digest=STATE)


def plans(number: int) -> list[RoundPlan]:
    made = [genesis(RUN, [(PEER0, CAPACITY), (PEER1, CAPACITY), (KEEPER, OFFER)], rules(rounds=20))]
    while len(made) < number:
        made.append(next_plan(made[-1], (), rules(rounds=20)))
    return made


def state_of(me: PeerId) -> PeerState:
    state = PeerState(me, is_delayed=False, rounds_kept=2)
    for plan in plans(2):
        state.learn(plan)
    state.opened = 1
    return state


def known(state: PeerState, *gone: PeerId) -> tuple[Digest | None, tuple[PeerId, ...]]:
    """Of the state before round 2."""
    outlook = state.book.outlook(INSTANCE, 2, gone)
    return outlook.digest, outlook.donors


def report(peer: PeerId, round: int, *, capacity: Capacity = OFFER) -> Report:
    return Report(peer=peer, round=round, plan=STATE, capacity=capacity, instances=(REPORTED,))


def reported(capacity: Capacity) -> list[Report]:
    """Of round 1, which no host trained, by a peer that has the state."""
    state, sent = state_of(KEEPER), []
    reporting = Reporting(state, task_period=0, submit=lambda made, now: sent.append(made) or [])  # type: ignore[func-returns-value]
    reporting.capacity = capacity
    reporting.remember(report(KEEPER, 0))
    state.instance(INSTANCE).arrive(2, state_digest=STATE)
    state.instance(INSTANCE).untrained.add(1)
    reporting.report_rounds(0.0)
    return sent


@pytest.mark.parametrize("capacity", [OFFER, CAPACITY])
def test_the_state_that_went_through_a_round_without_hosts_is_reported(capacity: Capacity) -> None:
    (made,) = reported(capacity)
    assert [(item.instance, item.state_digest, item.samples) for item in made.instances] == [(INSTANCE, STATE, 0)]


def test_what_a_keeper_holds_is_fetched_only_where_all_that_trained_are_gone() -> None:
    state = state_of(PEER0)
    note(state.book, report(KEEPER, 1))
    assert known(state, PEER1) == (None, ()), "this peer itself had work"
    newcomer = state_of(PeerId("peer9"))
    note(newcomer.book, report(KEEPER, 1))
    assert known(newcomer, PEER0)[0] is None
    assert known(newcomer, PEER0, PEER1) == (STATE, (KEEPER,))
    note(newcomer.book, replace(report(PEER0, 1), instances=(replace(REPORTED, state_digest=Digest("8" * 64)),)))
    digest, _ = known(newcomer, PEER1)
    assert digest == Digest("8" * 64)


def test_what_a_host_without_work_holds_is_fetched_where_all_with_work_are_gone() -> None:
    """A newcomer that has the only copy: it reports that it has it, and others ask it."""
    newcomer, holder = state_of(PeerId("peer9")), report(KEEPER, 1, capacity=CAPACITY)
    note(newcomer.book, holder)
    assert known(newcomer, PEER0, PEER1) == (STATE, (KEEPER,))


def test_states_of_hosts_that_did_nothing_count_for_nothing_but_that_they_are_there() -> None:
    first, second = plans(2)
    bare = replace(REPORTED, contributors=0)
    received = {PEER0: replace(report(PEER0, 0), plan=canonical.digest(first), instances=(bare,))}
    assert REPORTED.is_bare is False and bare.is_bare
    assert claims_by_instance(second, received)[INSTANCE] == {}
    both = [replace(report(peer, 0), plan=canonical.digest(first), capacity=CAPACITY, instances=()) for peer in (PEER0, PEER1)]
    both += [replace(report(KEEPER, 0), plan=canonical.digest(first), instances=())]
    (gone,) = next_plan(second, both, rules(rounds=20)).instances
    both[0] = replace(both[0], instances=(bare,))
    (kept,) = next_plan(second, both, rules(rounds=20)).instances
    assert (gone.orphaned_rounds, kept.orphaned_rounds) == (1, 0)
