"""What counting gives: the loss of n-gram tables on the text of a run. A model above them has learned less than they store.

python -m benchmarks.ngram configs/default.yaml           all training rows, the held-out rows of the run
python -m benchmarks.ngram benchmarks/method/base.yaml --rows 8192 --heldout 256 --seed 0     the text of docs/results/method.md

Interpolated by Witten and Bell (1991): P(t | h) = (c(h t) + u(h) P(t | h')) / (c(h) + u(h)), where h' is the context h without
its first token, c counts, and u counts the different tokens that followed h; below one token stands the uniform distribution.
No constant is tuned. Counted is what the loss counts: every token of a row but its first; contexts do not cross rows.
"""

import argparse
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from adloco_p2p.config.load import load_run
from adloco_p2p.data.feed import IndexedFeed, open_feed
from adloco_p2p.errors import ConfigError
from adloco_p2p.numerics.batch import IGNORED_LABEL, Batch

Row = Sequence[int]


class NgramTable:
    """Counts of up to `order` tokens in rows of a vocabulary."""

    def __init__(self, rows: Iterable[Row], *, order: int, vocab_size: int) -> None:
        self.order, self._vocab_size = order, vocab_size
        self._counts: Counter[tuple[int, ...]] = Counter()
        for row in rows:
            for place in range(1, len(row)):
                for length in range(min(order, place + 1)):
                    self._counts[tuple(row[place - length : place + 1])] += 1
        self._contexts: Counter[tuple[int, ...]] = Counter()
        self._followers: Counter[tuple[int, ...]] = Counter()
        for gram, count in self._counts.items():
            self._contexts[gram[:-1]] += count
            self._followers[gram[:-1]] += 1

    def probability(self, token: int, context: tuple[int, ...]) -> float:
        """Of a token behind at most `order` - 1 others."""
        shorter = self.probability(token, context[1:]) if context else 1.0 / self._vocab_size
        total, different = self._contexts[context], self._followers[context]
        if total == 0:
            return shorter
        return (self._counts[(*context, token)] + different * shorter) / (total + different)

    def loss(self, rows: Iterable[Row]) -> float:
        """Nats per predicted token."""
        losses = [
            -math.log(self.probability(row[place], tuple(row[max(0, place - self.order + 1) : place])))
            for row in rows
            for place in range(1, len(row))
        ]
        return math.fsum(losses) / len(losses)


def rows_of(batch: Batch) -> list[Row]:
    """The tokens of a batch without padding."""
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
    count = min(arguments.rows or training.num_rows, training.num_rows)
    chosen = np.random.default_rng(run.seed).permutation(training.num_rows)[:count].astype(np.int64)
    counted = rows_of(training.gather(chosen))
    print(f"{count:,} training rows, {len(heldout)} held-out rows of {training.length} tokens; nats per token")
    for order in range(1, arguments.order + 1):
        table = NgramTable(counted, order=order, vocab_size=feed.vocab_size)
        print(f"  {order}-gram {table.loss(heldout):.3f}", flush=True)


if __name__ == "__main__":
    main()
