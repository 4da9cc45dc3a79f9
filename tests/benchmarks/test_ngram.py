"""N-gram tables against hand-worked numbers."""

from collections import Counter
from math import log
from statistics import fmean

import numpy as np
import pytest
import torch

from adloco_p2p.errors import ConfigError
from adloco_p2p.numerics.batch import IGNORED_LABEL, Batch
from benchmarks.ngram import NgramTable, rows_of

ROWS = [[0, 1, 0, 1], [1, 1, 0, 2]]
"""Predicted: 1, 0, 1 and 1, 0, 2. Of three tokens."""


def test_one_token_by_hand() -> None:
    """Counts 2, 3, 1 of six; three different ones, so each probability is (c + 3 / 3) / 9."""
    table = NgramTable(ROWS, order=1, vocab_size=3)
    assert table.probabilities([[2, 0, 1, 2]]) == pytest.approx(np.array([[3 / 9, 4 / 9, 2 / 9]]))
    assert table.losses([[2, 0, 1]]) == pytest.approx([-(log(3 / 9) + log(4 / 9)) / 2])


def test_two_tokens_by_hand() -> None:
    """Behind 1 come 0, 1, 0: two different tokens of three. P(0 | 1) = (2 + 2 * 3 / 9) / 5; behind 2 came none."""
    table = NgramTable(ROWS, order=2, vocab_size=3)
    by_two = table.probabilities([[1, 0], [1, 2], [2, 1]])[1]
    assert by_two == pytest.approx(np.array([(2 + 2 * 3 / 9) / 5, 2 * 2 / 9 / 5, 4 / 9]))


@pytest.mark.parametrize("context", [(2,), (0,), (1,), (0, 1), (1, 0), (2, 2), (0, 1, 0)])
def test_probabilities_sum_to_one(context: tuple[int, ...]) -> None:
    table = NgramTable(ROWS, order=3, vocab_size=3)
    found = table.probabilities([[*context, token] for token in range(3)])
    assert found[:, len(context) - 1 :: len(context)].sum(axis=1) == pytest.approx(np.ones(3))


def test_every_order_against_a_slow_table() -> None:
    """Counted gram by gram in a dictionary, on random rows of unequal lengths."""
    rng = np.random.default_rng(3)
    rows, heldout = ([rng.integers(0, 5, size=size).tolist() for size in sizes] for sizes in ((40, 7, 2, 30), (20, 3)))
    ends = [(row, end) for row in rows for end in range(2, len(row) + 1)]
    counts = Counter(tuple(row[end - size : end]) for row, end in ends for size in range(1, min(4, end) + 1))

    def probability(token: int, context: tuple[int, ...]) -> float:
        shorter = probability(token, context[1:]) if context else 1 / 5
        behind = {gram: count for gram, count in counts.items() if gram[:-1] == context}
        total = sum(behind.values())
        return (counts[(*context, token)] + len(behind) * shorter) / (total + len(behind)) if total else shorter

    predicted = [(row, at) for row in heldout for at in range(1, len(row))]
    expected = [
        fmean(-log(probability(row[at], tuple(row[max(0, at - order + 1) : at]))) for row, at in predicted)
        for order in (1, 2, 3, 4)
    ]
    assert NgramTable(rows, order=4, vocab_size=5).losses(heldout) == pytest.approx(expected)


def test_grams_that_are_too_wide_to_count() -> None:
    with pytest.raises(ConfigError, match="up to 3"):
        NgramTable(ROWS, order=4, vocab_size=50_257)


def test_padding_is_not_counted() -> None:
    ids = torch.tensor([[4, 5, 6, 0], [7, 8, 9, 3]])
    labels = torch.tensor([[4, 5, 6, IGNORED_LABEL], [7, 8, 9, 3]])
    assert rows_of(Batch(input_ids=ids, labels=labels)) == [[4, 5, 6], [7, 8, 9, 3]]
