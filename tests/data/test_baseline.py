import math

import pytest
import torch

from adloco_p2p.data.baseline import unigram_entropy
from adloco_p2p.numerics.batch import IGNORED_LABEL, Batch


def batch(*labels: list[int]) -> Batch:
    return Batch(input_ids=torch.zeros(len(labels), len(labels[0]), dtype=torch.int64), labels=torch.tensor(labels))


def test_unigram_entropy_by_hand() -> None:
    # predicted labels in training: 1, 1, 2; smoothed counts of 0, 1, 2: 1, 3, 2 of 6
    training = batch([0, 1, 1], [0, 2, IGNORED_LABEL])
    heldout = batch([2, 1, 0], [2, 2, IGNORED_LABEL])
    expected = -(math.log(3 / 6) + math.log(1 / 6) + math.log(2 / 6)) / 3
    assert unigram_entropy(training, heldout, vocab_size=3) == pytest.approx(expected, rel=1e-12)


def test_without_training_text_every_token_is_equally_likely() -> None:
    nothing = batch([IGNORED_LABEL, IGNORED_LABEL])
    assert unigram_entropy(nothing, batch([0, 3]), vocab_size=257) == pytest.approx(math.log(257), rel=1e-12)
