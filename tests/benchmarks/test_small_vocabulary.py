"""The pure parts of `python -m benchmarks.small_vocabulary`."""

from dataclasses import replace
from pathlib import Path

import pytest

from adloco_p2p.config.load import load_run
from adloco_p2p.core.planning.batch_ramp import ramp_batches
from adloco_p2p.training.model import build_model
from benchmarks.method.rows import TUNING_SEED, Row
from benchmarks.method.run import BASE, settings_of
from benchmarks.package_text import LENGTH
from benchmarks.small_vocabulary import (
    CAPPED,
    DOUBLING,
    EARLY,
    GENTLE,
    LINEAR,
    PARAMETERS,
    PRICES,
    SAMPLES,
    SCALE,
    SEESAW,
    SLOW,
    SLOW_CAPPED,
    SLOW_LOW,
    START,
    STEEP,
    TEST,
    TWO,
    H,
    rows,
    tuned_rows,
    tuning,
)
from benchmarks.text_runs import Runs, price_table


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


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    """With a made-up tuning."""
    runs = Runs(replace(SCALE, kept=tmp_path / "kept.jsonl.gz"), tmp_path / "own.jsonl", text="some text")
    for rate, row in tuning().items():
        runs.keep(runs.key(row, TUNING_SEED), {"loss": 1.0 if rate == "2e-2" else 2.0})
    return runs


def test_growing_batches_start_as_the_constant_one_and_differ_in_what_their_names_say(runs: Runs) -> None:
    found = {row.name: load_run(BASE, list(row.settings)).value for row in tuned_rows(runs)}
    batches = {name: (run.batch.initial_batch, run.inner.learning_rate) for name, run in found.items()}
    for batch, name in ((32, f"DiLoCo B 32 H {H}"), (64, f"DiLoCo B 64 H {H}"), (64, EARLY)):
        assert batches.pop(name) == (batch, pytest.approx(0.02 * (batch / START) ** 0.5, rel=0.01))
    assert set(batches.values()) == {(START, 0.02)}
    assert {run.inner.kind for run in found.values()} == {"muon"}
    tests = {name: (run.batch.eta, run.batch.max_batch) for name, run in found.items() if run.batch.test == "norm"}
    assert tests == {
        TEST: (1.7, 64),
        GENTLE: (2.5, 64),
        CAPPED: (1.7, 36),
        SLOW: (1.7, 128),
        SLOW_CAPPED: (1.7, 40),
        SLOW_LOW: (1.7, 29),
        TWO: (1.7, 64),
    }
    bounds = {name: run.batch.growth_cap for name, run in found.items() if run.batch.test == "norm"}
    assert bounds == {TEST: 1.5, GENTLE: 1.5, CAPPED: 1.5, SLOW: 1.07, SLOW_CAPPED: 1.07, SLOW_LOW: 1.07, TWO: 1.5}
    assert {name: run.batch.max_batch for name, run in found.items() if run.batch.test == "schedule"} == {
        LINEAR: 64,
        STEEP: 128,
        SEESAW: 64,
        DOUBLING: 64,
    }
    warm_ups = {row.name: warm_up_of(row) for row in tuned_rows(runs)}
    assert warm_ups.pop(EARLY) == (None, 64 * START)
    assert set(warm_ups.values()) == {(64, None)}


def warm_up_of(row: Row) -> tuple[int | None, int | None]:
    """Return the steps and the samples of the warm-up, of which one is set."""
    run = load_run(BASE, settings_of(row, 1, samples=SAMPLES)).value
    return run.inner.warmup_steps, run.inner.warmup_samples


def test_the_ramp_of_each_price_takes_about_the_rounds_that_it_is_planned_for(runs: Runs) -> None:
    """Of 165 of DiLoCo: 2.1 and 3.4 times fewer."""
    for row in tuned_rows(runs):
        if row.name in (LINEAR, STEEP):
            rules = load_run(BASE, list(row.settings)).value.batch
            rounds = len(ramp_batches(rules, samples=SAMPLES, inner_steps=H, final_fraction=0.1))
            assert SAMPLES / (START * H) / rounds == pytest.approx(3.4 if row.name == STEEP else 2.1, rel=0.05)


def test_a_price_is_compared_on_the_seeds_that_both_rows_have(runs: Runs) -> None:
    named = {row.name: row for row in tuned_rows(runs)}
    for name, seed, loss in ((TEST, 1, 2.0), (TEST, 2, 2.5), (STEEP, 2, 2.25), (STEEP, 3, 9.0), (LINEAR, 1, 1.0)):
        runs.keep(runs.key(named[name], seed), {"seed": seed, "loss": loss, "rounds": 50, "bytes_per_peer": 80_000_000})
    pairs = [(named[test], named[schedule]) for test, schedule in PRICES]
    assert price_table(runs, pairs, [1, 2, 3], comparisons=len(pairs))[2:] == [
        f"| {TEST} | {STEEP} | 1 | 50 : 50 | 80 : 80 | 2.500 : 2.250 | 0.250 | 0.250 | 0.250 |",
    ]


def test_planned_prices_have_a_corrected_interval_and_exploratory_ones_have_none(runs: Runs) -> None:
    """Differences 0.25 and 0.75: standard error 0.25, times 12.706 for one interval and 25.452 for two."""
    named = {row.name: row for row in tuned_rows(runs)}
    for name, seed, loss in ((TEST, 1, 2.5), (TEST, 2, 3.0), (STEEP, 1, 2.25), (STEEP, 2, 2.25), (LINEAR, 1, 1.0)):
        runs.keep(runs.key(named[name], seed), {"seed": seed, "loss": loss, "rounds": 50, "bytes_per_peer": 80_000_000})
    planned, exploratory = [(named[TEST], named[STEEP])], [(named[STEEP], named[LINEAR])]
    lines = price_table(runs, planned, [1, 2], comparisons=2, exploratory=exploratory)
    assert [line.split(" | ")[-3:] for line in lines[2:]] == [
        ["0.500 +- 3.177", "0.500 +- 6.363", "0.250, 0.750 |"],
        ["1.250", "", "1.250 |"],
    ]
