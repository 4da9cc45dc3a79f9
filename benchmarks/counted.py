"""Tables of n-grams beside the small models: what counts of the same text lose on the same held-out rows.

python -m benchmarks.counted run       count what the kept records and counted.jsonl lack; two core minutes for all
python -m benchmarks.counted report    the table of every page in PAGES, from both; keeps the records of both

A model with a higher loss has learned less than these tables store. A table counts as many rows as a run reads, or all where a
run reads some twice. Neither Witten and Bell (`benchmarks.ngram`) nor Kneser and Ney (`benchmarks.kneser_ney`) have a constant
to tune. The text is that of Python 3.11.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from adloco_p2p.data.feed import IndexedFeed
from adloco_p2p.data.indexing import IndexedRows
from benchmarks import carried_over, muon, unequal_requests
from benchmarks.kneser_ney import table_losses
from benchmarks.method.__main__ import SAMPLES
from benchmarks.method.report import rewrite
from benchmarks.method.rows import LONG
from benchmarks.method.run import HELDOUT_ROWS, HELDOUT_SEED, indexed
from benchmarks.method.store import RESULTS, Record, command_line, pack, records_by_key, train_missing
from benchmarks.ngram import drawn, rows_of
from benchmarks.wan import methods as wan_methods

KEPT = RESULTS / "counted.jsonl.gz"
"""Records of earlier counts; a reader's own go beside them."""
ORDERS, KNESER_NEY = (1, 2, 3, 4), (6,)

Parts = tuple[Sequence[IndexedRows], int]
"""The rows of each data set, and the size of their vocabulary."""


def home() -> Parts:
    """Return the text of most runs."""
    rows, vocab_size = indexed()
    return [rows], vocab_size


def task(of: carried_over.Task) -> Parts:
    rows, vocab_size = carried_over.text_of(of)
    return [rows], vocab_size


def clean_and_noisy() -> Parts:
    """Return the data sets of `benchmarks.unequal_requests`."""
    (clean, vocab_size), (noisy, _) = (carried_over.text_of(of) for of in (carried_over.HOME, carried_over.NOISY))
    return [clean, noisy], vocab_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """What the runs of a table read: rows of each data set, equally many, and held-out rows of the first."""

    samples: int
    name: str = "as it is"
    parts: Callable[[], Parts] = home
    heldout_rows: int = HELDOUT_ROWS

    @property
    def key(self) -> str:
        return f"{self.name}, {self.samples} rows, {self.heldout_rows} held out"


def _home(*samples: int) -> tuple[Text, ...]:
    return tuple(Text(samples=some) for some in samples)


PAGES = {
    "method.md": (
        *_home(SAMPLES, LONG * SAMPLES),
        Text(samples=unequal_requests.SAMPLES, name="half of it noisy", parts=clean_and_noisy),
    ),
    "carried_over.md": tuple(Text(samples=of.samples, name=of.name, parts=partial(task, of)) for of in carried_over.TASKS),
    "tuned.md": _home(SAMPLES),
    "muon.md": _home(*(size.samples for size in muon.SIZES.values())),
    "bytes.md": _home(4096, 8192, 16_384, 32_768, 65_536),
    "robustness.md": _home(4096, 16_384),
    "time.md": (*_home(SAMPLES), Text(samples=wan_methods.SAMPLES, heldout_rows=wan_methods.HELDOUT_ROWS)),
}
"""The texts of the tables of each page."""


def count(text: Text) -> Record:
    """Return the losses of tables of the text, in nats per token."""
    parts, vocab_size = text.parts()
    heldout = rows_of(IndexedFeed(parts[0], vocab_size=vocab_size, seed=HELDOUT_SEED).heldout(text.heldout_rows))
    chance = np.random.default_rng(HELDOUT_SEED)
    counted = [row for part in parts for row in drawn(part.training, text.samples // len(parts), chance)]
    losses = table_losses(counted, [heldout], vocab_size=vocab_size, orders=ORDERS, kneser_ney=KNESER_NEY)
    record: Record = {"text": text.name, "rows": len(counted), "length": len(counted[0]), "heldout": text.heldout_rows}
    return {**record, "losses": {name: loss for name, (loss,) in losses.items()}}


def table(texts: Sequence[Text], records: dict[str, Record]) -> list[str]:
    """Return the losses of the tables of one page."""
    found = [records[text.key] for text in texts]
    names = [*found[0]["losses"]]
    lines = [f"| text | rows | tokens a row | {' | '.join(names)} |", "|" + "---|" * (3 + len(names))]
    for record in found:
        losses = " | ".join(f"{record['losses'][name]:.3f}" for name in names)
        lines.append(f"| {record['text']} | {record['rows']:,} | {record['length']} | {losses} |")
    return lines


def train(arguments: argparse.Namespace) -> None:
    texts = {text.key: text for of_page in PAGES.values() for text in of_page}
    train_missing(KEPT, arguments.output, [(key, partial(count, text)) for key, text in texts.items()])


def tabulate(arguments: argparse.Namespace) -> None:
    records = records_by_key(KEPT, arguments.runs)
    for page, texts in PAGES.items():
        rewrite(RESULTS / page, {"counted": table(texts, records)})
    pack([records[key] for key in sorted(records)], RESULTS / KEPT.name)


def main() -> None:
    command_line("counted", __doc__, seeds=None, train=train, tabulate=tabulate).act()


if __name__ == "__main__":
    main()
