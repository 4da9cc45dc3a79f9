"""Watching a node from outside: the past from the file, then the present, nothing twice and nothing left out."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from adloco_p2p.core.model.commands import COMMANDS, Command
from adloco_p2p.core.model.telemetry import Stamped, Stopped
from adloco_p2p.runtime.adapters import event_broadcast
from adloco_p2p.runtime.adapters.control_adapter import describe
from adloco_p2p.runtime.adapters.event_broadcast import EventBroadcaster
from adloco_p2p.runtime.node.event_sink import Sink
from adloco_p2p.storage.event_log import EventLog
from adloco_p2p.views.status import Status
from tests.views.synthetic import events, stamped

Batch = tuple[list[str], bool]


class Shown:
    def __init__(self) -> None:
        self.events: list[Stamped] = []

    def start(self) -> None: ...

    def recall(self, events: object) -> None: ...

    def update(self, event: Stamped) -> None:
        self.events.append(event)

    def stop(self) -> None: ...


def opened(folder: Path) -> tuple[Sink, EventBroadcaster, Shown]:
    shown = Shown()
    broadcaster = EventBroadcaster(shown, events_path=folder / "events.jsonl")
    return Sink(log=EventLog.open(folder / "events.jsonl"), view=broadcaster), broadcaster, shown


def write(sink: Sink, event: dict[str, Any]) -> None:
    sink.write(stamped(event).event)


async def collect(broadcaster: EventBroadcaster) -> list[Batch]:
    return [batch async for batch in broadcaster.watch()]


def told(batches: list[Batch], *, past: bool) -> list[tuple[object, ...]]:
    lines = [json.loads(line) for batch, are_past in batches if are_past == past for line in batch]
    return [(line["event"], line.get("round"), line.get("instance"), line.get("step")) for line in lines]


def names(made: list[dict[str, Any]]) -> list[tuple[object, ...]]:
    return [(event["event"], event.get("round"), event.get("instance"), event.get("step")) for event in made]


@pytest.mark.parametrize("cut", [0, 1, 40, 100])
def test_past_and_present_together_are_everything(tmp_path: Path, cut: int) -> None:
    made = events(4)
    live_only = ("progress", "phase")

    async def play() -> list[Batch]:
        sink, broadcaster, shown = opened(tmp_path)
        for event in made[:cut]:
            write(sink, event)
        watcher = asyncio.create_task(collect(broadcaster))
        await asyncio.sleep(0)
        for event in made[cut:]:
            write(sink, event)
        sink.write(Stopped(reason="asked", is_finished=False))
        assert len(shown.events) == len(made) + 1
        return await watcher

    batches = asyncio.run(play())
    assert told(batches, past=True) == [name for name in names(made[:cut]) if name[0] not in live_only]
    present = told(batches, past=False)
    new = [*names(made[cut:]), ("stopped", None, None, None)]
    assert present[-len(new) :] == new
    latest = present[: -len(new)]  # what the file does not hold, so that the screen is whole at once
    assert {name[0] for name in latest} <= set(live_only)
    assert len(latest) == len({(name[0], name[2]) for name in latest})


def test_a_watcher_that_is_too_slow_is_cut_off_and_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_broadcast, "MAX_QUEUED", 4)

    async def play() -> None:
        sink, broadcaster, shown = opened(tmp_path)
        watch = broadcaster.watch()
        assert await anext(watch) == ([], False)
        for event in events(2):
            write(sink, event)
        batch, are_past = await anext(watch)
        assert not are_past and len(batch) < 4
        with pytest.raises(StopAsyncIteration):
            await anext(watch)
        assert len(shown.events) == len(events(2))

    asyncio.run(play())


def test_of_a_long_past_the_end_is_shown_and_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_broadcast, "MAX_HISTORY_BYTES", 3000)

    async def play() -> list[Batch]:
        sink, broadcaster, _ = opened(tmp_path)
        for event in events(4):
            write(sink, event)
        watcher = asyncio.create_task(collect(broadcaster))
        await asyncio.sleep(0)
        broadcaster.stop()
        return await watcher

    past = [json.loads(line) for batch, are_past in asyncio.run(play()) if are_past for line in batch]
    assert past[0]["event"] == "started"
    assert past[-1]["event"] == "finished"
    assert 2 < len(past) < 20


def test_the_status_is_kept_whoever_watches(tmp_path: Path) -> None:
    sink, broadcaster, _ = opened(tmp_path)
    for event in events(4):
        write(sink, event)
    assert broadcaster.status.finish is not None
    broadcaster.recall([])
    assert broadcaster.status == Status()


@pytest.mark.parametrize("state", ["starting", "running", "pausing", "paused", "stopping", "finished"])
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_answered_in_words_in_every_state(command: Command, state: str) -> None:
    words = describe(command, Status(state=state))
    assert len(words.split()) >= 3 and len(words) <= 78, "the live view of 80 columns shows it whole"
