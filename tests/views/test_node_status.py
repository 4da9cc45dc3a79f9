"""The status as fields and as lines."""

import itertools
import json
import math
from dataclasses import replace

import pytest
from google.protobuf import json_format

from adloco_p2p.v1 import control_pb2
from adloco_p2p.views import units
from adloco_p2p.views.node_status import lines, summary, traffic_words
from adloco_p2p.views.round_results import RoundResults
from adloco_p2p.views.status import Status
from tests.views.golden import status_at
from tests.views.synthetic import OTHERS, THIS, apply, events, replay

BUSY = ("progress", 14, 2)


def test_the_fields_are_those_of_the_control_api() -> None:
    named = {field.name for field in control_pb2.NodeStatus.DESCRIPTOR.fields} - {"api_version"}
    for status in (Status(), status_at(*BUSY), replay(events())):
        assert set(summary(status)) == named
        json.dumps(summary(status))


def test_the_lines_name_what_a_person_asks_for() -> None:
    text = "\n".join(lines(summary(status_at(*BUSY))))
    for words in (
        "python-library-small",
        "running",
        "training",
        "round       14/24",
        "62%",
        "2m13s left",
        "before round 14",
        "capped",
    ):
        assert words in text
    assert "warning     the laptop's uplink is slow" in text
    assert all(len(line) <= 110 for line in text.splitlines())
    assert lines(summary(Status()))


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_the_status_of_a_run_that_diverges_can_be_asked_for(loss: float) -> None:
    """Live events hold the losses as they are; only in the event file are they None."""
    busy = status_at(*BUSY)
    busy = replace(
        busy,
        activities={instance: replace(known, loss=loss) for instance, known in busy.activities.items()},
        results=RoundResults({place: replace(known, loss=loss, heldout_loss=loss) for place, known in busy.results.items()}),
    )
    fields = summary(busy)
    assert {row[name] for row in fields["instances"] for name in ("loss", "heldout_loss")} == {None}
    json_format.ParseDict(fields, control_pb2.NodeStatus())
    json.dumps(fields, allow_nan=False)
    assert lines(fields)


def test_a_warning_names_peers_as_the_other_lines_do() -> None:
    peer = f"12D3KooW{'1' * 44}"
    warning = {"event": "warning", "time": 1e9, "key": "connection", "message": f"{peer} is away", "active": True}
    fields = summary(apply(status_at(*BUSY), warning))
    assert f"warning     {units.short_peer(peer)} is away" in lines(fields)
    assert fields["conditions"][-1]["message"].startswith(peer), "programs get the whole id"


def test_what_a_token_costs_and_when_the_work_first_counted() -> None:
    status = replay(events())
    fields = summary(apply(status, {"event": "first_contribution", "time": 1e9, "round": 1, "seconds": 41.5}))
    rounds = [event for event in events() if event["event"] == "round"]
    sent, tokens = sum(event["bytes_sent"] for event in rounds), sum(event["tokens"] for event in rounds)
    values = {metric["name"]: metric["samples"] for metric in fields["metrics"]}
    assert values["adloco_sent_per_token_bytes"] == [{"labels": [], "value": sent / tokens}]
    assert values["adloco_first_contribution_seconds"] == [{"labels": [], "value": 41.5}]
    text = "\n".join(lines(fields))
    assert "sent per token" in text and "first average 41.5 s after the command" in text
    assert "counted" not in "\n".join(lines(summary(Status())))


def test_a_node_that_starts_is_shown_doing_so() -> None:
    fields = summary(apply(Status(), {"event": "starting", "time": 1e9, "phase": "reading the text"}))
    assert fields["state"] == "starting"
    assert fields["phase"] == "reading the text"


def test_a_peer_is_described_by_what_it_announces_and_by_the_way_to_it() -> None:
    fields = summary(status_at(*BUSY))
    assert {field.name for field in control_pb2.PeerStatus.DESCRIPTOR.fields} == set(fields["peers"][0])
    row = next(row for row in fields["peers"] if row["peer"] == OTHERS[0])
    assert [row[name] for name in ("nickname", "version", "reach", "round_trip_seconds")] == ["lab-7", "0.2.0", "relay", 0.0834]
    silent = next(row for row in fields["peers"] if row["peer"] == OTHERS[1])
    assert silent["nickname"] is None
    named, below = next(
        (line, after) for line, after in itertools.pairwise(lines(fields)) if line.startswith("peer") and "lab-7" in line
    )
    assert units.short_peer(OTHERS[0]) in named
    assert below.split() == ["round", "trip", "83", "ms", "reach", "relay", "version", "0.2.0"]


def test_a_card_from_a_file_prints_no_control_characters() -> None:
    card = {"nickname": "\x1b[31m\u202e", "version": "", "reach": "direct", "round_trip_seconds": None}
    status = apply(status_at(*BUSY), {"event": "peer_card", "time": 1e9, "peer": OTHERS[0], **card})
    assert all(line.isascii() and line.isprintable() for line in lines(summary(status)))


def test_shares_are_those_of_the_plan() -> None:
    shares = {row["peer"]: row["share"] for row in summary(status_at(*BUSY))["peers"]}
    assert abs(sum(shares.values()) - 1.0) < 1e-9
    assert shares[THIS] == 0.5  # one of two hosts of both instances


def test_a_pause_and_its_end_are_seen() -> None:
    status = status_at(*BUSY)
    seen = []
    for event in ({"event": "pausing", "reason": "asked"}, {"event": "paused", "round": 15}, {"event": "resumed", "round": 15}):
        status = apply(status, {"time": 1e9, **event})
        fields = summary(status)
        (own,) = [row["state"] for row in fields["peers"] if row["is_self"]]
        seen.append((fields["state"], own, fields["eta_seconds"] is None))
    assert seen == [("pausing", "alive", False), ("paused", "paused", True), ("running", "alive", False)]


def test_traffic_is_shown_against_its_caps() -> None:
    measured = {
        "sent_bytes": 34_500_000,
        "received_bytes": 1000,
        "up_bytes_per_second": 1.2e6,
        "down_bytes_per_second": None,
        "up_cap_bytes_per_second": 2_000_000,
        "down_cap_bytes_per_second": 500_000,
        "budget_bytes": 10**10,
        "budget_left_bytes": 4 * 10**9,
        "is_quiet": True,
    }
    assert traffic_words(measured) == [
        "up 34.5 MB, 1.20 MB/s of 2.00 MB/s",
        "down 1.00 kB, cap 500 kB/s",
        "quiet hours",
        "4.00 GB of 10.0 GB left today",
    ]
