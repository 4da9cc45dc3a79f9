"""Which aggregation rule withstands which lie, and what it costs where nobody lies: real training in a simulated swarm.

python -m benchmarks.robustness run        train what the kept records and robustness.jsonl lack; stop and go on at any time
python -m benchmarks.robustness report     tables from both, into docs/results/robustness.md; keeps the records of both
python -m benchmarks.robustness run --group two --seeds 1           one seed of one table; 3 s a run on an idle core
"""

import argparse

from benchmarks.method.store import append_record, command_line, records_by_key
from benchmarks.robustness.attacks import ATTACKS
from benchmarks.robustness.cells import GROUPS, RULES
from benchmarks.robustness.report import KEPT, write
from benchmarks.robustness.run import key_of, run_cell


def main() -> None:
    parser, run, _ = command_line("robustness", __doc__, seeds=[1, 2, 3, 4, 5], train=train, tabulate=tabulate)
    run.add_argument("--group", nargs="+", choices=list(GROUPS), default=list(GROUPS))
    run.add_argument("--rule", nargs="+", choices=RULES, default=RULES, help="beside the plain mean of honest hosts")
    run.add_argument("--attack", nargs="+", choices=list(ATTACKS), default=list(ATTACKS))
    run.add_argument("--data", nargs="+", choices=("even", "uneven"), default=["even", "uneven"])
    arguments = parser.parse_args()
    arguments.act(arguments)


def train(arguments: argparse.Namespace) -> None:
    """All cells of one seed before the next seed, group by group, so that an early end leaves whole tables."""
    done = records_by_key(KEPT, [arguments.output])
    cells = [(cell, seed) for group in arguments.group for seed in arguments.seeds for cell in GROUPS[group]()]
    for cell, seed in cells:
        is_named = cell.rule in arguments.rule and (not cell.attack or cell.attack in arguments.attack)
        is_asked = (cell == cell.baseline or is_named) and cell.data in arguments.data
        key = key_of(cell, seed)
        if key in done or not is_asked:
            continue
        record = {"key": key, **run_cell(cell, seed)}
        append_record(arguments.output, record)
        done[key] = record
        print(f"seed {seed}  {cell}  loss {record['loss']}  {record['processor_seconds']} s", flush=True)


def tabulate(arguments: argparse.Namespace) -> None:
    write(records_by_key(KEPT, arguments.runs))


if __name__ == "__main__":
    main()
