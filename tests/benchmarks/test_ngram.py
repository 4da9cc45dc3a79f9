"""N-gram tables against hand-worked numbers."""

from fractions import Fraction
from math import fsum, log

import pytest
import torch

from adloco_p2p.numerics.batch import IGNORED_LABEL, Batch
from benchmarks.ngram import NgramTable, rows_of

ROWS = [[0, 1, 0, 1], [1, 1, 0, 2]]
"""Predicted: 1, 0, 1 and 1, 0, 2. Of three tokens."""


def test_one_token_by_hand() -> None:
    """Counts 2, 3, 1 of six; three different ones, so each probability is (c + 3 / 3) / 9."""
    table = NgramTable(ROWS, order=1, vocab_size=3)
    assert [table.probability(token, ()) for token in (0, 1, 2)] == pytest.approx([3 / 9, 4 / 9, 2 / 9])
    assert table.loss([[2, 0, 1]]) == pytest.approx(-(log(3 / 9) + log(4 / 9)) / 2)


def test_two_tokens_by_hand() -> None:
    """Behind 1 come 0, 1, 0: two different tokens of three. P(0 | 1) = (2 + 2 * 3 / 9) / 5; behind 2 came none."""
    table = NgramTable(ROWS, order=2, vocab_size=3)
    assert table.probability(0, (1,)) == pytest.approx(float((2 + 2 * Fraction(3, 9)) / 5))
    assert table.probability(2, (1,)) == pytest.approx(float(2 * Fraction(2, 9) / 5))
    assert table.probability(1, (2,)) == pytest.approx(4 / 9)


@pytest.mark.parametrize("context", [(), (0,), (1,), (0, 1), (1, 0), (2, 2)])
def test_probabilities_sum_to_one(context: tuple[int, ...]) -> None:
    table = NgramTable(ROWS, order=3, vocab_size=3)
    assert fsum(table.probability(token, context) for token in range(3)) == pytest.approx(1.0)


def test_padding_is_not_counted() -> None:
    ids = torch.tensor([[4, 5, 6, 0], [7, 8, 9, 3]])
    labels = torch.tensor([[4, 5, 6, IGNORED_LABEL], [7, 8, 9, 3]])
    assert rows_of(Batch(input_ids=ids, labels=labels)) == [[4, 5, 6], [7, 8, 9, 3]]
