"""Do instances pay that have data of their own? Code, prose and tables: one instance each, against one instance on the mixture.

python -m benchmarks.own_data run --seeds 1 2     train what the kept records and own_data.jsonl lack; half a core minute each
python -m benchmarks.own_data report              the tables from both, into docs/results/method.md; keeps the records of both

The text is what the installed packages carry, so that it needs no download: Python sources of the standard library; the
language reference and the descriptions of packages; CSV and JSON files of packages. Core, training and averaging are the
product's (`benchmarks/method/world.py`). The same instances are also merged with other weights at the end, and the results
measured: that costs no training.
"""

import argparse
import hashlib
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import distributions
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model.instance_plan import InstancePlan
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.data.corpus import Document, documents
from adloco_p2p.data.feed import IndexedFeed, feed_over
from adloco_p2p.data.indexing import IndexedRows
from adloco_p2p.data.packing import pack, smallest_dtype
from adloco_p2p.data.source import is_heldout
from adloco_p2p.data.tokenizer import ByteTokenizer
from adloco_p2p.numerics.batch import Batch
from adloco_p2p.numerics.reduction import weighted_average
from adloco_p2p.training.evaluate import heldout_loss
from adloco_p2p.training.model import build_model
from adloco_p2p.training.shell import ModelShell
from benchmarks.method.clock import SMALL
from benchmarks.method.device import Setting
from benchmarks.method.figures import estimate, paired
from benchmarks.method.report import rewrite
from benchmarks.method.run import BASE, load_base
from benchmarks.method.store import RESULTS, Record, command_line, digest_of, records_by_key, train_missing
from benchmarks.method.store import pack as keep
from benchmarks.method.world import World
from benchmarks.ngram import NgramTable, rows_of

KINDS = ("code", "prose", "tables")
KIND_BYTES, PACKAGE_BYTES, PIECE_BYTES = 2_000_000, 150_000, 4_096
"""Bytes: the most of each kind; of the tables of one package, so that none is a kind of its own; and of the pieces that are
held out or not."""
HELDOUT_ROWS, HELDOUT_FRACTION = 96, 0.1
"""Held-out rows of each kind, the same for every row and seed."""
SAMPLES, LENGTH = 8192, 128
WARM_UP = 8
"""Rounds before the fork: a quarter of the samples."""
COUNTED, ORDERS = f"tables of counts, {SAMPLES}", (3, 4)
"""The key of the record of these tables, and how many tokens they are of."""
KEPT = RESULTS / "own_data.jsonl.gz"
"""Records of earlier runs; a reader's own go beside them."""

MODEL = {
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}
"""The shape of a Llama of 117,120 parameters with the vocabulary of bytes."""

_COMMON = (
    "data.source=text",
    f"data.mixture={{{', '.join(f'{kind}: 1.0' for kind in KINDS)}}}",
    f"data.sequence_length={LENGTH}",
    *(f"model.architecture.{name}={value}" for name, value in MODEL.items()),
    "inner.learning_rate=4.0e-3",
    "inner.warmup_steps=null",
    "inner.warmup_samples=1024",
    "batch.initial_batch=16",
    "batch.max_batch=40",
    "batch.eta=1.7",
    "work.inner_steps=16",
    f"work.samples={SAMPLES}",
)
_THREE = ("instances.count=3", f"instances.fork_round={WARM_UP}", "merge.guard=false")
_OWN = (*_THREE, f"instances.data=[{', '.join(KINDS)}]")
_HALF = ("merge.policy=worst_group", "merge.group_size=3", "merge.period_rounds=4", f"merge.first_round={WARM_UP + 4}")
ONE, AT_END = "one instance on the mixture", "own data, merged at the end"
ROWS = {
    ONE: ("instances.count=1",),
    AT_END: (*_OWN, "merge.policy=none"),
    "own data, merged half-way": (*_OWN, *_HALF),
    "own data, merged half-way, guarded": (*_OWN, *_HALF, "merge.guard=true"),
    "three on the mixture, merged at the end": (*_THREE, "merge.policy=none"),
}
"""Settings beside the common ones; of one setting twice, the later counts. All on two equal peers."""


def run_of(name: str, seed: int) -> RunConfig:
    return load_base([*_COMMON, *ROWS[name], f"seed={seed}"])


# --- the text --------------------------------------------------------------------------------------------------------


def texts(kind: str) -> Iterator[Document]:
    """Yield the documents of a kind, in an order that depends only on the installed packages."""
    if kind == "code":
        yield from (document for document in documents() if document.identity.startswith("modules/"))
    elif kind == "prose":
        yield from (document for document in documents() if document.identity.startswith("topics/"))
        for package in sorted(distributions(), key=lambda package: package.metadata["Name"].lower()):
            description = package.metadata["Description"] if "Description" in package.metadata else ""  # noqa: SIM401 - no get
            yield Document(identity=package.metadata["Name"], text=description)
    else:
        yield from _tables(Path(sysconfig.get_path("purelib")))


def _tables(root: Path) -> Iterator[Document]:
    taken: dict[str, int] = {}
    for path in sorted([*root.rglob("*.csv"), *root.rglob("*.json")]):
        package = path.relative_to(root).parts[0]
        text = path.read_bytes()[: max(0, PACKAGE_BYTES - taken.get(package, 0))].decode(errors="ignore")
        taken[package] = taken.get(package, 0) + len(text)
        yield Document(identity=path.relative_to(root).as_posix(), text=text)


@cache
def rows_of_kinds() -> tuple[tuple[IndexedRows, ...], str]:
    """Return the rows of each kind, and the digest of the text."""
    tokenizer, digest, found = ByteTokenizer(), hashlib.sha256(), []
    for kind in KINDS:
        sides: tuple[list[str], list[str]] = ([], [])
        left = KIND_BYTES
        for document in texts(kind):
            for start in range(0, min(len(document.text), left), PIECE_BYTES):
                piece = document.text[start : start + PIECE_BYTES]
                sides[is_heldout(f"{document.identity}#{start}", HELDOUT_FRACTION)].append(piece)
                digest.update(piece.encode(errors="surrogatepass"))
                left -= len(piece)
        training, heldout = (
            pack(
                tokenizer.encode(side),
                sequence_length=LENGTH,
                end_of_document=tokenizer.end_of_document,
                dtype=smallest_dtype(tokenizer.vocab_size),
            )
            for side in sides
        )
        found.append(IndexedRows(training=training, heldout=heldout))
    return tuple(found), digest.hexdigest()


# --- one run ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Watch:
    """Keeps the newest outer parameters of every instance, and measures the final ones."""

    outers: dict[InstanceId, torch.Tensor] = field(default_factory=dict)
    plans: tuple[InstancePlan, ...] = ()
    final: torch.Tensor | None = None
    requests: list[list[int]] = field(default_factory=list)

    def applied(self, world: World, plan: RoundPlan, instance: InstanceId, outer: torch.Tensor) -> None:
        del world
        if plan.is_last:
            self.final = outer
            return
        if plan.instances != self.plans:
            self.plans = plan.instances
            self.requests.append([item.requested_batch for item in plan.instances])
            self.outers = {item.instance: self.outers[item.instance] for item in self.plans if item.instance in self.outers}
        self.outers[instance] = outer


def run_row(name: str, seed: int) -> Record:
    """Train a row and return its record."""
    torch.set_num_threads(1)
    started = time.process_time()
    run, (parts, text) = run_of(name, seed), rows_of_kinds()
    vocab_size = ByteTokenizer().vocab_size
    watch = Watch()
    feed = feed_over(run, parts, vocab_size=vocab_size)
    World(Setting(run=run, speeds=(1.0, 1.0), profile=SMALL), feed, on_applied=watch.applied).run()
    shell = ModelShell(
        build_model(run.model, vocab_size=vocab_size, sequence_length=LENGTH, seed=0),
        device=torch.device("cpu"),
        is_bfloat16=False,
    )

    def losses(outer: torch.Tensor) -> list[float]:
        return [round(heldout_loss(shell, outer, rows, micro_batch=32), 5) for rows in heldout_rows()]

    assert watch.final is not None
    record: Record = {"row": name, "seed": seed, "parameters": shell.layout.num_parameters, "text": text}
    record |= {"rounds": len(watch.requests), "requests": watch.requests, "final": losses(watch.final)}
    if len(watch.outers) > 1:
        record["sources"] = {str(instance): losses(outer) for instance, outer in sorted(watch.outers.items())}
        record["weights"] = merge_weights(watch.plans)
        vectors = [outer for _, outer in sorted(watch.outers.items())]
        record["merged"] = {way: losses(weighted_average(vectors, weights)) for way, weights in record["weights"].items()}
    return {**record, "processor_seconds": round(time.process_time() - started, 1)}


def merge_weights(plans: Sequence[InstancePlan]) -> dict[str, list[float]]:
    """Return ways to weigh the instances of the last round, each summing to one. Noise: the trace of the covariance of one
    sample's gradient, over the rounds that the plan remembers."""
    amounts = {
        "request": [float(plan.requested_batch) for plan in plans],
        "equal": [1.0 for _ in plans],
        "samples": [float(plan.lineage_samples) for plan in plans],
        "inverse noise": [1.0 / fmean(item.batch_samples * item.noise for item in plan.history) for plan in plans],
    }
    return {way: [amount / sum(found) for amount in found] for way, found in amounts.items()}


def count() -> Record:
    """Return the losses of the tables of counts, and the digest of their text."""
    return {"text": rows_of_kinds()[1], "losses": ngram_losses()}


def ngram_losses() -> dict[str, list[float]]:
    """Return the losses on each kind, by how many tokens the tables are of. They count as many rows of all kinds as a run
    reads."""
    parts, _ = rows_of_kinds()
    chosen = np.random.default_rng(0)
    counted = [
        row
        for part in parts
        for row in rows_of(part.training.gather(chosen.permutation(part.training.num_rows)[: SAMPLES // len(parts)]))
    ]
    table = NgramTable(counted, order=max(ORDERS), vocab_size=ByteTokenizer().vocab_size)
    kinds = [table.losses(rows_of(rows)) for rows in heldout_rows()]
    return {str(order): [round(losses[order - 1], 5) for losses in kinds] for order in ORDERS}


@cache
def heldout_rows() -> tuple[Batch, ...]:
    """Return the held-out rows of each kind."""
    vocab_size = ByteTokenizer().vocab_size
    return tuple(IndexedFeed(part, vocab_size=vocab_size, seed=0).heldout(HELDOUT_ROWS) for part in rows_of_kinds()[0])


# --- the command -----------------------------------------------------------------------------------------------------


def key_of(name: str, seed: int) -> str:
    """Return the key of a run: a digest of all that its result depends on, except the code and the text."""
    settings = [*_COMMON, *ROWS[name], BASE.read_text("utf-8"), seed]
    return digest_of(settings)


def train(arguments: argparse.Namespace) -> None:
    """Make the tables of counts, then train all rows of one seed before the next seed."""
    jobs = [(key_of(name, seed), partial(run_row, name, seed)) for seed in arguments.seeds for name in ROWS]
    train_missing(KEPT, arguments.output, [(COUNTED, count), *jobs])


# --- the tables ------------------------------------------------------------------------------------------------------


def tabulate(arguments: argparse.Namespace) -> None:
    """Write the tables of docs/results/method.md, and the packed records, by their keys. Runs with other settings, or on other
    text than the table of counts, are left out."""
    records = records_by_key(KEPT, arguments.runs)
    counted = records[COUNTED]
    seeds = sorted({record["seed"] for record in records.values() if "seed" in record})
    keys = {name: {seed: key_of(name, seed) for seed in seeds} for name in ROWS}
    known = {key for key, record in records.items() if record["text"] == counted["text"]}
    runs = {name: {seed: records[key] for seed, key in found.items() if key in known} for name, found in keys.items()}
    tables = {"own data": run_table(runs, counted["losses"]), "own data, weights": weights_table(runs)}
    rewrite(RESULTS / "method.md", tables)
    keep([counted, *(record for found in runs.values() for record in found.values())], RESULTS / KEPT.name)


Runs = Mapping[str, Mapping[int, Record]]
"""The records of each row, by seed."""


def run_table(runs: Runs, counted: Mapping[str, Sequence[float]]) -> list[str]:
    """Return final losses, and the difference of each row to the one instance of the same seed."""
    lines = [
        "| row | seeds | rounds | code | prose | tables | mean | above one instance |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, found in runs.items():
        if not found:
            continue
        means = {seed: fmean(record["final"]) for seed, record in found.items()}
        base = {seed: fmean(record["final"]) for seed, record in runs[ONE].items()}
        above = paired(means, base)
        by_kind = [estimate([record["final"][kind] for record in found.values()]).mean for kind in range(len(KINDS))]
        cells = [str(len(found)), f"{fmean(record['rounds'] for record in found.values()):.1f}"]
        cells += [f"{loss:.3f}" for loss in (*by_kind, fmean(by_kind))]
        lines.append(f"| {name} | {' | '.join(cells)} | {'-' if name == ONE or above is None else above.shown(3)} |")
    for order in ORDERS:
        losses = counted[str(order)]
        lines.append(f"| table of {order}-grams | | | {' | '.join(f'{loss:.3f}' for loss in (*losses, fmean(losses)))} | |")
    return lines


def weights_table(runs: Runs) -> list[str]:
    """Return the instances with data of their own before the last merge, and the losses of that merge with other weights."""
    found = runs[AT_END].values()
    lines = ["| at the end | weights | code | prose | tables | mean |", "|---|---|---|---|---|---|"]

    def row(name: str, weights: str, losses: Sequence[Sequence[float]]) -> str:
        by_kind = [fmean(column) for column in zip(*losses, strict=True)]
        return f"| {name} | {weights} | {' | '.join(f'{loss:.3f}' for loss in (*by_kind, fmean(by_kind)))} |"

    for number, kind in enumerate(KINDS):
        lines.append(row(f"the instance of {kind}", "", [record["sources"][str(number)] for record in found]))
    for way in ("request", "equal", "samples", "inverse noise"):
        columns = zip(*(record["weights"][way] for record in found), strict=True)
        shown = ", ".join(f"{fmean(column):.2f}" for column in columns)
        lines.append(row(f"merged by {way}", shown, [record["merged"][way] for record in found]))
    return lines


def main() -> None:
    command_line("own_data", __doc__, seeds=[1, 2], train=train, tabulate=tabulate).act()


if __name__ == "__main__":
    main()
