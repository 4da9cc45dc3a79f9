"""Do instances pay where machines are unequal: small ones on one instance, large ones on another? At equal emulated time.

python -m benchmarks.unequal_machines run       what the kept records and unequal_machines.jsonl lack; 10 core seconds a run
python -m benchmarks.unequal_machines report    the table from both, into docs/results/method.md; keeps the records of both

Two machines of speed 2 and two of speed 1, on links of 1 Gbit/s (the clock of "Unequal peers" in docs/results/method.md). One
instance over all with work by speed, one over the large ones alone, and one for each kind: forked from one over all after four
rounds, merged at the end with the guard or without it, hosts placed as the product places them (`max_instances: 1`).
Constant batches: two samples a step for a machine of speed 1 and four for one of speed 2. Of two instances each has three
samples a machine, since their requests are equal; their rounds begin together, so the large machines wait for the small ones.
Every row has the samples that fit SECONDS, in whole rounds and with its last merge, so each ends with its rate decayed.

Planned before any run of seeds 1 to 3: each row of two instances minus one instance over all, and minus the large ones alone;
one over all minus the large ones alone. Seed 0 was used to see how many samples fit; one merge at its end was refused there.
Seeds 4 and 5 were added when these were known, for narrower intervals of the same comparisons. So were, later, intervals
corrected for all five comparisons.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from benchmarks.method.clock import SLOW
from benchmarks.method.figures import estimate, losses_of, shown
from benchmarks.method.report import rewrite
from benchmarks.method.rows import Row, adloco
from benchmarks.method.run import BASE, run_row
from benchmarks.method.store import RESULTS, Record, command_line, key_of, pack, records_by_key, train_missing

KEPT = RESULTS / "unequal_machines.jsonl.gz"
"""Records of earlier runs; a reader's own go beside them."""
SEEDS = [1, 2, 3, 4, 5]
COMPARISONS = 5
"""The planned ones."""
SECONDS = 600.0
"""The most emulated time of every run."""
H, FORK = 32, 4
LARGE, SMALL = (2.0, 2.0), (1.0, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to use the machines."""

    name: str
    batch: int
    """The batch of an instance."""
    samples: int
    """The samples that fit SECONDS."""
    speeds: tuple[float, ...] = (*LARGE, *SMALL)
    instances: int = 1
    is_guarded: bool = True
    more: tuple[str, ...] = ()
    """Settings beside these."""

    @property
    def row(self) -> Row:
        settings = ["batch.test=constant", f"batch.initial_batch={self.batch}", f"work.inner_steps={H}", "work.share=speed"]
        if self.instances > 1:
            settings += [f"instances.fork_round={FORK}", "merge.policy=none", f"merge.guard={str(self.is_guarded).lower()}"]
        return adloco(
            self.name, *settings, *self.more, count=self.instances, speeds=self.speeds, clock=SLOW.name, max_instances=1
        )


ALL, ALONE = "one instance over all", "the large machines alone"
ARMS = (
    Arm(name=ALL, batch=12, samples=8064),
    Arm(name=ALONE, batch=8, samples=6400, speeds=LARGE),
    Arm(name="one for each kind, guarded", batch=6, samples=6528, instances=2),
    Arm(name="one for each kind, no guard", batch=6, samples=6528, instances=2, is_guarded=False),
)


def key(arm: Arm, seed: int) -> str:
    return key_of(arm.row, seed, samples=arm.samples, base=BASE.read_text("utf-8"))


def train(arguments: argparse.Namespace) -> None:
    """Train all rows of one seed before the next seed."""
    jobs = [(key(arm, seed), partial(run_row, arm.row, seed, samples=arm.samples)) for seed in arguments.seeds for arm in ARMS]
    train_missing(KEPT, arguments.output, jobs)


def table(records: Mapping[str, Record]) -> list[str]:
    """Return final losses after the same emulated time, and their difference to the first two rows."""
    seeds = sorted({record["seed"] for record in records.values()})
    found = {arm.name: [records[key(arm, seed)] for seed in seeds if key(arm, seed) in records] for arm in ARMS}
    lines = [
        "| machines | seeds | rounds | inner steps | minutes | final loss"
        f" | minus {ALL} | corrected | minus {ALONE} | corrected |",
        "|" + "---|" * 10,
    ]
    for name, some in found.items():
        if not some:
            continue
        cells = [str(len(some)), str(some[0]["rounds"]), str(some[0]["inner_steps"]), f"{some[0]['seconds'] / 60:.1f}"]
        cells.append(estimate([*losses_of(some).values()]).shown(3))
        for base in (ALL, ALONE):
            sides = losses_of(some), losses_of(found[base])
            cells += [shown(*sides, count) if name != base else "" for count in (1, COMPARISONS)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def tabulate(arguments: argparse.Namespace) -> None:
    """Write the table and the packed records. Runs with other settings are left out."""
    records = records_by_key(KEPT, arguments.runs)
    known = {key(arm, seed) for arm in ARMS for seed in {record["seed"] for record in records.values()}}
    kept = {name: record for name, record in sorted(records.items()) if name in known}
    rewrite(RESULTS / "method.md", {"unequal machines": table(kept)})
    pack(kept.values(), RESULTS / KEPT.name)


def main() -> None:
    command_line("unequal_machines", __doc__, seeds=SEEDS, train=train, tabulate=tabulate).act()


if __name__ == "__main__":
    main()
