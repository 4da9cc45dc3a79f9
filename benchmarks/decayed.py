"""Weight decay of all parameters beside that of matrices alone (`inner.decayed`): the difference in loss, paired by seed.

python -m benchmarks.decayed run       train what the kept records and decayed.jsonl lack; 10 to 17 core seconds a run
python -m benchmarks.decayed report    the table from both, into docs/results/tuned.md; keeps the records of both

The rows are DiLoCo and the linear ramp of `benchmarks.tuned`, each with the rate and the warm-up that it was tuned to while all
parameters were decayed, on the seeds that are reported there. The sides that decay all are the records kept there.

Planned before any run: configs/c4-150m.yaml and c4-300m.yaml, which have the linear ramp, leave vectors out, as is usual at
their sizes, unless the interval of a row lies above zero. The intervals corrected for the two rows were added later.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from benchmarks import tuned
from benchmarks.method.figures import estimate, losses_of, shown
from benchmarks.method.report import keep_tables
from benchmarks.method.rows import LINEAR, Row
from benchmarks.method.run import BASE, run_row
from benchmarks.method.store import RESULTS, Record, command_line, key_of, records_by_key, train_missing
from benchmarks.tuned import SAMPLES, SEEDS, START, row_of

KEPT = RESULTS / "decayed.jsonl.gz"
"""Records of earlier runs; a reader's own go beside them."""
METHODS = (START, LINEAR)


def usual() -> tuned.Runs:
    """Return the runs that decay all parameters."""
    return tuned.Runs(records_by_key(tuned.KEPT, []))


def matrices_row(method: str) -> Row:
    """Return the winner among the tuned rows of a method, with decay of matrices alone."""
    row = row_of(method, usual().winner(method))
    return replace(row, settings=(*row.settings, "inner.decayed=matrices"))


def train(arguments: argparse.Namespace) -> None:
    base = BASE.read_text("utf-8")
    rows = [matrices_row(method) for method in METHODS]
    jobs = [
        (key_of(row, seed, samples=SAMPLES, base=base), partial(run_row, row, seed, samples=SAMPLES))
        for seed in arguments.seeds
        for row in rows
    ]
    train_missing(KEPT, arguments.output, jobs)


def table(records: Sequence[Record]) -> list[str]:
    """Return one line per method."""
    lines = ["| row | seeds | `all` | `matrices` | `matrices` minus `all` | corrected | by seed |", "|" + "---|" * 7]
    for method in METHODS:
        everything = losses_of(usual().of_winner(method).values())
        matrices = losses_of(record for record in records if record["row"] == method)
        seeds = sorted(everything.keys() & matrices.keys())
        means = [estimate([losses[seed] for seed in seeds]).shown(3) for losses in (everything, matrices)]
        each = ", ".join(f"{matrices[seed] - everything[seed]:.4f}" for seed in seeds)
        minus = [shown(matrices, everything, comparisons) for comparisons in (1, len(METHODS))]
        lines.append(f"| {' | '.join([method, str(len(seeds)), *means, *minus, each])} |")
    return lines


def tabulate(arguments: argparse.Namespace) -> None:
    keep_tables(KEPT, arguments.runs, "tuned.md", {"decayed": table})


def main() -> None:
    command_line("decayed", __doc__, seeds=SEEDS, train=train, tabulate=tabulate).act()


if __name__ == "__main__":
    main()
