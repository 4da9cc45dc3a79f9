"""The n-gram table that is hard to beat: interpolated modified Kneser-Ney (Chen and Goodman, 1999).

    P(t | h) = (c(h t) - D(c(h t))) / c(h) + (the sum of the discounts behind h) / c(h) * P(t | h')

where h' is the context h without its first token. c counts occurrences for the longest grams; for shorter ones it counts the
different tokens before them, the beginning of a row being one more. D depends on whether c is 1, 2 or more, by the counts of
counts of grams of that length. Below one token stands the uniform distribution. No constant is tuned.
"""

from collections.abc import Sequence

import numpy as np

from benchmarks.ngram import Line, NgramTable, Row


class KneserNeyTable(NgramTable):
    """Counts of up to `order` tokens in rows of a vocabulary."""

    def _counted(self, line: Line, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        grams, places = line.grams(length, self._bits)
        if length < self._order - 1:
            own = (1 << self._bits * (length + 1)) - 1
            preceded = np.unique(line.grams(length + 1, self._bits)[0]) & own
            grams = np.concatenate([preceded, np.unique(grams[line.places[places] == length])])
        grams, count = np.unique(grams, return_counts=True)
        given = discounts(count)[np.minimum(count, 3)]
        return grams, count - given, given


def discounts(count: np.ndarray) -> np.ndarray:
    """Return the discounts [4] of a gram that was counted 0, 1, 2, 3 or more times. Where a count of counts is 0 the estimate
    has no meaning, and stays between nothing and the count."""
    of = [max(1, int((count == times).sum())) for times in range(1, 5)]
    part = of[0] / (of[0] + 2 * of[1])
    found = [times - (times + 1) * part * of[times] / of[times - 1] for times in (1, 2, 3)]
    return np.array([0.0, *(min(max(0.0, one), float(times)) for times, one in enumerate(found, start=1))])


def table_losses(
    counted: Sequence[Row],
    heldout: Sequence[Sequence[Row]],
    *,
    vocab_size: int,
    orders: Sequence[int],
    kneser_ney: Sequence[int],
) -> dict[str, list[float]]:
    """Return the nats per predicted token of tables of these orders, by their names, on each of the held-out texts."""
    plain = NgramTable(counted, order=max(orders), vocab_size=vocab_size)
    losses = [plain.losses(rows) for rows in heldout]
    found = {f"{order}-grams": [round(of_text[order - 1], 5) for of_text in losses] for order in orders}
    for order in kneser_ney:
        harder = KneserNeyTable(counted, order=order, vocab_size=vocab_size)
        found[f"{order}-grams, Kneser-Ney"] = [round(harder.losses(rows)[-1], 5) for rows in heldout]
    return found
