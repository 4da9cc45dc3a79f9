"""How a terminal that follows a node takes its end."""

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import pytest

from adloco_p2p.commands.control import follow
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
