"""The document of the web page: what the ledger says, with limits on everything, and the same for everybody."""

import json
import math
import re
import string
from dataclasses import replace
from typing import Any

import pytest

from adloco_p2p.core.ledger.contributions import Contribution, credited, leaderboard
from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.model.telemetry import PeerCard
from adloco_p2p.views import page, progress
from adloco_p2p.views.ledger_events import LedgerEvents
from adloco_p2p.views.page import document, plans_of, rounded
from adloco_p2p.web.server import POINT_FIELDS
from tests.core.agreement.test_consensus import RULES
from tests.core.agreement.test_observer import members, trained
from tests.core.core_values import peer
from tests.views.synthetic import THIS, Made, events, replay, samples_before, shown_run, stamped, started

STARTED = started()
LENGTH = 128


def shown(made: list[Made], contributions: list[Contribution] | None = None, **changes: Any) -> dict[str, Any]:
    run = shown_run(replay(made), plans_of([*map(stamped, made)]), contributions=contributions or [], **changes)
    found: dict[str, Any] = json.loads(json.dumps(document(run), allow_nan=False))
    return found


def ledger_document(size: int, rounds: int, **changes: Any) -> tuple[dict[str, Any], Ledger]:
    ledger = members(trained(size, rounds)).ledger
    genesis, entries = ledger.plans[0], ledger.entries
    events = LedgerEvents(genesis, started=replace(STARTED, rounds=RULES.work.rounds), sequence_length=LENGTH)
    for length in range(len(entries) + 1):
        events.follow(entries[:length])
    assert events.credited == credited(genesis, entries)
    rows = leaderboard(events.credited, sequence_length=LENGTH)
    whole = LedgerEvents(genesis, started=replace(STARTED, rounds=RULES.work.rounds), sequence_length=LENGTH)
    whole.follow(entries)
    assert whole.status == events.status and whole.lines == events.lines, "told at once or as it grows, it is one events"
    run = shown_run(events.status, events.lines, contributions=rows, is_signed=True, **changes)
    return json.loads(json.dumps(document(run), allow_nan=False)), ledger


def test_a_ledger_becomes_curves_peers_and_reasons() -> None:
    found, ledger = ledger_document(3, rounds=6, is_alive=lambda name: name != peer(1))
    plans = ledger.plans
    assert found["num_plans"] == len(plans) and [line["round"] for line in found["ledger"]] == list(range(7, -1, -1))
    assert found["ledger"][0]["votes"] and found["ledger"][-1]["votes"] is None
    first = found["instances"][0]
    assert [point["round"] for point in first["points"]] == list(range(6))
    for point in first["points"]:
        planned = plans[point["round"]].instances[0]
        assert (point["requested"], point["effective"]) == (planned.requested_batch, planned.effective_batch)
    per_round = [sum(share.samples for item in plan.instances for share in item.hosts) for plan in plans[:6]]
    assert [point["samples"] for point in first["points"]] == [sum(per_round[: index + 1]) for index in range(6)]
    assert found["now"]["samples"] == ledger.head.samples == sum(row["samples"] for row in found["peers"])
    assert found["now"]["tokens"] == LENGTH * ledger.head.samples
    assert {row["peer"]: row["state"] for row in found["peers"]} == {peer(0): "alive", peer(1): "silent", peer(2): "alive"}
    assert math.isclose(sum(row["share"] for row in found["peers"]), 1.0, abs_tol=1e-4)


def test_cards_of_members_are_those_of_the_node_or_of_the_observer() -> None:
    card = PeerCard(peer=peer(1), nickname="ann", version="0.2.0", reach="relay", round_trip_seconds=0.08)
    found, _ = ledger_document(2, rounds=3, cards={peer(1): card, peer(7): replace(card, peer=peer(7), nickname="stranger")})
    rows = {row["peer"]: row for row in found["peers"]}
    assert rows[peer(1)]["nickname"] == "ann" and rows[peer(1)]["round_trip_seconds"] == 0.08
    assert rows[peer(0)]["nickname"] == "" and "stranger" not in json.dumps(found)
    made = shown(events(), own=replay(events()))
    assert {row["nickname"] for row in made["peers"]} == {"ann", "lab-7", ""}


def test_losses_are_weighted_by_the_samples_that_count() -> None:
    swarm = trained(2, rounds=1)
    ledger = members(swarm).ledger
    entry = ledger.entries[1]
    loud, quiet = (
        replace(
            signed,
            report=replace(signed.report, instances=tuple(replace(i, loss=x, heldout_loss=x) for i in signed.report.instances)),
        )
        for signed, x in zip(entry.reports, (2.0, 4.0), strict=True)
    )
    events = LedgerEvents(ledger.plans[0], started=STARTED, sequence_length=LENGTH)
    events.follow([ledger.entries[0], replace(entry, reports=(loud, quiet))])
    rounds = [result for (round, _), result in events.status.results.items() if round == 0]
    assert rounds
    for event in rounds:
        given = [
            (share.samples, {peer(0): 2.0, peer(1): 4.0}[share.peer])
            for item in ledger.plans[0].instances
            if item.instance == event.instance
            for share in item.hosts
        ]
        expected = sum(samples * loss for samples, loss in given) / sum(samples for samples, _ in given)
        assert event.loss == expected and event.heldout_loss == 3.0 and event.samples == sum(samples for samples, _ in given)


def test_bytes_of_the_swarm_are_what_an_all_reduce_of_the_contributors_moves() -> None:
    made = events(6)
    rounds = [event for event in made if event["event"] == "round"]
    expected = sum(2 * (len(event["hosts"]) - 1) * 1000 * 4 for event in rounds if len(event["hosts"]) > 1)
    assert shown(made)["traffic"]["swarm_averaging_bytes"] == expected > 0
    assert shown(made, parameters=None)["traffic"]["swarm_averaging_bytes"] is None


def test_the_page_shows_the_node_of_this_machine() -> None:
    own = replay(events())
    found = shown(events(), own=own)
    assert found["own"]["peer"] == THIS
    assert [re.sub(r"[\d.]+", "N", metric["text"]) for metric in found["own"]["metrics"]][2] == "computing N% of the time"
    parts = {each["round"]: each["part"] for each in found["own"]["utilisation"]}
    assert sorted(parts) == list(range(1, 24)) and all(0 < part <= 1 for part in parts.values())
    assert sum(each["rounds"] for each in found["own"]["durations"]) == 23
    assert found["now"]["is_finished"] and found["now"]["round"] == found["run"]["rounds"]
    from_ledger = [event for event in events() if event["event"] != "finished"]
    assert own.finish is not None and own.finish.heldout_loss != shown(from_ledger)["now"]["heldout_loss"]
    assert shown(from_ledger, own=own)["now"]["heldout_loss"] == rounded(own.finish.heldout_loss)
    assert [row["kind"] for row in found["traffic"]["own"]] == ["averaging"]
    kinds = [decision["kind"] for decision in found["decisions"]]
    assert kinds.count("fork") == 1 and kinds.count("merge") == 2
    assert found["instances"][1]["fate"].startswith("merged into 0")


def test_everything_has_a_limit() -> None:
    found = shown(
        events(600), [Contribution(peer=PeerId(f"p{n}"), samples=1, tokens=1, num_rounds=1, last_round=0) for n in range(999)]
    )
    assert all(len(instance["points"]) <= page.MAX_POINTS + 1 for instance in found["instances"])
    ends = {instance["id"]: instance["points"][-1]["round"] for instance in found["instances"]}
    assert ends[0] == 599, "the newest point is always there"
    assert len(found["ledger"]) == page.MAX_LINES and found["num_plans"] == 601
    assert len(found["peers"]) == page.MAX_PEERS and found["num_peers"] >= 999
    assert len(json.dumps(found)) < 1 << 20


def test_text_of_others_is_one_short_plain_line() -> None:
    evil = "<script>alert(1)</script>\x1b[31m\u202e\n" + "x" * 5000
    made = [{**event, "reason": evil} if event["event"] in ("plan", "merge") else event for event in events()]
    made[0] = {**made[0], "name": evil}
    text = json.dumps(shown(made, own=replay(made)))
    assert set(text) <= set(string.printable) and "\\u001b" not in text and "\\n" not in text
    assert "x" * (page.MAX_TEXT + 1) not in text


def test_numbers_that_are_not_finite_are_not_known() -> None:
    made = [
        {**event, "loss": math.nan, "heldout_loss": math.inf} if event["event"] == "round" else event for event in events(3)
    ]
    assert all(point["loss"] is None and point["heldout"] is None for point in shown(made)["instances"][0]["points"])


def test_before_the_first_round_there_is_a_page() -> None:
    found, _ = ledger_document(2, rounds=0)
    assert found["instances"][0]["points"] == [] and found["now"]["tokens"] == 0 and len(found["peers"]) == 2
    assert shown([])["instances"] == []


def test_another_history_is_followed_from_the_beginning() -> None:
    one, other = (members(trained(2, rounds=4, speed=speed)).ledger for speed in (10.0, 20.0))
    events = LedgerEvents(one.plans[0], started=STARTED, sequence_length=LENGTH)
    events.follow(one.entries)
    events.follow(other.entries[:3])
    fresh = LedgerEvents(one.plans[0], started=STARTED, sequence_length=LENGTH)
    fresh.follow(other.entries[:3])
    assert one.entries[2] != other.entries[2] and events.status == fresh.status and events.credited == fresh.credited


def test_a_run_that_counts_samples_shows_how_many_were_given_out() -> None:
    given = samples_before(6)
    found = shown(events(6, samples=given), own=replay(events(6, samples=given)))
    assert (found["run"]["rounds"], found["run"]["samples"]) == (None, given)
    assert (found["now"]["round"], found["now"]["samples_given"], found["now"]["fraction"]) == (6, given, 1.0)


def test_the_node_of_this_machine_adds_clock_speed_and_the_way_in() -> None:
    made = events(9)
    link = {"event": "listening", "time": made[0]["time"], "join_link": "adloco://x?peer=y"}
    own = replay([made[0], link, *made[1:-3]])
    found = shown(made, own=own)
    ends = dict(progress.round_ends(own))
    points = [point for instance in found["instances"] for point in instance["points"]]
    assert {point["round"]: point["seconds"] for point in points if point["seconds"] is not None} == pytest.approx(ends)
    assert found["now"]["seconds_left"] == pytest.approx(progress.eta_seconds(own))
    assert found["now"]["tokens_per_second"] == pytest.approx(progress.swarm_tokens_per_second(own))
    assert found["now"]["join"] == "adloco-peer join --initial-peers 'adloco://x?peer=y' --workdir my-peer"
    alone = shown(made)
    assert alone["now"]["join"] == "" and alone["now"]["seconds_left"] is None
    assert all(set(POINT_FIELDS) <= set(point) for point in points)


def test_sample_texts_are_shown_in_any_language_and_without_what_turns_a_line() -> None:
    made = events(4)
    written = {
        "event": "sample_text",
        "time": made[-1]["time"],
        "round": 3,
        "instance": 0,
        "prompt": "La ",
        "text": "citt\u00e0\n\u202eevil\x1b[31m",
    }
    own = replay([*made, written])
    (text,) = shown(made, own=own)["own"]["texts"]
    assert (text["round"], text["instance"], text["prompt"]) == (3, 0, "La ")
    assert text["text"] == "citt\u00e0\n\ufffdevil\ufffd[31m"
    assert shown(made, own=replay(made))["own"]["texts"] == []
