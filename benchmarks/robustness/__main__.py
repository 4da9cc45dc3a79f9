"""Which aggregation rule withstands which lie, and what it costs where nobody lies: real training in a simulated swarm.

python -m benchmarks.robustness run        train what the kept records and robustness.jsonl lack; stop and go on at any time
python -m benchmarks.robustness report     tables from both, into docs/results/robustness.md; keeps the records of both
python -m benchmarks.robustness run --group two --seeds 1           one seed of one table; 3 s a run on an idle core
"""

import argparse
from functools import partial

from benchmarks.method.store import command_line, train_missing
from benchmarks.robustness.attacks import ATTACKS
from benchmarks.robustness.cells import GROUPS, RULES, Cell
from benchmarks.robustness.report import KEPT, tabulate
from benchmarks.robustness.run import key_of, run_cell


def main() -> None:
    line = command_line("robustness", __doc__, seeds=[1, 2, 3, 4, 5], train=train, tabulate=tabulate)
    line.run.add_argument("--group", nargs="+", choices=list(GROUPS), default=list(GROUPS))
    line.run.add_argument("--rule", nargs="+", choices=RULES, default=RULES, help="beside the plain mean of honest hosts")
    line.run.add_argument("--attack", nargs="+", choices=list(ATTACKS), default=list(ATTACKS))
    line.run.add_argument("--data", nargs="+", choices=("even", "uneven"), default=["even", "uneven"])
    line.act()


def train(arguments: argparse.Namespace) -> None:
    """All cells of one seed before the next seed, group by group, so that an early end leaves whole tables."""

    def is_asked(cell: Cell) -> bool:
        is_named = cell.rule in arguments.rule and (not cell.attack or cell.attack in arguments.attack)
        return (cell == cell.baseline or is_named) and cell.data in arguments.data

    cells = ((cell, seed) for group in arguments.group for seed in arguments.seeds for cell in GROUPS[group]())
    jobs = ((key_of(cell, seed), partial(run_cell, cell, seed)) for cell, seed in cells if is_asked(cell))
    train_missing(KEPT, arguments.output, jobs)


if __name__ == "__main__":
    main()
