"""The pure parts of `python -m benchmarks.longer_rounds`."""

from dataclasses import replace
from pathlib import Path

import pytest

from adloco_p2p.config.load import load_run
from benchmarks import small_vocabulary
from benchmarks.longer_rounds import COMPARED, LONGER, LONGEST, candidates, longer_rows, tables
from benchmarks.method.rows import TUNING_SEED
from benchmarks.method.run import BASE, settings_of
from benchmarks.small_vocabulary import FULL_SEED, SAMPLES, SCALE, tuned_rows
from benchmarks.text_runs import COUNTED, Runs


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    """With a made-up tuning: the middle rate, and a lower momentum for fewer steps."""
    runs = Runs(replace(SCALE, kept=tmp_path / "kept.jsonl.gz"), tmp_path / "own.jsonl", text="some text")
    for rate, row in small_vocabulary.tuning().items():
        runs.keep(runs.key(row, TUNING_SEED), {"loss": 1.0 if rate == "2e-2" else 2.0})
    for inner_steps, best in zip(LONGER, ("0.5", "0.7", "0.9"), strict=True):
        for momentum, row in candidates(runs, inner_steps).items():
            runs.keep(runs.key(row, TUNING_SEED), {"loss": 1.0 if momentum == best else 2.0})
    for inner_steps, best in zip(LONGEST, ("0.7", "0.5"), strict=True):
        for momentum, row in candidates(runs, inner_steps).items():
            runs.keep(runs.key(row, FULL_SEED), {"loss": 1.0 if momentum == best else 2.0})
    return runs


def test_longer_rounds_differ_from_diloco_in_steps_and_momentum_alone(runs: Runs) -> None:
    usual = tuned_rows(runs)[0]
    rows = {**longer_rows(runs), **longer_rows(runs, FULL_SEED)}
    for (inner_steps, row), momentum in zip(rows.items(), (0.5, 0.7, 0.9, 0.7, 0.5), strict=True):
        run, first = (load_run(BASE, settings_of(one, 1, samples=SAMPLES)).value for one in (row, usual))
        assert (run.work.inner_steps, run.outer.momentum) == (inner_steps, momentum)
        same = replace(run, work=first.work, outer=replace(run.outer, momentum=first.outer.momentum))
        assert same == first


def test_every_planned_pair_is_compared_and_corrected_for_all(runs: Runs) -> None:
    """Differences 0.25 and 0.75: standard error 0.25; Student's t with one degree at 1 % is 63.657."""
    named, longer = {row.name: row for row in tuned_rows(runs)}, longer_rows(runs)
    record = {"rounds": 50, "bytes_per_peer": 80_000_000, "inner_steps": 400}
    runs.keep(COUNTED, {"losses": {}, "bytes_per_token": 2.0})
    for name, inner_steps in COMPARED:
        for seed, difference in ((1, 0.25), (2, 0.75)):
            runs.keep(runs.key(longer[inner_steps], seed), {**record, "seed": seed, "loss": 2.0})
            runs.keep(runs.key(named[name], seed), {**record, "seed": seed, "loss": 2.0 + difference})
    lines = tables(runs, [1, 2])["longer rounds planned"][2:]
    assert [line.split(" | ")[:2] for line in lines] == [[f"| {name}", longer[steps].name] for name, steps in COMPARED]
    assert {tuple(line.split(" | ")[-3:]) for line in lines} == {("0.500 +- 3.177", "0.500 +- 15.914", "0.250, 0.750 |")}
