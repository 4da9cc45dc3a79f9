"""In every how many averages a host with a slow link takes part. Hand-worked numbers, and what liars can do."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.roster_entry import RosterEntry
from adloco_p2p.core.model.scalars import MAX_HOSTS, InstanceId, PeerId
from adloco_p2p.core.planning.link_periods import (
    BENCHED,
    FETCH_ROUNDS,
    LEAST_SECONDS,
    TRIAL_ROUNDS,
    LinkPeriod,
    exchange_seconds,
    is_benched_by,
    link_periods,
)
from adloco_p2p.core.planning.placement import InstanceDraft, Turns, place_hosts
from adloco_p2p.core.planning.round_plan import _common_vector_bytes, _vector_bytes
from tests.core.core_values import capacity, peer
from tests.core.planning.test_round_plan import ONE, THREE, honest_reports, run, start

MB = 1_000_000


def member(index: int, megabytes: float, *, down: float = 0.0, probation: int = 0, joined: int = 0) -> RosterEntry:
    """`megabytes` a second up; 0: unknown."""
    offer = replace(capacity(), download_bytes_per_second=down * MB)
    uplinks = (megabytes * MB / 2, megabytes * MB) if megabytes else ()
    return RosterEntry(peer=peer(index), joined_round=joined, capacity=offer, uplinks=uplinks, probation=probation)


def averages(*entries: RosterEntry, seconds: float, megabytes: float = 45, tolerance: float | None = 0.1) -> dict[PeerId, int]:
    found = link_periods(entries, vector_bytes=round(megabytes * MB), compute_seconds=seconds, tolerance=tolerance)
    return {peer: period.every for peer, period in found.slow.items()}


FAST = [member(index, 12) for index in range(3)]


@pytest.mark.parametrize(
    ("uplinks", "seconds"),
    [
        ([12], 0.0),
        ([12, 12, 12], 45 * 4 / 36),  # two vectors less a third of them, from each
        ([12, 12, 2], 45 / 2),  # the slow one sends its own and reduces nothing
    ],
)
def test_an_exchange_takes_what_the_slowest_link_or_all_together_need(uplinks: list[float], seconds: float) -> None:
    assert exchange_seconds(45 * MB, [uplink * MB for uplink in uplinks]) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("seconds", "down", "every"),
    [
        # the yardstick's exchange takes 5 s; the slow host's vector 22.5 s up, and down as long or 3.75 s
        (170, 0.0, 1),  # 17.5 s more are a tenth of 175 s
        (169, 0.0, 2),
        (83, 12.0, 2),  # within 2 tenths of 88 s, ...
        (82, 12.0, 4),  # ... not of 87
        (45, 0.0, 4),  # it computes half of the time, and waits for the average of the others in the other half
        (44, 0.0, TRIAL_ROUNDS),
        (44, 12.0, 4),
        (38, 12.0, TRIAL_ROUNDS),  # 17.5 s are more than 4 tenths of 43
    ],
)
def test_one_slow_host_of_four(seconds: float, down: float, every: int) -> None:
    found = averages(*FAST, member(3, 2, down=down), seconds=seconds)
    assert found == ({} if every == 1 else {peer(3): every})


@pytest.mark.parametrize("seconds", [0.0, 12.0])
def test_where_nothing_is_known_nobody_waits_for_every(seconds: float) -> None:
    assert averages(*FAST, member(3, 2), seconds=0.0) == {}
    assert averages(*FAST, member(3, 2), seconds=seconds, megabytes=0) == {}
    assert averages(*FAST, member(3, 2), seconds=seconds, tolerance=None) == {}
    assert averages(*FAST, member(3, 0), seconds=seconds) == {}
    assert averages(member(0, 12), member(1, 0), member(2, 0), member(3, 2), seconds=seconds) == {}


def test_a_moment_longer_is_not_slow() -> None:
    """Of rounds of a second: 0.05 s for the others, and less than 2 s more for the last one."""
    assert averages(*FAST, member(3, 0.45 / (LEAST_SECONDS + 0.04)), seconds=1.0, megabytes=0.45) == {}
    assert averages(*FAST, member(3, 0.45 / (LEAST_SECONDS + 0.06)), seconds=1.0, megabytes=0.45) == {peer(3): TRIAL_ROUNDS}


def test_one_slow_average_makes_no_slow_link() -> None:
    """Neither the first one of a process, nor one of a busy moment."""
    assert averages(*FAST, replace(member(3, 2), uplinks=(2.0 * MB,)), seconds=12.0) == {}
    assert averages(*FAST, replace(member(3, 2), uplinks=(2.0 * MB, 12.0 * MB, 2.0 * MB)), seconds=12.0) == {}


def test_half_of_the_hosts_are_never_too_slow_for_the_other_half() -> None:
    assert averages(member(0, 12), member(1, 12), member(2, 2), member(3, 2), seconds=12.0) == {}


def test_of_two_hosts_the_newcomer_gives_way() -> None:
    old, new = member(0, 2), member(1, 1000, joined=4)
    assert averages(old, new, seconds=12.0) == {}
    assert averages(replace(old, uplinks=(12.0 * MB, 12.0 * MB)), member(1, 2, joined=4), seconds=12.0) == {
        peer(1): TRIAL_ROUNDS
    }


def test_two_full_members_with_equal_links_are_in_every_average_and_so_are_newcomers_with_the_same_link() -> None:
    """45 MB take 3.75 s at 12 MB/s, and 18.75 s more at 2 MB/s, where four times 2 s are the most."""
    full = [member(0, 12), member(1, 12, joined=4)]
    newcomers = [member(index, 12, joined=9, probation=3) for index in (2, 3)]
    assert averages(*full, seconds=12.0) == averages(*full, *newcomers, seconds=12.0) == {}
    assert averages(*full, *newcomers, member(4, 2, joined=9, probation=3), seconds=12.0) == {peer(4): TRIAL_ROUNDS}


@pytest.mark.parametrize(
    ("newcomers", "aside"),
    [
        ([12, 12, 2], {3: TRIAL_ROUNDS}),  # 22.5 s: with three hosts of 12 MB/s an average takes 5 s
        ([12, 2], {2: TRIAL_ROUNDS}),
        ([12, 2, 2], {}),  # more than half have fast links, or nobody is slow
        ([12, 12, 2, 2], {3: TRIAL_ROUNDS, 4: TRIAL_ROUNDS}),
        ([2], {}),
        ([2, 2, 2], {}),
        ([12, 0, 2], {}),
    ],
)
def test_while_the_author_alone_is_full_and_reduces_its_newcomers_with_slow_links_do_not_set_the_pace(
    newcomers: list[float], aside: dict[int, int]
) -> None:
    """Nobody measures the author's uplink: it sends its vector to no other host."""
    entries = [member(0, 0), *(member(index, rate, probation=5) for index, rate in enumerate(newcomers, start=1))]
    assert averages(*entries, seconds=6.0) == {peer(index): every for index, every in aside.items()}


@pytest.mark.parametrize(
    ("owed", "aside"),
    [
        ((0, 3, 3), True),
        ((0, 3, 0), True),
        ((0, 0, 0), True),
        ((3, 3, 0), False),  # of two full members, only one of which is measured, none is put aside
    ],
)
def test_while_the_author_is_not_measured_some_newcomers_may_be_full_already(owed: tuple[int, ...], *, aside: bool) -> None:
    """Its uplink is in a plan some rounds after another member reduces, or never where it alone can be dialled."""
    rates = (12, 12, 2)
    newcomers = [member(k, rate, probation=n) for k, (rate, n) in enumerate(zip(rates, owed, strict=True), start=1)]
    assert averages(member(0, 0), *newcomers, seconds=6.0) == ({peer(3): TRIAL_ROUNDS} if aside else {})


@given(
    own=st.sampled_from([0.0, 0.5, 12.0]),
    honest=st.lists(st.floats(1.0, 100.0), min_size=1, max_size=6),
    lies=st.lists(st.one_of(st.just(0.0), st.floats(1e-3, 1e9)), max_size=8),
    seconds=st.floats(0.1, 1e4),
)
def test_newcomers_that_lie_put_no_full_member_aside_and_no_newcomer_with_the_fastest_link_unless_they_are_half(
    own: float, honest: list[float], lies: list[float], seconds: float
) -> None:
    author = member(0, own)
    newcomers = [member(index, rate, probation=3) for index, rate in enumerate([*honest, *lies], start=1)]
    found = averages(author, *newcomers, seconds=seconds)
    assert author.peer not in found
    if len(lies) < len(honest):
        assert all(peer(index) not in found for index, rate in enumerate(honest, start=1) if rate == max(honest))


def test_names_that_cost_nothing_yet_are_no_yardstick() -> None:
    crowd = [member(index, 1000, probation=3) for index in range(4, 12)]
    assert averages(member(0, 12), member(1, 12), member(2, 11), *crowd, seconds=12.0) == {}


@given(
    honest=st.lists(st.floats(1.0, 100.0), min_size=3, max_size=9),
    lies=st.lists(st.one_of(st.just(0.0), st.floats(1e-3, 1e9)), max_size=8),
    seconds=st.floats(0.1, 1e4),
    megabytes=st.floats(0.01, 1e4),
)
def test_liars_push_no_host_out_that_is_not_slower_than_another_honest_one(
    honest: list[float], lies: list[float], seconds: float, megabytes: float
) -> None:
    """As long as they are a minority of the full members. The claims of others leave the fastest honest hosts as they are, and
    those as fast as these."""
    lies = lies[: len(honest) - 1]
    entries = [member(index, rate) for index, rate in enumerate([*honest, *lies])]
    found = averages(*entries, seconds=seconds, megabytes=megabytes)
    assert 2 * len(found) < len(entries)
    for index, rate in enumerate(honest):
        if rate == max(honest):
            assert peer(index) not in found


@given(slower=st.floats(0.1, 11.9), factor=st.floats(1.0, 20.0), seconds=st.floats(1.0, 1000.0))
def test_a_slower_link_never_gets_more_every(slower: float, factor: float, seconds: float) -> None:
    more = averages(*FAST, member(3, slower), seconds=seconds).get(peer(3), 1)
    less = averages(*FAST, member(3, slower / factor), seconds=seconds).get(peer(3), 1)
    assert less >= more


def test_a_host_that_is_not_due_computes_until_the_others_end() -> None:
    """In rounds of 90 s it has their average 22.5 s later than they do."""
    found = link_periods([*FAST, member(3, 2)], vector_bytes=45 * MB, compute_seconds=90.0, tolerance=0.1)
    assert found.slow == {peer(3): LinkPeriod(every=2, fraction=0.75)}


def test_a_benched_host_gets_the_state_in_time_and_works_in_its_round_alone() -> None:
    rounds = range(1, TRIAL_ROUNDS + 1)
    assert [round for round in rounds if BENCHED.is_training(round)] == [TRIAL_ROUNDS]
    hosting = [round for round in rounds if BENCHED.is_hosting(round)]
    assert hosting == list(range(TRIAL_ROUNDS - FETCH_ROUNDS, TRIAL_ROUNDS + 1))
    for every in (1, 2, 4):
        assert all(LinkPeriod(every=every).is_hosting(round) and LinkPeriod(every=every).is_training(round) for round in rounds)


def test_words() -> None:
    entries = [*FAST, member(3, 2), member(4, 0.5)]
    found = link_periods(entries, vector_bytes=45 * MB, compute_seconds=60.0, tolerance=0.1)
    assert found.reason == (
        "p003 is in every 4th average (its link needs 22.5 s at 2 MB/s); "
        "p004 is benched, and tried every 32 rounds (its link needs 90 s at 0.5 MB/s)"
    )
    assert [number for number in range(5) if is_benched_by(found.reason, peer(number))] == [4]


# --- in plans --------------------------------------------------------------------------------------------------------


def plans_of_a_slow_host(megabytes: float) -> list[RoundPlan]:
    """Twelve rounds of some seconds, with vectors of 45 MB; the last of four peers sends `megabytes` a second."""

    def say(done: RoundPlan) -> list[Report]:
        reports = []
        for report in honest_reports(done):
            rate = megabytes if report.peer == peer(3) else 12.0
            offer = replace(
                report.capacity, samples_per_second=0.1, upload_bytes_per_second=rate * MB, download_bytes_per_second=12.0 * MB
            )
            items = [replace(item, vector_bytes=45 * MB) for item in report.instances]
            reports.append(replace(report, capacity=offer, instances=tuple(items)))
        return reports

    return run(ONE, num_peers=4, until=12, say=say)


@pytest.mark.parametrize(("megabytes", "every"), [(1.0, 2), (0.5, 4)])
def test_plans_name_the_rounds_in_which_a_slow_host_contributes(megabytes: float, every: int) -> None:
    """Rounds of 240 s and more: 40 s and 85 s beyond the 5 s of the others are within 2 and 4 times 24.5 s."""
    plans = plans_of_a_slow_host(megabytes)[4:-1]
    for plan in plans:
        assert plan.expected_seconds >= 240
        share = next(share for share in plan.instances[0].hosts if share.peer == peer(3))
        assert share.averages_every == every and share.samples > 0
        assert share.contributes(plan.round) == (plan.round % every == 0)
        assert f"{peer(3)} is in every" in plan.reason
        if plan is not plans[0]:
            assert share.every_before == every and share.had_work(plan.round - 1) == ((plan.round - 1) % every == 0)
            assert share.missed_averages == 0


@pytest.mark.parametrize("num_lone", [1, 2])
def test_the_size_of_a_vector_is_that_of_most_hosts(num_lone: int) -> None:
    """Of all instances, since their vectors are equally long. The last instance may have one host, which lies."""
    plan, size = start(ONE, 6).instances[0], 45 * MB
    both = ((plan.hosts[:4], size), (plan.hosts[4 : 4 + num_lone], 1 << 62))
    drafts = [
        InstanceDraft(plan=replace(plan, vector_bytes=stated, hosts=hosts), holders=(), ready=()) for hosts, stated in both
    ]
    assert _common_vector_bytes(drafts, 22) == size
    assert _common_vector_bytes(drafts, 21) == 1 << 62


def test_one_that_alone_states_a_size_after_a_void_round_states_none() -> None:
    done = start(ONE, 5)
    reports = honest_reports(done)
    claims = {report.peer: report.instances[0] for report in reports}
    before = replace(done.instances[0], vector_bytes=45 * MB)
    lied = {**claims, peer(3): replace(claims[peer(3)], vector_bytes=1 << 62)}
    assert _vector_bytes(before, lied, 22) == 45 * MB and _vector_bytes(before, lied, 21) == 1 << 62
    stated = {name: replace(claim, vector_bytes=46 * MB) for name, claim in claims.items()}
    assert _vector_bytes(before, stated, 22) == 46 * MB


def test_where_all_hosts_of_an_instance_are_slow_none_has_every() -> None:
    """Each peer holds one of two instances, and both hosts of one are slower than the three of the other."""
    roster = [*FAST, member(3, 2), member(4, 2)]
    drafts = []
    for index, names in enumerate(((0, 1, 2), (3, 4))):
        plan = replace(run(ONE, num_peers=1, until=1)[0].instances[0], instance=InstanceId(index), hosts=())
        holders = tuple(peer(name) for name in names)
        drafts.append(InstanceDraft(plan=replace(plan, vector_bytes=45 * MB), holders=holders, ready=holders))
    roster = [replace(entry, capacity=replace(entry.capacity, max_instances=1)) for entry in roster]
    periods = link_periods([*FAST, member(3, 2), member(4, 2)], vector_bytes=45 * MB, compute_seconds=90.0, tolerance=0.1)
    assert set(periods.slow) == {peer(3), peer(4)}
    turns = Turns(roster=tuple(roster), bench=(), max_hosts=MAX_HOSTS, reason="")
    for round in (4, 5):
        placed, _ = place_hosts(drafts, turns, round, THREE, periods=periods)
        assert [[share.peer for share in item.hosts] for item in placed] == [[peer(0), peer(1), peer(2)], [peer(3), peer(4)]]
        assert all(share.averages_every == 1 and share.contributes(round) for item in placed for share in item.hosts)


def test_a_benched_host_keeps_its_seat_and_has_no_instance() -> None:
    for plan in plans_of_a_slow_host(0.05)[4:-1]:
        assert peer(3) in {entry.peer for entry in plan.roster}
        assert peer(3) not in {share.peer for share in plan.instances[0].hosts}
        assert "is benched, and tried every 32 rounds" in plan.reason
