"""Which row is the n-th sample of an instance: a pseudo-random order with random access.

An instance reads all rows in a random order, then all of them again in another one (method section 2, DATA). The order is a
keyed permutation that is computed, not stored: a Feistel network permutes the smallest even number of bits that covers the
rows, and values that fall outside are permuted again until they fall inside (cycle walking; Black and Rogaway, "Ciphers with
arbitrary finite domains", 2002). So hosts that a plan gives disjoint ranges of samples read disjoint rows of an epoch, every
peer can derive who reads what, and going on after a restart needs no state.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from adloco_p2p.core.model.types import InstanceId

UInts = npt.NDArray[np.uint64]

FEISTEL_ROUNDS = 6


def round_keys(*parts: str | int) -> tuple[int, ...]:
    """Keys of a permutation, drawn from what it shall depend on."""
    # lengths first: ("1", "23") and ("12", "3") must not meet
    text = "".join(f"{len(str(part))}:{part}" for part in ("order", *parts))
    data = hashlib.shake_256(text.encode()).digest(8 * FEISTEL_ROUNDS)
    return tuple(int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8))


def permute(places: npt.NDArray[np.int64], *, size: int, keys: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Where a pseudo-random permutation of 0 .. size-1 sends each of `places` [n]; a bijection for every choice of keys."""
    assert 1 <= size <= 1 << 62 and (not len(places) or (places.min() >= 0 and places.max() < size))
    half_bits = max(1, -(-(size - 1).bit_length() // 2))
    values = _feistel(places.astype(np.uint64), half_bits=half_bits, keys=keys)
    outside = np.flatnonzero(values >= size)
    while outside.size:  # every cycle of the permutation that begins inside comes back inside: this ends
        values[outside] = _feistel(values[outside], half_bits=half_bits, keys=keys)
        outside = outside[values[outside] >= size]
    return values.astype(np.int64)


def _feistel(values: UInts, *, half_bits: int, keys: tuple[int, ...]) -> UInts:
    """A bijection of the numbers of 2 * half_bits bits."""
    shift, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = values >> shift, values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ np.uint64(key)) & mask)
    return (left << shift) | right


def _mix(values: UInts) -> UInts:
    """The finalizer of splitmix64: every input bit moves about half of the output bits. Wraps modulo 2**64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOrder:
    """The orders of all instances over the rows of a run."""

    seed: int
    num_rows: int

    def rows(self, instance: InstanceId, *, first_sample: int, num_samples: int) -> npt.NDArray[np.int64]:
        """Rows of the samples first_sample .. first_sample + num_samples - 1 of the instance: [num_samples]."""
        end = first_sample + num_samples
        pieces = [np.empty(0, dtype=np.int64)]
        for epoch in range(first_sample // self.num_rows, -(-end // self.num_rows)):
            start = epoch * self.num_rows
            places = np.arange(max(first_sample, start), min(end, start + self.num_rows), dtype=np.int64) - start
            pieces.append(permute(places, size=self.num_rows, keys=round_keys(self.seed, instance, epoch)))
        return np.concatenate(pieces)
