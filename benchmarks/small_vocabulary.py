"""Does the method pay where the model beats a table of counts? A quarter of a million parameters, 512 tokens, Muon inside.

python -m benchmarks.small_vocabulary run       train what the kept records and small_vocabulary.jsonl lack; 8 minutes a run
python -m benchmarks.small_vocabulary report    the tables, from both, into docs/results/sizes.md; keeps the records of both

The text is that of `benchmarks.sizes`, in tokens of a vocabulary so small that 82 % of the parameters are in the blocks. The
swarm is that of `benchmarks.method`: four equal hosts, H 8, float32 averages, 20 tokens per parameter. The rate is tuned with
the constant batch, in runs a quarter as long with a seed of their own. No growing batch was tuned: eta is the preset's, and the
ramps end at the largest batch that AdLoCo may have.
"""

import argparse
from collections.abc import Mapping, Sequence
from math import sqrt

from benchmarks.method.rows import TUNING_SEED, Row, adloco, diloco
from benchmarks.package_text import LENGTH, prepared
from benchmarks.sizes import RESULTS, SHIPPED_ETA
from benchmarks.text_runs import Runs, Scale, run_command, run_table, tuning_line

PARAMETERS = 270_816
SAMPLES = 21_120
"""Of 256 tokens: 20 tokens per parameter, in whole rounds. Of the parameters 49,152 are the tied embedding."""
SCALE = Scale(
    kept=RESULTS / "small_vocabulary.jsonl.gz",
    vocab_size=512,
    samples=SAMPLES,
    tuning_samples=5120,
    order=5,
    kneser_ney=(3, 4, 6),
)
SEEDS = [1, 2, 3]

_SHAPE = {
    "hidden_size": 96,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}
_COMMON = (*(f"model.architecture.{name}={number}" for name, number in _SHAPE.items()), f"data.sequence_length={LENGTH}")
RATES = {"muon": ("1e-2", "2e-2", "4e-2"), "adamw": ("6e-3",)}
"""Tried on the tuning seed; all other rows have Muon at the best of its rates."""
H = 8
START, LARGEST = 16, 64
"""Batches; with 16, each of the four hosts has four rows a step."""
FIXED, LARGER = f"DiLoCo B {START} H {H}", f"DiLoCo B 32 H {H}"
TEST, LINEAR, SEESAW = f"AdLoCo, eta {SHIPPED_ETA}", f"linear ramp {START} -> {LARGEST}", f"Seesaw, at most {LARGEST}"


def fixed(rate: str, batch: int = START, name: str = FIXED, kind: str = "muon") -> Row:
    return diloco(batch, H, *_COMMON, f"inner.kind={kind}", f"inner.learning_rate={rate}", momentum=0.5, name=name)


def growing(name: str, rate: str, *more: str) -> Row:
    """A batch that grows from 16 to 64 at most, the learning rate with its root."""
    optimizer = ("inner.kind=muon", f"inner.learning_rate={rate}", "inner.batch_scaling=sqrt")
    batches = (f"batch.initial_batch={START}", f"batch.max_batch={LARGEST}")
    return adloco(name, *_COMMON, *optimizer, *batches, f"work.inner_steps={H}", *more)


def tuning(kind: str = "muon") -> Mapping[str, Row]:
    """What is tried, by its constant."""
    return {rate: fixed(rate, kind=kind) for rate in RATES[kind]}


def rows(rate: str) -> list[Row]:
    schedule = "batch.test=schedule"
    return [
        fixed(rate),
        growing(TEST, rate, f"batch.eta={SHIPPED_ETA}"),
        growing(LINEAR, rate, schedule, "batch.ramp=linear"),
        fixed(f"{float(rate) * sqrt(2):.3g}", 32, LARGER),
        growing(SEESAW, rate, schedule, "batch.ramp=seesaw"),
    ]


def tuned_rows(runs: Runs) -> list[Row]:
    """With the learning rate that the tuning gave."""
    return rows(runs.best(tuning()))


def train(arguments: argparse.Namespace) -> None:
    """Tuning, then one seed after the other, so that an early end leaves whole seeds."""
    runs = Runs(SCALE, arguments.output, text=text_of_runs())
    runs.count()
    for kind in RATES:
        for row in tuning(kind).values():
            runs.train(row, TUNING_SEED)
    for seed in arguments.seeds:
        for row in tuned_rows(runs):
            runs.train(row, seed)


def text_of_runs() -> str:
    """The digest of the text and the size of its vocabulary."""
    return f"{prepared(SCALE.vocab_size)[1]} in {SCALE.vocab_size} tokens"


def tables(runs: Runs, seeds: Sequence[int] = SEEDS) -> dict[str, list[str]]:
    tuned = [tuning_line(runs, FIXED, f"rate of {kind}", tuning(kind)) for kind in RATES]
    return {
        "small vocabulary": run_table(runs, tuned_rows(runs), seeds),
        "small vocabulary tuning": ["| row | tried | constant: loss |", "|---|---|---|", *tuned],
    }


def main() -> None:
    run_command("small_vocabulary", __doc__, scale=SCALE, seeds=SEEDS, train=train, tables=tables)


if __name__ == "__main__":
    main()
