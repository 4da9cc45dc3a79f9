"""The batch test, Seesaw and DiLoCo with rate and warm-up of each tuned alike, with the model of `small_vocabulary`.

python -m benchmarks.tuned_larger run       train what the kept records of small_vocabulary and tuned_larger.jsonl lack
python -m benchmarks.tuned_larger report    the tables, from both, into docs/results/sizes.md; keeps the records of both

`benchmarks.small_vocabulary` tuned the rate of DiLoCo and gave it to every row, with a warm-up of 64 steps of 16 rows. Here
each of METHODS gets the same nine pairs of a rate and of samples of warm-up, on the tuning seed, in runs a quarter as long. The
test and Seesaw are the pair there whose rounds are as many. All else is that of `small_vocabulary`. Minutes a run.

Planned before any of these runs, with three seeds, paired, corrected for both: the test minus Seesaw, and the test minus
DiLoCo. The rows beside themselves with the rate and warm-up of `small_vocabulary` are exploratory.

Short runs chose the highest rate, with which all three ended higher. So each is tuned once more, with a seed whose runs are as
long as all others: first FULL_RATES with the usual warm-up, then the best of them with the other two. The same two differences
were planned anew, before any of these runs.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace

from benchmarks import small_vocabulary
from benchmarks.method.rows import TUNING_SEED, Row
from benchmarks.small_vocabulary import FIXED, FULL_SEED, SCALE, SEESAW, SLOW_LOW, WARMUP, text_of_runs
from benchmarks.text_runs import TUNING_HEAD, Runs, price_table, run_command, run_table, tuning_line

SEEDS = [1, 2, 3]
METHODS = (FIXED, SLOW_LOW, SEESAW)
COMPARED = ((SLOW_LOW, SEESAW), (SLOW_LOW, FIXED))
RATES = small_vocabulary.RATES["muon"]
WARM_UPS = (512, WARMUP, 2048)
"""Samples; a run of the tuning seed has 5,120, the others 21,120."""
FULL_RATES = ("5e-3", "1e-2", "2e-2")
"""At full length; 4e-2, that of the short tuning, ended above 2e-2 with each method and seed."""


def row_of(method: str, rate: str, warm_up: int) -> Row:
    """Return a row of `small_vocabulary` with another rate and warm-up."""
    (row,) = (row for row in small_vocabulary.rows(rate) if row.name == method)
    return row if warm_up == WARMUP else small_vocabulary.warmed_up(row, warm_up)  # the row has as many samples, as steps


def candidates(method: str, rates: Sequence[str] = RATES, warm_ups: Sequence[int] = WARM_UPS) -> Mapping[str, Row]:
    """Return the rows that are tried, by rate and warm-up."""
    return {f"{rate} and {warm_up}": row_of(method, rate, warm_up) for rate in rates for warm_up in warm_ups}


def full_rates(method: str) -> Mapping[str, Row]:
    """Return the rows that are tried first at full length."""
    return candidates(method, FULL_RATES, (WARMUP,))


def full_candidates(runs: Runs, method: str) -> Mapping[str, Row]:
    """Return all rows that are tried at full length, once the rates were run."""
    first = full_rates(method)
    rate, _, _ = runs.best(first, FULL_SEED).split()
    return {**first, **candidates(method, (rate,))}


def usual_rows(runs: Runs) -> dict[str, Row]:
    """Return the rows of `small_vocabulary`."""
    return {row.name: row for row in small_vocabulary.tuned_rows(runs) if row.name in METHODS}


def alike_rows(runs: Runs) -> dict[str, Row]:
    """Return the rows with the rate and warm-up that the tuning gave, by method."""
    return _chosen(runs, {method: candidates(method) for method in METHODS}, TUNING_SEED, "tuned")


def full_rows(runs: Runs) -> dict[str, Row]:
    """Return the rows with the rate and warm-up that the tuning at full length gave, by method."""
    return _chosen(runs, {method: full_candidates(runs, method) for method in METHODS}, FULL_SEED, "tuned at full length")


def _chosen(runs: Runs, tried: Mapping[str, Mapping[str, Row]], seed: int, words: str) -> dict[str, Row]:
    """Return the best row of each method on the seed; `words` go into its name."""
    return {method: replace(rows[runs.best(rows, seed)], name=f"{method}, {words}") for method, rows in tried.items()}


def train(arguments: argparse.Namespace) -> None:
    """Train the tuning, then one seed after the other, so that an early end leaves whole seeds."""
    runs = Runs(SCALE, arguments.output, text=text_of_runs())
    for method in METHODS:
        for row in candidates(method).values():
            runs.train(row, TUNING_SEED)
        for row in full_rates(method).values():
            runs.train(row, FULL_SEED)
        for row in full_candidates(runs, method).values():
            runs.train(row, FULL_SEED)
    for seed in arguments.seeds:
        for row in (*alike_rows(runs).values(), *full_rows(runs).values()):
            runs.train(row, seed)


def tables(runs: Runs, seeds: Sequence[int] = SEEDS) -> dict[str, list[str]]:
    usual, what, names = usual_rows(runs), "rate and samples of warm-up", ("row", "other")
    found: dict[str, list[str]] = {}
    for head, rows in (("tuned larger", alike_rows(runs)), ("tuned at full length", full_rows(runs))):
        planned = [(rows[first], rows[second]) for first, second in COMPARED]
        others = [(rows[method], usual[method]) for method in METHODS if rows[method].settings != usual[method].settings]
        prices = price_table(runs, planned, seeds, comparisons=len(planned), exploratory=others, names=names)
        found |= {head: run_table(runs, list(rows.values()), seeds), f"{head} planned": prices}
    short = [tuning_line(runs, method, what, candidates(method)) for method in METHODS]
    full = [tuning_line(runs, method, what, full_candidates(runs, method), FULL_SEED) for method in METHODS]
    return {**found, "tuned larger tuning": [*TUNING_HEAD, *short], "tuned at full length tuning": [*TUNING_HEAD, *full]}


def main() -> None:
    run_command("tuned_larger", __doc__, scale=SCALE, seeds=SEEDS, train=train, tables=tables)


if __name__ == "__main__":
    main()
