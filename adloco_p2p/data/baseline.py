"""The baseline of a model: the loss of a unigram model."""

import math

import numpy as np

from adloco_p2p.numerics.batch import IGNORED_LABEL, Batch


def unigram_entropy(training: Batch, heldout: Batch, *, vocab_size: int) -> float:
    """Return the nats per predicted token of the held-out rows, under the token frequencies of the training rows.

    Counts the same tokens as the loss: every label but the first of a row and padding. One is added to each frequency, so that
    a token without training occurrences has a finite cost. Compare with held-out losses; log(vocab_size) is the loss of no
    knowledge.
    """
    counts = _label_counts(training, vocab_size) + 1.0
    wanted = _label_counts(heldout, vocab_size)
    assert wanted.sum() > 0
    log_probabilities = np.log(counts) - math.log(counts.sum())
    return float(-(wanted * log_probabilities).sum() / wanted.sum())


def _label_counts(batch: Batch, vocab_size: int) -> np.ndarray:
    """Return how often each token is predicted: [vocab_size], fp64."""
    labels = batch.labels[:, 1:].numpy()
    return np.bincount(labels[labels != IGNORED_LABEL], minlength=vocab_size).astype(np.float64)
