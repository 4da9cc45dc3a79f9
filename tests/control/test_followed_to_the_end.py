"""How a terminal that follows a node takes its end."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from queue import Queue
from types import TracebackType
from typing import Any, Self

import pytest

from adloco_p2p.commands import control
from adloco_p2p.commands.control import follow
from adloco_p2p.core.model import telemetry
from adloco_p2p.core.model.telemetry import Finished, Log, Stamped, Stopped
from tests.views.synthetic import events, replay


class Ending:
    """A client of a node that carries out the last plan and stops."""

    def __init__(self, *news: Log) -> None:
        self._news = [Stamped(time=float(index), event=event) for index, event in enumerate(news)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass

    def watch(self) -> Iterator[tuple[Sequence[Stamped], bool]]:
        yield [], False
        for event in self._news:
            yield [event], False


class Suspended(Ending):
    """A client of a node that sends its second event when its silence has been shown."""

    def __init__(self, shown: Queue[bool], *news: Log) -> None:
        super().__init__(*news)
        self._shown = shown

    def watch(self) -> Iterator[tuple[Sequence[Stamped], bool]]:
        batches = super().watch()
        yield next(batches)
        self._shown.get(timeout=60)
        yield from batches


class Blind:
    def recall(self, past: Sequence[Stamped]) -> None:
        pass

    def update(self, event: Stamped) -> None:
        pass


def finish() -> Finished:
    found = replay(events()).finish
    assert found is not None
    return found


@pytest.mark.parametrize(("is_finished", "end"), [(True, "finished"), (False, "ended")])
def test_a_node_that_ends_without_the_model_of_the_run_has_not_finished_it(is_finished: bool, end: str) -> None:
    client: Any = Ending(finish(), Stopped(reason="the run is over", is_finished=is_finished))
    view: Any = Blind()
    assert follow(client, view) == end


def test_a_terminal_shows_that_the_node_sends_nothing_until_it_does_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "QUIET_SECONDS", 0.01)
    shown: Queue[bool] = Queue()
    seen: list[Log] = []

    class Seeing(Blind):
        def update(self, event: Stamped) -> None:
            seen.append(event.event)
            if isinstance(event.event, telemetry.Warning):
                shown.put(event.event.active)

    client: Any = Suspended(shown, finish())
    view: Any = Seeing()
    assert follow(client, view) == "finished"
    quiet = telemetry.Warning(key="control", message=control.QUIET, active=True)
    assert seen[:3] == [quiet, replace(quiet, active=False), finish()]
