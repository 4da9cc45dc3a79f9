"""More volunteers than an instance has work for: which of them host, and that all get their turn."""

import random
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.complaints import Complaint
from adloco_p2p.core.model.plan import RosterChange, RoundPlan, roster_of
from adloco_p2p.core.model.protocol import NEWEST, PROBATION_LIMITED
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.roster_entry import RosterEntry
from adloco_p2p.core.model.rules import AdmissionRules, BatchRules, InstanceRules, MergeRules, Rules, WorkRules
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.planning.bench import take_turns
from adloco_p2p.core.planning.placement import InstanceDraft
from adloco_p2p.core.planning.round_plan import next_plan
from adloco_p2p.core.planning.suspension import SHORTEST_ROUNDS
from tests.core.core_values import RUN, capacity, instance_plan, peer
from tests.core.planning.test_round_plan import honest_reports, run, start


def rules_of(batch: int, *, turn_rounds: int = 2, max_hosts: int = 32, rounds: int = 60) -> Rules:
    return Rules(
        work=WorkRules(inner_steps=4, rounds=rounds, max_hosts=max_hosts, turn_rounds=turn_rounds),
        instances=InstanceRules(count=1, start="same"),
        batch=BatchRules(test="constant", initial_batch=batch),
        merge=MergeRules(policy="none", guard=False),
        admission=AdmissionRules(kind="open"),
    )


JOIN = RosterChange(joined=((peer(3), capacity()),))
LATER_JOIN = RosterChange(joined=((peer(4), capacity()),))
DEPARTURE = RosterChange(departed=(peer(2),))


def hosts(plan: RoundPlan) -> set[PeerId]:
    """Those whose turn it is."""
    return {entry.peer for entry in plan.roster if not entry.is_waiting}


def bench(plan: RoundPlan) -> set[PeerId]:
    return {*roster_of(plan)} - hosts(plan)


def holders(plan: RoundPlan) -> set[PeerId]:
    return {share.peer for item in plan.instances for share in item.hosts}


def numbered(indices: Iterable[int]) -> set[PeerId]:
    return {peer(index) for index in indices}


def turns(num_peers: int, *, places: int, turn_rounds: int, until: int) -> list[set[PeerId]]:
    """The hosts of round 10 and of those that follow, by the rule alone. Of peers with equal claims the first comes first."""
    roster = [
        RosterEntry(peer=peer(index), joined_round=index, capacity=capacity(), last_report=9, turn_from=9, is_waiting=True)
        for index in range(num_peers)
    ]
    work = WorkRules(max_hosts=32, turn_rounds=turn_rounds)
    hosting: list[set[PeerId]] = []
    for round in range(100, 100 + until):
        before = tuple(sorted(hosting[-1])) if hosting else ()
        plan = instance_plan(requested=places, hosts=dict.fromkeys(before, 1))
        draft = InstanceDraft(plan=plan, holders=before, ready=before)
        taken = take_turns([draft], roster, run=RUN, round=round, work=work, protocol=NEWEST)
        roster = [replace(entry, last_report=round - 1) for entry in taken.roster]
        hosting.append({entry.peer for entry in roster if not entry.is_waiting})
    return hosting


def test_five_peers_take_turns_at_a_batch_of_three_samples() -> None:
    """Turns of two rounds, one host of three makes room per plan: worked out by hand."""
    by_hand = ([0, 1, 2], [0, 1, 2], [1, 2, 3], [2, 3, 4], [0, 3, 4], [0, 1, 4], [0, 1, 2])
    assert turns(5, places=3, turn_rounds=2, until=7) == [numbered(there) for there in by_hand]


def test_a_quarter_of_the_hosts_makes_room_per_plan() -> None:
    """Twelve peers, eight places, turns of three rounds: two come and two go, once the first turns are over."""
    by_hand = [[0, 1, 2, 3, 4, 5, 6, 7]] * 3 + [
        [2, 3, 4, 5, 6, 7, 8, 9],
        [4, 5, 6, 7, 8, 9, 10, 11],
        [0, 1, 6, 7, 8, 9, 10, 11],
    ]
    assert turns(12, places=8, turn_rounds=3, until=6) == [numbered(there) for there in by_hand]


def test_names_that_never_reported_take_no_place_of_a_host() -> None:
    """Three that report have two places; of two that only asked for a seat, however long ago, none comes before the third."""
    reporting = [RosterEntry(peer=peer(index), joined_round=5, capacity=capacity(), last_report=19) for index in range(3)]
    silent = [RosterEntry(peer=peer(index), joined_round=20, capacity=capacity(), is_waiting=True) for index in (3, 4)]
    reporting[2] = replace(reporting[2], is_waiting=True, turn_from=19)
    plan = instance_plan(requested=2, hosts=dict.fromkeys((peer(0), peer(1)), 1))
    draft = InstanceDraft(plan=plan, holders=(peer(0), peer(1)), ready=())
    for round in (21, 22):
        taken = take_turns([draft], [*reporting, *silent], run=RUN, round=round, work=WorkRules(turn_rounds=2), protocol=NEWEST)
        assert {entry.peer for entry in taken.roster if not entry.is_waiting} == numbered((1, 2)), "one of the two makes room"


def trains(plan: RoundPlan, name: PeerId) -> bool:
    return any(share.peer == name and share.samples > 0 for item in plan.instances for share in item.hosts)


def test_those_on_the_bench_hold_the_state_and_work_as_soon_as_it_is_their_turn() -> None:
    plans = run(rules_of(3), num_peers=5, until=6)
    assert all(holders(plan) == {*roster_of(plan)} for plan in plans)
    assert all(trains(plan, name) == (name in hosts(plan)) for plan in plans for name in roster_of(plan))


def test_beyond_the_cap_they_hold_nothing_and_receive_first() -> None:
    plans = run(rules_of(9, max_hosts=3), num_peers=5, until=4)
    assert all(holders(plan) == hosts(plan) for plan in plans)
    (new,) = hosts(plans[3]) - hosts(plans[2])
    assert [trains(plan, new) for plan in plans[3:5]] == [False, True]


def test_those_that_waited_longest_hold_the_state_before_their_turn() -> None:
    """Two of nine work, and four host: the next two in the row hold the state already."""
    plans = run(rules_of(2, max_hosts=4, turn_rounds=3), num_peers=9, until=20)
    num_turns = 0
    for before, plan in pairwise(plans[1:]):
        assert len(holders(plan)) == 4
        for new in hosts(plan) - hosts(before):
            assert new in holders(before) and trains(plan, new)
            num_turns += 1
    assert num_turns == 2 * 6, "every third round both places change hands"


def test_an_instance_has_no_more_hosts_than_the_run_allows() -> None:
    (plan,) = run(rules_of(100, max_hosts=4), num_peers=6, until=0)
    assert len(hosts(plan)) == 4
    assert plan.reason == "start with 1 instance on 6 peers; 2 peers on the bench: an instance has at most 4 hosts"


def test_where_all_can_work_nobody_waits() -> None:
    for plan in run(rules_of(6), num_peers=6, until=8):
        assert hosts(plan) == {*roster_of(plan)} and "bench" not in plan.reason


def test_after_the_last_round_everybody_gets_the_model() -> None:
    plans = run(rules_of(3, rounds=4), num_peers=6)
    assert bench(plans[3]) and holders(plans[4]) == {*roster_of(plans[4])}


def test_a_departure_is_replaced_by_the_longest_wait_in_the_next_plan() -> None:
    plans = run(rules_of(3, turn_rounds=16), num_peers=3, until=3, joins={1: JOIN, 2: LATER_JOIN, 3: DEPARTURE})
    assert all(hosts(plan) == numbered([0, 1, 2]) for plan in plans[:3])
    assert hosts(plans[3]) == numbered([0, 1, 3]), "peer 3 came before peer 4"


def test_a_host_that_is_silent_for_long_makes_room_and_comes_back_when_it_reports() -> None:
    def say(done: RoundPlan) -> list[Report]:
        return [report for report in honest_reports(done) if report.peer != peer(1) or not 2 <= done.round < 7]

    plans = run(rules_of(3, turn_rounds=60), num_peers=3, until=12, say=say, joins={1: JOIN})
    assert [peer(1) in hosts(plan) for plan in plans] == [True] * 7 + [False] * 6
    assert all(hosts(plan) == numbered([0, 2, 3]) for plan in plans[7:]), "the others' turns last"


def test_a_suspended_host_waits_at_least_until_its_suspension_ends() -> None:
    """Peers 1 to 3 say twice that peer 0 did not show them its part."""

    def say(done: RoundPlan) -> list[Report]:
        reports = honest_reports(done)
        if done.round not in (1, 2):
            return reports
        places = [share.peer for share in done.instances[0].hosts]
        accused, reducer = places.index(peer(0)), places.index(peer(1))
        complaint = Complaint(round=done.round, contributor=accused, reducer=reducer)
        return [
            replace(report, instances=tuple(replace(item, complaint=complaint) for item in report.instances))
            if report.peer != peer(0)
            else report
            for report in reports
        ]

    plans = [start(rules_of(4, turn_rounds=60), 4)]
    for _ in range(8):
        joined = RosterChange(joined=((peer(4), capacity()),)) if plans[-1].round == 0 else None
        reports = say(plans[-2]) if len(plans) > 1 else []
        plans.append(next_plan(plans[-1], reports, rules_of(4, turn_rounds=60), roster=joined))
    assert [peer(0) in hosts(plan) for plan in plans] == [True] * 4 + [False] * 5
    assert [entry.turn_from for entry in plans[4].roster if entry.peer == peer(0)] == [4 + SHORTEST_ROUNDS]


def test_on_the_bench_nobody_serves_a_probation() -> None:
    joined = RosterChange(joined=((peer(7), capacity()), (peer(8), capacity())))
    plans = run(rules_of(2, turn_rounds=20), num_peers=4, until=40, joins={24: joined})
    owed = {plan.round: {entry.peer: entry.probation for entry in plan.roster} for plan in plans}
    waits = [plan.round for plan in plans[26:] if peer(7) in bench(plan)]
    assert len(waits) > 8 and {owed[number][peer(7)] for number in waits} == {owed[24][peer(7)]}
    assert all(entry.last_report == plans[-1].round - 2 for entry in plans[-1].roster), "they report all the same"


@pytest.mark.parametrize(("protocol", "most"), [(PROBATION_LIMITED - 1, 2), (PROBATION_LIMITED, 1)])
def test_few_hosts_are_on_probation_as_long_as_others_wait_and_no_place_stays_empty(protocol: int, most: int) -> None:
    """They came first, but cost nothing yet."""
    able = replace(capacity(), newest_protocol=protocol)
    crowd = RosterChange(joined=tuple((peer(index), able) for index in range(100, 116)))
    plans = run(rules_of(4, turn_rounds=4), num_peers=6, until=56, joins={36: crowd}, protocol=protocol)
    for plan in plans[37:]:
        new = {entry.peer for entry in plan.roster if entry.probation}
        assert plan.protocol == protocol and len(hosts(plan) & new) <= most
        assert plan.is_last or all(trains(plan, name) for name in hosts(plan))
    assert any(hosts(plan) & numbered(range(100, 116)) for plan in plans[37:])


@pytest.mark.parametrize(("num_peers", "places", "turn_rounds"), [(3, 2, 1), (5, 4, 3), (11, 8, 5), (40, 32, 16), (60, 8, 2)])
def test_all_host_about_the_same_number_of_rounds(num_peers: int, places: int, turn_rounds: int) -> None:
    plans = turns(num_peers, places=places, turn_rounds=turn_rounds, until=400)
    counts = [sum(peer(index) in there for there in plans) for index in range(num_peers)]
    fair = 400 * places / num_peers
    assert max(abs(count - fair) for count in counts) <= max(0.1 * fair, 2 * turn_rounds)


@given(st.integers(0, 10**9))
@example(268359)  # a member comes off the bench before three that wait longer and never reported
@settings(max_examples=8, deadline=None)
def test_the_longest_wait_comes_first_whatever_peers_come_and_go(seed: int) -> None:
    """In rosters that change, with reports that are missing: the cap holds, no place is free while a member waits that can
    work, and the order of the reports makes no difference."""
    chance = random.Random(seed)
    rules = rules_of(chance.randrange(1, 12), turn_rounds=chance.randrange(1, 6), max_hosts=chance.randrange(2, 8))
    places = min(rules.work.max_hosts, max(2, rules.batch.initial_batch))
    plans = [start(rules, chance.randrange(2, 14))]
    for _ in range(20):
        before = plans[-1]
        said = honest_reports(plans[-2]) if len(plans) > 1 else []
        reports = [report for report in said if chance.random() > 0.1]
        names = roster_of(before)
        departed = tuple(name for name in names if chance.random() < 0.05)[: len(names) - 1]
        joined = tuple((peer(chance.randrange(100, 140)), capacity()) for _ in range(chance.randrange(3)))
        change = RosterChange(joined=joined, departed=departed)
        plan = next_plan(before, reports, rules, roster=change)
        shuffled = chance.sample(reports, len(reports))
        assert canonical.encode(next_plan(before, shuffled, rules, roster=change)) == canonical.encode(plan)
        assert len(hosts(plan)) == min(places, len(plan.roster)), seed
        entries = {entry.peer: entry for entry in plan.roster}
        waited = {entry.peer: entry.turn_from for entry in before.roster if entry.peer in entries}
        reported = {name: entry.last_report for name, entry in entries.items() if entry.last_report is not None}
        able = {name for name, number in reported.items() if number >= plan.round - 5}  # without a report: behind all others
        came = (hosts(plan) - hosts(before)) & waited.keys()
        left_waiting = (bench(plan) & bench(before) & able) - {name for name in names if entries.get(name) is None}
        same = [name for name in left_waiting if not entries[name].probation]
        for name in came & able:
            assert all(waited[other] >= waited[name] for other in same if entries[name].probation == 0), seed
        plans.append(plan)


@pytest.mark.parametrize("kind", ["fork", "same"])
def test_places_of_several_instances_add_up(kind: str) -> None:
    base = rules_of(3, turn_rounds=4, rounds=20)
    rules = replace(base, instances=InstanceRules(count=2, start=kind, fork_round=4))  # type: ignore[arg-type]
    for plan in run(rules, num_peers=9)[:-1]:
        assert len(hosts(plan)) == 3 * len(plan.instances)
        assert holders(plan) == {*roster_of(plan)}
        for item in plan.instances:
            assert 1 <= sum(share.samples > 0 for share in item.hosts) <= 3
