"""The pure parts of `python -m benchmarks.sizes`, and a run of seconds on rows of another vocabulary."""

from dataclasses import replace
from math import log
from pathlib import Path

import numpy as np
import pytest

from adloco_p2p.config.load import load_run
from adloco_p2p.data.indexing import IndexedRows
from adloco_p2p.data.packing import pack
from adloco_p2p.training.model import build_model
from benchmarks import sizes
from benchmarks.method.rows import TUNING_SEED, diloco
from benchmarks.method.run import BASE, run_row, settings_of
from benchmarks.package_text import LENGTH, tokenized
from benchmarks.sizes import FIXED, SAMPLES, SCALE, TUNED, tuned_rows, tuning
from benchmarks.text_runs import COUNTED, Runs, run_table

LOSSES = {"1.5e-3": 4.0, "3e-3": 5.0, "6e-3": 3.0, "1.2e-2": 6.0, "1.3": 2.0, "1.7": 3.0, "2.5": 1.0, "2.4e-2": 0.5}
"""Of the tuning seed, by the constant; 6e-3 is the best rate, 2.5 the best eta, and 2.4e-2 Muon's best rate."""


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    """With a made-up tuning."""
    scale = replace(SCALE, kept=tmp_path / "kept.jsonl.gz")
    runs = Runs(scale, tmp_path / "own.jsonl", text="some text")
    for candidates in tuning(runs):
        for constant, row in candidates.items():
            runs.keep(runs.key(row, TUNING_SEED), {"row": row.name, "loss": LOSSES[constant]})
    return runs


def test_each_tuning_goes_on_from_the_best_constants_so_far(runs: Runs) -> None:
    settings = {row.name: set(row.settings) for row in tuned_rows(runs)}
    others = {name for name, found in settings.items() if "inner.learning_rate=6e-3" not in found}
    assert others == {sizes.MUON, sizes.LARGER}
    assert {"batch.initial_batch=16", "inner.learning_rate=0.00849"} <= settings[sizes.LARGER]
    assert "batch.eta=2.5" in settings[TUNED]
    assert {"batch.eta=2.5", "inner.learning_rate=2.4e-2", "inner.kind=muon"} <= settings[sizes.MUON]


def test_every_row_trains_the_same_model_on_twenty_tokens_a_parameter(runs: Runs) -> None:
    for row in tuned_rows(runs):
        run = load_run(BASE, settings_of(row, 1, samples=SAMPLES)).value
        model = build_model(run.model, vocab_size=SCALE.vocab_size, sequence_length=run.data.sequence_length, seed=0)
        assert sum(parameter.numel() for parameter in model.parameters()) == 252_144
        assert run.data.sequence_length == LENGTH
    assert pytest.approx(20, rel=0.02) == SAMPLES * LENGTH / 252_144


def test_another_text_has_other_records(runs: Runs, tmp_path: Path) -> None:
    row = tuned_rows(runs)[0]
    assert runs.find(row, TUNING_SEED) is not None
    assert Runs(runs.scale, tmp_path / "own.jsonl", text="other text").find(row, TUNING_SEED) is None


def test_the_table_by_hand(runs: Runs) -> None:
    """Two tokens a byte; differences are paired by seed."""
    runs.keep(COUNTED, {"text": "some text", "bytes_per_token": 2.0, "losses": {"1": 6.0, "2": 5.0, "3": 4.5}})
    first, second = tuned_rows(runs)[:2]
    for row, seed, loss in ((first, 1, 4.0), (first, 2, 5.0), (second, 2, 5.25)):
        runs.keep(
            runs.key(row, seed), {"seed": seed, "loss": loss, "rounds": 10, "inner_steps": 320, "bytes_per_peer": 8_000_000}
        )
    lines = run_table(runs, tuned_rows(runs), [1, 2, 3])
    assert lines[2:] == [
        f"| {FIXED} | 2 | 4.500 +- 6.353 | 2.250 |  | 10 | 320 | 8 |",
        f"| {TUNED} | 1 | 5.250 | 2.625 | 0.250 | 10 | 320 | 8 |",
        "| table of 1-grams | | 6.000 | 3.000 | | | | |",
        "| table of 2-grams | | 5.000 | 2.500 | | | | |",
        "| table of 3-grams | | 4.500 | 2.250 | | | | |",
    ]


def test_the_vocabulary_is_that_of_the_training_side() -> None:
    """Merges come from the first side alone, so a word of the other stays in bytes."""
    training, heldout = tokenized([["spam spam", "spam spam"], ["spam eggs"]], 4096)
    assert training.tolist().count(0) == 1  # between two documents; the packer ends the last one
    assert len(training) < len("spam spam")
    assert len(heldout) > len("eggs")


def test_a_run_on_given_rows_starts_from_their_vocabulary() -> None:
    rng = np.random.default_rng(0)
    parts = [
        pack([rng.integers(1, 500, size=64 * count)], sequence_length=64, end_of_document=0, dtype=np.dtype(np.uint16))
        for count in (64, 8)
    ]
    row = diloco(8, 4)
    record = run_row(row, 1, samples=32, text=(IndexedRows(training=parts[0], heldout=parts[1]), 500), points=1)
    assert record["rounds"] == 1
    assert len(record["curve"]) == 1
    assert record["loss"] == pytest.approx(log(500), rel=0.05)
