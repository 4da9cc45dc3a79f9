"""The pure parts of `python -m benchmarks.tuned_larger`."""

from dataclasses import replace
from pathlib import Path

import pytest

from adloco_p2p.config.load import load_run
from benchmarks import small_vocabulary
from benchmarks.method.rows import TUNING_SEED
from benchmarks.method.run import BASE, settings_of
from benchmarks.small_vocabulary import FIXED, FULL_SEED, SAMPLES, SCALE, SEESAW, SLOW_LOW
from benchmarks.text_runs import COUNTED, Runs
from benchmarks.tuned_larger import (
    METHODS,
    alike_rows,
    candidates,
    full_candidates,
    full_rates,
    full_rows,
    row_of,
    tables,
    usual_rows,
)

BEST = {FIXED: "2e-2 and 1024", SLOW_LOW: "4e-2 and 512", SEESAW: "1e-2 and 2048"}
FULL_BEST = {FIXED: "1e-2 and 512", SLOW_LOW: "2e-2 and 1024", SEESAW: "5e-3 and 2048"}
"""The best of the runs of full length; of those that are tried first, the one with the same rate."""


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    """With a made-up tuning."""
    runs = Runs(replace(SCALE, kept=tmp_path / "kept.jsonl.gz"), tmp_path / "own.jsonl", text="some text")
    for rate, row in small_vocabulary.tuning().items():
        runs.keep(runs.key(row, TUNING_SEED), {"loss": 1.5 if rate == "2e-2" else 2.0})
    for method, best in BEST.items():
        for pair, row in candidates(method).items():
            runs.keep(runs.key(row, TUNING_SEED), {"loss": 1.0 if pair == best else 2.0})
    for method, best in FULL_BEST.items():
        for pair, row in full_rates(method).items():
            runs.keep(runs.key(row, FULL_SEED), {"loss": 1.5 if pair.split()[0] == best.split()[0] else 2.0})
        for pair, row in full_candidates(runs, method).items():
            if runs.find(row, FULL_SEED) is None or pair == best:
                runs.keep(runs.key(row, FULL_SEED), {"loss": 1.0 if pair == best else 2.0})
    return runs


def test_each_method_is_tuned_over_the_same_pairs_and_its_rows_differ_in_them_alone(runs: Runs) -> None:
    assert {method: [*candidates(method)] for method in METHODS} == {key: [*candidates(FIXED)] for key in METHODS}
    assert len(candidates(FIXED)) == 9
    for method, best in BEST.items():
        both = (alike_rows(runs)[method], usual_rows(runs)[method])
        tuned, usual = (load_run(BASE, settings_of(row, 1, samples=SAMPLES)).value for row in both)
        rate, _, samples = best.split()
        warm_up = tuned.inner.warmup_samples or small_vocabulary.START * (tuned.inner.warmup_steps or 0)
        assert (tuned.inner.learning_rate, warm_up) == (float(rate), int(samples))
        same = {name: getattr(usual.inner, name) for name in ("learning_rate", "warmup_steps", "warmup_samples")}
        assert replace(tuned, inner=replace(tuned.inner, **same)) == usual


def test_a_winner_with_the_usual_pair_is_the_row_that_was_run(runs: Runs) -> None:
    alike, usual = alike_rows(runs), usual_rows(runs)
    same = {method: runs.key(alike[method], 1) == runs.key(usual[method], 1) for method in METHODS}
    assert same == {FIXED: True, SLOW_LOW: False, SEESAW: False}


def test_at_full_length_three_rates_are_tried_then_two_warm_ups_of_the_best(runs: Runs) -> None:
    assert {method: [*full_candidates(runs, method)] for method in METHODS} == {
        FIXED: ["5e-3 and 1024", "1e-2 and 1024", "2e-2 and 1024", "1e-2 and 512", "1e-2 and 2048"],
        SLOW_LOW: ["5e-3 and 1024", "1e-2 and 1024", "2e-2 and 1024", "2e-2 and 512", "2e-2 and 2048"],
        SEESAW: ["5e-3 and 1024", "1e-2 and 1024", "2e-2 and 1024", "5e-3 and 512", "5e-3 and 2048"],
    }
    for method, best in FULL_BEST.items():
        rate, _, samples = best.split()
        assert full_rows(runs)[method].settings == row_of(method, rate, int(samples)).settings


def test_both_planned_differences_are_corrected_for_both(runs: Runs) -> None:
    """Differences 0.25 and 0.75: standard error 0.25; Student's t with one degree at 2.5 % is 25.452."""
    record = {"rounds": 50, "bytes_per_peer": 80_000_000, "inner_steps": 400}
    runs.keep(COUNTED, {"losses": {}, "bytes_per_token": 2.0})
    for seed, difference in ((1, 0.25), (2, 0.75)):
        for rows in (alike_rows(runs), full_rows(runs)):
            for method, loss in ((FIXED, 2.0), (SEESAW, 2.0), (SLOW_LOW, 2.0 + difference)):
                runs.keep(runs.key(rows[method], seed), {**record, "seed": seed, "loss": loss})
    made = tables(runs, [1, 2])
    for head, word in (("tuned larger", "tuned"), ("tuned at full length", "tuned at full length")):
        planned = [line.split(" | ") for line in made[f"{head} planned"][2:4]]
        assert [cells[:2] for cells in planned] == [[f"| {SLOW_LOW}, {word}", f"{name}, {word}"] for name in (SEESAW, FIXED)]
        assert {tuple(cells[-3:]) for cells in planned} == {("0.500 +- 3.177", "0.500 +- 6.363", "0.250, 0.750 |")}
