"""Do longer rounds buy what a growing batch buys? DiLoCo with a larger H, with the model of `small_vocabulary`.

python -m benchmarks.longer_rounds run       train what the kept records of small_vocabulary and longer_rounds.jsonl lack
python -m benchmarks.longer_rounds report    the tables, from both, into docs/results/sizes.md; keeps the records of both

A batch that grows takes fewer rounds for the same samples, and so does a constant batch with more inner steps a round. Model,
text, optimizer, samples and learning rate are those of `benchmarks.small_vocabulary`, whose DiLoCo has H 8. For each of LONGER
the outer momentum is tuned on the tuning seed, in runs a quarter as long; the schedules and the batch test keep theirs, 0.5.
Minutes a run.

Planned before any of these runs, with five seeds, paired, corrected for all of COMPARED: rows whose batch grows, minus DiLoCo
with the H that takes about as many rounds. H 16 takes 83 rounds, H 24 takes 55 and H 32 takes 42. A batch of 64 with H 8 takes
42, too.

Exploratory, added last: LONGEST, which take 21 and 11 rounds, on LONG_SEEDS. A quarter of their run is too short for tuning, so
LONG_MOMENTA are tried in runs of full length, with a seed of their own.
"""

import argparse
from collections.abc import Mapping, Sequence

from benchmarks import small_vocabulary
from benchmarks.method.rows import TUNING_SEED, Row
from benchmarks.small_vocabulary import (
    FULL_SEED,
    LARGEST,
    LINEAR,
    SCALE,
    SEEDS,
    SLOW,
    START,
    STEEP,
    TEST,
    H,
    text_of_runs,
    tuned_rows,
)
from benchmarks.text_runs import TUNING_HEAD, Runs, price_table, run_command, run_table, tuning_line

LONGER = (16, 24, 32)
MOMENTA = ("0.5", "0.7", "0.9")
"""Outer momenta that are tried for each."""
LONGEST = (64, 128)
LONG_MOMENTA = ("0.5", "0.7")
LONG_SEEDS = [1, 2, 3]
TUNED = {TUNING_SEED: LONGER, FULL_SEED: LONGEST}
"""The H that are tuned on each seed."""
COMPARED = ((LINEAR, 16), (STEEP, 24), (SLOW, 24), (TEST, 24), (f"DiLoCo B {LARGEST} H {H}", 32))
"""A row of `small_vocabulary`, and the H that takes about as many rounds."""


def fixed(rate: str, inner_steps: int, momentum: str) -> Row:
    """Return DiLoCo with the batch START."""
    settings = (*small_vocabulary.fixed(rate).settings, f"work.inner_steps={inner_steps}")
    last = {text.partition("=")[0]: text for text in (*settings, f"outer.momentum={momentum}")}
    return Row(name=f"DiLoCo B {START} H {inner_steps} m {momentum}", settings=tuple(last.values()))


def candidates(runs: Runs, inner_steps: int) -> Mapping[str, Row]:
    """Return the rows that are tried, by their momentum."""
    rate = runs.best(small_vocabulary.tuning())
    return {momentum: fixed(rate, inner_steps, momentum) for momentum in (LONG_MOMENTA if inner_steps in LONGEST else MOMENTA)}


def longer_rows(runs: Runs, seed: int = TUNING_SEED) -> dict[int, Row]:
    """Return DiLoCo by H, with the momentum that the tuning on this seed gave."""
    tried = {inner_steps: candidates(runs, inner_steps) for inner_steps in TUNED[seed]}
    return {inner_steps: some[runs.best(some, seed)] for inner_steps, some in tried.items()}


def train(arguments: argparse.Namespace) -> None:
    """Train the tuning, then one seed after the other, so that an early end leaves whole seeds."""
    runs = Runs(SCALE, arguments.output, text=text_of_runs())
    for tuning_seed, seeds in ((TUNING_SEED, arguments.seeds), (FULL_SEED, [s for s in arguments.seeds if s in LONG_SEEDS])):
        for inner_steps in TUNED[tuning_seed]:
            for row in candidates(runs, inner_steps).values():
                runs.train(row, tuning_seed)
        for seed in seeds:
            for row in longer_rows(runs, tuning_seed).values():
                runs.train(row, seed)


def tables(runs: Runs, seeds: Sequence[int] = SEEDS) -> dict[str, list[str]]:
    named, longer = {row.name: row for row in tuned_rows(runs)}, longer_rows(runs)
    pairs = [(named[name], longer[inner_steps]) for name, inner_steps in COMPARED]
    first = next(iter(named.values()))
    tuned, long = (
        [
            tuning_line(runs, f"DiLoCo B {START} H {inner_steps}", "outer momentum", candidates(runs, inner_steps), seed)
            for inner_steps in TUNED[seed]
        ]
        for seed in (TUNING_SEED, FULL_SEED)
    )
    names = ("batch", "longer rounds")
    return {
        "longer rounds": run_table(runs, [first, *longer.values(), *longer_rows(runs, FULL_SEED).values()], seeds),
        "longer rounds planned": price_table(runs, pairs, seeds, comparisons=len(pairs), names=names),
        "longer rounds tuning": [*TUNING_HEAD, *tuned],
        "longest rounds tuning": [*TUNING_HEAD, *long],
    }


def main() -> None:
    run_command("longer_rounds", __doc__, scale=SCALE, seeds=SEEDS, train=train, tables=tables)


if __name__ == "__main__":
    main()
