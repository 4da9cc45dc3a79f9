"""The pure parts of `python -m benchmarks.small_vocabulary`."""

from dataclasses import replace
from pathlib import Path

import pytest

from adloco_p2p.config.load import load_run
from adloco_p2p.training.model import build_model
from benchmarks.method.rows import TUNING_SEED
from benchmarks.method.run import BASE, settings_of
from benchmarks.package_text import LENGTH
from benchmarks.small_vocabulary import FIXED, LARGER, LARGEST, PARAMETERS, SAMPLES, SCALE, START, H, rows, tuned_rows, tuning
from benchmarks.text_runs import Runs


def test_every_row_trains_the_same_model_on_twenty_tokens_a_parameter() -> None:
    for row in rows("2e-2"):
        run = load_run(BASE, settings_of(row, 1, samples=SAMPLES)).value
        model = build_model(run.model, vocab_size=SCALE.vocab_size, sequence_length=run.data.sequence_length, seed=0)
        assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS
        assert run.data.sequence_length == LENGTH
    assert pytest.approx(20, rel=0.02) == SAMPLES * LENGTH / PARAMETERS


def test_runs_of_constant_batches_are_whole_rounds() -> None:
    for samples in (SAMPLES, SCALE.tuning_samples):
        assert samples % (START * H) == 0


def test_all_rows_but_the_larger_constant_batch_start_alike(tmp_path: Path) -> None:
    runs = Runs(replace(SCALE, kept=tmp_path / "kept.jsonl.gz"), tmp_path / "own.jsonl", text="some text")
    for rate, row in tuning().items():
        runs.keep(runs.key(row, TUNING_SEED), {"loss": 1.0 if rate == "2e-2" else 2.0})
    found = {row.name: load_run(BASE, list(row.settings)).value for row in tuned_rows(runs)}
    batches = {name: (run.batch.initial_batch, run.inner.learning_rate) for name, run in found.items()}
    assert batches.pop(LARGER) == (32, pytest.approx(0.02 * 2**0.5, rel=0.01))
    assert set(batches.values()) == {(START, 0.02)}
    assert {run.inner.kind for run in found.values()} == {"muon"}
    assert {run.batch.max_batch for name, run in found.items() if name not in {FIXED, LARGER}} == {LARGEST}
