"""Does Muon pay inside the method? AdamW beside Muon, with a constant and with the adaptive batch, at equal samples and time.

python -m benchmarks.muon run                     train what the kept records and muon.jsonl lack; stop and go on at any time
python -m benchmarks.muon run --size small        the small model: 20 s a run on an idle core, 8 to 30 minutes of the large
python -m benchmarks.muon report                  the tables, from both, into docs/results/muon.md; keeps the records of both

Everything is the simulated swarm of `benchmarks.method`: four hosts, H 32, float32 averages, the embedded text, 20 tokens per
parameter. Both optimizers are tuned on a seed of its own, for each size and batch, and compared on others at their best rate.
Runs that tune the large model are a quarter as long. Equal time: Muon with as many fewer samples as its steps take longer, on
one core of the machine that ran it, averaging aside.
"""

import argparse
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.data.feed import IndexedFeed
from adloco_p2p.training.hosting import Hosting
from benchmarks.finetune import ME, round_of
from benchmarks.method.clock import Machine
from benchmarks.method.figures import Estimate, estimate, losses_of, paired, tried_words
from benchmarks.method.report import rewrite
from benchmarks.method.rows import TUNING_SEED, Row, adloco, diloco
from benchmarks.method.run import BASE, indexed, load_base, run_row
from benchmarks.method.store import RESULTS, Record, Store, command_line, key_of, pack

KEPT = RESULTS / "muon.jsonl.gz"
"""Records of earlier cells; a reader's own go beside them."""
TOKENS_PER_PARAMETER = 20
BATCHES = {
    "constant": "constant",
    "momentum": "constant, outer momentum 0.9",
    "adaptive": "adaptive",
    "largest": "constant, 64 rows",
}
"""Kinds of batches, with their words in the tables."""
TUNED_AS = {"momentum": "constant"}
"""Kinds of batches that take the rates of another one."""
KINDS = ("adamw", "muon")
SEEDS = [1, 2, 3]
STEPS_TIMED = 24
TURNS = 5
"""How often each step is timed, the two optimizers in turn; the shortest time counts, since other work only adds."""


Rates = Mapping[str, tuple[str, ...]]
"""Learning rates by optimizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A model, and the learning rates that are tried on it."""

    parameters: int
    settings: tuple[str, ...]
    """Differences from `benchmarks/method/base.yaml`."""
    rates: Mapping[str, Rates]
    """By batch: the rates that are tried."""
    tuning_divisor: int = 1
    """How many times shorter the runs are in which rates are tuned."""

    @property
    def samples(self) -> int:
        """Rows of 64 tokens, in whole rounds of the starting batch."""
        return self._samples(1)

    @property
    def tuning_samples(self) -> int:
        return self._samples(self.tuning_divisor)

    def _samples(self, divisor: int) -> int:
        return self.parameters * TOKENS_PER_PARAMETER // 64 // divisor // 256 * 256


def _llama(hidden: int, inner: int, layers: int, heads: int) -> tuple[str, ...]:
    numbers = {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers}
    numbers |= {"num_attention_heads": heads, "num_key_value_heads": heads}
    return tuple(f"model.architecture.{name}={number}" for name, number in numbers.items())


_SMALL: Rates = {"adamw": ("3e-3", "6e-3", "1.2e-2"), "muon": ("6e-3", "1.2e-2", "2.4e-2", "4.8e-2")}
_LARGE: Rates = {"adamw": ("5e-4", "1e-3", "2e-3"), "muon": ("3e-3", "6e-3", "1.2e-2")}
_LARGEST: Rates = {"adamw": ("1e-3", "2e-3", "4e-3"), "muon": ("6e-3", "1.2e-2", "2.4e-2")}
"""Twice as high, as the rate of the adaptive batch ends."""

SIZES = {
    "small": Size(parameters=20_864, settings=(), rates={"constant": _SMALL, "adaptive": _SMALL}),
    "large": Size(
        parameters=357_120,
        settings=_llama(96, 256, 3, 3),
        rates={"constant": _LARGE, "momentum": _LARGE, "adaptive": _LARGE, "largest": _LARGEST},
        tuning_divisor=4,
    ),
}


def row_of(size: str, batch: str, kind: str, rate: str) -> Row:
    """Return one way to train; `constant` and `adaptive` are the rows of docs/results/method.md with batch 8 and H 32.
    `adaptive` reaches its cap of 64 in the first quarter of a run of `large`."""
    own = (*SIZES[size].settings, f"inner.kind={kind}", f"inner.learning_rate={rate}")
    name = f"{size}, {batch} batch, {kind}, rate {rate}"
    if batch != "adaptive":
        return diloco(64 if batch == "largest" else 8, 32, *own, momentum=0.9 if batch == "momentum" else 0.5, name=name)
    return adloco(name, "batch.eta=1.7", "inner.batch_scaling=sqrt", *own)


class Cells(Store):
    """Records of cells, which are trained where they are missing."""

    def __init__(self, *files: Path) -> None:
        super().__init__(KEPT, *files)
        self._base = BASE.read_text("utf-8")

    def find(self, row: Row, seed: int, samples: int) -> Record | None:
        return self.records.get(key_of(row, seed, samples=samples, base=self._base))

    def train(self, row: Row, seed: int, samples: int) -> Record:
        """Return the record of this cell. Takes from seconds to hours where there is none yet."""
        found = self.find(row, seed, samples)
        return found if found is not None else self._add(row, seed, samples)

    def _add(self, row: Row, seed: int, samples: int) -> Record:
        started = time.monotonic()
        record = run_row(row, seed, samples=samples)
        self.keep(key_of(row, seed, samples=samples, base=self._base), record)
        print(f"seed {seed}  {row.name}  {samples} samples  loss {record['loss']:.4f}  {time.monotonic() - started:.0f} s")
        return record

    def machine(self, size: str, kind: str) -> Machine | None:
        """Return the measured times of this model's inner steps."""
        record = self.records.get(f"step {size} {kind}")
        return None if record is None else Machine(step_seconds=record["step"], sample_seconds=record["sample"])

    def time_steps(self, size: str) -> None:
        """Measure the times of the steps, where that was not done."""
        if all(self.machine(size, kind) is not None for kind in KINDS):
            return
        for kind, machine in timed_steps(size).items():
            record = {"step": machine.step_seconds, "sample": machine.sample_seconds}
            self.keep(f"step {size} {kind}", {"row": f"{size}, {kind}: a step", **record})

    def best_rate(self, size: str, batch: str, kind: str) -> str | None:
        """Return the best of the rates that were tried on the tuning seed; None unless all were tried."""
        batch = TUNED_AS.get(batch, batch)
        losses = self.tried(size, batch, kind)
        return min(losses, key=losses.__getitem__) if len(losses) == len(SIZES[size].rates[batch][kind]) else None

    def tried(self, size: str, batch: str, kind: str) -> dict[str, float]:
        """Return final losses of the tuning seed, by rate."""
        rows = {rate: row_of(size, batch, kind, rate) for rate in SIZES[size].rates[batch][kind]}
        found = {rate: self.find(row, TUNING_SEED, SIZES[size].tuning_samples) for rate, row in rows.items()}
        return {rate: record["loss"] for rate, record in found.items() if record is not None}


def timed_steps(size: str) -> dict[str, Machine]:
    """Return processor seconds of an inner step, by a line through the times for two and sixteen samples a host."""
    torch.set_num_threads(1)
    shortest: dict[tuple[str, int], float] = {}
    hosts: dict[tuple[str, int], Iterator[float]] = {(kind, b): _steps(size, kind, b) for kind in KINDS for b in (2, 16)}
    for _ in range(TURNS):
        for key, seconds in hosts.items():
            shortest[key] = min(next(seconds), shortest.get(key, float("inf")))
    machines = {}
    for kind in KINDS:
        few, many = shortest[kind, 2], shortest[kind, 16]
        each = max(0.0, (many - few) / 14)
        machines[kind] = Machine(step_seconds=few - 2 * each, sample_seconds=each)
    return machines


def _steps(size: str, kind: str, batch: int) -> Iterator[float]:
    """Yield processor seconds of a step on `batch` samples, again and again."""
    settings = [*row_of(size, "constant", kind, "1e-3").settings, f"batch.initial_batch={batch}"]
    run = load_base([*settings, f"work.inner_steps={STEPS_TIMED}", "work.rounds=1000"])
    rows, vocab_size = indexed()
    feed = IndexedFeed(rows, vocab_size=vocab_size, seed=0)
    engine = Hosting(run, PeerConfig(device="cpu", num_threads=1, max_micro_batch=batch), ME, feed)
    engine.start([InstanceId(0)])
    number = 0
    while True:
        work = round_of(run, InstanceId(0), number, 1)
        begun = time.process_time()
        assert engine.run_inner(work, should_stop=lambda: False, on_progress=lambda *_: None) is not None
        yield (time.process_time() - begun) / STEPS_TIMED
        number += 1


def computing_seconds(record: Record, machine: Machine) -> float:
    """Return the seconds of the slowest host in each round, over the run; `log` has one instance per round."""
    return sum(steps * machine.inner_step(batch) for ((_, batch, steps, _),) in record["log"])


def train_cells(arguments: argparse.Namespace) -> None:
    """Tune first, then train all cells of one seed before the next, so that an early end leaves whole pairs."""
    torch.set_num_threads(1)
    cells = Cells(arguments.output)
    for size in arguments.size:
        cells.time_steps(size)
        samples = SIZES[size].samples
        batches = [batch for batch in arguments.batch if batch in SIZES[size].rates]
        for batch in dict.fromkeys(TUNED_AS.get(batch, batch) for batch in batches):
            for kind in KINDS:
                for rate in SIZES[size].rates[batch][kind]:
                    cells.train(row_of(size, batch, kind, rate), TUNING_SEED, SIZES[size].tuning_samples)
        for seed in arguments.seeds:
            for batch in batches:
                for kind in KINDS:
                    cells.train(_best_row(cells, size, batch, kind), seed, samples)
                if (short := short_samples(cells, size, batch)) is not None:
                    cells.train(_best_row(cells, size, batch, "muon"), seed, short)


def _best_row(cells: Cells, size: str, batch: str, kind: str) -> Row:
    rate = cells.best_rate(size, batch, kind)
    assert rate is not None, "tuned before"
    return row_of(size, batch, kind, rate)


def short_samples(cells: Cells, size: str, batch: str) -> int | None:
    """Return the samples with which Muon takes about the time of AdamW with all, from whole runs of one seed: the tuning seed,
    or the first of the others where tuning runs are shorter. None while one of these runs is missing."""
    seconds, seed = {}, TUNING_SEED if SIZES[size].tuning_divisor == 1 else SEEDS[0]
    for kind in KINDS:
        record = cells.find(_best_row(cells, size, batch, kind), seed, SIZES[size].samples)
        machine = cells.machine(size, kind)
        if record is None or machine is None:
            return None
        seconds[kind] = computing_seconds(record, machine)
    return round(SIZES[size].samples * seconds["adamw"] / seconds["muon"]) // 256 * 256


# --- the tables ------------------------------------------------------------------------------------------------------


def _over(records: Mapping[int, Record], machine: Machine) -> Estimate:
    return estimate([computing_seconds(record, machine) for record in records.values()])


def table(cells: Cells, seeds: list[int]) -> list[str]:
    """Return one line for each size and batch that has a whole seed."""
    lines = [
        "| model, batch | rates | seeds | AdamW | Muon, equal samples | Muon minus AdamW | rounds, AdamW : Muon "
        "| seconds, Muon / AdamW | Muon, equal time | minus AdamW |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    return lines + [line for size in SIZES for batch in SIZES[size].rates if (line := _line(cells, size, batch, seeds))]


def tuning_table(cells: Cells) -> list[str]:
    """Return held-out losses of the tuning seed as far as they were tried, with the best one of each kind marked."""
    lines = ["| model, batch | optimizer | rate: loss |", "|---|---|---|"]
    for size in SIZES:
        for batch in SIZES[size].rates:
            for kind in KINDS if batch not in TUNED_AS else ():
                if tried := cells.tried(size, batch, kind):
                    lines.append(
                        f"| {size}, {BATCHES[batch]} | {kind} | {tried_words(tried, cells.best_rate(size, batch, kind))} |"
                    )
    return lines


def _line(cells: Cells, size: str, batch: str, seeds: list[int]) -> str | None:
    """Return the line with a dash for what was not trained; None without a run of AdamW."""
    adamw, muon = cells.machine(size, "adamw"), cells.machine(size, "muon")
    if adamw is None or muon is None or any(cells.best_rate(size, batch, kind) is None for kind in KINDS):
        return None

    def found(kind: str, samples: int) -> dict[int, Record]:
        row = _best_row(cells, size, batch, kind)
        return {seed: record for seed in seeds if (record := cells.find(row, seed, samples)) is not None}

    fewer = short_samples(cells, size, batch)
    records = {kind: found(kind, SIZES[size].samples) for kind in KINDS} | {"short": found("muon", fewer) if fewer else {}}
    losses = {name: losses_of(some.values()) for name, some in records.items()}
    if not losses["adamw"]:
        return None
    means = {name: _shown(estimate(list(some.values())) if some else None) for name, some in losses.items()}
    equal, short = paired(losses["muon"], losses["adamw"]), paired(losses["short"], losses["adamw"])
    is_whole = bool(losses["muon"])
    ratio = f"{_over(records['muon'], muon).mean / _over(records['adamw'], adamw).mean:.2f}" if is_whole else "-"
    rates = ", ".join(str(cells.best_rate(size, batch, kind)) for kind in KINDS)
    kinds = KINDS if is_whole else ("adamw",)
    rounds = " : ".join(f"{estimate([record['rounds'] for record in records[kind].values()]).mean:.0f}" for kind in kinds)
    count = str(min(len(losses[kind]) for kind in kinds))
    if len(losses["short"]) not in (0, int(count)):
        count += f" (equal time {len(losses['short'])})"
    return (
        f"| {size}, {BATCHES[batch]} | {rates} | {count} | {means['adamw']} | {means['muon']} |"
        f" {_shown(equal)} | {rounds} | {ratio} | {means['short']} | {_shown(short)} |"
    )


def _shown(found: Estimate | None) -> str:
    return found.shown(3) if found is not None else "-"


def tables(cells: Cells, seeds: list[int]) -> dict[str, list[str]]:
    return {"muon": table(cells, seeds), "muon tuning": tuning_table(cells)}


def tabulate(arguments: argparse.Namespace) -> None:
    cells = Cells(*arguments.runs)
    rewrite(RESULTS / "muon.md", tables(cells, arguments.seeds))
    pack([cells.records[key] for key in sorted(cells.records)], KEPT)


def main() -> None:
    line = command_line("muon", __doc__, seeds=SEEDS, train=train_cells, tabulate=tabulate)
    line.run.add_argument("--size", nargs="+", choices=SIZES, default=list(SIZES))
    line.run.add_argument("--batch", nargs="+", choices=BATCHES, default=list(BATCHES))
    line.report.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    line.act()


if __name__ == "__main__":
    main()
