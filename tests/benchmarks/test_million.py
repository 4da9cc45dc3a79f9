"""The parts of `python -m benchmarks.million` that train nothing, and its driver with runs that are made up."""

import argparse
from collections.abc import Callable
from dataclasses import replace
from math import floor
from multiprocessing.pool import ThreadPool
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from adloco_p2p.config.load import load_run
from adloco_p2p.core.planning.batch_ramp import ramp_batches
from adloco_p2p.data.indexing import IndexedRows
from adloco_p2p.data.packing import pack
from adloco_p2p.training.model import build_model
from benchmarks import million
from benchmarks.method.rows import TUNING_SEED
from benchmarks.method.run import BASE, settings_of
from benchmarks.method.store import Record
from benchmarks.million import (
    BOUND,
    HELD,
    HOSTS,
    KINDS,
    PARAMETERS,
    SAMPLES,
    SCALE,
    SLOW_CAP,
    START,
    H,
    Job,
    exploratory,
    planned,
    tuning,
    wanted,
)
from benchmarks.package_text import LENGTH, Prepared, keep_prepared, kept_prepared
from benchmarks.text_runs import Runs

BEST = {"AdamW": "3e-3", "Muon": "1e-2"}
ROWS = [row for kind, rate in BEST.items() for row in (*planned(kind, rate), *exploratory(kind, rate))]


def test_every_row_trains_the_same_model_on_twenty_tokens_a_parameter() -> None:
    for row in ROWS:
        run = load_run(BASE, settings_of(row, 1, samples=SAMPLES)).value
        assert run.model.precision == "float32"
        assert run.data.sequence_length == LENGTH
        assert (run.batch.initial_batch if run.batch.test == "constant" else run.batch.max_batch) / HOSTS <= HELD
    model = build_model(run.model, vocab_size=SCALE.vocab_size, sequence_length=LENGTH, seed=0)
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS
    assert pytest.approx(20, rel=0.01) == SAMPLES * LENGTH / PARAMETERS


def test_three_ways_take_about_half_the_rounds_of_the_first() -> None:
    """As the benchmark's first lines say."""
    first, slow, ramp, double = (load_run(BASE, list(row.settings)).value.batch for row in planned("AdamW", "3e-3"))
    assert SAMPLES / (first.initial_batch * H) == 200
    assert SAMPLES / (double.initial_batch * H) == 100
    assert len(ramp_batches(ramp, samples=SAMPLES, inner_steps=H, final_fraction=0.1)) == 94
    assert (slow.growth_cap, slow.max_batch) == (float(BOUND), SLOW_CAP)
    rounds, done, batch = 0, 0, START
    while done < SAMPLES:
        batch = min(SLOW_CAP, floor(slow.growth_cap * batch)) if rounds >= 8 else batch
        rounds, done = rounds + 1, done + H * batch
    assert rounds == 94


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    scale = replace(SCALE, kept=tmp_path / "kept.jsonl.gz")
    monkeypatch.setattr(million, "SCALE", scale)
    return Runs(scale, tmp_path / "own.jsonl", text=f"some text in {SCALE.vocab_size} tokens")


def tuned(runs: Runs, kind: str) -> None:
    for rate, row in tuning(kind).items():
        runs.keep(runs.key(row, TUNING_SEED), {"loss": 1.0 if rate == BEST[kind] else 2.0})


def test_the_rows_of_an_optimizer_wait_for_its_tuning(runs: Runs) -> None:
    assert {job.seed for job in wanted(runs, [1, 2])} == {TUNING_SEED}
    tuned(runs, "AdamW")
    later = [job for job in wanted(runs, [1, 2]) if job.seed != TUNING_SEED]
    assert {job.row.name.rpartition(", ")[2] for job in later} == {"AdamW"}
    assert all("inner.learning_rate=3e-3" in job.row.settings or "DiLoCo B 64" in job.row.name for job in later)
    tuned(runs, "Muon")
    jobs = wanted(runs, [1, 2])
    assert [job.seed for job in jobs] == [*[1] * 4, *[2] * 4, *[1] * 4, *[2] * 4, *[1] * 2, *[2] * 2]
    (constant, test, ramp, _), (longest, muon_test, *_) = planned("AdamW", "3e-3"), planned("Muon", "1e-2")
    assert {job.row.name for job in jobs[:4]} == {row.name for row in (constant, test, ramp, muon_test)}
    assert jobs[8].row == longest


def test_the_longest_run_is_diloco_with_muon() -> None:
    costs = {row.name: Job(row, 1).cost for row in ROWS}
    assert max(costs, key=costs.__getitem__) == f"DiLoCo B {START} H {H}, Muon"
    assert Job(ROWS[0], TUNING_SEED).cost == costs[ROWS[0].name] / 4


# --- the driver ------------------------------------------------------------------------------------------------------


class Clock(SimpleNamespace):
    """Goes on by a run's seconds when one is trained."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def drive(runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], list[Job]]:
    """The driver, one run at a time, each of the seconds of its cost; gives the runs that were begun."""
    clock, begun = Clock(), list[Job]()

    def train(job: Job, _text: Path, _device: str) -> Record:
        begun.append(job)
        if "ramp" in job.row.name:
            raise RuntimeError("no room")
        clock.now += job.cost
        return {"seed": job.seed, "loss": job.cost, "rounds": 1}

    monkeypatch.setattr(million, "time", clock)
    monkeypatch.setattr(million, "train", train)
    monkeypatch.setattr(million, "get_context", lambda _: SimpleNamespace(Pool=lambda count, **_: ThreadPool(count)))
    monkeypatch.setattr(million, "kept_text", lambda _: (None, "some text", 2.0))

    def driven(seconds: float) -> list[Job]:
        begun.clear()
        output = tmp_path / "own.jsonl"
        million.train_all(argparse.Namespace(output=output, text=output, device="cpu", processes=1, seconds=seconds, seeds=[1]))
        return list(begun)

    return driven


def test_records_are_kept_as_they_come_and_a_run_that_fails_is_not_begun_again(
    drive: Callable[[float], list[Job]], runs: Runs, tmp_path: Path
) -> None:
    begun = drive(1e9)
    assert len(begun) == len(set(begun)) == sum(map(len, million.RATES.values())) + 10
    after = Runs(runs.scale, tmp_path / "own.jsonl", text=runs.text)
    assert {job.row.name for job in wanted(after, [1])} == {f"linear ramp {START} -> 128, {kind}" for kind in KINDS}


def test_no_run_begins_that_would_outlast_the_time(drive: Callable[[float], list[Job]]) -> None:
    """The tuning fits, and of what follows only what is no longer than the rest of the time."""
    trial = sum(Job(row, TUNING_SEED).cost for kind in KINDS for row in tuning(kind).values())
    left = Job(planned("AdamW", "3e-3")[3], 1).cost * 1.01
    assert [job.row.name for job in drive(trial + left) if job.seed == 1][-1] == f"DiLoCo B 64 H {H}, AdamW"
    assert drive(left) != []


# --- the text --------------------------------------------------------------------------------------------------------


def test_a_text_comes_out_of_its_file_as_it_went_in(tmp_path: Path) -> None:
    rng, dtype = np.random.default_rng(0), np.dtype(np.uint16)
    parts = [
        pack([rng.integers(1, 1000, size=LENGTH * 3 + 7)], sequence_length=LENGTH, end_of_document=0, dtype=dtype)
        for _ in range(2)
    ]
    text: Prepared = IndexedRows(training=parts[0], heldout=parts[1]), "digest", 2.5
    keep_prepared(tmp_path / "text.npz", text)
    rows, digest, size = kept_prepared(tmp_path / "text.npz", 1024)
    assert (digest, size) == ("digest", 2.5)
    for before, after in ((parts[0], rows.training), (parts[1], rows.heldout)):
        places = np.arange(before.num_rows)
        assert before.num_rows == after.num_rows
        assert before.gather(places).labels.equal(after.gather(places).labels)
