"""Which state of an instance everybody takes where no majority of its hosts reported one: from plans and reports alone."""

from dataclasses import replace
from random import Random

import pytest

from adloco_p2p.core.model.effects import SaveCheckpoint
from adloco_p2p.core.model.ledger_entry import Reorg
from adloco_p2p.core.model.lineage import Merge
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.report import InstanceReport, Report
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.core.peer.plan_book import PlanBook, named_state
from adloco_p2p.core.peer.state import PeerState
from adloco_p2p.core.planning.round_plan import genesis, next_plan
from adloco_p2p.sim.identities import RUN
from adloco_p2p.sim.synthetic_reports import CAPACITY
from adloco_p2p.sim.world import small_rules
from tests.core.peer.catching_up import catching_up_of
from tests.core.peer.noting import note
from tests.core.peer.story import PEER1, Story
from tests.core.peer.test_peer_churn import _entry

HOSTS = tuple(PeerId(f"peer{index}") for index in range(5))
INSTANCE = InstanceId(0)
AGREED, APART, NEXT = (Digest(digit * 64) for digit in "aef")
"""The agreed state before round 1; that of hosts which were cut off in round 0; the agreed one after an outer step."""


def report(peer: PeerId, number: int, state: Digest) -> Report:
    item = InstanceReport.without_work(INSTANCE, state_digest=state)
    return Report(peer=peer, round=number, plan=AGREED, capacity=CAPACITY, instances=(item,))


def book(
    before: dict[PeerId, Digest], after: dict[PeerId, Digest], *, agreed: Digest | None = AGREED, newest: int = 2
) -> PlanBook:
    """Of a peer that has these reports on rounds 0 and 1; plan 2 names the agreed state after round 0."""
    known = PlanBook(HOSTS[0])
    plan: RoundPlan = genesis(RUN, [(peer, CAPACITY) for peer in HOSTS], small_rules(5, 9))
    for _ in range(newest + 1):
        named = tuple(replace(item, state_digest=agreed if plan.round == 2 else None) for item in plan.instances)
        known.remember(replace(plan, instances=named))
        plan = next_plan(plan, (), small_rules(5, 9))
    for number, states in enumerate((before, after)):
        for peer, state in states.items():
            note(known, report(peer, number, state))
    return known


def split(state: Digest, other: Digest, *, others: int) -> dict[PeerId, Digest]:
    """The first so many hosts have the other state. They joined the run first, so of equally many they would count."""
    return {peer: other if index < others else state for index, peer in enumerate(HOSTS)}


@pytest.mark.parametrize("gone", [HOSTS[4:], HOSTS[3:]])
def test_what_hosts_reported_before_they_took_the_agreed_state_is_nobodys(gone: tuple[PeerId, ...]) -> None:
    """Two of five were cut off in round 0, and reported round 1 from the state that they had apart. As many of the others are
    left, or fewer: two against two, or against one."""
    known = book(split(AGREED, APART, others=2), split(AGREED, APART, others=2))
    assert known.reported_state(INSTANCE, 1, gone) == AGREED
    unheard = book(dict.fromkeys(HOSTS[2:], AGREED), split(AGREED, APART, others=2))
    assert unheard.reported_state(INSTANCE, 1, gone) == AGREED, "also where nobody heard their reports on round 0"


def test_nothing_is_taken_before_all_have_reported_or_most_agree() -> None:
    after = split(AGREED, APART, others=2)
    del after[HOSTS[3]]
    assert book(dict.fromkeys(HOSTS[2:], AGREED), after).reported_state(INSTANCE, 1, ()) is None
    assert book({}, split(NEXT, APART, others=2)).reported_state(INSTANCE, 1, ()) == NEXT


def test_reports_that_a_plan_has_passed_over_are_not_awaited() -> None:
    """By a host that lacks the state: two of them would wait for each other's report for ever (everyday seed 1003). A host that
    has one keeps it, or a minority whose reports come first would take it away."""
    after = split(AGREED, APART, others=1)
    del after[HOSTS[3]], after[HOSTS[4]]
    assert book({}, after, agreed=None).reported_state(INSTANCE, 1, (), passes_over=True) is None
    assert book({}, after, agreed=None, newest=3).reported_state(INSTANCE, 1, (), passes_over=True) == AGREED
    assert book({}, after, agreed=None, newest=3).reported_state(INSTANCE, 1, ()) is None


def test_where_no_plan_names_a_state_the_most_hosts_count_then_those_that_joined_first() -> None:
    states = split(AGREED, APART, others=2)
    assert book(states, states, agreed=None).reported_state(INSTANCE, 1, HOSTS[4:]) == APART
    assert book(states, states, agreed=None).reported_state(INSTANCE, 1, ()) == AGREED


def test_what_keepers_hold_counts_where_the_hosts_are_gone_or_go_without() -> None:
    """The last host was gone, and a newcomer reports a round that nobody could train."""
    keeper, newcomer = HOSTS[3:]
    known = book({}, {})
    plan = known.plans[1]
    seats = [replace(seat, capacity=replace(CAPACITY, is_keeper=True)) if seat.peer == keeper else seat for seat in plan.roster]
    hosts = tuple(share for share in plan.instances[0].hosts if share.peer == newcomer)
    known.remember(replace(plan, roster=tuple(seats), instances=(replace(plan.instances[0], hosts=hosts),)))
    note(known, report(keeper, 1, APART))
    assert known.reported_state(INSTANCE, 1, HOSTS[:3]) is None, "it may still report one"
    note(known, Report(peer=newcomer, round=1, plan=AGREED, capacity=CAPACITY, instances=()))
    assert known.reported_state(INSTANCE, 1, HOSTS[:3]) == APART


@pytest.mark.parametrize(("others", "is_confirmed"), [(2, True), (3, False)])
def test_what_most_hosts_reported_is_agreed_though_the_last_plan_merges_the_instance_away(
    *, others: int, is_confirmed: bool
) -> None:
    """That plan names no state of it. A host in doubt about the state would end with an error, and so would all like it."""
    state = PeerState(HOSTS[4], is_delayed=False, rounds_kept=2)
    plan: RoundPlan = genesis(RUN, [(peer, CAPACITY) for peer in HOSTS], small_rules(5, 9))
    state.learn(plan)
    for peer, held in split(AGREED, APART, others=others).items():
        made = replace(report(peer, 0, held), plan=state.book.digests[0])
        note(state.book, made)
        state.own_reports[0] = made
    state.instance(INSTANCE).doubt(1)
    last = replace(next_plan(next_plan(plan, (), small_rules(5, 9)), (), small_rules(5, 9)), instances=())
    catching_up_of(state).check_own_state(last)
    assert (state.known(INSTANCE).doubtful_from is None) is is_confirmed


def trained(peer: PeerId, number: int, state: Digest) -> Report:
    """The report of a host that did its part of the round."""
    made = report(peer, number, state)
    return replace(made, instances=tuple(replace(item, contributors=1) for item in made.instances))


@pytest.mark.parametrize("seed", range(20))
def test_a_peer_names_states_by_the_rule_of_the_plans(seed: int) -> None:
    """Hosts have gone since the reported round, and of those that are left some do not report, and others have no work."""
    random = Random(f"named {seed}")
    first = genesis(RUN, [(peer, CAPACITY) for peer in HOSTS], small_rules(5, 9))
    before = next_plan(first, (), small_rules(5, 9))
    shares = [replace(share, works_from=random.choice((0, 0, 0, 2))) for share in before.instances[0].hosts]
    left = tuple(random.sample(shares, random.randint(1, len(shares))))
    before = replace(before, instances=(replace(before.instances[0], hosts=tuple(sorted(left, key=lambda share: share.peer))),))
    reporting = random.sample(HOSTS, random.randint(1, len(HOSTS)))
    make = {peer: random.choice((trained, trained, report)) for peer in reporting}
    reports = [make[peer](peer, 0, random.choice((AGREED, AGREED, APART))) for peer in reporting]
    named = next_plan(before, reports, small_rules(5, 9)).instances[0].state_digest
    assert named_state(before.instances[0], before, reports) == named


def test_the_reports_of_the_last_plan_name_the_state_of_an_instance_that_it_merges_away() -> None:
    """Three of five hosts left in round 0, without a vote. The two that stay have their state from each other, and may go, too:
    nothing but their reports ends the doubt of those that take it from them (seed 166 of `docs/averages.md`)."""
    known = book({}, {})
    first, before, last = (known.plans[number] for number in range(3))
    left = tuple(share for share in before.instances[0].hosts if share.peer in HOSTS[3:])
    before = replace(before, instances=(replace(before.instances[0], hosts=left),))
    merge = Merge(sources=(INSTANCE, InstanceId(1)), target=InstanceId(1), weights=(1.0, 0.0), reason="last")
    last = replace(last, instances=(replace(last.instances[0], instance=InstanceId(1)),), merges=(merge,))
    reports = [trained(peer, 0, AGREED) for peer in HOSTS[3:]]
    state = PeerState(HOSTS[4], is_delayed=False, rounds_kept=2)
    for plan in (first, before, last):
        state.learn(plan)
    for made in reports:
        note(state.book, made)
    state.own_reports[0] = replace(reports[1], plan=state.book.digests[0])
    state.instance(INSTANCE).doubt(1)
    assert not state.book.outlook(INSTANCE, 1, HOSTS[:3]).is_agreed
    state.book.name_ended(last, reports)
    outlook = state.book.outlook(INSTANCE, 1, HOSTS[:3])
    assert (outlook.digest, outlook.donors, outlook.is_agreed) == (AGREED, (HOSTS[3],), True)
    catching_up_of(state).check_own_state(last)
    assert state.known(INSTANCE).doubtful_from is None
    state.cut(at=2)
    assert state.book.named(INSTANCE, 2) is None, "another history counts"
    catching_up_of(state).rewrite(Reorg(fork=before, lost=(), won=(_entry(last, tuple(reports)),)))
    assert state.book.named(INSTANCE, 2) == AGREED, "that one has it, too"


def test_a_restart_after_the_last_plan_names_the_state_of_an_instance_that_it_merges_away() -> None:
    """The plan is in the checkpoint, so it is not decided again; the journal has the reports from which it was made."""
    story = Story(rules=small_rules(3, 6), peers=3)
    story.play()
    durables = [effect.durable for _, effect in story.effects(SaveCheckpoint, PEER1)]
    last = durables[-1].plans[-1]
    before = next(durable for durable in durables if durable.round == last.round - 1)
    (merge,) = last.merges
    (ended,) = {*merge.sources} - {merge.target}
    machine = story.machine(PEER1)
    machine.is_gone, machine.disk.durable = False, replace(before, plans=(*before.plans, last), held=())
    machine.boot()
    assert machine.process is not None
    state = machine.process.peer._book.named(ended, last.round)
    assert state is not None and state == story.reported_states(PEER1)[last.round - 2, ended]
