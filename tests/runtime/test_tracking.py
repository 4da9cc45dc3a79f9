"""Experiment trackers: what they get, and that a node neither waits for one nor ends with it."""

import math
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adloco_p2p import trackers
from adloco_p2p.cli import main
from adloco_p2p.config.load import load_peer
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.core.model.telemetry import Log, Progress, Stamped
from adloco_p2p.core.model.telemetry import Warning as Warned
from adloco_p2p.errors import ConfigError
from adloco_p2p.runtime.adapters import tracking
from adloco_p2p.runtime.adapters.tracking import TrackedSink, flat
from adloco_p2p.trackers import Tracker, check_installed, open_tracker
from adloco_p2p.views import traffic
from adloco_p2p.views.metrics import Measure, measures
from adloco_p2p.views.status import Status
from adloco_p2p.views.status_fold import apply
from tests.views.synthetic import events, stamped

INNER_STEPS = 16
Points = list[tuple[int, dict[str, float]]]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take long to import a tracker's library; the tests wait for its thread."""
    monkeypatch.setattr(tracking, "CLOSE_SECONDS", 250.0)


class Collecting:
    def __init__(self, points: Points) -> None:
        self.points = points
        self.is_closed = False

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self.points.append((step, dict(values)))

    def close(self) -> None:
        self.is_closed = True


class Node:
    """The events of a node so far, as the sink of its events."""

    def __init__(self) -> None:
        self.status = Status()
        self.written: list[Log] = []
        self.time = 0.0

    def write(self, event: Log) -> None:
        self.written.append(event)
        self.status = apply(self.status, Stamped(time=self.time, event=event))

    def sink(self, **opened: Callable[[], Tracker]) -> TrackedSink:
        return TrackedSink(self, opened, measure=lambda: measures(self.status), inner_steps=INNER_STEPS)

    @property
    def warnings(self) -> list[Warned]:
        return [event for event in self.written if isinstance(event, Warned)]


def play(sink: TrackedSink, node: Node, rounds: int = 4) -> None:
    for made in map(stamped, events(rounds)):
        node.time = made.time
        sink.write(made.event)


def test_each_round_is_a_point_with_the_metrics_behind_it() -> None:
    node, points = Node(), Points()
    tracker = Collecting(points)
    sink = node.sink(tensorboard=lambda: tracker)
    play(sink, node)
    last_round = max(round for round, _ in node.status.results)
    sink.close()
    assert tracker.is_closed and not node.warnings
    ends = [step for step, values in points if "adloco_round" in values]
    assert ends == sorted(ends) and ends[-1] == (last_round + 1) * INNER_STEPS
    tokens = [values["adloco_tokens_total"] for _, values in points if "adloco_round" in values]
    assert tokens == sorted(tokens) and tokens[-1] == traffic.totals(node.status).tokens > 0


def test_the_inner_loss_comes_in_between_and_has_the_name_of_the_metric() -> None:
    node, points = Node(), Points()
    sink = node.sink(tensorboard=lambda: Collecting(points))
    half = Progress(round=2, instance=InstanceId(1), step=4, num_steps=8, loss=3.25, tokens_per_second=None)
    sink.write(half)  # half of round 2, of which the plan gave this host 8 steps
    sink.close()
    assert points == [(2 * INNER_STEPS + INNER_STEPS // 2, {"adloco_inner_loss_nats/1": 3.25})]
    assert flat(measures(node.status), set())["adloco_inner_loss_nats/1"] == 3.25


def test_names_are_those_of_prometheus() -> None:
    node = Node()
    sink = node.sink()
    play(sink, node)
    found = flat(measures(node.status), set())
    assert {name.partition("/")[0] for name in found} == {
        measure.name for measure in measures(node.status) if measure.samples and not measure.name.endswith("_info")
    }
    assert all(math.isfinite(value) for value in found.values())


def test_a_tracker_that_fails_is_one_warning_and_the_others_go_on() -> None:
    node, points = Node(), Points()
    failed = threading.Event()

    class Failing(Collecting):
        def write(self, step: int, values: Mapping[str, float]) -> None:
            failed.set()
            raise OSError("no space left on device")

    sink = node.sink(wandb=lambda: Failing([]), tensorboard=lambda: Collecting(points))
    play(sink, node)
    assert failed.wait(250)
    sink._threads[0]._thread.join(250)
    play(sink, node)
    sink.close()
    (warning,) = node.warnings
    assert warning.key == "tracker wandb" and "no space left" in warning.message
    assert len([step for step, values in points if "adloco_round" in values]) == 2 * len(node.status.results)


def test_a_tracker_that_cannot_be_opened_is_one_warning() -> None:
    def refuse() -> Tracker:
        raise RuntimeError("api_key not configured")

    node = Node()
    sink = node.sink(wandb=refuse)
    sink._threads[0]._thread.join(250)
    play(sink, node)
    sink.close()
    assert ["api_key" in warning.message for warning in node.warnings] == [True]


def test_a_tracker_that_blocks_loses_points_and_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    class Blocking(Collecting):
        def write(self, step: int, values: Mapping[str, float]) -> None:
            release.wait(250)

    monkeypatch.setattr(tracking, "MAX_QUEUED", 3)
    node = Node()
    sink = node.sink(wandb=lambda: Blocking([]))
    play(sink, node)  # far more events than fit the queue
    sink.close()  # it would wait as long as the fixture says for a tracker that works
    release.set()
    assert ["takes nothing" in warning.message for warning in node.warnings] == [True]


def records(path: Path) -> Iterator[Any]:
    """The events of a file of TensorBoard: length, its checksum, the event, its checksum."""
    from tensorboardX.proto.event_pb2 import Event

    content, place = path.read_bytes(), 0
    while place < len(content):
        (length,) = struct.unpack_from("<Q", content, place)
        yield Event.FromString(content[place + 12 : place + 12 + length])
        place += 16 + length


def test_tensorboard_files_hold_the_points(tmp_path: Path) -> None:
    tracker = open_tracker("tensorboard", folder=tmp_path, name="run", identity="abc", settings={})
    tracker.write(16, {"adloco_peers/alive": 2.0, "adloco_inner_loss_nats/0": 3.5})
    tracker.close()
    (path,) = (tmp_path / "tensorboard").iterdir()
    found = {(event.step, value.tag, value.simple_value) for event in records(path) for value in event.summary.value}
    assert found == {(16, "adloco_peers/alive", 2.0), (16, "adloco_inner_loss_nats/0", 3.5)}


def test_wandb_gets_a_run_of_its_own_axis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for the library; a test that is run by name has the real one, offline."""
    told: list[tuple[str, Any]] = []
    run = SimpleNamespace(
        define_metric=lambda name, step_metric: told.append((name, step_metric)),
        log=lambda values: told.append(("log", values)),
        finish=lambda: told.append(("finish", None)),
    )

    def init(**arguments: Any) -> SimpleNamespace:
        told.append(("init", arguments))
        return run

    fake = SimpleNamespace(init=init, Settings=lambda **settings: settings)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    tracker = open_tracker("wandb", folder=tmp_path, name="run ..abc", identity="abc", settings={"work.rounds": 3})
    tracker.write(16, {"adloco_round": 1.0})
    tracker.close()
    (_, arguments), *rest = told
    assert (arguments["project"], arguments["id"], arguments["resume"]) == ("mine", "abc", "allow")
    assert arguments["config"] == {"work.rounds": 3} and arguments["dir"] == str(tmp_path)
    assert rest == [("*", "step"), ("log", {"adloco_round": 1.0, "step": 16}), ("finish", None)]


@pytest.mark.heavy
def test_wandb_writes_its_files_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    tracker = open_tracker("wandb", folder=tmp_path, name="run ..abc", identity="abc", settings={"work.rounds": 3})
    for step in (32, 16):  # instances end their rounds in any order
        tracker.write(step, {"adloco_round": step / 16})
    tracker.close()
    (path,) = tmp_path.glob("wandb/offline-run-*-abc/run-abc.wandb")
    assert b"adloco_round" in path.read_bytes()


def test_a_missing_package_is_an_error_before_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda _: None)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"pip install -c constraints.txt '.\[tensorboard\]'"):
        check_installed(["tensorboard"])
    link = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWGRUrSpTUuQ3RvaTcfBNG2iJGtQJJ5ha8z3hstsXNbAVY"
    command = ["join", "--initial-peers", link, "--workdir", str(tmp_path / "peer"), "--peer-set", "trackers=[wandb]"]
    assert main(command) == 2
    said = capsys.readouterr()
    assert "pip install -c constraints.txt '.[wandb]'" in said.err + said.out
    assert not (tmp_path / "peer").exists()


def test_the_setting_names_what_is_accepted() -> None:
    assert load_peer(None, ["trackers=[tensorboard, wandb]"]).value.trackers == ("tensorboard", "wandb")
    with pytest.raises(ConfigError, match="tensorboard, wandb"):
        load_peer(None, ["trackers=[mlflow]"])


def test_every_tracker_has_an_extra_of_its_name() -> None:
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    for name, package in trackers.PACKAGES.items():
        assert f'\n{name} = ["{package}' in project


def test_the_first_peers_have_curves_of_their_own_and_those_that_come_later_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tracker keeps a curve for each name that it ever got."""
    monkeypatch.setattr(tracking, "MAX_PEERS", 2)

    def uplinks(*peers: str) -> Measure:
        return Measure(
            name="adloco_uplink", unit="", meaning="", words="", label_names=("peer",), samples={(peer,): 1.0 for peer in peers}
        )

    seen: set[str] = set()
    assert [*flat([uplinks("a", "b")], seen)] == ["adloco_uplink/a", "adloco_uplink/b"]
    assert [*flat([uplinks("c", "b", "d")], seen)] == ["adloco_uplink/b"] and seen == {"a", "b"}
    assert "adloco_peers/alive" in flat(measures(Status()), seen), "what is not about one peer"
