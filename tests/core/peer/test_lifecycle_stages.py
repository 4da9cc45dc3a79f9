"""The table of the lifecycle's steps, and peers that take them: every command at every stage."""

import itertools
from typing import get_args

import pytest

from adloco_p2p.core.model.commands import Command
from adloco_p2p.core.model.events import Commanded
from adloco_p2p.core.model.types import PeerId
from adloco_p2p.core.peer.lifecycle import STEPS, Stage
from tests.core.peer.test_lifecycle import AskedWorld, HandingWorld
from tests.core.peer.test_peer import PEER0, PEER2


def test_every_stage_has_a_row_and_can_be_reached() -> None:
    assert set(STEPS) == set(Stage)
    reached = {Stage.TRAINING}
    for _ in Stage:
        reached |= {after for before in reached for after in STEPS[before]}
    assert reached == set(Stage)
    assert not STEPS[Stage.STOPPED]
    assert all(Stage.STOPPED in after for before, after in STEPS.items() if before is not Stage.STOPPED)


def stages(world: AskedWorld, name: PeerId, *, until: float) -> list[Stage]:
    """The stages of one peer, in order, while the world runs."""
    seen = [Stage.TRAINING]
    feed = world.feed

    def watch(peer: PeerId, event: object) -> None:
        feed(peer, event)  # type: ignore[arg-type]
        stage = world.hosts[name].peer.stage
        if peer == name and stage is not seen[-1]:
            seen.append(stage)

    world.feed = watch  # type: ignore[method-assign]
    world.run(until=until)
    return seen


def test_a_peer_that_is_asked_nothing_trains_waits_for_the_others_and_stops() -> None:
    assert stages(AskedWorld(rounds=4), PEER0, until=100.0) == [Stage.TRAINING, Stage.WAITING, Stage.STOPPED]


@pytest.mark.parametrize("command", get_args(Command))
def test_a_peer_that_drains_hands_over_whatever_else_is_asked(command: Command) -> None:
    world = HandingWorld()
    world.is_deaf = True
    world.drain(6.0)
    world.deliver(PEER2, Commanded(command=command), 20.0)
    seen = stages(world, PEER2, until=900.0)
    assert seen == [Stage.TRAINING, Stage.DRAINING, Stage.HANDING_OVER, Stage.STOPPED]


def test_a_handover_before_a_pause_can_become_one_before_the_stop_or_be_taken_back() -> None:
    for command, following in (("drain", [Stage.HANDING_OVER, Stage.STOPPED]), ("resume", [Stage.TRAINING])):
        world = HandingWorld()
        world.is_deaf = True
        world.deliver(PEER2, Commanded(command="pause"), 6.0)
        world.deliver(PEER2, Commanded(command=command), 20.0)  # type: ignore[arg-type]
        seen = stages(world, PEER2, until=900.0)
        begun = [Stage.TRAINING, Stage.PAUSING, Stage.HANDING_OVER_TO_PAUSE, *following]
        assert seen[: len(begun)] == begun


@pytest.mark.parametrize(("first", "second"), itertools.product(get_args(Command), repeat=2))
def test_any_two_commands_at_any_stage_lead_along_the_table(first: Command, second: Command) -> None:
    """A step that is not in the table would raise."""
    for pause_seconds in (0.6, 8.0, 30.0):  # at the end of the round, while paused, after the end of the run
        world = AskedWorld(rounds=6)
        world.ask(first, 1.3)
        world.ask(second, 1.3 + pause_seconds)
        world.ask("resume", 40.0)
        seen = stages(world, PEER0, until=300.0)
        assert seen[-1] is Stage.STOPPED
        assert all(after in STEPS[before] for before, after in itertools.pairwise(seen))
