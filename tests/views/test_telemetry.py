"""Telemetry is one list: what is declared is emitted, shown, written and read back, and nothing else is."""

import ast
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import adloco_p2p
from adloco_p2p.core.model import telemetry
from adloco_p2p.core.model.telemetry import EVENTS, Finished, Log, Round, Stamped, to_line
from adloco_p2p.decode import decode_event, decode_events
from adloco_p2p.views import plain, status_fold
from tests.views.synthetic import events, stamped

PACKAGE = Path(adloco_p2p.__file__).parent
TELEMETRY = "adloco_p2p.core.model.telemetry"
st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))  # others become null in the file
DECLARED = {
    name for name, kind in vars(telemetry).items() if isinstance(kind, type) and issubclass(kind, Log) and kind is not Log
}


def called(tree: ast.AST) -> Iterator[str]:
    """What a module calls of `telemetry`, by its name there: `telemetry.X(...)`, or `X(...)` where it was imported."""
    imported = {
        (name.asname or name.name): name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == TELEMETRY
        for name in node.names
    }
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="telemetry"), attr=name)):
                yield name
            case ast.Call(func=ast.Name(id=name)) if name in imported:
                yield imported[name]


def emitted() -> set[str]:
    """Kinds that the package makes, outside of the simulator and of the views, which repeat what a peer has told; also by a
    function of `telemetry` that makes them."""
    path = PACKAGE / "core" / "model" / "telemetry.py"
    functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    made = {
        function.name: {
            node.func.id
            for node in ast.walk(function)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in DECLARED
        }
        for function in functions
    }
    sources = [path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] not in ("sim", "views")]
    found: set[str] = set()
    for name in (name for source in sources for name in called(ast.parse(source.read_text()))):
        found |= made.get(name, {name})
    return found & DECLARED


def handled() -> set[str]:
    """Kinds for which a view has a handler of their own."""
    kinds = {*status_fold.fold.registry, *plain.line.registry} - {object, Log}
    return {kind.__name__ for kind in kinds}


def test_every_event_is_read_back_and_emitted() -> None:
    assert {kind.__name__ for kind in EVENTS.values()} == DECLARED
    assert emitted() == DECLARED


def test_every_event_is_handled_by_a_view() -> None:
    assert handled() == DECLARED


def test_an_event_without_an_emitter_or_a_handler_would_be_found() -> None:
    source = f"from {TELEMETRY} import Left as Gone, Log\n@line.register\ndef f(event: Joined): ...\nGone(peer=1)\nLog\n"
    assert [*called(ast.parse(source))] == ["Left"]
    assert "Joined" not in {*called(ast.parse("from elsewhere import Joined\nJoined(peer=1)"))}


def test_names_in_the_file_are_those_of_the_classes() -> None:
    assert EVENTS["out_of_memory"] is telemetry.OutOfMemory and EVENTS["round"] is telemetry.Round
    assert all(kind.event == name for name, kind in EVENTS.items())
    assert {event["event"] for event in events()} <= set(EVENTS)


@pytest.mark.parametrize("name", EVENTS)
@settings(  # of texts drawn at random few are names of tasks, so a health check by luck would fail one run in many
    max_examples=10,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
@given(data=st.data())
def test_every_event_comes_back_from_its_line(name: str, data: st.DataObject) -> None:
    event = Stamped(time=1.5, event=data.draw(st.builds(EVENTS[name])))
    line = to_line(event)
    assert "\n" not in line and json.loads(line)["event"] == name
    assert decode_event(line) == event


@pytest.mark.parametrize("name", ["round", "finished"])
def test_a_loss_that_is_not_finite_is_none_in_the_file(name: str) -> None:
    made = next(stamped(event) for event in events() if event["event"] == name)
    assert isinstance(made.event, Round | Finished)
    event = replace(made.event, heldout_loss=math.inf, heldout_losses=(math.nan, 2.0))
    read = decode_event(to_line(Stamped(time=made.time, event=event)))
    assert read == Stamped(time=made.time, event=replace(made.event, heldout_loss=None, heldout_losses=(None, 2.0)))


def test_events_of_other_versions_do_not_stop_a_view() -> None:
    whole = [json.dumps(event) for event in events(2)]
    newer = json.dumps({**events(2)[0], "invented": 1})
    older = json.dumps({"event": "round", "time": 1.0, "round": 3})
    unknown = json.dumps({"event": "sunrise", "time": 1.0})
    read = decode_events([newer, *whole[1:], older, unknown, "{torn", "[]", ""])
    assert read == [*map(stamped, events(2))]
    assert decode_event(unknown) is None
    with pytest.raises(ValueError, match=r"the event `round` does not have the form .*instance"):
        decode_event(older)
