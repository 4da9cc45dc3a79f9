"""Does the method pay? AdLoCo beside DiLoCo, LocalSGD and AdamW: same model, data and samples; loss against what it costs.

python -m benchmarks.method run                    train what the kept records and method.jsonl lack; stop and go on at any time
python -m benchmarks.method report                 tables and plots from both, into docs/results/; keeps the records of both
python -m benchmarks.method run --group main --seeds 1          one seed of one table; 15 s a run on an idle core
"""

import argparse
from functools import partial

from benchmarks.method.report import write
from benchmarks.method.rows import GROUPS, TUNING_SEED
from benchmarks.method.run import BASE, run_row
from benchmarks.method.store import RESULTS, command_line, key_of, records_by_key, train_missing

KEPT = RESULTS / "method.jsonl.gz"
"""Records of earlier runs; a reader's own go beside them."""
SAMPLES = 8192
"""Samples of 64 tokens: 25 tokens per parameter."""


def main() -> None:
    line = command_line("method", __doc__, seeds=[1, 2, 3, 4, 5], train=train, tabulate=tabulate)
    line.run.add_argument("--group", nargs="+", choices=sorted(GROUPS), default=sorted(GROUPS))
    line.run.add_argument(
        "--again", action="store_true", help="train also what the records have: does today's code repeat them?"
    )
    line.run.add_argument("--rows", nargs="+", help="only rows of these names")
    for part in (line.run, line.report):
        part.add_argument("--samples", type=int, default=SAMPLES, help="sequences of 64 tokens per run")
    line.act()


def train(arguments: argparse.Namespace) -> None:
    """Train all rows of one seed before the next seed, so that an early end leaves whole tables. Tuning has its own seed."""
    base = BASE.read_text("utf-8")
    wanted = [(TUNING_SEED, row) for row in GROUPS["tuning"]() if "tuning" in arguments.group]
    wanted += [
        (seed, row) for seed in arguments.seeds for group in arguments.group if group != "tuning" for row in GROUPS[group]()
    ]
    wanted = [(seed, row) for seed, row in wanted if arguments.rows is None or row.name in arguments.rows]
    jobs = (
        (key_of(row, seed, samples=arguments.samples, base=base), partial(run_row, row, seed, samples=arguments.samples))
        for seed, row in wanted
    )
    train_missing(arguments.output if arguments.again else KEPT, arguments.output, jobs)


def tabulate(arguments: argparse.Namespace) -> None:
    write(list(records_by_key(KEPT, arguments.runs).values()), RESULTS, samples=arguments.samples)


if __name__ == "__main__":
    main()
