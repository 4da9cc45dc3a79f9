"""Does the method pay on text with a trained vocabulary? A quarter of a million parameters, 4,096 tokens.

python -m benchmarks.sizes run          train what the kept records and sizes.jsonl lack; five minutes a run on an idle core
python -m benchmarks.sizes report       the tables, from both, into docs/results/sizes.md; keeps the records of both

The text needs no download: sources of the standard library, and sources and documentation of the installed packages that
`package_text.txt` names. A byte-pair vocabulary is trained on its training side. The swarm is that of `benchmarks.method`: four
equal hosts, H 32, float32 averages, 20 tokens per parameter. Tuning has a seed of its own and runs a quarter as long.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from math import sqrt

from benchmarks.method.rows import TUNING_SEED, Row, adloco, diloco
from benchmarks.method.store import RESULTS
from benchmarks.package_text import LENGTH, prepared
from benchmarks.text_runs import TUNING_HEAD, Runs, Scale, run_command, run_table, tuning_line

SAMPLES = 19_456
"""Samples of 256 tokens: 20 tokens per parameter, in whole rounds. Of the 252,144 parameters 196,608 are the tied embedding."""
SCALE = Scale(kept=RESULTS / "sizes.jsonl.gz", vocab_size=4096, samples=SAMPLES, tuning_samples=SAMPLES // 4, order=3)
SEEDS = [1, 2, 3]

_COMMON = (
    "model.architecture.hidden_size=48",
    "model.architecture.intermediate_size=128",
    "model.architecture.num_hidden_layers=2",
    f"data.sequence_length={LENGTH}",
)
RATES, ETAS, MUON_RATES = ("1.5e-3", "3e-3", "6e-3", "1.2e-2"), ("1.3", "1.7", "2.5"), ("6e-3", "1.2e-2", "2.4e-2")
"""Constants that are tried on the tuning seed, in this order, each at the best of those before."""
SHIPPED_ETA = "1.7"
"""The eta of the preset, from `docs/results/method.md`."""
FIXED, LARGER = "DiLoCo B 8 H 32", "DiLoCo B 16 H 32"
TUNED, SHIPPED, MUON = "AdLoCo, eta tuned", f"AdLoCo, eta {SHIPPED_ETA}", "AdLoCo with Muon"
SEESAW, DOUBLING = "Seesaw, at most 32", "doubling ramp 8 -> 32"


# --- the rows --------------------------------------------------------------------------------------------------------


def fixed(rate: str, batch: int = 8, name: str = FIXED) -> Row:
    return diloco(batch, 32, *_COMMON, f"inner.learning_rate={rate}", momentum=0.5, name=name)


def growing(name: str, rate: str, *more: str) -> Row:
    """Return a row whose batch grows from 8 to 32 at most, the learning rate with its root."""
    common = (*_COMMON, f"inner.learning_rate={rate}", "inner.batch_scaling=sqrt", "batch.max_batch=32")
    return adloco(name, *common, *more)


def adaptive(rate: str, eta: str, name: str = TUNED) -> Row:
    return growing(name, rate, f"batch.eta={eta}")


def muon(rate: str, eta: str) -> Row:
    return growing(MUON, rate, f"batch.eta={eta}", "inner.kind=muon")


def schedule(name: str, rate: str, ramp: str) -> Row:
    return growing(name, rate, "batch.test=schedule", f"batch.ramp={ramp}")


# --- the runs --------------------------------------------------------------------------------------------------------


def tuning(runs: Runs) -> Iterator[Mapping[str, Row]]:
    """Yield the sets of rows that are tried, by their constant; each set uses the best of the set before, which has to have
    been run by then."""
    yield (rates := {rate: fixed(rate) for rate in RATES})
    rate = runs.best(rates)
    yield (etas := {eta: adaptive(rate, eta) for eta in ETAS})
    yield {muon_rate: muon(muon_rate, runs.best(etas)) for muon_rate in MUON_RATES}


def tuned_rows(runs: Runs) -> list[Row]:
    """Return the rows with the constants that the tuning gave."""
    rate, eta, muon_rate = (runs.best(candidates) for candidates in tuning(runs))
    larger = fixed(f"{float(rate) * sqrt(2):.3g}", 16, LARGER)
    seesaw, doubling = schedule(SEESAW, rate, "seesaw"), schedule(DOUBLING, rate, "doubling")
    first = [fixed(rate), adaptive(rate, eta), seesaw, larger]
    return [*first, muon(muon_rate, eta), adaptive(rate, SHIPPED_ETA, SHIPPED), doubling]


def train(arguments: argparse.Namespace) -> None:
    """Train the tuning, then one seed after the other, so that an early end leaves whole seeds; the last rows come last."""
    runs = Runs(SCALE, arguments.output, text=prepared(SCALE.vocab_size)[1])
    runs.count()
    for candidates in tuning(runs):
        for row in candidates.values():
            runs.train(row, TUNING_SEED)
    wanted = tuned_rows(runs)
    for some in (wanted[:4], *([row] for row in wanted[4:])):
        for seed in arguments.seeds:
            for row in some:
                runs.train(row, seed)


# --- the tables ------------------------------------------------------------------------------------------------------


def tables(runs: Runs, seeds: Sequence[int] = SEEDS) -> dict[str, list[str]]:
    return {"sizes": run_table(runs, tuned_rows(runs), seeds), "sizes tuning": tuning_table(runs)}


def tuning_table(runs: Runs) -> list[str]:
    names = ((FIXED, "rate"), (TUNED, "eta"), (MUON, "rate"))
    lines = [tuning_line(runs, *name, candidates) for name, candidates in zip(names, tuning(runs), strict=True)]
    return [*TUNING_HEAD, *lines]


def main() -> None:
    run_command("sizes", __doc__, scale=SCALE, seeds=SEEDS, train=train, tables=tables)


if __name__ == "__main__":
    main()
