"""When a node counts as ready, by hand."""

from dataclasses import replace

import pytest

from adloco_p2p.core.model import telemetry
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.views.health import MAX_ROUNDS_BEHIND, readiness
from adloco_p2p.views.round_results import RoundResults
from adloco_p2p.views.status import Status
from tests.views.synthetic import THIS, events, replay


def test_a_node_that_trains_is_ready_until_it_falls_behind() -> None:
    status = replay(events(6))
    status = replace(status, state="running", finish=None)
    last = max(round for round, _ in status.results)
    for behind in range(MAX_ROUNDS_BEHIND + 2):
        assert readiness(replace(status, active_round=last + behind))[0] == (behind <= MAX_ROUNDS_BEHIND)


@pytest.mark.parametrize(
    ("status", "is_ready", "word"),
    [
        (Status(), False, "starting"),
        (Status(state="running"), False, "no round"),
        (Status(state="paused", stopping="quiet hours"), False, "paused: quiet hours"),
        (Status(state="stopping", stopping="Ctrl-C"), False, "stopping"),
        (Status(state="finished"), True, "complete"),
    ],
    ids=["starting", "joining", "paused", "stopping", "finished"],
)
def test_every_state_has_a_reason(status: Status, is_ready: bool, word: str) -> None:
    found, words = readiness(status)
    assert found is is_ready and word in words


def test_a_peer_on_the_bench_is_ready_and_shows_why_it_waits() -> None:
    status = replay(events(3))
    seat = telemetry.RosterLine(peer=PeerId(THIS), samples_per_second=0.0, last_report=None, waits_from=0)
    plans = tuple(replace(plan, roster=(seat,), instances=()) for plan in status.plans)
    waiting = replace(status, state="running", results=RoundResults(), finish=None, plans=plans)
    words = "on the bench since round 0: 0 samples per step feed 0 hosts, 0 peers waited longer"
    assert readiness(waiting) == (True, words)


def test_a_keeper_is_ready_without_training() -> None:
    seat = telemetry.RosterLine(peer=PeerId(THIS), samples_per_second=0.0, last_report=None, is_keeper=True)
    status = replay(events(3))
    plans = tuple(replace(plan, roster=(seat,)) for plan in status.plans)
    keeping = replace(status, state="running", results=RoundResults(), plans=plans)
    assert readiness(keeping)[0]
    assert not readiness(replace(keeping, plans=tuple(replace(plan, roster=()) for plan in plans)))[0]
