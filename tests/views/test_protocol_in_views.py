"""The protocol of a run, and the one to come, on the page, in the status, in JSON and as lines."""

import io
from dataclasses import replace

import pytest

from adloco_p2p.core.model.commands import Command
from adloco_p2p.core.model.protocol import CANNOT_FOLLOW, FIRST_UPGRADABLE, NEWEST
from adloco_p2p.runtime.adapters.control_adapter import describe
from adloco_p2p.views import node_status, own_part
from adloco_p2p.views.page import document
from adloco_p2p.views.plain import PlainView
from adloco_p2p.views.status import UPGRADE, Status
from adloco_p2p.views.status_fold import apply
from tests.views.synthetic import Made, events, replay, shown_run, stamped

OLD, NEW = FIRST_UPGRADABLE, FIRST_UPGRADABLE + 1


def upgraded(*, agreed_in: int, first_round: int, to: int = NEW) -> list[Made]:
    """A run under way that agrees on the next protocol in one plan, and follows it from a later round on."""
    made = [event for event in events(9) if event["event"] != "finished"]
    for event in made:
        if event["event"] == "plan" and event["round"] >= first_round:
            event["protocol"] = to
        elif event["event"] == "plan" and event["round"] >= agreed_in:
            event["upgrade_round"] = first_round
    return made


def test_status_page_and_json_name_the_protocol_and_the_round_of_the_next_one() -> None:
    before = replay(upgraded(agreed_in=99, first_round=99))
    assert own_part.protocol_words(before) == f"protocol {OLD}" and UPGRADE not in before.warnings
    coming = replay(upgraded(agreed_in=7, first_round=11))
    assert own_part.protocol_words(coming) == f"protocol {OLD}; protocol {NEW} from round 11 on"
    assert document(shown_run(coming, []))["run"]["protocol"] == own_part.protocol_words(coming)  # type: ignore[index]
    fields = node_status.summary(coming)
    assert (fields["protocol"], fields["upgrade_round"]) == (OLD, 11)
    assert f"protocol {OLD}, {NEW} from round 11 on" in node_status.lines(fields)[0]
    assert coming.warnings[UPGRADE] == f"protocol {NEW} from round 11 on"
    over = replay(upgraded(agreed_in=3, first_round=7))
    assert own_part.protocol_words(over) == f"protocol {NEW}" and UPGRADE not in over.warnings


def test_a_peer_that_cannot_follow_is_warned_once_of_what_is_to_come() -> None:
    coming = replay(upgraded(agreed_in=7, first_round=11))

    def warned(status: Status, *, active: bool) -> Status:
        event = {"event": "warning", "key": CANNOT_FOLLOW, "message": "which the installed version cannot", "active": active}
        return apply(status, stamped({**event, "time": 99.0}))

    unable = warned(coming, active=True)
    assert CANNOT_FOLLOW in unable.warnings and UPGRADE not in unable.warnings
    assert {*warned(unable, active=False).warnings} == {*coming.warnings} - {UPGRADE}


def test_a_line_names_it_when_it_is_agreed_and_when_it_comes() -> None:
    screen = io.StringIO()
    view = PlainView(screen)
    for event in upgraded(agreed_in=3, first_round=7):
        view.update(stamped(event))
    lines = [line for line in screen.getvalue().splitlines() if line.startswith("protocol")]
    assert len(lines) == 2
    assert f"protocol {NEW} from round 7 on" in lines[0] and f"the run follows protocol {NEW}" in lines[1]


@pytest.mark.parametrize(("command", "state"), [("resume", "paused"), ("resume", "pausing"), ("pause", "pausing")])
def test_pause_and_resume_name_the_reason_where_the_run_follows_a_newer_protocol(command: Command, state: str) -> None:
    unknown = NEWEST + 1
    words = describe(command, replace(replay(upgraded(agreed_in=3, first_round=7, to=unknown)), state=state))
    assert f"the run follows protocol {unknown}, and the installed version knows only {OLD} to {NEWEST}: in the" in words
