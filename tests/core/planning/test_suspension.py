"""Complaints about hosts that show nobody what they sent to a reducer, by hand: whom they suspend, and whom they cannot."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from random import Random

import pytest

from adloco_p2p.core.model.complaints import Complaint, KnownComplaint, PartNotShown, may_reduce
from adloco_p2p.core.model.instance_plan import MAX_COMPLAINTS, InstancePlan
from adloco_p2p.core.model.report_form import complaint_of
from adloco_p2p.core.model.roster_entry import RosterEntry
from adloco_p2p.core.model.scalars import MAX_HOSTS, PeerId
from adloco_p2p.core.planning.round_plan import next_plan
from adloco_p2p.core.planning.suspension import suspended, suspension_rounds, with_complaints
from tests.core.core_values import capacity, instance_plan, instance_report, peer
from tests.core.planning.test_round_plan import ONE, honest_reports, run

PEERS = tuple(peer(index) for index in range(5))
A, B, C, D, LIAR = PEERS
PLACES = {name: place for place, name in enumerate(PEERS)}
ROUND = 20
"""Of the reports; the next plan is of the round after the one after it."""


def roster(*, probation: Iterable[PeerId] = (), clients: Iterable[PeerId] = ()) -> tuple[RosterEntry, ...]:
    return tuple(
        RosterEntry(
            peer=name,
            joined_round=0,
            capacity=replace(capacity(), is_reachable=name not in clients),
            probation=4 if name in probation else 0,
        )
        for name in PEERS
    )


def about(contributor: PeerId, *, reducer: PeerId = LIAR, round: int = ROUND) -> Complaint:
    return Complaint(round=round, contributor=PLACES[contributor], reducer=PLACES[reducer])


def decided(
    said: Iterable[Mapping[PeerId, Complaint]], *, plan: InstancePlan | None = None, entries: tuple[RosterEntry, ...] = roster()
) -> InstancePlan:
    """The instance's plan after the last of these rounds' complaints; the last ones are in the reports on ROUND."""
    rounds = list(said)
    plan = plan or instance_plan(hosts=dict.fromkeys(PEERS, 4))
    for number, complaints in enumerate(rounds, start=ROUND + 1 - len(rounds)):
        claims = {name: replace(instance_report(), complaint=complaints.get(name)) for name in PEERS}
        plan = with_complaints(plan, plan, claims, entries, PLACES, round=number)
    return plan


def out_of(plan: InstancePlan) -> set[PeerId]:
    return suspended(plan.hosts, ROUND + 2)


def twice(*peers: PeerId, contributor: PeerId = LIAR) -> list[dict[PeerId, Complaint]]:
    """These complain about the last two averages."""
    return [{name: about(contributor, round=round) for name in peers} for round in (ROUND - 1, ROUND)]


def test_most_hosts_suspend_one_that_shows_nothing_of_two_averages() -> None:
    plan = decided(twice(A, B, C))
    assert out_of(plan) == {LIAR}
    share = plan.hosts[PLACES[LIAR]]
    assert (share.suspensions, share.suspended_until) == (1, ROUND + 2 + 8)
    assert plan.complaints == (), "they are settled: after its return new ones count"


@pytest.mark.parametrize("peers", [(A,), (A, B)])
def test_fewer_do_not(peers: tuple[PeerId, ...]) -> None:
    plan = decided(twice(*peers))
    assert out_of(plan) == set()
    assert len(plan.complaints) == 2 * len(peers), "they are remembered"
    assert {item.reducer for item in plan.complaints} == {LIAR}


def test_one_average_does_not_however_many_complain() -> None:
    """A host that is restarted has lost what it sent, and everybody who asks for it complains."""
    assert out_of(decided([{name: about(LIAR) for name in (A, B, C, D)}])) == set()
    again = [{name: about(LIAR, round=ROUND - 1) for name in (A, B, C, D)}] * 2
    assert out_of(decided(again)) == set(), "the same average twice"


def test_a_complaint_counts_for_sixteen_rounds() -> None:
    for age, found in ((16, {LIAR}), (17, set())):
        first = {name: about(LIAR, round=ROUND - age) for name in (A, B, C)}
        nothing: list[dict[PeerId, Complaint]] = [{}] * (age - 1)
        assert out_of(decided([first, *nothing, {name: about(LIAR) for name in (A, B, C)}])) == found


def test_a_plan_forgets_the_oldest_of_more_complaints_than_it_can_hold() -> None:
    """256 hosts complain in 17 rounds, each of them about two others in turn, which suspends nobody."""
    names = [peer(index) for index in range(MAX_HOSTS)]
    places = {name: place for place, name in enumerate(names)}
    entries = tuple(RosterEntry(peer=name, joined_round=0, capacity=capacity()) for name in names)
    plan = instance_plan(hosts=dict.fromkeys(names, 1))
    plan = replace(plan, hosts=tuple(replace(share, place_before=places[share.peer]) for share in plan.hosts))
    for round in range(17):
        claims = {
            name: replace(
                instance_report(),
                complaint=Complaint(round=round, contributor=(place + 1 + round % 2) % MAX_HOSTS, reducer=0),
            )
            for name, place in places.items()
        }
        plan = with_complaints(plan, plan, claims, entries, places, round=round)
    assert len(plan.complaints) == MAX_COMPLAINTS and {complaint.round for complaint in plan.complaints} == set(range(1, 17))
    assert not any(share.suspensions for share in plan.hosts)


def test_complaints_about_rounds_to_come_and_about_oneself_count_for_nothing() -> None:
    ahead = [{name: about(LIAR, round=ROUND + back) for name in (A, B, C)} for back in (1, 2)]
    assert out_of(decided(ahead)) == set()
    assert decided([{LIAR: about(LIAR)}]).complaints == ()


def test_one_host_complains_about_fewer_than_half_of_them() -> None:
    plan = decided(
        [{A: about(other, round=round)} for round, other in zip(range(ROUND - 2, ROUND + 1), (B, C, D), strict=True)]
    )
    assert [item.contributor for item in plan.complaints] == [B, C], "of five two at most"


def test_names_that_cost_nothing_yet_do_not_decide() -> None:
    newcomers = roster(probation=(A, B, C))
    assert out_of(decided(twice(A, B, C), entries=newcomers)) == set(), "no full member"
    assert out_of(decided(twice(A, B, C, D), entries=newcomers)) == set(), "one full member"
    assert out_of(decided(twice(A, B, C, D), entries=roster(probation=(A,)))) == {LIAR}, "three of four full members"
    assert out_of(decided(twice(A, B, C), entries=roster(probation=(A,)))) == set(), "two of four full members are no majority"


def test_two_hosts_in_client_mode_cannot_reach_each_other() -> None:
    assert out_of(decided(twice(A, B, C), entries=roster(clients=(A, LIAR)))) == set()
    assert out_of(decided(twice(A, B, C), entries=roster(clients=(A,)))) == {LIAR}


def test_suspensions_double_up_to_a_limit() -> None:
    assert [suspension_rounds(count) for count in (1, 2, 3, 4, 5, 10**9)] == [8, 16, 32, 64, 64, 64]
    known = instance_plan(hosts=dict.fromkeys(PEERS, 4))
    *others, last = known.hosts
    plan = decided(twice(A, B, C), plan=replace(known, hosts=(*others, replace(last, suspensions=1, suspended_until=12))))
    assert plan.hosts[PLACES[LIAR]].suspended_until == ROUND + 2 + 16


def test_late_complaints_about_a_suspended_host_do_not_suspend_it_again() -> None:
    plan = decided(twice(A, B, C))
    claims = {name: replace(instance_report(), complaint=about(LIAR, round=ROUND + 1)) for name in PEERS}
    after = with_complaints(plan, plan, claims, roster(), PLACES, round=ROUND + 1)
    assert after.hosts == plan.hosts and after.complaints == ()


@pytest.mark.parametrize("hosts", [3, 4, 5, 8, 9])
def test_a_minority_of_liars_suspends_nobody_who_shows_what_is_asked(hosts: int) -> None:
    """Liars, fewer than half, complain at random, and each honest host about at most one average of another one, which was
    restarted, say. Sixty rounds of each of forty seeds."""
    names = [peer(index) for index in range(hosts)]
    places = {name: place for place, name in enumerate(names)}
    entries = tuple(RosterEntry(peer=name, joined_round=0, capacity=capacity()) for name in names)
    for seed in range(40):
        random = Random(seed)
        liars = random.sample(names, (hosts - 1) // 2)
        restarted = {name: random.randrange(60) for name in names}
        plan = instance_plan(hosts=dict.fromkeys(names, 4))
        for round in range(60):
            said = {
                name: Complaint(round=max(0, round - random.randrange(3)), contributor=random.randrange(hosts), reducer=0)
                for name in liars
            }
            down = next((name for name, when in restarted.items() if when == round), None)
            if down is not None:
                honest = [name for name in names if name not in liars and name != down]
                said |= {name: Complaint(round=round, contributor=places[down], reducer=0) for name in honest}
            claims = {name: replace(instance_report(), complaint=said.get(name)) for name in names}
            plan = with_complaints(plan, plan, claims, entries, places, round=round)
            assert not any(share.suspensions for share in plan.hosts if share.peer not in liars), f"seed {seed}"


def test_a_suspended_host_has_no_work_and_reduces_nothing_for_some_rounds_more() -> None:
    previous = run(ONE, num_peers=5, until=4)[-1]
    [item] = previous.instances
    hosts = tuple(
        replace(share, suspensions=1, suspended_until=previous.round + 2) if share.peer == LIAR else share
        for share in item.hosts
    )
    before = replace(previous, instances=(replace(item, hosts=hosts),))
    plan = next_plan(before, honest_reports(before), ONE)
    share = next(share for share in plan.instances[0].hosts if share.peer == LIAR)
    assert share.samples == 0 and share.suspended_until == plan.round + 1
    assert f"no work for {LIAR} before round {plan.round + 1} (showed" in plan.instances[0].reason
    back = next_plan(plan, honest_reports(plan), ONE)
    assert next(share for share in back.instances[0].hosts if share.peer == LIAR).samples > 0
    assert "showed" not in back.instances[0].reason


def test_it_reduces_again_after_sixty_four_rounds() -> None:
    assert may_reduce(suspended_until=0, round=0)
    assert not may_reduce(suspended_until=30, round=93)
    assert may_reduce(suspended_until=30, round=94)


def test_a_report_names_hosts_of_its_own_plan() -> None:
    plan = instance_plan(hosts=dict.fromkeys(PEERS, 4))
    event = PartNotShown(instance=plan.instance, round=3, contributor=D, reducer=B)
    assert complaint_of(event, plan) == Complaint(round=3, contributor=3, reducer=1)
    assert complaint_of(replace(event, reducer=peer(9)), plan) is None


def test_places_of_another_plan_are_read_by_it() -> None:
    """The report on a round names hosts as the plan of that round does, in which A was the last one."""
    plan = instance_plan(hosts=dict.fromkeys(PEERS, 4))
    moved = {B: 0, C: 1, D: 2, LIAR: 3, A: 4}
    claims = {B: replace(instance_report(), complaint=Complaint(round=ROUND, contributor=3, reducer=4))}
    after = with_complaints(plan, plan, claims, roster(), moved, round=ROUND)
    assert after.complaints == (KnownComplaint(peer=B, round=ROUND, contributor=LIAR, reducer=A),)
