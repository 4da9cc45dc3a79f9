"""Seeded stochastic rounding of float32 to bfloat16 (arXiv 1502.02551): the same bits on every machine.

A value between two bfloat16 neighbours goes to the upper one with a chance that is its place between them, so sums of many
small steps are right in the mean, where rounding to nearest loses each of them. The chance comes from a counter-based generator
in whole numbers (the finalizer of splitmix64 over the element's place), which no library and no processor does otherwise.
"""

import numpy as np
import torch

_WORD = 4
"""Elements whose 16 random bits each come from one 64-bit word."""
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def round_into_(target: torch.Tensor, values: torch.Tensor, *, seed: int, first: int) -> None:
    """`target` [n] bfloat16 <- `values` [n] float32, both on the CPU. `first`, a multiple of four: place of the first element
    in the vector whose rounding `seed` draws, so that pieces come out as the whole does.

    Infinities stay as they are; a NaN stays one or becomes infinite.
    """
    assert target.dtype == torch.bfloat16 and values.dtype == torch.float32 and target.shape == values.shape
    assert first % _WORD == 0, first
    bits = values.numpy().view(np.uint32) + _noise(len(values), seed=seed, first=first)
    target.view(torch.int16).copy_(torch.from_numpy((bits >> np.uint32(16)).astype(np.uint16).view(np.int16)))


def _noise(count: int, *, seed: int, first: int) -> np.ndarray:
    """`count` random numbers of 16 bits, as uint32."""
    words = -(-count // _WORD)
    # place and seed in one word: the stream of a seed is where it begins in the generator's whole period
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
    """The same finalizer for one number: seeds that differ by one begin far apart."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        seed = (seed ^ (seed >> shift)) * factor & _MASK
    return seed ^ (seed >> 31)
