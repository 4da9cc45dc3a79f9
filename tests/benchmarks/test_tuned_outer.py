"""`benchmarks.tuned_outer`: what is tried for each row, and its tables by hand."""

import pytest

from adloco_p2p.config.load import load_run
from benchmarks import tuned
from benchmarks.method.rows import LINEAR
from benchmarks.method.run import BASE, settings_of
from benchmarks.method.store import Record, records_by_key
from benchmarks.tuned import FIRST, OTHERS, SAMPLES, SEEDS, TEST, Pair, Runs
from benchmarks.tuned import row_of as tuned_row
from benchmarks.tuned_outer import GROWING, LENGTHS, SEARCH, USUAL, grid, grid_table, growing_table, row_of, winner_table


@pytest.mark.parametrize("inner_steps", LENGTHS)
def test_every_h_is_tuned_by_nine_pairs_around_the_usual_one(inner_steps: int) -> None:
    name = f"H {inner_steps}"
    runs = [load_run(BASE, settings_of(row_of(name, pair), 1, samples=SAMPLES)).value for pair in grid(inner_steps)]
    assert len({(run.outer.learning_rate, run.outer.momentum) for run in runs}) == 9
    assert {run.work.inner_steps for run in runs} == {inner_steps}
    assert inner_steps not in USUAL or USUAL[inner_steps] in grid(inner_steps)


@pytest.mark.parametrize("inner_steps", USUAL)
def test_the_usual_pair_is_the_row_that_rate_and_warm_up_were_tuned_with(inner_steps: int) -> None:
    rows = [row_of(f"H {inner_steps}", USUAL[inner_steps]), tuned_row(f"DiLoCo B 8 H {inner_steps}", ("8.5e-3", 2048))]
    here, there = (load_run(BASE, settings_of(row, 1, samples=SAMPLES)).value for row in rows)
    assert here == there


@pytest.mark.parametrize("name", GROWING)
def test_a_batch_that_grows_keeps_the_inner_rate_and_the_warm_up_that_won(name: str) -> None:
    winner = Runs(records_by_key(tuned.KEPT, [])).winner(name)
    assert winner == GROWING[name]
    here, there = (
        load_run(BASE, settings_of(row, 1, samples=SAMPLES)).value
        for row in (row_of(name, ("0.7", "0.5")), tuned_row(name, winner))
    )
    assert here == there
    assert len({row_of(name, pair).settings for pair in SEARCH.grids[name]}) == 9


def test_tables_by_hand() -> None:
    """The winner of H 16 ends 0.1 above that of H 32 on every seed, as the linear ramp does; the batch test ends 0.3 above."""
    records: dict[str, Record] = {}
    runs = Runs(records, SEARCH)

    def keep(name: str, pair: Pair, seed: int, loss: float) -> None:
        records[runs.key(name, pair, seed)] = {"seed": seed, "loss": loss, "rounds": 8, "bytes_per_peer": 2e6}

    for name, loss in (("H 16", 2.3), ("H 32", 2.2), (LINEAR, 2.3), (TEST, 2.5)):
        best, *others = SEARCH.grids[name]
        keep(name, best, FIRST, loss)
        for place, pair in enumerate(others, start=1):
            keep(name, pair, FIRST, loss + place)
        for pair in (best, *others[:2]):
            for seed in OTHERS:
                keep(name, pair, seed, loss + (pair != best))
        for seed in SEEDS:
            keep(name, best, seed, loss)
    known: dict[str, Record] = {}
    usual = Runs(known)
    for method, loss in ((TEST, 2.4), (LINEAR, 2.35), ("DiLoCo B 8 H 32", 2.25)):
        best, *rest = usual.search.grids[method]
        for pair in (best, *rest[:2]):
            for seed in (FIRST, *OTHERS, *SEEDS):
                known[usual.key(method, pair, seed)] = {"seed": seed, "loss": loss + (pair != best)}
    head, _, *lines = growing_table(runs, usual)
    assert head.endswith("| final loss | minus its usual pair | minus linear ramp 8 -> 26 | minus H 32 |")
    assert lines == [
        "| AdLoCo, one instance | 8 | 0.5 | 0.3 | 5 | 2.500 +- 0.000 | 0.100 +- 0.000 | 0.200 +- 0.000 | 0.300 +- 0.000 |",
        "| linear ramp 8 -> 26 | 8 | 0.5 | 0.3 | 5 | 2.300 +- 0.000 | -0.050 +- 0.000 |  | 0.100 +- 0.000 |",
    ]
    assert winner_table(runs, usual)[2:] == [
        "| 16 | 8 | 0.5 | 0.3 | 5 | 2.300 +- 0.000 | 0.100 +- 0.000 |  | 0.100 +- 0.000 | 2.0 |",
        "| 32 | 8 | 0.5 | 0.3 | 5 | 2.200 +- 0.000 |  | -0.050 +- 0.000 | 0.200 +- 0.000 | 2.0 |",
    ]
    assert grid_table(runs)[2] == "| H 16 | 0.3 | 2.300 (**2.300**) | 5.300 | 8.300 |"
