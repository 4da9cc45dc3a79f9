"""The fold from events to status, and what is derived from it."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from adloco_p2p.core.model import telemetry
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.views import own_part, plain, progress, table_rows, traffic
from adloco_p2p.views.records import Life, RoundResult
from adloco_p2p.views.round_results import BLOCK_ROUNDS, RoundResults
from adloco_p2p.views.status import MAX_INCIDENTS, MAX_PLANS, MAX_SAMPLE_TEXTS, Status
from tests.views.golden import status_at
from tests.views.synthetic import OTHERS, START, THIS, Made, apply, events, replay, samples_before


def started(**changes: object) -> Made:
    return {**events()[0], **changes}


def finished_round(round_: int, instance: int = 0, *, time: float, **changes: object) -> Made:
    made = next(event for event in events() if event["event"] == "round")
    return {**made, "round": round_, "instance": instance, "time": time, "seconds": {"training": 4.0}, **changes}


def test_a_replay_of_the_file_equals_the_live_view() -> None:
    live = Status()
    for event in events():
        live = apply(live, event)
    assert replay(json.loads(json.dumps(event)) for event in events()) == live


def test_of_a_round_done_twice_the_later_one_counts() -> None:
    once = replay([started(), finished_round(0, time=START + 5, samples=100, bytes_sent=7)])
    twice = apply(once, finished_round(0, time=START + 9, samples=60, bytes_sent=5))
    assert traffic.totals(once).samples == 100
    assert traffic.totals(twice).samples == 60
    assert traffic.totals(twice).bytes_sent == 5
    assert twice.counts["round"] == 2


def test_a_run_that_goes_on_after_its_end_is_not_finished() -> None:
    """Another history has won since."""
    finished = replay(events())
    assert finished.state == "finished" and finished.finish is not None
    again = apply(finished, {"event": "resumed", "time": START + 10_000, "round": 20})
    assert (again.state, again.finish) == ("running", None)


@pytest.mark.parametrize(("is_finished", "state"), [(True, "finished"), (False, "stopped")])
def test_a_run_is_finished_here_only_with_its_model(is_finished: bool, state: str) -> None:
    """A peer that came back to nobody carries out the last plan, and ends with E314."""
    reason = "the others may have ended the run"
    ended = apply(replay(events()), {"event": "stopped", "time": START + 10_000, "reason": reason, "is_finished": is_finished})
    assert ended.state == state and (ended.finish is not None) == is_finished
    assert is_finished or ended.stopping == reason


def test_the_time_between_two_sessions_is_not_running_time() -> None:
    status = replay(
        [
            started(time=START),
            finished_round(0, time=START + 10),
            started(time=START + 1000, resumed_round=1),
            finished_round(1, time=START + 1006),
        ]
    )
    assert status.elapsed_seconds == 16.0
    assert progress.compute_utilisation(status) == 8.0 / 16.0
    assert progress.seconds_per_round(status) == 8.0
    assert status.current_round == 1


def test_a_round_lasts_from_the_end_of_the_one_before_to_its_own_on_every_device() -> None:
    made = [started(), finished_round(0, time=START + 10), finished_round(1, time=START + 16)]
    assert progress.utilisation_by_round(replay(made)) == [(1, 4 / 6)]
    two = replace(replay(made), device="cuda:0, cuda:1")
    assert progress.utilisation_by_round(two) == [(1, 2 / 6)]
    shared = [{**event, "devices": ["cuda:0", "cuda:1"]} if event["event"] == "round" else event for event in made]
    both = replace(replay(shared), device="cuda:0, cuda:1")  # the devices share the instance: both compute
    assert progress.utilisation_by_round(both) == [(1, 4 / 6)]
    assert progress.compute_utilisation(both) == progress.compute_utilisation(replay(made)) == 8 / 16
    assert progress.utilisation_by_round(replay([started()])) == []


def test_the_histogram_of_round_times_counts_every_round_whose_begin_is_known() -> None:
    """By hand: the first 50 s hold the start; then 10, 6, 6 and 14 s in four intervals of 2 s."""
    ends = enumerate((50, 60, 66, 72, 86))
    status = replay([started(), *(finished_round(round_, time=START + end) for round_, end in ends)])
    assert (
        progress.round_durations(status) == [(1, 10.0), (2, 6.0), (3, 6.0), (4, 14.0)] and progress.mean_duration(status) == 9.0
    )
    assert progress.duration_histogram(status) == [(6.0, 8.0, 2), (8.0, 10.0, 0), (10.0, 12.0, 1), (12.0, 14.0, 1)]
    one = replay([started(), finished_round(0, time=START + 10), finished_round(1, time=START + 20)])
    assert progress.duration_histogram(one) == [(10.0, 20.0, 1)]
    assert progress.duration_histogram(replay([started(), finished_round(0, time=START + 10)])) == []


def test_a_span_over_rounds_without_work_is_no_round_time() -> None:
    """Rounds 3, 4 and 7 at 40, 46 and 100 s: only round 4 began where another one ended, at 40 s."""
    ends = ((3, 40), (4, 46), (7, 100))
    status = replay([started(), *(finished_round(round_, time=START + end) for round_, end in ends)])
    assert progress.round_durations(status) == [(4, 6.0)] and progress.utilisation_by_round(status) == [(4, 4 / 6)]


def test_work_that_is_done_again_counts_once_in_the_utilisation() -> None:
    status = replay([started(), finished_round(0, time=START + 5), finished_round(0, time=START + 10)])
    assert progress.compute_utilisation(status) == 4.0 / 10.0


def test_another_run_starts_from_nothing() -> None:
    status = apply(replay(events()), started(run="ff" * 32, time=START + 5000))
    assert not status.results
    assert status.elapsed_seconds == 0.0


def test_a_clock_that_is_set_back_does_not_take_running_time_away() -> None:
    status = replay([started(), finished_round(0, time=START + 10), finished_round(1, time=START - 500)])
    assert status.elapsed_seconds == 10.0


def test_the_time_left_is_the_mean_of_the_last_five_rounds() -> None:
    # Ends at 1000, then every 20 s: five rounds of 20 s, and 3 of 10 rounds to go.
    ends = [1000.0, 1010.0, 1030.0, 1050.0, 1070.0, 1090.0, 1110.0]
    status = replay([started(rounds=10), *(finished_round(index, time=START + end) for index, end in enumerate(ends))])
    assert progress.seconds_per_round(status) == 20.0
    # Without a plan the round in progress is the last one that ended, and its work is not there to be seen.
    status = apply(status, {"event": "phase", "time": START + 1110, "round": 7, "instance": 0, "phase": "training"})
    assert progress.eta_seconds(status) == pytest.approx(60.0)


def test_of_short_rounds_half_a_minute_counts() -> None:
    """Rounds of 0.2 s, every fifth of 2.2 s, as with an evaluation: the mean of any five, or of any 50, is 0.6 s."""
    ends = [float(index // 5 * 3) + 0.2 * (index % 5) for index in range(200)]
    made = [started(rounds=400), *(finished_round(index, time=START + end) for index, end in enumerate(ends))]
    paces = [progress.seconds_per_round(replay(made[:count])) for count in range(190, 201)]
    assert all(pace == pytest.approx(0.6, rel=0.05) for pace in paces)


def test_the_wait_of_a_joiner_for_its_seat_is_no_part_of_its_pace() -> None:
    ends = [(4, 150.0), (5, 162.0), (6, 172.0)]
    made = [started(rounds=10), *(finished_round(number, time=START + end) for number, end in ends)]
    assert progress.seconds_per_round(replay(made[:2])) is None and progress.tokens_per_second(replay(made[:2])) is None
    status = replay(made)
    tokens = sum(result.tokens for result in status.results.values() if result.round > 4)
    assert progress.seconds_per_round(status) == 11.0
    assert progress.tokens_per_second(status) == pytest.approx(tokens / 22.0)


def test_rounds_that_went_on_without_this_peer_are_no_part_of_its_pace() -> None:
    """It was away in rounds 6 to 20, which took none of its running time."""
    ends = [(4, 12.0), (5, 22.0), (21, 30.0), (22, 41.0), (23, 52.0)]
    made = [started(rounds=30), *(finished_round(number, time=START + end) for number, end in ends)]
    assert progress.seconds_per_round(replay(made[:4])) is None, "round 21 has no beginning"
    assert progress.seconds_per_round(replay(made)) == 11.0


def test_before_the_first_round_ends_its_length_follows_from_the_plan() -> None:
    status = status_at("progress", 0, 0)
    assert progress.seconds_per_round(status) == 9.0
    assert progress.eta_seconds(apply(replay([started()]), finished_round(0, time=START + 3))) is not None
    assert progress.eta_seconds(replay([started()])) is None


def test_a_plan_decided_ahead_is_not_shown_before_its_round() -> None:
    # Plan 4, with three instances, is decided while round 3 computes with one.
    status = status_at("round", 3, 0)
    assert status.plans[-1].round == 4
    assert [row.instance for row in table_rows.instance_rows(status)] == [0]
    assert [row.instance for row in table_rows.instance_rows(status_at("progress", 4, 0))] == [0, 1, 2]


def test_a_peer_that_hosts_nothing_follows_the_plans() -> None:
    plans = [event for event in events() if event["event"] == "plan"][:8]
    status = replay([started(peer="QmOnlyWatching"), *plans])
    assert status.current_round == 6
    assert {row.phase for row in table_rows.instance_rows(status)} == {"by others"}
    assert progress.run_fraction(status) == 6 / 24


def benched(since: int, *, hosts: Sequence[str], requested: int) -> list[Made]:
    """What a peer sees that is on the bench from the first plan on, with three others, while these host."""
    share = {"batch_samples": 1, "inner_steps": 4, "micro_batch_size": 1, "accumulation_steps": 1, "first_sample": 0}
    made: list[Made] = [started(peer=THIS)]
    for event in [event for event in events() if event["event"] == "plan"][:6]:
        seat = {**event["roster"][0], "waits_from": None}
        roster = [{**seat, "peer": name} for name in hosts]
        roster += [{**seat, "peer": THIS, "waits_from": since}]
        roster += [{**seat, "peer": f"waiting{at}", "waits_from": at} for at in (0, 1, 9)]
        instances = [
            {**item, "requested_batch": requested, "hosts": [{**share, "peer": name} for name in hosts]}
            for item in event["instances"][:1]
        ]
        made.append({**event, "roster": roster, "instances": instances})
    return made


@pytest.mark.parametrize(
    ("since", "requested", "words"),
    [
        (3, 2, "on the bench since round 3: 2 samples per step feed 2 hosts, 2 peers waited longer"),
        (1, 64, "on the bench since round 1: the run allows 2 hosts, 1 peer waited longer"),
        (20, 2, "on the bench, without work until round 20"),
    ],
)
def test_a_peer_on_the_bench_reads_why(since: int, requested: int, words: str) -> None:
    status = replay(benched(since, hosts=("a", "b"), requested=requested))
    assert own_part.joining(status) == progress.phase(status) == words
    (row,) = (row for row in table_rows.peer_rows(status) if row.is_self)
    assert row.role == f"on the bench since round {since}"


def test_a_newcomer_without_a_place_to_train_reads_why() -> None:
    """Of several that come at once some receive the averages alone, for rounds."""
    share = {"batch_samples": 0, "inner_steps": 0, "micro_batch_size": 0, "accumulation_steps": 0, "first_sample": 0}
    made = benched(0, hosts=("a", "b"), requested=64)
    for event in made[1:]:
        seats = [{**seat, "waits_from": None, "probation": 6 * (seat["peer"] == THIS)} for seat in event["roster"]]
        event["roster"] = seats
        event["instances"][0]["hosts"].append({**share, "peer": THIS})
    before = replay(made)
    assert own_part.joining(before) == "fetching the state"
    words = "on probation for 6 more reports: receives the averages, no place to train yet"
    status = apply(before, finished_round(before.current_round, time=START + 9.0))
    assert own_part.joining(status) == progress.phase(status) == words


def test_a_peer_that_waits_for_its_link_reads_that() -> None:
    """Not that the run has no room; when its link is tried the view shows its work again."""
    made = benched(3, hosts=("a", "b"), requested=64)
    for event in made[1:]:
        event["reason"] = (
            f"4 of 4 peers reported; {THIS} is benched, and tried every 32 rounds (its link needs 21.6 s at 2 MB/s)"
        )
        event["roster"] = [{**seat, "upload_bytes_per_second": 2e6, "waits_from": None} for seat in event["roster"]]
    status = replay(made)
    words = "on the bench: 16 Mbit/s up would hold the others up; its link is tried every 32 rounds"
    assert own_part.joining(status) == progress.phase(status) == words
    (row,) = (row for row in table_rows.peer_rows(status) if row.is_self)
    assert row.role == "on the bench, for its link"
    share = replace(status.plans[0].instances[0].hosts[0], peer=PeerId(THIS))
    tried = [replace(plan, instances=(replace(plan.instances[0], hosts=(share,)),)) for plan in status.plans]
    assert own_part.bench_words(replace(status, plans=tuple(tried))) == ""


def joiner(*, seated_from: int, working_from: int) -> list[Made]:
    """What a peer sees that others admit before round `seated_from` and that has work from `working_from` on."""
    made: list[Made] = [started(peer=THIS)]
    for event in (event for event in events() if event["event"] == "plan"):
        number = event["round"]
        roster = [roster_entry for roster_entry in event["roster"] if number >= seated_from or roster_entry["peer"] != THIS]
        nothing = {"batch_samples": 0, "inner_steps": 0, "micro_batch_size": 0, "accumulation_steps": 0}
        instances = [
            {
                **planned,
                "hosts": [
                    host if host["peer"] != THIS or number >= working_from else {**host, **nothing}
                    for host in planned["hosts"]
                    if number >= seated_from or host["peer"] != THIS
                ],
            }
            for planned in event["instances"]
        ]
        made.append({**event, "roster": roster, "instances": instances})
    return made


@pytest.mark.parametrize(
    ("newest", "words", "phases"),
    [
        (0, "waiting to join; plans read up to round 0", {"by others"}),
        (2, "joins in round 2", {"by others"}),
        (3, "fetching the state", {"following"}),
        (4, "fetching the state; training from round 4 on", {"following"}),
        (5, "", {"planned"}),
    ],
)
def test_a_joiner_reads_what_it_waits_for(newest: int, words: str, phases: set[str]) -> None:
    status = replay(joiner(seated_from=2, working_from=4)[: newest + 2])
    assert own_part.joining(status) == words
    assert {row.phase for row in table_rows.instance_rows(status)} == phases
    assert progress.phase(status) == (words or "planned")


PROVING = {"event": "proving", "time": START, "price": 60_000, "attempts": 3000, "seconds": 30.0, "is_over": False}
COMPUTING = (
    "computing for a seat: 3.00k attempts in 30.0 s; it takes 10m00s here on average, by a lottery: half of all need less than"
    " 6m56s"
)


def test_a_peer_computes_for_its_seat_until_it_has_one_by_a_plan_or_by_what_it_found() -> None:
    """A seat may come by an older proof, while the next one is computed: of that search there is no end to report."""
    first, before, *later = joiner(seated_from=2, working_from=4)
    waits = [first, before, PROVING]
    assert own_part.joining(replay(waits)) == COMPUTING
    assert own_part.joining(replay([*waits, {**PROVING, "is_over": True}])).startswith("waiting to join")
    assert replay([*waits, later[0]]).proving is not None, "a plan without it"
    assert replay([*waits, *later[:2]]).proving is None
    lost = [joiner(seated_from=99, working_from=99)[number] for number in (4, 5)]
    assert own_part.joining(replay([*waits, *later[:2], *lost])).startswith("waiting to join")


def test_a_peer_that_pauses_computes_no_more() -> None:
    waits = [*joiner(seated_from=2, working_from=4)[:2], PROVING]
    assert replay([*waits, {"event": "paused", "time": START, "round": 1}]).proving is None


def test_the_lines_of_a_proof_name_what_it_took() -> None:
    status = replay(joiner(seated_from=2, working_from=4)[:2])
    shown = telemetry.Proving(price=60_000, attempts=3000, seconds=30.0, is_over=False)
    assert COMPUTING in (plain.line(shown, status) or "")
    assert "paid with 3.00k attempts in 30.0 s" in (plain.line(replace(shown, is_over=True), status) or "")


def test_a_peer_that_comes_back_soon_after_a_leave_reads_why_it_has_no_work() -> None:
    """It has its seat, and worked before; the plans give it nothing, because its last report announced that it leaves."""
    made = joiner(seated_from=0, working_from=4)
    for event in made[1:5]:
        event["roster"] = [{**seat, "is_leaving": seat["peer"] == THIS} for seat in event["roster"]]
    made.insert(1, finished_round(0, time=START))
    words = [own_part.joining(replay(made[:length])) for length in (6, 7, 8)]
    assert words == [
        "back after a leave: no work in this round",
        "back after a leave: no work in this round; training from round 4 on",
        "",
    ]
    (row,) = (row for row in table_rows.peer_rows(replay(made[:5])) if row.is_self)
    assert row.role == "leaving"


def test_a_joiner_reads_that_all_others_have_left() -> None:
    made = joiner(seated_from=2, working_from=4)[:2]
    others = [seat["peer"] for seat in made[1]["roster"]]
    left = [{"event": "left", "time": START, "peer": peer} for peer in others]
    assert "no other peer takes part" not in own_part.joining(replay([*made, *left[1:]]))
    assert "no other peer takes part: the run is paused or over" in own_part.joining(replay([*made, *left]))
    stranger = {"event": "joined", "time": START, "peer": "another", "round": 0}
    assert "no other peer takes part" not in own_part.joining(replay([*made, *left, stranger]))


def test_a_joiner_is_neither_paused_nor_in_trouble() -> None:
    made = [*joiner(seated_from=2, working_from=4)[:3], {"event": "joined", "time": START, "peer": THIS, "round": 2}]
    status = replay([*made, {"event": "fast_forwarded", "time": START, "from_round": 1, "to_round": 2}])
    assert {row.peer: row.state for row in table_rows.peer_rows(status)}[THIS] == "joining"
    assert status.incidents == () and status.counts["fast_forwarded"] == 1
    later = replay([*events(6), {"event": "fast_forwarded", "time": START, "from_round": 6, "to_round": 9}])
    assert later.incidents[-1].kind == "fast-forwarded"


def test_a_newcomer_reads_that_its_state_came_too_late() -> None:
    forwards = [{"event": "fast_forwarded", "time": START, "from_round": first, "to_round": first + 3} for first in (1, 5)]
    *reading, seated = joiner(seated_from=2, working_from=4)[:4]
    begun = [*reading, seated]
    status = replay([*begun, *forwards])
    assert [incident.kind for incident in status.incidents] == ["state too late"]
    event = telemetry.FastForwarded(from_round=5, to_round=8)
    assert plain.line(event, replay([*begun, forwards[0]])) is None
    assert "the link is too slow for this run" in (plain.line(event, status) or "")
    status = replay([*reading, *forwards])
    assert status.incidents == () and plain.line(event, status) is None, "it reads the plans of an old run, without a seat"


def test_rounds_of_a_history_that_lost_are_not_shown_any_more() -> None:
    before = [event for event in events(20) if event["event"] != "finished"]
    switched = {"event": "fast_forwarded", "time": START, "from_round": 19, "to_round": 6}
    plans = [{**event, "digest": "f" * 64} for event in before if event["event"] == "plan" and event["round"] in (6, 7)]
    status = replay([*before, switched, *plans])
    assert progress.round_shown(status) == 6 and [plan.round for plan in status.plans][-2:] == [6, 7]
    assert max(round for round, _ in status.results) == 5
    assert {row.phase for row in table_rows.instance_rows(status)} == {"planned"}
    assert max(life.end for life in status.lives.values()) == 8, "by the plans of the history that won"
    assert all(decision.round <= 7 for decision in status.decisions)
    assert status.incidents[-1].message == "this peer went back from round 19 to 6 with the state of others"


@pytest.mark.parametrize("late", ["progress", "phase"])
def test_a_late_step_of_a_history_that_lost_does_not_bring_its_round_back(late: str) -> None:
    before = [event for event in events(20) if event["event"] != "finished"]
    plan = next({**event, "digest": "f" * 64} for event in before if event["event"] == "plan" and event["round"] == 6)
    step = {"event": late, "time": START, "instance": 0, "round": 19}
    more = {"step": 3, "num_steps": 16, "loss": 2.0, "tokens_per_second": 1.0} if late == "progress" else {"phase": "averaging"}
    status = replay([*before, plan, {**step, **more}])
    assert progress.round_shown(status) == 6
    assert {row.phase for row in table_rows.instance_rows(status)} == {"planned"}


def test_a_newcomer_without_a_round_of_its_own_follows_the_history_that_won_too() -> None:
    plans = {event["round"]: event for event in events(20) if event["event"] == "plan"}
    made = [started(peer=THIS), *plans.values()]
    status = replay([*made, {**plans[6], "digest": "f" * 64}, {**plans[7], "digest": "e" * 64}])
    assert progress.round_shown(status) == 6
    newest = progress.round_shown(replay(made))
    assert progress.round_shown(replay([*made, plans[18]])) == newest, "the plan that a restart shows again is no other"


def downloading(received: int, total: int) -> Made:
    return {
        "event": "state_download",
        "time": START,
        "round": 3,
        "instance": 0,
        "received_bytes": received,
        "total_bytes": total,
        "bytes_per_second": 3e6,
    }


def test_a_joiner_reads_how_much_of_the_state_is_here_and_how_long_it_takes() -> None:
    status = apply(replay(joiner(seated_from=2, working_from=4)[:6]), downloading(57_000_000, 90_000_000))
    assert traffic.download_fraction(status) == pytest.approx(57 / 90)
    assert traffic.download_words(status) == "57.0 MB of 90.0 MB, 3.00 MB/s, 11.0 s left"
    assert progress.phase(status) == f"fetching the state; training from round 4 on, {traffic.download_words(status)}"
    status = apply(status, downloading(90_000_000, 90_000_000))
    assert (traffic.download_fraction(status), traffic.download_words(status)) == (None, "")
    assert progress.phase(status) == "the state is here; training from round 4 on"
    assert progress.phase(apply(status, downloading(1, 90_000_000))).startswith("fetching the state; ")


def test_rows_show_what_each_instance_does() -> None:
    rows = {row.instance: row for row in table_rows.instance_rows(status_at("average_failed", 9, 1))}
    assert (rows[0].phase, rows[0].step, rows[0].heldout_loss is not None) == ("done", 32, True)
    assert (rows[1].phase, rows[1].step) == ("averaging", 32)
    assert (rows[2].phase, rows[2].step, rows[2].num_steps) == ("planned", 0, 32)
    assert progress.round_fraction(status_at("average_failed", 9, 1)) == pytest.approx(2 / 3)


def test_an_instance_that_was_merged_is_gone() -> None:
    status = status_at("progress", 12, 2)
    assert [row.instance for row in table_rows.instance_rows(status)] == [0, 2]
    assert status.lives[1] == Life(start=4, end=12)


def test_decisions_carry_reasons_and_appear_once() -> None:
    status = replay([*events(), *(event for event in events() if event["event"] in {"merge", "fork"})])
    found = [(decision.round, decision.kind, decision.sources, decision.targets) for decision in status.decisions]
    assert found.count((12, "merge", (0, 1), (0,))) == 1
    assert (4, "fork", (0,), (1, 2)) in found
    switches = {
        (decision.round, decision.sources): decision.reason for decision in status.decisions if decision.kind == "switch"
    }
    assert switches[13, (0,)].startswith("one pass -> one pass of what fits: norm test asks 73")
    assert all(decision.reason for decision in status.decisions)


def test_a_diverged_probe_is_a_decision_too() -> None:
    # The event file holds null where a number was not finite.
    probe = {"event": "probe", "time": START, "round": 3, "sources": [0, 1], "target": 0}
    status = replay([started(), {**probe, "source_losses": [2.5, None], "merged_loss": None}])
    assert status.decisions[0].reason == "merged point -, sources 2.500, - nats per token"


def test_a_warning_holds_until_it_ends() -> None:
    assert list(status_at("progress", 14, 0).warnings) == ["slow_link"]
    assert not replay(events()).warnings


def test_peers_are_this_one_first_then_the_fastest() -> None:
    silent = table_rows.peer_rows(status_at("progress", 9, 0))
    assert [row.peer for row in silent] == [THIS, OTHERS[0], OTHERS[2], OTHERS[1]]
    assert [row.state for row in silent] == ["alive", "alive", "alive", "suspected"]
    assert silent[1].instances == (0,)
    back = table_rows.peer_rows(status_at("progress", 10, 0))
    assert {row.state for row in back} == {"alive"}


def test_a_peer_that_left_is_forgotten_when_a_plan_does_without_it() -> None:
    status = apply(status_at("progress", 14, 0), {"event": "left", "time": START + 900, "peer": OTHERS[1]})
    assert [row.state for row in table_rows.peer_rows(status) if row.peer == OTHERS[1]] == ["left"]
    plan = next(event for event in events() if event["event"] == "plan" and event["round"] == 15)
    smaller = {
        **plan,
        "time": START + 901,
        "roster": [roster_entry for roster_entry in plan["roster"] if roster_entry["peer"] != OTHERS[1]],
    }
    status = replay([events()[0], smaller])
    assert OTHERS[1] not in {row.peer for row in table_rows.peer_rows(status)}


def test_a_peer_that_lost_its_seat_while_nobody_looked_is_not_taken_for_one_that_joins() -> None:
    """As of one that the run does not let in again: this peer caught up, or was passive, and saw no leave."""
    joined = {"event": "joined", "time": START + 1, "peer": OTHERS[1], "round": 1}
    plans = [event for event in events() if event["event"] == "plan"]
    smaller = [{**plan, "roster": [seat for seat in plan["roster"] if seat["peer"] != OTHERS[1]]} for plan in plans]
    status = replay([events()[0], plans[0], plans[1], joined, smaller[2], smaller[3]])
    assert OTHERS[1] not in {row.peer for row in table_rows.peer_rows(status)}
    ahead = replay([events()[0], smaller[0], smaller[1], plans[2], joined])
    assert [row.state for row in table_rows.peer_rows(ahead) if row.peer == OTHERS[1]] == ["joining"], "in a plan to come"


def test_what_could_grow_without_end_has_a_limit() -> None:
    failure = next(event for event in events() if event["event"] == "average_failed")
    status = replay([*events(), *([failure] * (MAX_INCIDENTS + 10))])
    assert len(status.incidents) == MAX_INCIDENTS
    assert status.counts["average_failed"] == MAX_INCIDENTS + 11
    assert len(status.plans) == MAX_PLANS


def test_out_of_memory_lowers_the_limit() -> None:
    status = replay(
        [started(), {"event": "out_of_memory", "time": START + 1, "instance": 0, "round": 0, "micro_batch_limit": 32}]
    )
    assert status.micro_batch_limit == 32
    assert "32" in status.incidents[0].message


# --- runs that end by samples ----------------------------------------------------------------------------------------


def test_where_a_run_that_counts_samples_stands() -> None:
    status = status_at("average_failed", 9, 1, samples=60_000)
    before, in_round = samples_before(9), samples_before(10) - samples_before(9)
    part = progress.round_fraction(status)
    assert part == pytest.approx(2 / 3)
    assert progress.run_fraction(status) == pytest.approx((before + part * in_round) / 60_000)
    assert progress.position(status) == f"round 9, {before:,}/60,000 samples"
    # if every round to come gives out as much as this one
    assert progress.rounds_left(status) == pytest.approx((60_000 - before) / in_round - part)
    pace = progress.seconds_per_round(status)
    assert pace is not None and progress.eta_seconds(status) == pytest.approx(pace * progress.rounds_left(status))


def test_a_run_that_counts_samples_is_over_with_its_last_round() -> None:
    given = samples_before(24)
    status = replay(events(samples=given))
    assert progress.run_fraction(status) == 1.0
    assert progress.position(status) == f"round 24, {given:,}/{given:,} samples"
    assert progress.position(replay(events())) == "round 24/24"


def test_sample_texts_are_the_newest_and_a_round_that_is_done_again_replaces_its_own() -> None:
    made = events(3)
    texts = [
        {
            "event": "sample_text",
            "time": made[-1]["time"],
            "round": number,
            "instance": 0,
            "prompt": "The ",
            "text": f"t{number}",
        }
        for number in range(MAX_SAMPLE_TEXTS + 3)
    ]
    found = replay([*made, *texts, {**texts[-1], "text": "again"}]).sample_texts
    assert [text.round for text in found] == [*range(3, MAX_SAMPLE_TEXTS + 3)]
    assert found[-1].text == "again" and found[0].text == "t3"


def test_no_event_of_a_long_run_reads_or_copies_all_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start, `status` of a run that has ended, and every look of a dashboard fold all events: if each of 10,000 rounds went
    through the results before it, that took half a minute."""
    made = events(3 * BLOCK_ROUNDS, with_heldout=False)
    for round_ in range(3 * BLOCK_ROUNDS):
        made.append(
            {"event": "held_out", "time": START, "peer": OTHERS[0], "round": round_, "instance": 0, "heldout_loss": 1.0}
        )
    read: list[RoundResults] = []
    all_of = RoundResults._all

    def noted(results: RoundResults) -> dict[tuple[int, int], RoundResult]:
        read.append(results)
        return all_of(results)

    monkeypatch.setattr(RoundResults, "_all", noted)
    found = replay(made)
    assert not read and {result.heldout_loss for place, result in found.results.items() if place[1] == 0} == {1.0}


def test_results_share_the_blocks_that_an_event_does_not_change() -> None:
    made = [finished_round(round_, time=START + round_) for round_ in range(3 * BLOCK_ROUNDS)]
    status = replay([started(), *made])
    for place in (0, BLOCK_ROUNDS), (3, 1):  # a new result, and one of a round that is done again
        event = finished_round(place[0], place[1], time=START + 1000)
        before, after = status.results._blocks, apply(status, event).results._blocks
        changed = place[0] // BLOCK_ROUNDS
        assert [number for number in after if after[number] is not before.get(number)] == [changed]
    again = apply(status, finished_round(3, time=START + 1000, samples=1)).results
    assert again[3, 0].samples == 1 and status.results[3, 0].samples != 1 and len(again) == len(status.results)
    assert again != status.results and RoundResults(dict(again)) == again == dict(again)
