"""`benchmarks.tuned`: what is tried for each method, how it is chosen, and that the kept records are of that choice."""

import argparse
from pathlib import Path

import pytest

from adloco_p2p.config.load import load_run
from benchmarks import tuned
from benchmarks.method.rows import Row
from benchmarks.method.run import BASE, settings_of
from benchmarks.method.store import Record, pack, read_records, records_by_key
from benchmarks.tuned import FIRST, METHODS, OTHERS, SAMPLES, SEEDS, TEST, Pair, Runs, grid, row_of


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_tuned_by_nine_pairs_of_rate_and_warm_up(method: str) -> None:
    runs = [load_run(BASE, settings_of(row_of(method, pair), 1, samples=SAMPLES)).value for pair in grid(method)]
    pairs = {(run.inner.learning_rate, run.inner.warmup_samples) for run in runs}
    assert len(pairs) == 9
    assert all(run.work.samples == SAMPLES and run.inner.warmup_steps is None for run in runs)


def test_three_that_end_lowest_on_one_seed_go_on_and_the_lowest_mean_of_three_seeds_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best, second, lucky, unlucky = grid(TEST)[4], grid(TEST)[2], grid(TEST)[7], grid(TEST)[0]
    first = {lucky: 1.0, second: 1.2, best: 1.3, unlucky: 1.4}

    def loss(pair: Pair, seed: int) -> float:
        if seed == FIRST:
            return first.get(pair, 2.0)
        return {best: 1.0, second: 1.2, lucky: 3.0, unlucky: 0.0}.get(pair, 2.0)

    trained: list[tuple[Pair, int]] = []

    def made(row: Row, seed: int, *, samples: int) -> Record:
        assert samples == SAMPLES
        pair = next(pair for pair in grid(TEST) if row_of(TEST, pair) == row)
        trained.append((pair, seed))
        return {"row": row.name, "seed": seed, "loss": loss(pair, seed)}

    monkeypatch.setattr(tuned, "KEPT", tmp_path / "none.jsonl.gz")
    monkeypatch.setattr(tuned, "run_row", made)
    tuned.train(argparse.Namespace(output=tmp_path / "tuned.jsonl", seeds=SEEDS, methods=[TEST]))
    assert [pair for pair, seed in trained if seed == FIRST] == grid(TEST)
    assert {pair for pair, seed in trained if seed in OTHERS} == {lucky, second, best}
    assert [(pair, seed) for pair, seed in trained if seed in SEEDS] == [(best, seed) for seed in SEEDS]
    assert not {FIRST, *OTHERS} & set(SEEDS)
    pack(read_records(tmp_path / "tuned.jsonl")[:-1], tmp_path / "torn.jsonl.gz")
    assert Runs(records_by_key(tmp_path / "torn.jsonl.gz", [])).whole == []
    assert Runs(records_by_key(tmp_path / "tuned.jsonl", [])).whole == [TEST]


def test_the_kept_records_are_fifteen_tuning_runs_and_five_others_of_each_method() -> None:
    runs = Runs(records_by_key(tuned.KEPT, []))
    assert TEST in runs.whole
    assert len(read_records(tuned.KEPT)) == 20 * len(runs.whole)
