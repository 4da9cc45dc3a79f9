"""A batch that grows by the test, by schedules, or not at all: which is best where rate and warm-up of each are tuned alike?

python -m benchmarks.tuned run       train what the kept records and tuned.jsonl lack; 8 to 17 core seconds a run
python -m benchmarks.tuned report    the tables, from both, into docs/results/tuned.md; keeps the records of both

Model, text, samples and peers are those of `benchmarks.method`, and so are the batches: only the inner learning rate and its
warm-up, counted in samples, are tuned. Every method gets the same nine pairs, three rates around that of `benchmarks.method`
(for a batch of 16 all times the root of 2) and three warm-ups from its 512 samples up. The nine run on the first tuning seed,
the three that end lowest also on the other two, and the lowest mean of three seeds wins: 15 runs for each method. Winners run
on seeds that no row of this length has seen before. What was tuned earlier stays as it was, on the first tuning seed: eta, cap
and outer momentum of AdLoCo in 29 configurations, H and outer momentum of DiLoCo in 20, the ends of the ramps never. So the
test is favoured, if any method is.

Planned before any run, on five seeds, paired: AdLoCo minus each of the three schedules, minus DiLoCo with H 32, with H 64,
and minus the fixed batch of 16; by final loss, and with PRICE nats for each doubling of the rounds. The test has an advantage
over a schedule if the interval at the price lies below zero. A row is called higher or lower than another if the interval of
its final loss lies off zero, and else no difference is shown. Six comparisons, not corrected. All else is exploratory. (The
doubling ramp was run last, when all other rows were known, as it was planned. Corrected intervals, for all twelve of the two
measures at once, were added then.)

Added when AdLoCo, Seesaw, the linear ramp and DiLoCo with H 64 were known, before any run of it, exploratory: AdLoCo with eta
1.5 and a batch of at most 20, tuned alike. With its own cap of 64 the batch of AdLoCo ends beyond those of the schedules, with
a learning rate that goes with its root.
"""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean

from benchmarks.carried_over import PRICE, at_price
from benchmarks.method.figures import estimate, losses_of, shown
from benchmarks.method.report import rewrite
from benchmarks.method.rows import DOUBLING, LINEAR, SEESAW, Row, adloco, diloco
from benchmarks.method.run import BASE, run_row
from benchmarks.method.store import RESULTS, Record, command_line, key_of, pack, records_by_key, train_missing

KEPT = RESULTS / "tuned.jsonl.gz"
"""Records of earlier runs; a reader's own go beside them."""
SAMPLES = 8192
FIRST, OTHERS = 0, (11, 12)
"""Tuning seeds: the one of all nine pairs, and those of the three that ended lowest."""
FINALISTS = 3
SEEDS = [6, 7, 8, 9, 10]
RATES, RATES_16 = ("4.2e-3", "6e-3", "8.5e-3"), ("6e-3", "8.5e-3", "1.2e-2")
WARM_UPS = (512, 1024, 2048)
"""Samples of warm-up, of 8,192."""
COMPARISONS = 12
"""The planned intervals, six of each measure."""

Made = Callable[..., Row]
"""Takes settings and returns the row."""


def _grown(name: str, *more: str) -> Made:
    plain = ("batch.eta=1.7", "inner.batch_scaling=sqrt", *more)
    return lambda *tuned: adloco(name, *plain, *tuned)


def _schedule(name: str, ramp: str, end: int) -> Made:
    return _grown(name, "batch.test=schedule", f"batch.ramp={ramp}", f"batch.max_batch={end}")


CAPPED = "AdLoCo, one instance, eta 1.5, at most 20"
TEST, START, LONG_H, FIXED = "AdLoCo, one instance", "DiLoCo B 8 H 32", "DiLoCo B 8 H 64", "DiLoCo B 16 H 32"
METHODS: dict[str, Made] = {
    TEST: _grown(TEST),
    SEESAW: _schedule(SEESAW, "seesaw", 32),
    LINEAR: _schedule(LINEAR, "linear", 26),
    LONG_H: partial(diloco, 8, 64, momentum=0.7, name=LONG_H),
    FIXED: partial(diloco, 16, 32, momentum=0.5, name=FIXED),
    START: partial(diloco, 8, 32, momentum=0.5, name=START),
    CAPPED: _grown(CAPPED, "batch.eta=1.5", "batch.max_batch=20"),
    DOUBLING: _schedule(DOUBLING, "doubling", 32),
}
"""The rows of the same batches in `benchmarks.method`, without rate and warm-up."""

Pair = tuple[str, int | str]
"""A learning rate, and samples of warm-up."""


def grid(method: str) -> list[Pair]:
    return [(rate, samples) for rate in (RATES_16 if method == FIXED else RATES) for samples in WARM_UPS]


def row_of(method: str, pair: Pair) -> Row:
    rate, samples = pair
    return METHODS[method](f"inner.learning_rate={rate}", "inner.warmup_steps=null", f"inner.warmup_samples={samples}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The pairs of constants that are tried for each method."""

    grids: Mapping[str, Sequence[Pair]]
    row_of: Callable[[str, Pair], Row]


SEARCH = Search(grids={method: grid(method) for method in METHODS}, row_of=row_of)


class Runs:
    """The records of a search by method, constants and seed, and which constants each stage chose."""

    def __init__(self, records: Mapping[str, Record], search: Search = SEARCH) -> None:
        self._records, self._base, self.search = records, BASE.read_text("utf-8"), search

    def key(self, method: str, pair: Pair, seed: int) -> str:
        return key_of(self.search.row_of(method, pair), seed, samples=SAMPLES, base=self._base)

    def find(self, method: str, pair: Pair, seed: int) -> Record | None:
        return self._records.get(self.key(method, pair, seed))

    def mean(self, method: str, pair: Pair, *seeds: int) -> float:
        """Return the mean of the final losses; infinite where a seed is missing."""
        found = [self.find(method, pair, seed) for seed in seeds]
        return fmean(record["loss"] if record else float("inf") for record in found)

    def finalists(self, method: str) -> list[Pair]:
        return sorted(self.search.grids[method], key=lambda pair: self.mean(method, pair, FIRST))[:FINALISTS]

    def winner(self, method: str) -> Pair:
        return min(self.finalists(method), key=lambda pair: self.mean(method, pair, FIRST, *OTHERS))

    def of_winner(self, method: str) -> dict[int, Record]:
        """Return the winner's records on the seeds that are reported."""
        pair = self.winner(method)
        return {seed: record for seed in SEEDS if (record := self.find(method, pair, seed))}

    @property
    def whole(self) -> list[str]:
        """Methods that are tuned and have all seeds."""
        return [method for method in self.search.grids if len(self.of_winner(method)) == len(SEEDS)]

    def keys(self) -> set[str]:
        """Of all runs that whole methods may have."""
        grids, seeds = self.search.grids, (FIRST, *OTHERS, *SEEDS)
        return {self.key(method, pair, seed) for method in self.whole for pair in grids[method] for seed in seeds}


def train(arguments: argparse.Namespace, *, search: Search = SEARCH, kept: Path | None = None) -> None:
    """Train one method after the other, so that an early end leaves whole methods. Each stage chooses what the next one
    trains."""
    kept = kept or KEPT

    def runs() -> Runs:
        return Runs(records_by_key(kept, [arguments.output]), search)

    def train_all(method: str, wanted: Iterable[tuple[Pair, int]]) -> None:
        jobs = [
            (runs().key(method, pair, seed), partial(run_row, search.row_of(method, pair), seed, samples=SAMPLES))
            for pair, seed in wanted
        ]
        train_missing(kept, arguments.output, jobs)

    for method in arguments.methods:
        train_all(method, [(pair, FIRST) for pair in search.grids[method]])
        train_all(method, [(pair, seed) for pair in runs().finalists(method) for seed in OTHERS])
        train_all(method, [(runs().winner(method), seed) for seed in arguments.seeds])


# --- the tables ------------------------------------------------------------------------------------------------------


def winner_table(runs: Runs) -> list[str]:
    lines = [
        "| row | rate | warm-up, samples | seeds | final loss | rounds | inner steps | MB sent per peer"
        f" | minus {START} | minus {LONG_H} |",
        "|" + "---|" * 10,
    ]
    bases = [losses_of(runs.of_winner(base).values()) if base in runs.whole else {} for base in (START, LONG_H)]
    for method in runs.whole:
        (rate, samples), some = runs.winner(method), runs.of_winner(method)
        losses = losses_of(some.values())
        cells = [method, rate, f"{samples:,}", str(len(some)), estimate([*losses.values()]).shown(3)]
        cells += [f"{fmean(record[name] for record in some.values()):.0f}" for name in ("rounds", "inner_steps")]
        cells.append(f"{fmean(record['bytes_per_peer'] for record in some.values()) / 1e6:.1f}")
        cells += ["" if losses == base else shown(losses, base) for base in bases]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


Losses = Mapping[int, float]
"""Losses by seed."""
Ways = Mapping[str, Callable[[Losses, Losses], str]]
PLAIN: Ways = {"": shown}
PLANNED: Ways = {"": shown, ", corrected": partial(shown, comparisons=COMPARISONS)}


def minus_table(runs: Runs, test: str, *, but: str | None = None, ways: Ways = PLAIN) -> list[str]:
    """Return the difference to all other rows, or all but one. `ways`: how to give a difference, by what the head of the column
    adds."""
    measures = {"final loss": lambda some: losses_of(some.values()), f"at {PRICE:g} a doubling": at_price}
    columns = {f"{name}{more}": (measure, way) for name, measure in measures.items() for more, way in ways.items()}
    lines = [f"| {test}, minus | rounds | {' | '.join(columns)} | final loss by seed |", "|" + "---|" * (3 + len(columns))]
    ours = runs.of_winner(test)
    for method in runs.whole:
        if method in (test, but):
            continue
        theirs = runs.of_winner(method)
        rounds = " : ".join(f"{fmean(record['rounds'] for record in some.values()):.0f}" for some in (ours, theirs))
        each = ", ".join(f"{ours[seed]['loss'] - theirs[seed]['loss']:.3f}" for seed in sorted(ours.keys() & theirs.keys()))
        cells = [way(measure(ours), measure(theirs)) for measure, way in columns.values()]
        lines.append(f"| {' | '.join([method, rounds, *cells, each])} |")
    return lines


def grid_table(runs: Runs) -> list[str]:
    """Return all that was tried: the loss on the first tuning seed and, for the finalists, the mean over three."""
    lines = [f"| row | rate | warm-up of {' | '.join(f'{samples:,}' for samples in WARM_UPS)} |", "|" + "---|" * 5]
    for method in runs.whole:
        finalists, winner = runs.finalists(method), runs.winner(method)
        for rate in dict.fromkeys(rate for rate, _ in grid(method)):
            cells = []
            for pair in [(rate, samples) for samples in WARM_UPS]:
                whole = " (**{:.3f}**)" if pair == winner else " ({:.3f})"
                mean = whole.format(runs.mean(method, pair, FIRST, *OTHERS)) if pair in finalists else ""
                cells.append(f"{runs.mean(method, pair, FIRST):.3f}{mean}")
            lines.append(f"| {method} | {rate} | {' | '.join(cells)} |")
    return lines


def tables(runs: Runs) -> dict[str, list[str]]:
    return {
        "tuned": winner_table(runs),
        "tuned planned": minus_table(runs, TEST, but=CAPPED, ways=PLANNED),
        "tuned capped": minus_table(runs, CAPPED),
        "tuned grid": grid_table(runs),
    }


def tabulate(arguments: argparse.Namespace) -> None:
    """Write the tables and the packed records. Runs with other settings are left out."""
    records = records_by_key(KEPT, arguments.runs)
    runs = Runs(records)
    rewrite(RESULTS / "tuned.md", tables(runs))
    pack([records[key] for key in sorted(runs.keys() & records.keys())], RESULTS / KEPT.name)


def main() -> None:
    line = command_line("tuned", __doc__, seeds=SEEDS, train=train, tabulate=tabulate)
    line.run.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    line.act()


if __name__ == "__main__":
    main()
