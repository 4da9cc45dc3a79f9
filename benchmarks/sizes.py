"""Does the method pay on text with a trained vocabulary? A quarter of a million parameters, 4,096 tokens.

python -m benchmarks.sizes run          train what the kept records and sizes.jsonl lack; five minutes a run on an idle core
python -m benchmarks.sizes report       the tables, from both, into docs/results/sizes.md; keeps the records of both

The text needs no download: sources of the standard library, and sources and documentation of the installed packages that
`constraints.txt` pins. A byte-pair vocabulary is trained on its training side. The swarm is that of `benchmarks.method`: four
equal hosts, H 32, float32 averages, 20 tokens per parameter. Tuning has a seed of its own and runs a quarter as long.
"""

import argparse
import hashlib
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import distributions
from math import sqrt
from pathlib import Path
from statistics import fmean

import numpy as np

from adloco_p2p.data.corpus import Document, documents
from adloco_p2p.data.feed import IndexedFeed
from adloco_p2p.data.indexing import IndexedRows
from adloco_p2p.data.packing import pack, smallest_dtype
from adloco_p2p.data.source import is_heldout
from benchmarks.method.figures import estimate, paired
from benchmarks.method.report import rewrite
from benchmarks.method.rows import TUNING_SEED, Row, adloco, diloco
from benchmarks.method.run import BASE, CACHE, HELDOUT_ROWS, HELDOUT_SEED, run_row
from benchmarks.method.store import Record, append_record, command_line, key_of, records_by_key
from benchmarks.method.store import pack as keep
from benchmarks.ngram import NgramTable, rows_of

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
KEPT = RESULTS / "sizes.jsonl.gz"
"""Records of runs that were made before; a reader's own go beside them."""
PACKAGE_CHARACTERS, FILE_CHARACTERS = 300_000, 60_000
"""Of one package, so that none is most of the text; of one file, which tables of constants exceed."""
SUFFIXES = frozenset({".py", ".pyi", ".md", ".rst", ".txt"})
HELDOUT_FRACTION = 0.05
VOCAB_SIZE, LENGTH = 4096, 256
SAMPLES = 19_456
"""Of 256 tokens: 20 tokens per parameter, in whole rounds. Of the 252,144 parameters 196,608 are the tied embedding."""
TUNING_SAMPLES = SAMPLES // 4
POINTS = 8
SEEDS = [1, 2, 3]
COUNTED, ORDERS = "tables of counts", (1, 2, 3)
"""Key of their record; how many tokens they are of."""

_COMMON = (
    "model.architecture.hidden_size=48",
    "model.architecture.intermediate_size=128",
    "model.architecture.num_hidden_layers=2",
    f"data.sequence_length={LENGTH}",
)
RATES, ETAS, MUON_RATES = ("1.5e-3", "3e-3", "6e-3", "1.2e-2"), ("1.3", "1.7", "2.5"), ("6e-3", "1.2e-2", "2.4e-2")
"""Tried on the tuning seed, in this order, each at the best of those before."""
SHIPPED_ETA = "1.7"
"""Of the preset, from `docs/results/method.md`."""
FIXED, LARGER = "DiLoCo B 8 H 32", "DiLoCo B 16 H 32"
TUNED, SHIPPED, MUON = "AdLoCo, eta tuned", f"AdLoCo, eta {SHIPPED_ETA}", "AdLoCo with Muon"
SEESAW, DOUBLING = "Seesaw, at most 32", "doubling ramp 8 -> 32"


# --- the rows --------------------------------------------------------------------------------------------------------


def fixed(rate: str, batch: int = 8, name: str = FIXED) -> Row:
    return diloco(batch, 32, *_COMMON, f"inner.learning_rate={rate}", momentum=0.5, name=name)


def growing(name: str, rate: str, *more: str) -> Row:
    """A batch that grows from 8 to 32 at most, the learning rate with its root."""
    common = (*_COMMON, f"inner.learning_rate={rate}", "inner.batch_scaling=sqrt", "batch.max_batch=32")
    return adloco(name, *common, *more)


def adaptive(rate: str, eta: str, name: str = TUNED) -> Row:
    return growing(name, rate, f"batch.eta={eta}")


def muon(rate: str, eta: str) -> Row:
    return growing(MUON, rate, f"batch.eta={eta}", "inner.kind=muon")


def schedule(name: str, rate: str, ramp: str) -> Row:
    return growing(name, rate, "batch.test=schedule", f"batch.ramp={ramp}")


# --- the text --------------------------------------------------------------------------------------------------------


def texts() -> Iterator[Document]:
    """Each text once, in an order that depends on nothing but the installed packages."""
    seen: set[str] = set()
    for document in (*documents(), *_packages()):
        if document.text not in seen:
            seen.add(document.text)
            yield document


def _packages() -> Iterator[Document]:
    """Of every pinned package the first files by name, tests left out."""
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pinned = {_plain(line.partition("==")[0]) for line in lines if "==" in line and not line.startswith("#")}
    found = {_plain(package.metadata["Name"]): package.files or [] for package in distributions()}
    for name in sorted(pinned & found.keys()):
        left = PACKAGE_CHARACTERS
        for file in sorted(found[name], key=str):
            if file.suffix not in SUFFIXES or "test" in str(file) or ".dist-info" in str(file):
                continue
            try:
                text = Path(str(file.locate())).read_text("utf-8")
            except (OSError, UnicodeDecodeError):
                continue
            if 0 < len(text) <= min(left, FILE_CHARACTERS):
                left -= len(text)
                yield Document(identity=f"{name}/{file}", text=text)


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def prepared() -> tuple[IndexedRows, str, float]:
    """The rows, the digest of the text, and how many bytes of held-out text a token stands for."""
    sides: tuple[list[str], list[str]] = ([], [])
    for document in texts():
        sides[is_heldout(document.identity, HELDOUT_FRACTION)].append(document.text)
    digest = hashlib.sha256(json.dumps(sides).encode()).hexdigest()
    path = CACHE / f"sizes-{digest[:16]}-{VOCAB_SIZE}.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, *tokenized(sides))
    lines = np.load(path)
    rows = [
        pack([lines[name]], sequence_length=LENGTH, end_of_document=0, dtype=smallest_dtype(VOCAB_SIZE)) for name in lines.files
    ]
    size = sum(len(text.encode(errors="replace")) for text in sides[1]) / len(lines[lines.files[1]])
    return IndexedRows(training=rows[0], heldout=rows[1]), digest, size


def tokenized(sides: Sequence[Sequence[str]]) -> list[np.ndarray]:
    """The tokens of each side in one line, 0 between documents. The vocabulary is trained on the first side."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(sides[0], trainer)
    encoded = [[encoding.ids for encoding in tokenizer.encode_batch(list(side))] for side in sides]
    dtype = smallest_dtype(VOCAB_SIZE)
    return [np.concatenate([np.array([*ids, 0], dtype=dtype) for ids in side])[:-1] for side in encoded]


def ngram_losses() -> dict[str, float]:
    """Nats per token of tables of as many rows as a run reads, on the held-out rows of the runs."""
    rows, _, _ = prepared()
    chosen = np.random.default_rng(0).permutation(rows.training.num_rows)[:SAMPLES]
    counted = rows_of(rows.training.gather(chosen))
    heldout = rows_of(IndexedFeed(rows, vocab_size=VOCAB_SIZE, seed=HELDOUT_SEED).heldout(HELDOUT_ROWS))
    return {str(order): round(NgramTable(counted, order=order, vocab_size=VOCAB_SIZE).loss(heldout), 5) for order in ORDERS}


# --- the runs --------------------------------------------------------------------------------------------------------


class Runs:
    """Records by key. New ones go to the first of the files beside the kept ones."""

    def __init__(self, *files: Path, text: str | None = None) -> None:
        """`text`: the digest of what is trained on, which is part of every key; none: that of the last tables of counts."""
        self._files = files
        self.records = records_by_key(KEPT, files)
        self.text = text or self.records[COUNTED]["text"]

    def find(self, row: Row, seed: int) -> Record | None:
        return self.records.get(self.key(row, seed))

    def train(self, row: Row, seed: int) -> None:
        """Minutes, where there is no record yet."""
        if self.find(row, seed) is not None:
            return
        started = time.monotonic()
        record = run_row(row, seed, samples=_samples(seed), text=(prepared()[0], VOCAB_SIZE), points=POINTS)
        self.keep(self.key(row, seed), {**record, "text": self.text})
        shown = [setting for setting in row.settings if setting not in _COMMON]
        print(f"seed {seed}  {row.name:24s} {record['loss']:.4f}  {time.monotonic() - started:.0f} s  {shown}", flush=True)

    def keep(self, key: str, record: Record) -> None:
        self.records[key] = {"key": key, **record}
        append_record(self._files[0], self.records[key])

    def key(self, row: Row, seed: int) -> str:
        return key_of(row, seed, samples=_samples(seed), base=BASE.read_text("utf-8") + self.text)

    def best(self, candidates: Mapping[str, Row]) -> str:
        """The constant whose run of the tuning seed ended lowest. All of them were run."""
        losses = {}
        for constant, row in candidates.items():
            record = self.find(row, TUNING_SEED)
            assert record is not None, f"{row.name} with {constant} was not run"
            losses[constant] = record["loss"]
        return min(losses, key=losses.__getitem__)


def _samples(seed: int) -> int:
    return TUNING_SAMPLES if seed == TUNING_SEED else SAMPLES


def tuning(runs: Runs) -> Iterator[Mapping[str, Row]]:
    """What is tried, by its constant; each set is at the best of the set before, which has to have been run by then."""
    yield (rates := {rate: fixed(rate) for rate in RATES})
    rate = runs.best(rates)
    yield (etas := {eta: adaptive(rate, eta) for eta in ETAS})
    yield {muon_rate: muon(muon_rate, runs.best(etas)) for muon_rate in MUON_RATES}


def tuned_rows(runs: Runs) -> list[Row]:
    """With the constants that the tuning gave."""
    rate, eta, muon_rate = (runs.best(candidates) for candidates in tuning(runs))
    larger = fixed(f"{float(rate) * sqrt(2):.3g}", 16, LARGER)
    seesaw, doubling = schedule(SEESAW, rate, "seesaw"), schedule(DOUBLING, rate, "doubling")
    first = [fixed(rate), adaptive(rate, eta), seesaw, larger]
    return [*first, muon(muon_rate, eta), adaptive(rate, SHIPPED_ETA, SHIPPED), doubling]


def train(arguments: argparse.Namespace) -> None:
    """Tuning, then one seed after the other, so that an early end leaves whole seeds; the last rows come last."""
    _, text, size = prepared()
    runs = Runs(arguments.output, text=text)
    if runs.records.get(COUNTED, {}).get("text") != text:
        runs.keep(COUNTED, {"text": text, "bytes_per_token": round(size, 4), "losses": ngram_losses()})
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
    return {"sizes": run_table(runs, seeds), "sizes tuning": tuning_table(runs)}


def run_table(runs: Runs, seeds: Sequence[int]) -> list[str]:
    """Every row that has a seed, and the tables of counts."""
    counted = runs.records[COUNTED]
    size = counted["bytes_per_token"]
    lines = [
        "| row | seeds | final loss, nats per token | per byte | minus DiLoCo | rounds | inner steps | MB sent per peer |",
        "|---|---|---|---|---|---|---|---|",
    ]
    found = {
        row.name: {seed: record for seed in seeds if (record := runs.find(row, seed)) is not None} for row in tuned_rows(runs)
    }
    losses = {name: {seed: record["loss"] for seed, record in some.items()} for name, some in found.items()}
    for name, some in found.items():
        if not some:
            continue
        loss, above = estimate([*losses[name].values()]), paired(losses[name], losses[FIXED])
        counts = [fmean(record[what] for record in some.values()) for what in ("rounds", "inner_steps", "bytes_per_peer")]
        shown = f"{counts[0]:.0f} | {counts[1]:.0f} | {counts[2] / 1e6:.0f}"
        minus = above.shown(3) if above is not None and name != FIXED else ""
        lines.append(f"| {name} | {len(some)} | {loss.shown(3)} | {loss.mean / size:.3f} | {minus} | {shown} |")
    for order in ORDERS:
        loss = counted["losses"][str(order)]
        lines.append(f"| table of {order}-grams | | {loss:.3f} | {loss / size:.3f} | | | | |")
    return lines


def tuning_table(runs: Runs) -> list[str]:
    """Final losses of the tuning seed, the best of each set marked."""
    lines = ["| row | tried | constant: loss |", "|---|---|---|"]
    for what, candidates in zip(("rate", "eta", "rate"), tuning(runs), strict=True):
        best, tried = runs.best(candidates), []
        for constant, row in candidates.items():
            record, mark = runs.find(row, TUNING_SEED), "**" if constant == best else ""
            tried.append("" if record is None else f"{constant}: {mark}{record['loss']:.3f}{mark}")
        lines.append(f"| {row.name} | {what} | {', '.join(tried)} |")
    return lines


def tabulate(arguments: argparse.Namespace) -> None:
    runs = Runs(*arguments.runs)
    rewrite(RESULTS / "sizes.md", tables(runs))
    keep([record for _, record in sorted(runs.records.items()) if record["text"] == runs.text], KEPT)


def main() -> None:
    parser, _, _ = command_line("sizes", __doc__, seeds=SEEDS, train=train, tabulate=tabulate)
    arguments = parser.parse_args()
    arguments.act(arguments)


if __name__ == "__main__":
    main()
