"""The batch test, Seesaw and DiLoCo with rate and warm-up of each tuned alike, with the model of `small_vocabulary`.

python -m benchmarks.tuned_larger run       train what the kept records of small_vocabulary and tuned_larger.jsonl lack
python -m benchmarks.tuned_larger report    the tables, from both, into docs/results/sizes.md; keeps the records of both

`benchmarks.small_vocabulary` tuned the rate of DiLoCo and gave it to every row, with a warm-up of 64 steps of 16 rows. Here
each of METHODS gets the same nine pairs of a rate and of samples of warm-up, on the tuning seed, in runs a quarter as long. The
test and Seesaw are the pair there whose rounds are as many. All else is that of `small_vocabulary`. Minutes a run.

Planned before any of these runs, with three seeds, paired, corrected for both: the test minus Seesaw, and the test minus
DiLoCo. The rows beside themselves with the rate and warm-up of `small_vocabulary` are exploratory.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace

from benchmarks import small_vocabulary
from benchmarks.method.rows import TUNING_SEED, Row
from benchmarks.small_vocabulary import FIXED, SCALE, SEESAW, SLOW_LOW, WARMUP, text_of_runs
from benchmarks.text_runs import TUNING_HEAD, Runs, price_table, run_command, run_table, tuning_line

SEEDS = [1, 2, 3]
METHODS = (FIXED, SLOW_LOW, SEESAW)
COMPARED = ((SLOW_LOW, SEESAW), (SLOW_LOW, FIXED))
RATES = small_vocabulary.RATES["muon"]
WARM_UPS = (512, WARMUP, 2048)
"""Samples; a run of the tuning seed has 5,120, the others 21,120."""


def row_of(method: str, rate: str, warm_up: int) -> Row:
    """Return a row of `small_vocabulary` with another rate and warm-up."""
    (row,) = (row for row in small_vocabulary.rows(rate) if row.name == method)
    return row if warm_up == WARMUP else small_vocabulary.warmed_up(row, warm_up)  # the row has as many samples, as steps


def candidates(method: str) -> Mapping[str, Row]:
    """Return the rows that are tried, by rate and warm-up."""
    return {f"{rate} and {warm_up}": row_of(method, rate, warm_up) for rate in RATES for warm_up in WARM_UPS}


def usual_rows(runs: Runs) -> dict[str, Row]:
    """Return the rows of `small_vocabulary`."""
    return {row.name: row for row in small_vocabulary.tuned_rows(runs) if row.name in METHODS}


def alike_rows(runs: Runs) -> dict[str, Row]:
    """Return the rows with the rate and warm-up that the tuning gave, by method."""
    tried = {method: candidates(method) for method in METHODS}
    best = {method: runs.best(some) for method, some in tried.items()}
    return {method: replace(tried[method][pair], name=f"{method}, tuned") for method, pair in best.items()}


def train(arguments: argparse.Namespace) -> None:
    """Train the tuning, then one seed after the other, so that an early end leaves whole seeds."""
    runs = Runs(SCALE, arguments.output, text=text_of_runs())
    for method in METHODS:
        for row in candidates(method).values():
            runs.train(row, TUNING_SEED)
    for seed in arguments.seeds:
        for row in alike_rows(runs).values():
            runs.train(row, seed)


def tables(runs: Runs, seeds: Sequence[int] = SEEDS) -> dict[str, list[str]]:
    usual, alike = usual_rows(runs), alike_rows(runs)
    planned = [(alike[first], alike[second]) for first, second in COMPARED]
    others = [(alike[method], usual[method]) for method in METHODS]
    tuned = [tuning_line(runs, method, "rate and samples of warm-up", candidates(method)) for method in METHODS]
    names = ("row", "other")
    return {
        "tuned larger": run_table(runs, list(alike.values()), seeds),
        "tuned larger planned": price_table(runs, planned, seeds, comparisons=len(planned), exploratory=others, names=names),
        "tuned larger tuning": [*TUNING_HEAD, *tuned],
    }


def main() -> None:
    run_command("tuned_larger", __doc__, scale=SCALE, seeds=SEEDS, train=train, tables=tables)


if __name__ == "__main__":
    main()
