"""Does the method pay at 1.3M parameters? Four equal hosts, 20 tokens per parameter, AdamW and Muon inside.

python -m benchmarks.million run --device cpu --processes 2     train what the kept records and million.jsonl lack
python -m benchmarks.million run --device cuda --processes 6    the same on a GPU
python -m benchmarks.million count                              the tables of counts of the same text; minutes
python -m benchmarks.million report                             the tables of docs/results/million.md; keeps the records

The text is that of `benchmarks.sizes` with up to two million characters of a package, in a vocabulary of 1,024 tokens, so that
86 % of the parameters are in the blocks; no row is read twice. `--text` names the file that holds its tokens, which can be
carried to a machine that lacks the packages. The swarm is that of `benchmarks.method`: four equal hosts, H 16, outer
momentum 0.5, float32 averages. Products of float32 matrices are rounded to TF32 on a GPU, as the product does by default; a GPU
repeats a run to the rounding of its sums, not to the bit. Each record names its device.

Tuned, with the constant batch of 32 on a seed of its own in runs a quarter as long: the rate of AdamW and the rate of Muon,
four values each, and for AdamW, whose lowest was best, two lower ones, added then, which ended higher; the lowest final loss
counts, and the rows start with it by themselves. Nothing else is tuned here: start of the batch, H and momentum go by the
smaller models (`benchmarks.small_vocabulary`), growth of 1.07 a round by its result.

Written before any run. Batches start at 32 rows and the rate follows their root. Three ways to take about half the rounds of
DiLoCo with 32 rows (200): a linear ramp to 128 takes 94 by arithmetic; AdLoCo with growth of at most 1.07 a round takes 94 with
76 at most, if the test asks for more in every round from the eighth on, as it did with smaller models; a constant batch of 64,
with the root of 2 times the rate, takes 100. Planned comparisons, paired by seed, each with AdamW and with Muon:
1. AdLoCo minus DiLoCo with 32 rows: what half the rounds cost.
2. AdLoCo minus the ramp: whether the statistic gives more than a schedule. Expected from the smaller models: no difference;
   called level where the mean is within 0.010 nats, an advantage or a loss where the interval excludes zero.
3. AdLoCo minus DiLoCo with 64 rows: whether growth pays beside a constant batch at its price.
Exploratory: AdLoCo with the preset's growth of 1.5, Seesaw, and AdamW against Muon. Intervals corrected for the six planned
comparisons were added later; the verdict of 2 goes by the plain ones, as it was planned.
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from multiprocessing import get_context
from pathlib import Path
from queue import Empty, SimpleQueue

import torch

from benchmarks.method.report import rewrite
from benchmarks.method.rows import TUNING_SEED, Row, adloco, diloco
from benchmarks.method.run import CACHE, run_row
from benchmarks.method.store import RESULTS, Record
from benchmarks.package_text import LENGTH, Prepared, keep_prepared, kept_prepared
from benchmarks.sizes import SHIPPED_ETA
from benchmarks.text_runs import POINTS, TUNING_HEAD, Runs, Scale, price_table, run_table, tuning_line

PARAMETERS = 1_313_488
SAMPLES = 102_400
"""Samples of 256 tokens: 20 tokens per parameter, in whole rounds. 180,224 of the parameters are the tied embedding."""
SCALE = Scale(
    kept=RESULTS / "million.jsonl.gz",
    vocab_size=1024,
    samples=SAMPLES,
    tuning_samples=SAMPLES // 4,
    order=6,
    kneser_ney=(3, 4, 6),
    package_characters=2_000_000,
)
SEEDS = [1, 2, 3]
KINDS = {"AdamW": "adamw", "Muon": "muon"}
COMPARISONS = 3 * len(KINDS)
"""The planned ones."""
RATES = {"adamw": ("3.75e-4", "7.5e-4", "1.5e-3", "3e-3", "6e-3", "1.2e-2"), "muon": ("5e-3", "1e-2", "2e-2", "4e-2")}
"""The learning rates that are tried on the tuning seed."""

_SHAPE = {
    "hidden_size": 176,
    "intermediate_size": 480,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}
_COMMON = (*(f"model.architecture.{name}={number}" for name, number in _SHAPE.items()), f"data.sequence_length={LENGTH}")
HOSTS, H = 4, 16
START, DOUBLE, LARGEST, SLOW_CAP = 32, 64, 128, 76
BOUND = "1.07"
HELD = 64
"""Rows that a device may hold at once: more than any host gets, and few enough for sixteen processes."""
KERNELS, MUON_KERNELS, TEST_KERNELS = 400, 490, 180
"""Kernels in an inner step of one host, counted as operations of torch: with AdamW, more with Muon, more with the statistics of
the batch test. They only set the order of the runs."""


# --- the rows --------------------------------------------------------------------------------------------------------


def fixed(kind: str, rate: str, batch: int = START) -> Row:
    """Return a row with a constant batch, and the learning rate times the root of its ratio to START."""
    own = rate if batch == START else f"{float(rate) * sqrt(batch / START):.3g}"
    settings = (*_COMMON, f"inner.kind={KINDS[kind]}", f"inner.learning_rate={own}")
    row = diloco(batch, H, *settings, momentum=0.5, name=f"DiLoCo B {batch} H {H}, {kind}")
    return replace(row, micro_batch_limit=HELD)


def growing(name: str, kind: str, rate: str, *more: str, most: int = LARGEST) -> Row:
    """Return a row whose batch grows from START to `most` at most, the learning rate with its root."""
    optimizer = (f"inner.kind={KINDS[kind]}", f"inner.learning_rate={rate}", "inner.batch_scaling=sqrt")
    batches = (f"batch.initial_batch={START}", f"batch.max_batch={most}", f"work.inner_steps={H}")
    return adloco(f"{name}, {kind}", *_COMMON, *optimizer, *batches, *more, micro_batch_limit=HELD)


def slow(kind: str, rate: str) -> Row:
    """Return a row of the batch test with bounded growth."""
    bounded = (f"batch.eta={SHIPPED_ETA}", f"batch.growth_cap={BOUND}")
    return growing(f"AdLoCo, growth {BOUND}, at most {SLOW_CAP}", kind, rate, *bounded, most=SLOW_CAP)


def schedule(name: str, kind: str, rate: str, ramp: str) -> Row:
    return growing(name, kind, rate, "batch.test=schedule", f"batch.ramp={ramp}")


def tuning(kind: str) -> Mapping[str, Row]:
    """Return the rows that are tried, by their constant."""
    return {rate: fixed(kind, rate) for rate in RATES[KINDS[kind]]}


def planned(kind: str, rate: str) -> list[Row]:
    """Return DiLoCo, and three ways to half its rounds."""
    ramp = schedule(f"linear ramp {START} -> {LARGEST}", kind, rate, "linear")
    return [fixed(kind, rate), slow(kind, rate), ramp, fixed(kind, rate, DOUBLE)]


def foremost(kind: str, rate: str) -> list[Row]:
    """Return the planned rows that are trained first, in this order: DiLoCo, the batch test and the ramp with AdamW, the test
    with Muon."""
    constant, test, ramp, _ = planned(kind, rate)
    return [constant, test, ramp] if kind == "AdamW" else [test]


def exploratory(kind: str, rate: str) -> list[Row]:
    if kind != "AdamW":
        return []
    jump = growing(f"AdLoCo, growth 1.5, at most {LARGEST}", kind, rate, f"batch.eta={SHIPPED_ETA}")
    return [jump, schedule(f"Seesaw, at most {LARGEST}", kind, rate, "seesaw")]


# --- the runs --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Job:
    row: Row
    seed: int

    @property
    def cost(self) -> float:
        """The approximate kernels of the run; growing batches take about half of DiLoCo's steps."""
        settings = dict(setting.split("=", 1) for setting in self.row.settings)
        is_fixed = settings.get("mode") == "diloco"
        batch = int(settings["batch.initial_batch"]) if is_fixed else DOUBLE
        is_tested = not is_fixed and settings.get("batch.test") != "schedule"
        kernels = KERNELS + MUON_KERNELS * (settings["inner.kind"] == "muon") + TEST_KERNELS * is_tested
        return kernels * HOSTS * SCALE.samples_of(self.seed) / batch

    def __str__(self) -> str:
        rate = next(setting for setting in self.row.settings if setting.startswith("inner.learning_rate="))
        return f"seed {self.seed}  {self.row.name}, rate {rate.partition('=')[2]}"


def wanted(runs: Runs, seeds: Sequence[int]) -> list[Job]:
    """Return the jobs that can start now and have no record, in this order: tuning, the foremost rows of one seed after the
    other, the other planned rows, the rest; of these three the longest first."""
    tried = {kind: [Job(row, TUNING_SEED) for row in tuning(kind).values()] for kind in KINDS}
    parts = [[job for jobs in tried.values() for job in jobs]]
    best = [
        (kind, runs.best(tuning(kind))) for kind, jobs in tried.items() if all(runs.find(job.row, job.seed) for job in jobs)
    ]
    parts += [[Job(row, seed)] for seed in seeds for kind, rate in best for row in foremost(kind, rate)]
    for rows in (planned, exploratory):
        parts += [[Job(row, seed) for kind, rate in best for row in rows(kind, rate)] for seed in seeds]
    ordered = dict.fromkeys(job for part in parts for job in sorted(part, key=lambda job: -job.cost))
    return [job for job in ordered if runs.find(job.row, job.seed) is None]


def train(job: Job, text: Path, device: str) -> Record:
    """Train in a process of its own."""
    rows, samples = kept_prepared(text, SCALE.vocab_size)[0], SCALE.samples_of(job.seed)
    record = run_row(job.row, job.seed, samples=samples, text=(rows, SCALE.vocab_size), points=POINTS, device=device)
    return {**record, "device": torch.cuda.get_device_name() if device == "cuda" else device}


def train_all(arguments: argparse.Namespace) -> None:
    """Do so many runs at once, each in a new process. A record is written as soon as it is there, and no run starts that would
    exceed the time by the pace so far, so an early end costs only the runs under way."""
    ends_at = time.monotonic() + arguments.seconds
    runs = Runs(SCALE, arguments.output, text=text_of(kept_text(arguments.text)))
    running: dict[Job, float] = {}
    failed: set[Job] = set()
    ended: SimpleQueue[tuple[Job, Record | BaseException]] = SimpleQueue()
    done = taken = 0.0
    """Kernels of all runs that have ended, and their seconds."""
    with get_context("spawn").Pool(arguments.processes, maxtasksperchild=1) as pool:
        while True:
            for job in wanted(runs, arguments.seeds):
                is_late = done and time.monotonic() + job.cost * taken / done > ends_at
                if len(running) < arguments.processes and job not in running and job not in failed and not is_late:
                    running[job] = time.monotonic()
                    answer = partial(_ended, ended, job)
                    pool.apply_async(train, (job, arguments.text, arguments.device), callback=answer, error_callback=answer)
            if not running:
                return
            try:
                job, result = ended.get(timeout=max(0.0, ends_at - time.monotonic()))
            except Empty:
                print("out of time; broken off:", *running, sep="\n", flush=True)
                return
            seconds = time.monotonic() - running.pop(job)
            if isinstance(result, BaseException):
                failed.add(job)
                print(f"{job}: {result!r}", result.__cause__ or "", flush=True)
                continue
            done, taken = done + job.cost, taken + seconds
            runs.keep(runs.key(job.row, job.seed), {**result, "text": runs.text})
            print(f"{job}: {result['loss']:.4f} in {result['rounds']} rounds, {seconds:.0f} s", flush=True)


def _ended(ended: SimpleQueue[tuple[Job, Record | BaseException]], job: Job, result: Record | BaseException) -> None:
    ended.put((job, result))


def kept_text(path: Path) -> Prepared:
    """Return the text of a file, which is made from the packages in minutes where there is none."""
    if not path.exists():
        keep_prepared(path, SCALE.prepared())
    return kept_prepared(path, SCALE.vocab_size)


def text_of(text: Prepared) -> str:
    """Return the digest of the text and the size of its vocabulary."""
    return f"{text[1]} in {SCALE.vocab_size} tokens"


def count(arguments: argparse.Namespace) -> None:
    Runs(SCALE, arguments.output, text=text_of(SCALE.prepared())).count()


# --- the tables ------------------------------------------------------------------------------------------------------


def tables(runs: Runs, seeds: Sequence[int] = SEEDS) -> dict[str, list[str]]:
    """Return the tables, with the best rates so far where the tuning is not complete."""
    rows: list[Row] = []
    compared: list[tuple[Row, Row]] = []
    others: list[tuple[Row, Row]] = []
    for kind in KINDS:
        rate = runs.best_so_far(tuning(kind))
        if rate is None:
            continue
        first, test, ramp, double = own = planned(kind, rate)
        rows += [*own, *exploratory(kind, rate)]
        compared += [(test, first), (test, ramp), (test, double)]
        others.append((double, ramp))
    names = ("row", "beside")
    prices = price_table(runs, compared, seeds, comparisons=COMPARISONS, exploratory=others, names=names)
    tuned = [tuning_line(runs, f"DiLoCo B {START} H {H}", f"rate of {kind}", tuning(kind)) for kind in KINDS]
    return {
        "million": run_table(runs, rows, seeds),
        "million prices": prices if len(prices) > 2 else ["No two of the rows have a seed in common yet."],
        "million tuning": [*TUNING_HEAD, *tuned],
    }


def tabulate(arguments: argparse.Namespace) -> None:
    runs = Runs(SCALE, *arguments.runs)
    rewrite(RESULTS / "million.md", tables(runs))
    runs.keep_all()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.million", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs, own = parser.add_subparsers(required=True), Path("million.jsonl")
    run = verbs.add_parser("run", help="train what the records lack")
    run.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    run.add_argument("--device", choices=("cpu", "cuda"), default="cuda", help="of all runs")
    run.add_argument("--processes", type=int, default=6, help="runs at once, which take turns on the card")
    run.add_argument("--seconds", type=float, default=1e6, help="after which runs under way are broken off")
    run.add_argument("--text", type=Path, default=CACHE / "million.npz", help="written from the packages where there is none")
    run.set_defaults(act=train_all)
    counted = verbs.add_parser("count", help="the tables of counts")
    counted.set_defaults(act=count)
    for part in (run, counted):
        part.add_argument("--output", type=Path, default=own)
    report = verbs.add_parser("report", help="the tables")
    report.add_argument("--runs", type=Path, nargs="*", default=[own], help="records beside the kept ones")
    report.set_defaults(act=tabulate)
    arguments = parser.parse_args()
    arguments.act(arguments)


if __name__ == "__main__":
    main()
