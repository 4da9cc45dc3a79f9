"""To whom a peer that ends may leave the state that it has: from plans and reports alone."""

from dataclasses import replace

import pytest

from adloco_p2p.core.model.lineage import Merge
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.core.peer.plan_book import PlanBook
from adloco_p2p.core.planning.round_plan import genesis, next_plan
from adloco_p2p.sim.identities import RUN
from adloco_p2p.sim.synthetic_reports import CAPACITY
from adloco_p2p.sim.world import small_rules
from tests.core.peer.noting import note
from tests.core.peer.test_reported_states import report

ME, ONE, OTHER = (PeerId(f"peer{index}") for index in range(3))
INSTANCE, TARGET = InstanceId(0), InstanceId(1)
STATE = Digest("a" * 64)


def plans() -> list[RoundPlan]:
    first = genesis(RUN, [(peer, CAPACITY) for peer in (ME, ONE, OTHER)], small_rules(3, 9))
    return [first, second := next_plan(first, (), small_rules(3, 9)), next_plan(second, (), small_rules(3, 9))]


def book(made: list[RoundPlan], *, me: PeerId = ME) -> PlanBook:
    """Of a peer that has done round 1; all three reported round 0."""
    known = PlanBook(me)
    for plan in made:
        known.remember(plan)
    for peer in (ME, ONE, OTHER):
        note(known, report(peer, 0, STATE))
    return known


def test_members_that_announced_their_end_are_no_heirs() -> None:
    first, second, third = plans()
    leaving = replace(CAPACITY, is_leaving=True)
    roster = tuple(replace(seat, capacity=leaving) if seat.peer == ONE else seat for seat in third.roster)
    known = book([first, second, replace(third, roster=roster)])
    assert known.heirs(INSTANCE, 1, ()) == [OTHER]
    assert known.heirs(INSTANCE, 1, (OTHER,)) == []
    assert known.has_heirs(known.newest, ()) and not known.has_heirs(known.newest, (OTHER,))
    assert known.is_held(INSTANCE, 1, (), after=1)
    assert not known.is_held(INSTANCE, 1, (OTHER,), after=1), "it may rely on this peer in turn"


def test_members_whose_newest_report_announces_their_end_are_no_heirs_before_a_plan_has_that() -> None:
    """One that resumes is an heir again, by a report or as a joiner."""
    known = book(plans())
    said = report(ONE, 1, STATE)
    ending = replace(said, capacity=replace(CAPACITY, is_leaving=True))
    note(known, ending)
    assert known.heirs(INSTANCE, 1, ()) == [OTHER]
    rejoined = tuple(replace(seat, joined_round=2) if seat.peer == ONE else seat for seat in known.newest.roster)
    again = book([*plans()[:2], replace(plans()[2], roster=rejoined)])
    note(again, ending)
    assert again.heirs(INSTANCE, 1, ()) == [ONE, OTHER]
    note(known, replace(said, round=2))
    assert known.heirs(INSTANCE, 1, ()) == [ONE, OTHER]


@pytest.mark.parametrize("me", range(3))
def test_of_hosts_that_have_ended_a_round_none_relies_on_one_that_may_rely_on_it(me: int) -> None:
    """They may all go in one moment, before the report of any has come. The last by name relies on the others."""
    first, second, _ = plans()
    names = [ME, ONE, OTHER]
    known = book([first, second], me=names[me])
    others = [name for name in names if name != names[me]]
    assert known.is_held(INSTANCE, 1, (), after=1), "they will have the state"
    assert known.is_held(INSTANCE, 1, (), after=1, is_going=True) == (me == 2)
    assert known.is_held(INSTANCE, 1, others[:1], after=1, is_going=True) == (me == 2 or (me == 1 and others[1] < names[me]))
    for name in others:
        note(known, report(name, 1, STATE))
    assert known.is_held(INSTANCE, 1, (), after=1, is_going=True)
    known = book(plans(), me=names[me])
    known.remember(replace(known.newest, round=3))
    assert known.is_held(INSTANCE, 1, (), after=1, is_going=True), "the plan has the reports of all that go"


def test_hosts_that_only_receive_a_round_have_its_state_once_they_report_it() -> None:
    """The one that trained it would take the only copy along: what they reported before is an older state."""
    first, second, third = plans()
    (item,) = second.instances
    shares = tuple(share if share.peer == ME else replace(share, inner_steps=0) for share in item.hosts)
    known = book([first, replace(second, instances=(replace(item, hosts=shares),)), third])
    assert not known.is_held(INSTANCE, 2, (), after=1)
    note(known, report(ONE, 1, STATE))
    assert not known.is_held(INSTANCE, 2, (), after=1), "half of them"
    assert known.is_held(INSTANCE, 2, (), after=1, served=[OTHER])
    note(known, report(OTHER, 1, STATE))
    assert known.is_held(INSTANCE, 2, (), after=1)


def test_hosts_of_the_instance_that_it_is_merged_into_are_heirs() -> None:
    first, second, third = plans()
    (item,) = (item for item in third.instances if item.instance == INSTANCE)
    hosts = tuple(share for share in item.hosts if share.peer == ONE)
    merged = replace(third, instances=(replace(item, instance=TARGET, hosts=hosts),))
    for weight, heirs in ((0.5, [ONE]), (0.0, [])):
        merge = Merge(sources=(INSTANCE, TARGET), target=TARGET, weights=(weight, 1.0 - weight), reason="by hand")
        assert book([first, second, replace(merged, merges=(merge,))]).heirs(INSTANCE, 2, ()) == heirs
