"""The parts of `python -m benchmarks.wan.methods`: its runs, its devices, what it makes of events, its table and its plot."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adloco_p2p.config.load import load_run
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model.rules import BatchRules
from adloco_p2p.training.hosting import Hosting
from benchmarks import paced
from benchmarks.method.store import append_record, read_records
from benchmarks.nodes import Event, write_document
from benchmarks.nodes import paced as paced_program
from benchmarks.wan import methods
from benchmarks.wan.course import Course
from benchmarks.wan.methods import (
    BATCH,
    DILOCO,
    HOSTS,
    INNER_STEPS,
    MAX_BATCH,
    SAMPLES,
    WAYS,
    Job,
    Way,
    document_of,
    loss_at,
    plot,
    record_of,
    table,
)

ADLOCO, RAMP = WAYS[1:]


def run_of(way: Way, folder: Path) -> RunConfig:
    return load_run(write_document(folder, document_of(way, samples=SAMPLES, seed=7)), []).value


def test_the_ways_differ_in_the_batch_alone(tmp_path: Path) -> None:
    """Equal samples, equal H, equal outer steps, equal rows of evaluation; the rate follows the root of a batch that grows."""
    runs = {way.name: run_of(way, tmp_path) for way in WAYS}
    for run in runs.values():
        assert (run.work.samples, run.work.rounds, run.work.inner_steps) == (SAMPLES, None, INNER_STEPS)
        assert (run.batch.initial_batch, run.seed, run.evaluation.seed) == (BATCH, 7, 0)
    alike = [
        replace(run, name="", mode="adloco", batch=BatchRules(), inner=replace(run.inner, batch_scaling="none"))
        for run in runs.values()
    ]
    assert alike[0] == alike[1] == alike[2]
    assert [run.inner.batch_scaling for run in runs.values()] == ["none", "sqrt", "sqrt"]
    assert [run.batch.test for run in runs.values()] == ["constant", "norm", "schedule"]
    assert [run.batch.max_batch for run in runs.values()] == [BATCH, MAX_BATCH, MAX_BATCH]
    assert runs["ramp"].batch.ramp == "linear" and runs["ramp"].batch.ramp_samples is None
    shipped = load_run(write_document(tmp_path, {"name": "shipped", "mode": "adloco"}), []).value.batch
    assert replace(runs["AdLoCo"].batch, initial_batch=0, max_batch=0) == replace(shipped, initial_batch=0, max_batch=0)
    assert (BATCH // HOSTS, MAX_BATCH % HOSTS, SAMPLES % (BATCH * INNER_STEPS)) == (4, 0, 0)


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 1e-6)


@pytest.mark.parametrize(
    ("step_seconds", "row_seconds", "rows", "seconds"), [(0.4, 0.0, 9, 0.4), (0.0, 0.1, 4, 0.4), (0.2, 0.1, 10, 1.2)]
)
def test_a_step_of_a_paced_device_takes_longer_for_each_row(
    step_seconds: float, row_seconds: float, rows: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, told = Clock(), []

    def compute(self: Any, effect: Any, *, on_progress: Any, **given: Any) -> None:
        for step in (1, 2, 3):
            on_progress(step, 0.0, 1)
            told.append(clock.now - 100.0)

    monkeypatch.setattr(Hosting, "run_inner", compute)
    monkeypatch.setattr(paced, "time", clock)
    paced.pace(step_seconds, row_seconds=row_seconds)
    effect = SimpleNamespace(share=SimpleNamespace(effective_batch=rows))
    given: Any = {"should_stop": lambda: False, "is_enough": lambda steps: False, "on_progress": lambda *_: None}
    Hosting.run_inner(SimpleNamespace(), effect, **given)  # type: ignore[arg-type]
    assert told == pytest.approx([seconds, 2 * seconds, 3 * seconds], abs=1e-4)


def test_the_command_of_a_paced_node_names_what_its_device_needs() -> None:
    assert paced_program(0.0) == ("adloco_p2p",)
    assert paced_program(0.4) == ("benchmarks.paced", 0.4)
    assert paced_program(0.0, row_seconds=0.1) == ("benchmarks.paced", "--row-seconds", 0.1, 0.0)


def round_event(number: int, ended: float, *, rows: int, loss: float | None = None) -> Event:
    seconds = {"training": 6.0, "averaging": 3.0}
    done = {"samples": 16 * rows, "requested_batch": 2 * rows, "effective_batch": 2 * rows, "hosts": "ab"}
    return {
        "event": "round",
        "round": number,
        "time": ended,
        "heldout_loss": loss,
        "seconds": seconds,
        "is_void": False,
        **done,
    }


def peer_events(late: float, sent: int) -> list[Event]:
    events = [{"event": "started", "time": 90.0, "parameters": 1000}]
    events += [round_event(0, 110.0 + late, rows=4), round_event(1, 120.0 + late, rows=6, loss=3.0 if late else None)]
    events += [round_event(2, 130.0 + late, rows=8, loss=2.5)]
    events += [{"event": "finished", "time": 131.0, "round": 3, "heldout_loss": 2.5}]
    return events + [
        {"event": "traffic", "time": 110.0 + 10 * number, "round": number, "sent": {"averaging": sent, "gossip": 10}}
        for number in range(4)
    ]


def test_a_record_of_two_peers_by_hand() -> None:
    """A point of the curve is there when the first host has the parameters, with what all hosts had done by then."""
    course = Course()
    for second in range(90, 141):
        course.times.append(float(second))
        counted = {"sent_bytes": 100 * (second - 90), "late": 0, "received_packets": 1}
        course.counters.append({host: SimpleNamespace(**counted) for host in "ab"})  # type: ignore[misc]
        course.loads.append(2.0)
        course.busy.append(0.5)
    record = record_of({"a": peer_events(0.0, 90), "b": peer_events(1.0, 190)}, course)
    assert record["curve"] == [[320, 2, 32, 300, 19.0, 3.0], [576, 3, 48, 450, 29.0, 2.5]]
    assert (record["rounds"], record["samples"], record["inner_steps"], record["loss"]) == (3, 576, 48, 2.5)
    assert (record["seconds"], record["bytes_per_peer"], record["wire_bytes_per_peer"]) == (30.0, 600, 3000)
    assert (record["batches"], record["phases"]["averaging"], record["partial"]) == ([8, 12, 16], 3.0, 0)


def made_up(way: Way, seed: int, *, seconds: float, loss: float, mbit: float = 20.0) -> dict[str, Any]:
    curve = [[1024, 4, 64, 1_000_000, 0.1 * seconds, loss + 0.9], [SAMPLES, 40, 640, 9_000_000, seconds, loss]]
    stated = {"way": way.name, "mbit": mbit, "seed": seed, "scale": 20.0, "row_seconds": 0.05, "asked_samples": SAMPLES}
    done = {"loss": loss, "rounds": 40, "samples": SAMPLES, "inner_steps": 640, "seconds": seconds}
    sent = {"bytes_per_peer": 9_000_000, "wire_bytes_per_peer": 12_000_000}
    return {**stated, **done, **sent, "load": 2.4, "phases": {"averaging": 4.04}, "curve": curve}


def test_the_table_shows_what_each_way_has_when_the_fastest_of_its_seed_and_link_ends() -> None:
    """And with the bytes of the one that sends least: DiLoCo, at 5 MB, half-way between its two points of 1 and 9."""
    records = [made_up(DILOCO, 1, seconds=400.0, loss=2.0), made_up(RAMP, 1, seconds=200.0, loss=2.1)]
    records[1]["bytes_per_peer"] = 5_000_000
    records += [made_up(ADLOCO, 1, seconds=300.0, loss=2.2, mbit=100.0)]
    assert loss_at(records[0], 200.0) == pytest.approx(2.5)
    constant, ramp, other = table(records)[2:]
    assert (
        constant
        == "| DiLoCo | 20 Mbit/s | 1 | 2 | 40 | 64% | 4.0 | 400 | 9.0 | 12.0 | 2.000 |  | 2.875 | 2.750 | 2.500 |  | 2.450 |  |"
    )
    assert ramp.endswith("| 200 | 5.0 | 12.0 | 2.100 | 0.100 | 2.850 | 2.600 | 2.100 | -0.400 | 2.100 | -0.350 |")
    assert other.startswith("| AdLoCo | 100 Mbit/s |") and other.endswith("| 2.200 |  | 2.200 |  |")
    with pytest.raises(AssertionError, match="same devices"):
        table([*records, made_up(RAMP, 2, seconds=220.0, loss=2.1) | {"scale": 10.0}])


def test_differences_are_paired_by_seed() -> None:
    records = [made_up(DILOCO, seed, seconds=400.0, loss=2.0 + seed / 10) for seed in (1, 2)]
    records += [made_up(RAMP, seed, seconds=300.0, loss=2.1 + seed / 10) for seed in (1, 2, 3)]
    ramp = table(records)[3]
    assert "| 3 |" in ramp and "| 0.100 +- 0.000 |" in ramp


def test_without_records_there_is_a_table_without_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no plot, until there is something to draw."""
    monkeypatch.setattr(methods, "KEPT", tmp_path / "methods_real.jsonl.gz")
    monkeypatch.setattr(methods, "PLOT", tmp_path / "real_swarm.svg")
    page, own = tmp_path / "time.md", tmp_path / "own.jsonl"
    page.write_text("text\n<!-- methods, real -->\n<!-- end -->\n")
    methods.tabulate(SimpleNamespace(runs=[own]))  # type: ignore[arg-type]
    assert "| way | link |" in page.read_text() and not methods.PLOT.exists()
    for way in WAYS:
        append_record(own, {"key": way.name, **made_up(way, 1, seconds=300.0, loss=2.0)})
    methods.tabulate(SimpleNamespace(runs=[own]))  # type: ignore[arg-type]
    assert "| ramp | 20 Mbit/s |" in page.read_text() and len(read_records(methods.KEPT)) == len(WAYS)
    assert methods.PLOT.read_text().count("Mbit/s") == len(WAYS)


def test_the_plot_has_a_line_for_each_way_behind_each_link(tmp_path: Path) -> None:
    records = [made_up(way, 1, seconds=300.0, loss=2.0, mbit=mbit) for way in WAYS for mbit in methods.LINKS_MBIT]
    plot(records, tmp_path / "a.svg")
    plot(records, tmp_path / "b.svg")
    drawn = (tmp_path / "a.svg").read_text()
    assert drawn.count("Mbit/s") == 2 * len(WAYS) and "minutes" in drawn and "MB sent per peer" in drawn


def test_what_the_records_have_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Job] = []

    def measure(job: Job, out: Path, *, minutes: float) -> dict[str, Any]:
        ran.append(job)
        return {"way": job.way.name}

    monkeypatch.setattr(methods, "measure", measure)
    monkeypatch.setattr(methods, "KEPT", tmp_path / "kept.jsonl.gz")
    asked = {"out": tmp_path, "output": tmp_path / "own.jsonl", "seeds": [1, 2], "links": [20.0], "ways": ["DiLoCo", "ramp"]}
    asked |= {"scale": 20.0, "row_seconds": 0.1, "samples": SAMPLES, "minutes": 1.0}
    methods.run(SimpleNamespace(**asked))  # type: ignore[arg-type]
    assert [(job.way.name, job.seed) for job in ran] == [("DiLoCo", 1), ("ramp", 1), ("DiLoCo", 2), ("ramp", 2)]
    methods.run(SimpleNamespace(**asked))  # type: ignore[arg-type]
    assert len(ran) == 4
    methods.run(SimpleNamespace(**asked | {"scale": 10.0}))  # type: ignore[arg-type]
    assert len(ran) == 8
