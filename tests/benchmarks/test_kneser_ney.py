"""The table of Kneser and Ney against a slow one, and as a distribution."""

import numpy as np
import pytest

from benchmarks.kneser_ney import KneserNeyTable, discounts

VOCABULARY = 5


def rows_of_tokens(seed: int) -> list[list[int]]:
    """Random, of unequal lengths, some tokens more frequent than others."""
    rng = np.random.default_rng(seed)
    return [np.minimum(rng.geometric(0.4, size=size) - 1, VOCABULARY - 1).tolist() for size in (60, 9, 4, 45)]


def slow_probability(rows: list[list[int]], order: int, token: int, context: list[int]) -> float:
    """By the formula, each count by a search through the rows."""

    def count(gram: list[int], length: int) -> int:
        """Of predicted tokens behind `length` others; the different ones before them, where they are not of the longest."""
        ends = [(row, at) for row in rows for at in range(max(1, length), len(row)) if row[at - length : at + 1] == gram]
        if length == order - 1:
            return len(ends)
        return len({row[at - length - 1] if at > length else None for row, at in ends})

    def lookup(length: int) -> float:
        if length < 0:
            return 1 / VOCABULARY
        before = context[len(context) - length :]
        seen = {tuple(row[at - length : at + 1]) for row in rows for at in range(max(1, length), len(row))}
        counts = {gram: count(list(gram), length) for gram in seen}
        behind = {gram: found for gram, found in counts.items() if list(gram[:-1]) == before}
        if not behind:
            return lookup(length - 1)
        off = discounts(np.array([*counts.values()]))
        own = behind.get((*before, token), 0)
        given = sum(off[min(found, 3)] for found in behind.values())
        return float((own - off[min(own, 3)] + given * lookup(length - 1)) / sum(behind.values()))

    return lookup(min(order - 1, len(context)))


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_against_a_slow_table(order: int) -> None:
    rows, heldout = rows_of_tokens(3), rows_of_tokens(4)[1:3]
    found = KneserNeyTable(rows, order=order, vocab_size=VOCABULARY).probabilities(heldout)[-1]
    expected = [
        slow_probability(rows, order, row[at], row[max(0, at - order + 1) : at]) for row in heldout for at in range(1, len(row))
    ]
    assert found == pytest.approx(np.array(expected))


@pytest.mark.parametrize("context", [[4], [0], [0, 1], [3, 3], [4, 4, 4], [0, 0, 1]])
def test_probabilities_sum_to_one(context: list[int]) -> None:
    table = KneserNeyTable(rows_of_tokens(3), order=4, vocab_size=VOCABULARY)
    found = table.probabilities([[*context, token] for token in range(VOCABULARY)])[-1]
    assert found[len(context) - 1 :: len(context)].sum() == pytest.approx(1.0)


def test_discounts_by_hand() -> None:
    """Four grams counted once, two twice, one thrice, one four times: Y = 4 / 8; 1 - 2 Y 2/4, 2 - 3 Y 1/2, 3 - 4 Y 1/1."""
    assert discounts(np.array([1, 1, 1, 1, 2, 2, 3, 4])) == pytest.approx([0.0, 0.5, 1.25, 1.0])
