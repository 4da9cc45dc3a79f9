"""The cost of each `averaging.preset` in loss beside float32: real training in a simulated swarm, one instance, whole runs.

python -m benchmarks.presets run --seeds 1 2 3    train what the kept records and presets.jsonl lack; stop and go on at any time
python -m benchmarks.presets report               the table from both, into docs/results/bytes.md; keeps the records of both

Codec, feedback, reduction and outer step are the product's, by the preset; the inner steps of all hosts are computed at once
(`benchmarks/robustness/training.py`), one row a host and step. A run of 8 hosts and 64 rounds takes 20 s of an idle core with
20,864 parameters, and some three minutes with 286,272 (`--width 144`).
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from operator import attrgetter
from statistics import median
from typing import Any

import torch

from adloco_p2p.config.presets import LONG_MOMENTUM, outer_momentum
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.data.feed import IndexedFeed
from adloco_p2p.numerics.aggregate import aggregate
from adloco_p2p.numerics.aggregation.registry import rule_named
from adloco_p2p.numerics.codecs import bytes_each_way, codec_named
from adloco_p2p.numerics.sparse_codecs import TopKCodec
from adloco_p2p.numerics.tensor_codec import TensorCodec
from benchmarks.method.figures import estimate, paired
from benchmarks.method.report import keep_tables
from benchmarks.method.run import indexed, load_base
from benchmarks.method.store import RESULTS, Record, command_line, digest_of, train_missing
from benchmarks.robustness.training import Trainees, apply_, measure_of, rows_of_host, schedule_of

DENSE_09 = "dense, momentum 0.9"
WAYS = {
    "dense": ("averaging.preset=dense",),
    "half": ("averaging.preset=half",),
    "int8": ("averaging.preset=int8",),
    "sign_int4": ("averaging.codec=sign_int4",),
    "sign": ("averaging.preset=sign",),
    "sparse": ("averaging.preset=sparse",),
    "sparse, all": ("averaging.preset=sparse", "averaging.division=all"),
    "dense, momentum 0.5": ("averaging.preset=dense", "outer.momentum=0.5"),
    "dense, momentum 0.7": ("averaging.preset=dense", "outer.momentum=0.7"),
    DENSE_09: ("averaging.preset=dense", "outer.momentum=0.9"),
    "dense, no momentum, rate 1.0": ("averaging.preset=dense", "outer.kind=sgd", "outer.learning_rate=1.0"),
    "sign, momentum 0.5": ("averaging.preset=sign", "outer.momentum=0.5"),
    "sign, momentum 0.9": ("averaging.preset=sign", "outer.momentum=0.9"),
    "sparse, rate 1.4": ("averaging.preset=sparse", "outer.learning_rate=1.4"),
    "sparse, dense for 3": ("averaging.preset=sparse",),
    "sparse, dense for 16": ("averaging.preset=sparse",),
}
"""The compared presets; `sign_int4` is a codec without a preset, and `sparse, all` divides by the weights of all hosts. Where
the name states no other, `sign` and `sparse` have the outer step of their presets, others the one of short runs."""
OWN_OUTER_STEPS = ("sign", "sparse")
WARM_UPS = {
    "sparse, dense for 3": (1024, 256, 128),
    "sparse, dense for 16": (1024,) * 4 + (512,) * 4 + (256,) * 4 + (128,) * 4,
}
"""Values of a chunk that are kept in the first rounds, before the codec's own number (Deep Gradient Compression, arXiv
1712.01887, section 3.3). The product has one density only."""
INNER_STEPS = 32
"""H, where a cell states no other."""
KEPT = RESULTS / "presets.jsonl.gz"
"""Records of earlier runs; a reader's own go beside them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One swarm. `width`: hidden size; the layer inside is 8/3 of it."""

    way: str
    hosts: int = 8
    rounds: int = 64
    width: int = 32
    inner_steps: int = INNER_STEPS


def run_of(cell: Cell, seed: int) -> RunConfig:
    settings = [f"work.rounds={cell.rounds}", f"work.inner_steps={cell.inner_steps}", "batch.test=constant", f"seed={seed}"]
    settings += ["inner.batch_scaling=none", *WAYS[cell.way]]
    if "momentum" not in cell.way and cell.way.partition(",")[0] not in OWN_OUTER_STEPS:
        settings.append(f"outer.momentum={outer_momentum(cell.inner_steps, is_long=False)}")
    if cell.width != 32:
        sizes = {"hidden_size": cell.width, "intermediate_size": cell.width * 8 // 3, "num_attention_heads": 4}
        settings += [f"model.architecture.{name}={size}" for name, size in sizes.items()]
        settings.append("model.architecture.num_key_value_heads=4")
    return load_base(settings)


def key_of(cell: Cell, seed: int) -> str:
    """Return the key of a run: a digest of all that its result depends on, except the code."""
    run = run_of(cell, seed)
    plain: dict[str, Any] = {
        "averaging": asdict(replace(run.averaging, preset=None)),
        "outer": asdict(run.outer),
        "inner": asdict(run.inner),
    }
    swarm = asdict(replace(cell, way=""))
    if cell.inner_steps == INNER_STEPS:
        del swarm["inner_steps"]  # older records lack it
    plain |= {"cell": swarm, "seed": seed, "model": asdict(run.model)}
    if cell.way in WARM_UPS:
        plain["kept"] = WARM_UPS[cell.way]
    return digest_of(plain)


def codecs_of(cell: Cell, run: RunConfig) -> list[TensorCodec]:
    """Return the codec of each round."""
    own = codec_named(run.averaging.codec)
    first: list[TensorCodec] = [TopKCodec(own.name, own.code, kept) for kept in WARM_UPS.get(cell.way, ())]
    return [*first, *[own] * (cell.rounds - len(first))]


def bytes_up(cell: Cell) -> float:
    """Return the bytes per value of a long vector, over all rounds."""
    codecs = codecs_of(cell, run_of(cell, 0))
    return sum(bytes_each_way(codec, cell.hosts)[0] for codec in codecs) / len(codecs)


class Noise:
    """Pools the statistic T of the batch test over rounds of equal weights: noise of the mean over signal."""

    def __init__(self) -> None:
        self._noise = self._signal = 0.0

    def add(self, own: Sequence[float], averaged: float) -> None:
        count = len(own)
        of_mean = (sum(own) / count - averaged) / (count - 1)
        self._noise, self._signal = self._noise + of_mean, self._signal + averaged - of_mean

    @property
    def ratio(self) -> float:
        return self._noise / self._signal


def run_cell(cell: Cell, seed: int) -> Record:
    torch.set_num_threads(1)
    started = time.process_time()
    run = run_of(cell, seed)
    rows, vocab_size = indexed()
    trainees = Trainees(run, vocab_size=vocab_size, num_hosts=cell.hosts)
    feed = IndexedFeed(rows, vocab_size=vocab_size, seed=seed)
    averaging, ones = run.averaging, [1] * cell.hosts
    codecs, rule = codecs_of(cell, run), rule_named(averaging.aggregation, division=averaging.division)
    outer, momentum = trainees.start.clone(), torch.zeros_like(trainees.start)
    residuals: list[torch.Tensor | None] = [None] * cell.hosts
    sent, made, num_back = Noise(), Noise(), 0
    for number, codec in enumerate(codecs):
        taken = [rows_of_host(run, feed, host, number, turn=number * cell.hosts + host) for host in range(cell.hosts)]
        vectors = list(outer - trainees.inner_round(outer, taken, schedule_of(run, number)))
        made.add([float(vector @ vector) for vector in vectors], float(torch.stack(vectors).mean(dim=0).square().sum()))
        for vector, residual in zip(vectors, residuals, strict=True):
            if residual is not None:
                vector.add_(residual, alpha=run.averaging.feedback)
        found = aggregate(vectors, ones, ones, rule=rule, codec=codec)
        known = [statistics for statistics in found.statistics if statistics is not None]
        sent.add([statistics.own_sqnorm for statistics in known], known[0].averaged_sqnorm)
        residuals = list(found.residuals)
        num_back += len(codec.mean_codec.encode(found.vector))
        apply_(run, outer, momentum, found.vector)
    return {
        "cell": asdict(cell),
        "seed": seed,
        "parameters": len(outer),
        "loss": round(measure_of(run, rows, vocab_size)(outer), 5),
        "noise_sent": round(sent.ratio, 4),
        "noise_made": round(made.ratio, 4),
        "bytes_back": round(num_back / cell.rounds / len(outer), 4),
        "processor_seconds": round(time.process_time() - started, 1),
    }


def train(arguments: argparse.Namespace) -> None:
    """Train all ways of one seed before the next seed."""
    swarm = Cell(
        way="", hosts=arguments.hosts, rounds=arguments.rounds, width=arguments.width, inner_steps=arguments.inner_steps
    )
    cells = [replace(swarm, way=way) for way in arguments.ways]
    jobs = ((key_of(cell, seed), partial(run_cell, cell, seed)) for seed in arguments.seeds for cell in cells)
    train_missing(KEPT, arguments.output, jobs)


def table(records: Sequence[Record]) -> list[str]:
    """Return one line per swarm and way, with the loss beside those of `dense` and of `DENSE_09`, paired by seed."""
    by_cell: dict[Cell, dict[int, Record]] = {}
    for record in records:
        by_cell.setdefault(Cell(**record["cell"]), {})[record["seed"]] = record
    head = "| parameters | hosts | H | rounds | preset | bytes up | bytes back | seeds | loss | beside `dense`"
    lines = [f"{head} | beside `{DENSE_09}` | T sent : made |", "|" + "---|" * 12]
    order = list(WAYS)
    sizes = attrgetter("width", "hosts", "inner_steps", "rounds")
    for cell in sorted(by_cell, key=lambda cell: (*sizes(cell), order.index(cell.way))):
        runs = by_cell[cell]
        losses = {seed: record["loss"] for seed, record in runs.items()}
        prices = ["" if cell.way == base else price_of(records, cell, base=base) for base in ("dense", DENSE_09)]
        ratio = median(record["noise_sent"] / record["noise_made"] for record in runs.values())
        codec = codec_named(run_of(cell, 0).averaging.codec)
        _, back = bytes_each_way(codec, cell.hosts)
        if codec.mean_codec.is_variable:
            back = sum(record["bytes_back"] for record in runs.values()) / len(runs)
        parameters = next(iter(runs.values()))["parameters"]
        lines.append(
            f"| {parameters:,} | {cell.hosts} | {cell.inner_steps} | {cell.rounds} | {cell.way} | {bytes_up(cell):.3f} "
            f"| {back:.3f} | {len(runs)} | {estimate(list(losses.values())).shown(3)} | {' | '.join(prices)} | {ratio:.2f} |"
        )
    return lines


def momentum_table(records: Sequence[Record]) -> list[str]:
    """Return one line per swarm and codec that was run with an outer momentum of 0.9 and with a smaller one: the loss with 0.9
    minus that with the smallest, paired by seed, by number of rounds."""
    losses: dict[tuple[tuple[str, int, int, int], int], dict[float, dict[int, float]]] = {}
    for record in records:
        cell = Cell(**record["cell"])
        run = run_of(cell, 0)
        if run.averaging.codec in ("float32", "sign") and run.outer.kind == "nesterov":
            place = (run.averaging.codec, record["parameters"], cell.hosts, cell.inner_steps), cell.rounds
            losses.setdefault(place, {}).setdefault(run.outer.momentum, {})[record["seed"]] = record["loss"]
    found: dict[tuple[str, int, int, int], dict[int, str]] = {}
    for (swarm, rounds), by_momentum in sorted(losses.items()):
        ours, theirs = by_momentum.get(LONG_MOMENTUM, {}), by_momentum[min(by_momentum)]
        if min(by_momentum) < LONG_MOMENTUM and ours.keys() & theirs.keys():
            words = f"{_beside(ours, theirs)} ({len(ours.keys() & theirs.keys())})"
            found.setdefault(swarm, {})[rounds] = words
    lengths = sorted({rounds for by_rounds in found.values() for rounds in by_rounds})
    head = f"| codec | parameters | hosts | H | {' | '.join(f'{rounds} rounds' for rounds in lengths)} |"
    return [head, "|" + "---|" * (4 + len(lengths))] + [
        f"| `{codec}` | {parameters:,} | {hosts} | {inner_steps} | {' | '.join(by_rounds.get(n, '') for n in lengths)} |"
        for (codec, parameters, hosts, inner_steps), by_rounds in found.items()
    ]


def price_of(records: Sequence[Record], cell: Cell, *, base: str = "dense") -> str:
    """Return the nats per token above the way `base`, over the seeds of both, as the table shows them."""
    ours, theirs = (
        {record["seed"]: record["loss"] for record in records if Cell(**record["cell"]) == one}
        for one in (cell, replace(cell, way=base))
    )
    return _beside(ours, theirs)


def _beside(ours: dict[int, float], theirs: dict[int, float]) -> str:
    found = paired(ours, theirs)
    return "" if found is None else f"{'+' if found.mean >= 0 else ''}{found.shown(3)}"


TABLES = {"presets": table, "outer momentum": momentum_table}


def tables(records: Sequence[Record]) -> dict[str, list[str]]:
    return {name: make(records) for name, make in TABLES.items()}


def tabulate(arguments: argparse.Namespace) -> None:
    keep_tables(KEPT, arguments.runs, "bytes.md", TABLES)


def main() -> None:
    line = command_line("presets", __doc__, seeds=[1, 2, 3], train=train, tabulate=tabulate)
    line.run.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    line.run.add_argument("--hosts", type=int, default=8)
    line.run.add_argument("--rounds", type=int, default=64)
    line.run.add_argument("--width", type=int, default=32)
    line.run.add_argument("--inner-steps", type=int, default=INNER_STEPS)
    line.act()


if __name__ == "__main__":
    main()
