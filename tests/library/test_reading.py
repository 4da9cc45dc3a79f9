"""A run without a ledger, read from a directory by the objects that `import adloco_p2p` offers. The e2e tests read ledgers."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

import adloco_p2p
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.telemetry import Merge, Round
from adloco_p2p.errors import ConfigError
from adloco_p2p.runtime.adapters.run_history import status_of_all
from tests.views import synthetic

ROUNDS = 24


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "run.json").write_bytes(canonical.encode(RunConfig(name="made up")))
    lines = [json.dumps(event) for event in synthetic.events(ROUNDS)]
    (tmp_path / "events.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_rounds_come_in_order_one_row_per_instance(directory: Path) -> None:
    run = adloco_p2p.Run(directory)
    expected = [(number, instance) for number in range(ROUNDS) for instance in synthetic.live(number)]
    assert [(row.round, row.instance) for row in run.rounds] == expected
    assert len(expected) > ROUNDS and repr(run).endswith(f": made up, {ROUNDS} rounds")
    made = next(e for e in synthetic.events(ROUNDS) if e["event"] == "round" and (e["round"], e["instance"]) == (5, 1))
    row = next(row for row in run.rounds if (row.round, row.instance) == (5, 1))
    assert (row.loss, row.heldout_loss, row.samples) == (made["loss"], made["heldout_loss"], made["samples"])
    assert row.contributors == tuple(made["hosts"]) and row.effective_batch == made["effective_batch"]


def test_an_evaluation_that_came_late_is_part_of_its_round(directory: Path) -> None:
    path, last = directory / "events.jsonl", ROUNDS - 1
    events = [json.loads(line) for line in path.read_text().splitlines()]
    (round_,) = [e for e in events if e["event"] == "round" and (e["round"], e["instance"]) == (last, 0)]
    round_["heldout_loss"] = None
    late = {name: round_[name] for name in ("round", "instance", "time")}
    events.append({**late, "event": "held_out", "peer": synthetic.THIS, "heldout_loss": 0.125})
    path.write_text("".join(f"{json.dumps(event)}\n" for event in events))
    run = adloco_p2p.Run(directory)
    (row,) = [row for row in run.rounds if (row.round, row.instance) == (last, 0)]
    assert row.heldout_loss == 0.125
    status = status_of_all(run.config, run.entries, run.stamped_events)
    expected = {key: result.heldout_loss for key, result in status.results.items()}
    assert {(row.round, row.instance): row.heldout_loss for row in run.rounds} == expected


def test_losses_are_those_of_the_rounds(directory: Path) -> None:
    run = adloco_p2p.Run(directory)
    assert sorted(run.losses) == [0, 1, 2]
    assert [number for number, _, _ in run.losses[1]] == [n for n in range(ROUNDS) if 1 in synthetic.live(n)]  # type: ignore[index]


def test_without_a_ledger_the_contributions_are_those_of_this_peer(directory: Path) -> None:
    run = adloco_p2p.Run(directory)
    (row,) = run.contributors
    assert row.peer == synthetic.THIS and row.num_rounds == ROUNDS and row.last_round == ROUNDS - 1
    assert row.samples == sum(event.samples for event in run.events if isinstance(event, Round))
    assert run.entries == () and run.reports == () and len(run.plans) == 1


def test_events_are_objects_with_a_time(directory: Path) -> None:
    run = adloco_p2p.Run(directory)
    assert len(run.stamped_events) == len(synthetic.events(ROUNDS)) and run.stamped_events[0].time == synthetic.START
    assert [event.round for event in run.events if isinstance(event, Merge)]
    assert run.config.name == "made up" and run.digest == run.config.digest


def test_a_frame_has_a_column_per_field(directory: Path) -> None:
    run = adloco_p2p.Run(directory)
    table = adloco_p2p.frame(run.rounds)
    assert len(table) == len(run.rounds) and {"round", "instance", "loss", "heldout_loss"} <= set(table.columns)
    assert math.isclose(table["loss"].mean(), sum(row.loss for row in run.rounds if row.loss) / len(run.rounds))


def test_a_directory_without_a_run_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=str(tmp_path)) as refused:
        adloco_p2p.Run(tmp_path)
    assert refused.value.code == "E204"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        adloco_p2p.nonsense  # noqa: B018


def test_importing_the_package_and_reading_a_run_need_no_torch() -> None:
    code = "import sys, adloco_p2p\nassert len([n for n in sys.modules if n.startswith('adloco_p2p')]) == 1\nadloco_p2p.Run\n"
    check = "assert not {'torch', 'hivemind', 'transformers', 'pandas'} & sys.modules.keys(), sorted(sys.modules)"
    subprocess.run([sys.executable, "-c", code + check], check=True)


def test_a_shell_completes_names_that_were_not_used_yet() -> None:
    listed = subprocess.run(
        [sys.executable, "-c", "import adloco_p2p; print(*dir(adloco_p2p))"], capture_output=True, text=True, check=True
    )
    assert set(adloco_p2p.__all__) <= set(listed.stdout.split())
