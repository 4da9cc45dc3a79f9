"""The table of the lifecycle's steps, and peers that take them: every command at every stage."""

import itertools
from dataclasses import replace
from typing import get_args

import pytest

from adloco_p2p.core.model.commands import Command
from adloco_p2p.core.model.events import StateServed
from adloco_p2p.core.peer.lifecycle import STEPS, Stage
from tests.core.peer.story import PEER0, PEER2, Story
from tests.core.peer.test_lifecycle import handing_story, story_of


def test_every_stage_has_a_row_and_can_be_reached() -> None:
    assert set(STEPS) == set(Stage)
    reached = {Stage.TRAINING}
    for _ in Stage:
        reached |= {after for before in reached for after in STEPS[before]}
    assert reached == set(Stage)
    assert not STEPS[Stage.STOPPED]
    assert all(Stage.STOPPED in after for before, after in STEPS.items() if before is not Stage.STOPPED)


def test_a_peer_that_is_asked_nothing_trains_waits_for_the_others_and_stops() -> None:
    """The last one to end the run need not wait."""
    seen = sorted(story_of(rounds=4).play().stages.values(), key=len)
    assert all(stages == [Stage.TRAINING, Stage.WAITING, Stage.STOPPED] for stages in seen[1:])
    assert seen[0] in (seen[-1], [Stage.TRAINING, Stage.STOPPED])


def story_without_heirs() -> Story:
    """The third peer alone hosts two instances, and hears of nobody that fetched their states."""
    return replace(handing_story(), hears=lambda _, event: not isinstance(event, StateServed))


@pytest.mark.parametrize("command", get_args(Command))
def test_a_peer_that_drains_hands_over_whatever_else_is_asked(command: Command) -> None:
    story = story_without_heirs()
    story.ask(PEER2, "drain", at=6.0)
    story.ask(PEER2, command, at=20.0)
    assert story.play().stages[PEER2] == [Stage.TRAINING, Stage.DRAINING, Stage.HANDING_OVER, Stage.STOPPED]


def test_a_handover_before_a_pause_can_become_one_before_the_stop_or_be_taken_back() -> None:
    taken: list[tuple[Command, list[Stage]]] = [
        ("drain", [Stage.HANDING_OVER, Stage.STOPPED]),
        ("resume", [Stage.TRAINING]),
    ]
    for command, following in taken:
        story = story_without_heirs()
        story.ask(PEER2, "pause", at=6.0)
        story.ask(PEER2, command, at=20.0)
        begun = [Stage.TRAINING, Stage.PAUSING, Stage.HANDING_OVER_TO_PAUSE, *following]
        assert story.play().stages[PEER2][: len(begun)] == begun


@pytest.mark.parametrize(("first", "second"), itertools.product(get_args(Command), repeat=2))
def test_any_two_commands_at_any_stage_lead_along_the_table(first: Command, second: Command) -> None:
    """A step that is not in the table would raise."""
    for pause_seconds in (0.6, 8.0, 30.0):  # at the end of the round, while paused, after the end of the run
        story = replace(story_of(rounds=6), faults_end_at=60.0)
        story.ask(PEER0, first, at=1.3)
        story.at(1.4, setattr, story.machine(PEER0), "is_gone", True)  # its model may be that of a run which others end
        story.ask(PEER0, second, at=1.3 + pause_seconds)
        story.ask(PEER0, "resume", at=40.0)
        seen = story.play().stages[PEER0]
        # resumed when the others have ended and are gone, it may go on alone, for which the world does not wait
        assert seen[-1] is Stage.STOPPED or (seen[-1] is Stage.TRAINING and "pause" in (first, second))
        assert all(after in STEPS[before] for before, after in itertools.pairwise(seen))
