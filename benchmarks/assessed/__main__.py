"""Does a contribution show whether its host trained on the rows that the plan gave it? Real training in a simulated swarm.

python -m benchmarks.assessed run         train what the kept records and assessed.jsonl lack; stop and go on at any time
python -m benchmarks.assessed report      tables from both, into docs/results/robustness.md; keeps the records of both
python -m benchmarks.assessed run --seeds 1          one seed of each swarm; 10 to 60 s a run on an idle core
"""

import argparse
from functools import partial

from benchmarks.assessed.report import CELLS, KEPT, tabulate
from benchmarks.assessed.run import key_of, run_cell
from benchmarks.method.store import command_line, train_missing


def main() -> None:
    command_line("assessed", __doc__, seeds=[1, 2], train=train, tabulate=tabulate).act()


def train(arguments: argparse.Namespace) -> None:
    cells = [(cell, seed) for seed in arguments.seeds for cell in CELLS.values()]
    train_missing(KEPT, arguments.output, ((key_of(cell, seed), partial(run_cell, cell, seed)) for cell, seed in cells))


if __name__ == "__main__":
    main()
