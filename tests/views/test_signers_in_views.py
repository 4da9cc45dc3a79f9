"""What signers ordered, bans, probation and keepers, on the page, in the status and as lines."""

import io
from dataclasses import replace

import pytest

from adloco_p2p.core.ledger.contributions import Contribution
from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.course import Change, Course, Settings
from adloco_p2p.core.model.ledger_entry import JoinRequest, LedgerEntry, Statement
from adloco_p2p.core.model.plan_telemetry import plan_line, ruled_lines
from adloco_p2p.core.model.roster_entry import Capacity
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.model.telemetry import Log, Stamped
from adloco_p2p.sim.identities import signed_by
from adloco_p2p.views import node_status, own_part, progress
from adloco_p2p.views.ledger_events import LedgerEvents
from adloco_p2p.views.page import document
from adloco_p2p.views.plain import PlainView
from adloco_p2p.views.round_results import RoundResults
from adloco_p2p.views.status import ORDERS, Status
from adloco_p2p.views.status_fold import apply
from tests.core.core_values import peer
from tests.core.ledger.test_admission import AUTHOR, agree, invited, statement, ticketed_ledger
from tests.views.golden import screen
from tests.views.synthetic import OTHERS, START, THIS, Made, events, replay, shown_run, stamped, started

STARTED = replace(started(), rounds=100, samples=None)


def signed_again(made: Statement) -> Statement:
    return signed_by(made.signer, made)


def asking(made: JoinRequest) -> JoinRequest:
    return signed_by(made.peer, made)


def banned_and_ordered() -> tuple[Ledger, list[LedgerEntry]]:
    """A newcomer on probation, a keeper, a banned peer; paused from round 40 on, ended after round 57."""
    ledger = ticketed_ledger()
    entries = [agree(ledger) for _ in range(7)]
    offer = Capacity(samples_per_second=0.0, micro_batch_limit=1, max_instances=1, is_keeper=True)
    keeper = replace(invited(peer(2)), capacity=offer)
    entries.append(agree(ledger, joined=[invited(peer(1)), asking(keeper)]))
    stop = signed_again(replace(statement("stop", PeerId(""), serial=1), round=57))
    pause = signed_again(replace(statement("pause", PeerId(""), serial=2), round=40))
    ban = signed_again(replace(statement("ban", peer(9), serial=3), reason="sends noise"))
    entries.append(agree(ledger, statements=[stop, pause, ban]))
    return ledger, entries


def test_the_page_shows_orders_bans_probation_and_keepers() -> None:
    ledger, entries = banned_and_ordered()
    followed = LedgerEvents(ledger.plans[0], started=STARTED, sequence_length=8)
    followed.follow(entries)
    found = document(shown_run(followed.status, followed.lines))
    assert found["now"]["orders"] == "a signer pauses the run before round 40; a signer ends the run after round 57"  # type: ignore[index]
    assert found["run"]["rounds"] == 58  # type: ignore[index]
    assert found["bans"] == [{"peer": peer(9), "words": f"banned in round 9 by {AUTHOR}: sends noise"}]
    roles = {row["peer"]: row["role"] for row in found["peers"]}  # type: ignore[attr-defined]
    assert roles == {AUTHOR: "", peer(1): "on probation for 8 more reports", peer(2): "keeper"}


def test_the_status_and_the_lines_show_them_too() -> None:
    _, entries = banned_and_ordered()
    plan = entries[-1].plan
    seen: list[Log] = [STARTED, plan_line(plan, canonical.digest(plan)), *ruled_lines(entries[-1].value.statements, plan.round)]
    status, screen = Status(), io.StringIO()
    view = PlainView(screen)
    for event in seen:
        status = apply(status, Stamped(time=0.0, event=event))
        view.update(Stamped(time=0.0, event=event))
    shown = "\n".join(node_status.lines(node_status.summary(status)))
    assert "keeper" in shown and "on probation for 8 more reports" in shown
    assert f"{peer(9)} is banned in round 9 by {AUTHOR}: sends noise" in shown
    assert "ordered     a signer pauses the run before round 40; a signer ends the run after round 57" in shown
    assert "warning     a signer" not in shown
    printed = screen.getvalue()
    assert "signers" in printed and "a signer pauses the run before round 40" in printed
    assert f"ban  {peer(9)}  by {AUTHOR}" in printed
    lifted = apply(status, Stamped(time=0.0, event=ruled_lines([statement("unban", peer(9))], 10)[0]))
    assert not lifted.bans


def test_a_paused_run_is_shown_as_paused_with_the_signers_reason_and_no_time_left() -> None:
    ended = [
        event for event in events(6) if event["event"] != "finished" and (event["event"], event.get("round")) != ("plan", 6)
    ]
    newest = next(event for event in reversed(ended) if event["event"] == "plan")
    paused = {**newest, "course": {"paused_from": newest["round"] + 1, "last_round": None, "changes": []}}
    ruling = {"event": "ruled", "time": START, "round": newest["round"], "action": "pause", "subject": "", "by": AUTHOR}
    status = replay([*ended, {**ruling, "reason": "new text tonight"}, paused])
    assert progress.phase(status) == "paused by a signer" and progress.eta_seconds(status) is None
    assert own_part.paused_by_signer(replace(status, results=RoundResults())) == "", "its last round is still under way"
    seats = tuple(seat for seat in status.plans[-1].roster if seat.peer != THIS)
    newcomer = replace(status, results=RoundResults(), plans=(replace(status.plans[-1], roster=seats, instances=()),))
    assert progress.phase(newcomer) == "paused by a signer; nobody is let in until the run goes on"
    words = f"a signer pauses the run before round {newest['round'] + 1}; reason of the pause: new text tonight"
    assert status.warnings[ORDERS] == words
    fields = node_status.summary(status)
    assert "state       running  paused by a signer" in node_status.lines(fields)
    assert "left" not in next(text for text in node_status.lines(fields) if text.startswith("round "))
    late = replay([*ended, paused, {**ruling, "reason": "new text tonight"}])
    assert late.warnings == status.warnings, "of a ledger the ruling comes behind its plan"
    assert progress.phase(replay([*ended, paused, newest])) != "paused by a signer"


def test_an_order_leaves_the_warnings_once_it_holds_and_the_page_shows_it_all_the_same() -> None:
    settings = {"rounds": None, "samples": None, "learning_rate_factor": 0.5}
    course = {"paused_from": None, "last_round": 5, "changes": [{"from_round": 3, "settings": settings}]}
    longer = [{**event, "rounds": 24} if event["event"] == "started" else event for event in events(6)]
    made = [{**event, "course": course} if event["event"] == "plan" else event for event in longer]
    place = {event["round"]: index for index, event in enumerate(made) if event["event"] == "plan"}
    change, end = "learning rate times 0.5", "a signer ends the run after round 5"
    assert replay(made[: place[3] + 1]).warnings[ORDERS] == f"{end}; {change} from round 3 on", "round 2 is trained"
    status = replay(made[: place[4] + 1])
    assert status.warnings[ORDERS] == end and status.orders == f"{end}; {change} by a signer's order"
    assert f"ordered     {status.orders}" in node_status.lines(node_status.summary(status)), "also what holds already"
    finished = replay(made)
    assert f"ordered     {own_part.ended_by_signer(finished)}" in node_status.lines(node_status.summary(finished))
    assert ORDERS not in finished.warnings and own_part.ended_by_signer(finished) == "a signer ended the run after round 5"
    assert " by a signer's order, held-out loss" in screen(finished, 120, 24)
    assert own_part.ended_by_signer(replay(events(6))) == "" == own_part.ended_by_signer(status)
    with_more = [{**event, "course": {**course, "last_round": 6}} if event["event"] == "plan" else event for event in events(6)]
    assert own_part.ended_by_signer(replay(with_more)) == "", "it came to its own end before"


def ordered(made: list[Made], last_round: int | None) -> list[Made]:
    """The events, with an order in every plan to end after this round."""
    course: Made = {"paused_from": None, "last_round": last_round, "changes": []}
    return [{**event, "course": course} if event["event"] == "plan" else event for event in made]


@pytest.mark.parametrize(("length", "words"), [(6, ""), (7, "a signer ended the run after round 5")])
def test_a_run_that_came_to_its_own_end_was_not_ended_by_a_signer(length: int, words: str) -> None:
    made = [{**event, "rounds": length} if event["event"] == "started" else event for event in ordered(events(6), 5)]
    status = replay(made)
    assert own_part.ended_by_signer(status) == node_status.summary(status)["ended_by_signer"] == words
    assert (" by a signer's order, held-out loss" in screen(status, 120, 24)) == bool(words)


@pytest.mark.parametrize("left", [0, 1])
def test_a_run_of_samples_came_to_its_own_end_where_no_whole_step_was_left(left: int) -> None:
    last = next(event for event in reversed(events(6)) if event["event"] == "plan")
    step = sum(planned["effective_batch"] for planned in last["instances"])
    made = ordered(events(6, samples=last["samples_before"] + step - 1 + left), 5)
    assert bool(own_part.ended_by_signer(replay(made))) == bool(left)


def test_a_run_whose_end_is_taken_back_has_its_whole_length_again() -> None:
    made = events(6)[:-1]
    newest = max(index for index, event in enumerate(made) if event["event"] == "plan")
    assert replay(ordered(made[:newest], 9)).rounds == 6, "the order changes nothing"
    assert replay(ordered(made[:newest], 4)).rounds == 5
    assert replay([*ordered(made[:newest], 4), *ordered(made[newest:], None)]).rounds == 6


def test_a_keeper_is_not_on_the_bench_and_shows_whether_anybody_trains() -> None:
    plan = next(event for event in events() if event["event"] == "plan")
    other = next(seat for seat in plan["roster"] if seat["peer"] != THIS)
    mine = {**other, "peer": THIS, "is_keeper": True, "waits_from": 0}
    made = [events()[0], {**plan, "roster": [mine, other], "instances": []}]
    status = replay(made)
    assert progress.phase(status) == "keeps the states, trains nothing"
    alone = replay([*made, {"event": "left", "time": START, "peer": other["peer"]}])
    assert progress.phase(alone) == "keeps the states; nobody trains until a peer joins"
    assert progress.eta_seconds(alone) is None
    screen = io.StringIO()
    view = PlainView(screen)
    for event in made:
        view.update(stamped(event))
    assert screen.getvalue().splitlines()[-1] == "keeper    keeps the states, trains nothing"
    shown = "\n".join(node_status.lines(node_status.summary(status)))
    assert "keeper" in shown and "samples" not in shown and " tokens" not in shown
    trains = node_status.lines(
        node_status.summary(replay([made[0], {**made[1], "roster": [{**mine, "is_keeper": False}, other]}]))
    )
    assert "at most 64 samples a pass" in "\n".join(trains)


def test_a_banned_peer_reads_its_ban_at_once_and_does_not_wait_to_join() -> None:
    plan = next(event for event in events() if event["event"] == "plan")
    without = {**plan, "roster": [seat for seat in plan["roster"] if seat["peer"] != THIS], "instances": []}
    ban = {"event": "ruled", "time": START, "round": 3, "action": "ban", "subject": THIS, "by": AUTHOR, "reason": "sends noise"}
    made = [events()[0], without]
    assert own_part.joining(replay(made)).startswith("waiting to join")
    words = f"banned in round 3 by {AUTHOR}: sends noise"
    assert progress.phase(replay([*made, ban])) == words
    assert own_part.joining(replay([*made, ban, {**ban, "action": "unban"}])).startswith("waiting to join")
    assert "banned in round 3 by" in screen(replay([*made, ban]), 80, 24)


def test_a_run_whose_length_was_changed_shows_the_new_one() -> None:
    ledger, _ = banned_and_ordered()
    plan = ledger.plans[-1]
    change = Change(from_round=5, settings=Settings(samples=4096))
    line = plan_line(replace(plan, course=Course(changes=(change,))), canonical.digest(plan))
    status = apply(apply(Status(), Stamped(time=0.0, event=STARTED)), Stamped(time=0.0, event=line))
    assert (status.rounds, status.samples) == (None, 4096)


def test_a_banned_peer_is_banned_in_the_table_too_and_not_merely_gone() -> None:
    made = events()
    end = next(place for place, event in enumerate(made) if event["event"] == "plan" and event["round"] == 12)
    ban = {"event": "ruled", "time": START, "round": 11, "action": "ban", "subject": OTHERS[0], "by": AUTHOR, "reason": "noise"}
    made.insert(end, ban)
    rows = [Contribution(peer=PeerId(name), samples=8, tokens=64, num_rounds=1, last_round=1) for name in OTHERS[:2]]
    found = document(shown_run(replay(made), [], contributions=rows, is_alive=lambda _: True))
    states = {row["peer"]: row["state"] for row in found["peers"]}  # type: ignore[attr-defined]
    assert (states[OTHERS[0]], states[OTHERS[1]]) == ("banned", "alive")


def test_a_failure_on_the_page_names_its_instance() -> None:
    found = document(shown_run(replay(events()), [], own=replay(events())))
    messages = [incident["message"] for incident in found["own"]["incidents"]]  # type: ignore[index]
    assert any(words.startswith("instance 1, averaging attempt 1 failed") for words in messages), messages
