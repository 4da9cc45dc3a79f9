"""Seeded stochastic rounding of float32 to bfloat16 (arXiv 1502.02551): the same bits on every machine.

A value between two bfloat16 neighbours is rounded up with a probability equal to its relative distance from the lower one. The
sum of many small steps is thus right in expectation, where rounding to nearest loses each of them. The random bits come from a
counter-based integer generator (the finalizer of splitmix64 over the element's index), which is the same in every library and
on every processor.
"""

import numpy as np
import torch

_WORD = 4
"""Elements that one 64-bit random word serves, with 16 bits each."""
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def round_into_(target: torch.Tensor, values: torch.Tensor, *, seed: int, first: int) -> None:
    """Round `values` [n] float32 stochastically into `target` [n] bfloat16, both on the CPU.

    `seed` determines the rounding of a whole vector, and `first`, a multiple of four, is the index of the first element in it,
    so that a vector may be rounded in pieces. Infinities stay as they are; a NaN stays one or becomes infinite.
    """
    assert target.dtype == torch.bfloat16 and values.dtype == torch.float32 and target.shape == values.shape
    assert first % _WORD == 0, first
    noise, is_nan = _noise(len(values), seed=seed, first=first), np.isnan(values.numpy())
    if is_nan.any():
        noise[is_nan] = 0  # a carry out of a NaN whose bits are all set would make it zero
    bits = values.numpy().view(np.uint32) + noise
    target.view(torch.int16).copy_(torch.from_numpy((bits >> np.uint32(16)).astype(np.uint16).view(np.int16)))


def _noise(count: int, *, seed: int, first: int) -> np.ndarray:
    """Return `count` random numbers of 16 bits, as uint32; `first` is the index of the first one in the stream of `seed`."""
    words = -(-count // _WORD)
    # Index and seed share one word: the seed sets where its stream begins in the period of the generator.
    state = np.arange(first // _WORD + 1, first // _WORD + 1 + words, dtype=np.uint64)
    state *= np.uint64(_GOLDEN)
    state += np.uint64(_scrambled(seed & _MASK))
    state ^= state >> np.uint64(30)
    state *= np.uint64(0xBF58476D1CE4E5B9)
    state ^= state >> np.uint64(27)
    state *= np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    return state.view(np.uint16)[:count].astype(np.uint32)


def _scrambled(seed: int) -> int:
    """Apply the finalizer to a seed, so that the streams of consecutive seeds begin far apart."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        seed = (seed ^ (seed >> shift)) * factor & _MASK
    return seed ^ (seed >> 31)
