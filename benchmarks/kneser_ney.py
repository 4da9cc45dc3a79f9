"""The n-gram table that is hard to beat: interpolated modified Kneser-Ney (Chen and Goodman, 1999).

    P(t | h) = (c(h t) - D(c(h t))) / c(h) + (the sum of the discounts behind h) / c(h) * P(t | h')

where h' is the context h without its first token. c counts occurrences for the longest grams; for shorter ones it counts the
different tokens before them, the beginning of a row being one more. D depends on whether c is 1, 2 or more, by the counts of
counts of grams of that length. Below one token stands the uniform distribution. No constant is tuned.
"""

from collections.abc import Iterable

import numpy as np

from benchmarks.ngram import Line, Row, bits_of, looked_up


class KneserNeyTable:
    """Counts of up to `order` tokens in rows of a vocabulary."""

    def __init__(self, rows: Iterable[Row], *, order: int, vocab_size: int) -> None:
        self._vocab_size, self._bits = vocab_size, bits_of(vocab_size, order)
        line = Line(rows)
        longest = np.unique(line.grams(order - 1, self._bits)[0], return_counts=True)
        self._counts = [_Discounted(*self._continued(line, length), self._bits) for length in range(order - 1)]
        self._counts.append(_Discounted(*longest, self._bits))

    def _continued(self, line: Line, length: int) -> tuple[np.ndarray, np.ndarray]:
        """The grams of `length` tokens and one, and how many different tokens, or a row's beginning, come before them."""
        grams, places = line.grams(length, self._bits)
        own = (1 << self._bits * (length + 1)) - 1
        preceded = np.unique(line.grams(length + 1, self._bits)[0]) & own
        return np.unique(np.concatenate([preceded, np.unique(grams[line.places[places] == length])]), return_counts=True)

    def probabilities(self, rows: Iterable[Row]) -> np.ndarray:
        """[T]: of the T tokens that are predicted."""
        line = Line(rows)
        probability = np.full(len(line.tokens), 1.0 / self._vocab_size)
        for length, counts in enumerate(self._counts):
            grams, places = line.grams(length, self._bits)
            probability[places] = counts.interpolated(grams, probability[places])
        return probability[line.places > 0]

    def loss(self, rows: Iterable[Row]) -> float:
        """Nats per predicted token."""
        return float(-np.log(self.probabilities(rows)).mean())


class _Discounted:
    """Counts of grams of one length."""

    def __init__(self, grams: np.ndarray, count: np.ndarray, bits: int) -> None:
        self._bits, self._grams, self._count = bits, grams, count
        self._discount = discounts(count)[np.minimum(count, 3)]
        self._contexts, first = np.unique(grams >> bits, return_index=True)
        self._total = np.add.reduceat(count, first)
        self._given = np.add.reduceat(self._discount, first)

    def interpolated(self, grams: np.ndarray, shorter: np.ndarray) -> np.ndarray:
        """The probabilities of the last tokens, where shorter contexts give `shorter`."""
        kept = looked_up(self._grams, self._count - self._discount, grams)
        total, given = (looked_up(self._contexts, of, grams >> self._bits) for of in (self._total, self._given))
        return np.where(total > 0, (kept + given * shorter) / np.maximum(total, 1), shorter)


def discounts(count: np.ndarray) -> np.ndarray:
    """[4]: of a gram that was counted 0, 1, 2, 3 or more times. Where a count of counts is 0 its estimate has no meaning, and
    stays between nothing and the count."""
    of = [max(1, int((count == times).sum())) for times in range(1, 5)]
    part = of[0] / (of[0] + 2 * of[1])
    found = [times - (times + 1) * part * of[times] / of[times - 1] for times in (1, 2, 3)]
    return np.array([0.0, *(min(max(0.0, one), float(times)) for times, one in enumerate(found, start=1))])
