"""Shows the loss of n-gram tables on the text of a run. A model with a higher loss has learned less than these tables store.

python -m benchmarks.ngram configs/default.yaml           all training rows, the held-out rows of the run
python -m benchmarks.ngram benchmarks/method/base.yaml --rows 8192 --heldout 256 --seed 0     the text of docs/results/method.md

Interpolated by Witten and Bell (1991): P(t | h) = (c(h t) + u(h) P(t | h')) / (c(h) + u(h)), where h' is the context h without
its first token, c counts, and u counts the different tokens that followed h; below one token stands the uniform distribution.
No constant is tuned. Counted is what the loss counts: every token of a row but its first; contexts do not cross rows.
"""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from adloco_p2p.config.load import load_run
from adloco_p2p.data.feed import IndexedFeed, open_feed
from adloco_p2p.data.packing import Rows
from adloco_p2p.errors import ConfigError
from adloco_p2p.numerics.batch import IGNORED_LABEL, Batch

Row = Sequence[int]
WIDEST = 63
"""The most bits of a gram."""


class NgramTable:
    """Counts of up to `order` tokens in rows of a vocabulary."""

    def __init__(self, rows: Iterable[Row], *, order: int, vocab_size: int) -> None:
        """A gram is one integer of at most 63 bits: `order` times the bits of a token."""
        self._order, self._bits = order, bits_of(vocab_size, order)
        self._vocab_size = vocab_size
        line = Line(rows)
        self._counts = [_Counts(*self._counted(line, length), self._bits) for length in range(order)]

    def _counted(self, line: "Line", length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the grams of `length` tokens and one, with the counts for the last token of each and for shorter contexts."""
        grams, count = np.unique(line.grams(length, self._bits)[0], return_counts=True)
        return grams, count, np.ones_like(count)

    def probabilities(self, rows: Iterable[Row]) -> np.ndarray:
        """Return [order, T]: the probabilities of the T predicted tokens, by tables of 1 to `order` tokens."""
        line = Line(rows)
        probability = np.full(len(line.tokens), 1.0 / self._vocab_size)
        by_order = []
        for length, counts in enumerate(self._counts):
            grams, places = line.grams(length, self._bits)
            probability[places] = counts.interpolated(grams, probability[places])
            by_order.append(probability[line.places > 0])
        return np.stack(by_order)

    def losses(self, rows: Iterable[Row]) -> list[float]:
        """Return the nats per predicted token, by tables of 1 to `order` tokens."""
        return [float(loss) for loss in -np.log(self.probabilities(rows)).mean(axis=1)]


def bits_of(vocab_size: int, order: int) -> int:
    """Return the bits of a token in grams that are integers. Raises ConfigError where `order` tokens are too many for one."""
    bits = (vocab_size - 1).bit_length()
    if order * bits > WIDEST:
        raise ConfigError(f"--order: {order}, but grams of {vocab_size} tokens are counted up to {WIDEST // bits}", code="E201")
    return bits


class Line:
    """Rows one behind the other."""

    def __init__(self, rows: Iterable[Row]) -> None:
        lines = [np.asarray(row, dtype=np.int64) for row in rows]
        self.tokens = np.concatenate(lines)
        self.places = np.concatenate([np.arange(len(line)) for line in lines])

    def grams(self, length: int, bits: int) -> tuple[np.ndarray, np.ndarray]:
        """Return each predicted token with the `length` tokens of its row before it, as an integer, and its place in the
        line."""
        grams = self.tokens.copy()
        for back in range(1, length + 1):
            grams[back:] += self.tokens[:-back] << bits * back
        places = np.flatnonzero(self.places >= max(1, length))
        return grams[places], places


class _Counts:
    """The counts of grams of one length."""

    def __init__(self, grams: np.ndarray, kept: np.ndarray, given: np.ndarray, bits: int) -> None:
        self._bits, self._grams, self._kept = bits, grams, kept
        self._contexts, first = np.unique(grams >> bits, return_index=True)
        self._given = np.add.reduceat(given, first)
        self._total = np.add.reduceat(kept, first) + self._given

    def interpolated(self, grams: np.ndarray, shorter: np.ndarray) -> np.ndarray:
        """Return the probabilities of the last tokens, where shorter contexts give `shorter`."""
        kept = looked_up(self._grams, self._kept, grams)
        total, given = (looked_up(self._contexts, of, grams >> self._bits) for of in (self._total, self._given))
        return np.where(total > 0, (kept + given * shorter) / np.maximum(total, 1), shorter)


def looked_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the values of the wanted keys, 0 for those that are not among the sorted keys."""
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[places] == wanted, values[places], 0)


def drawn(rows: Rows, count: int, chance: np.random.Generator) -> list[Row]:
    """Return rows that are drawn without repeats; all where there are fewer."""
    return rows_of(rows.gather(chance.permutation(rows.num_rows)[:count].astype(np.int64)))


def rows_of(batch: Batch) -> list[Row]:
    """Return the tokens of a batch without padding."""
    return [ids[labels != IGNORED_LABEL].tolist() for ids, labels in zip(batch.input_ids, batch.labels, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ngram", description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--rows", type=int, help="so many training rows, drawn by the seed (default: all)")
    parser.add_argument("--heldout", type=int, help="held-out rows (default: evaluation.rows)")
    parser.add_argument("--seed", type=int, help="of the held-out rows (default: the run's)")
    parser.add_argument("--order", type=int, default=3, help="longest table, in tokens")
    arguments = parser.parse_args()
    run = load_run(arguments.config, [] if arguments.seed is None else [f"seed={arguments.seed}"]).value
    feed = open_feed(run, cache_dir=None)
    if not isinstance(feed, IndexedFeed):
        raise ConfigError("data.streaming: true, but the table counts indexed rows; set it to false", code="E201")
    training, heldout = feed.rows.training, rows_of(feed.heldout(arguments.heldout or run.evaluation.rows))
    counted = drawn(training, arguments.rows or training.num_rows, np.random.default_rng(run.seed))
    print(f"{len(counted):,} training rows, {len(heldout)} held-out rows of {training.length} tokens; nats per token")
    table = NgramTable(counted, order=arguments.order, vocab_size=feed.vocab_size)
    for order, loss in enumerate(table.losses(heldout), start=1):
        print(f"  {order}-gram {loss:.3f}")


if __name__ == "__main__":
    main()
