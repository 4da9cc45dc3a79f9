"""Finds the row of the n-th sample of an instance: a pseudo-random order with random access.

An instance reads all rows in a random order, then all of them again in another one (docs/mathematics.md, 2.1). The order is a
keyed permutation that is computed, not stored: a Feistel network permutes the smallest even number of bits that covers the
rows, and values that fall outside are permuted again until they fall inside (cycle walking; Black and Rogaway, "Ciphers with
arbitrary finite domains", 2002). So hosts that a plan gives disjoint ranges of samples read disjoint rows of an epoch, every
peer can derive the rows of every host, and continuing after a restart needs no state.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from adloco_p2p.core.model.scalars import InstanceId

UInts = npt.NDArray[np.uint64]

FEISTEL_ROUNDS = 6


def round_keys(*parts: str | int) -> tuple[int, ...]:
    """Return the keys of a permutation, which are drawn from these values."""
    # the lengths come first, so that ("1", "23") and ("12", "3") differ
    text = "".join(f"{len(str(part))}:{part}" for part in ("order", *parts))
    data = hashlib.shake_256(text.encode()).digest(8 * FEISTEL_ROUNDS)
    return tuple(int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8))


def permute(places: npt.NDArray[np.int64], *, size: int, keys: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Return where a pseudo-random permutation of 0 .. size-1 sends each of `places` [n]; a bijection for every choice of
    keys."""
    assert 1 <= size <= 1 << 62 and (not len(places) or (places.min() >= 0 and places.max() < size))
    half_bits = max(1, -(-(size - 1).bit_length() // 2))
    values = _feistel(places.astype(np.uint64), half_bits=half_bits, keys=keys)
    outside = np.flatnonzero(values >= size)
    while outside.size:  # ends, because every cycle of the permutation that begins inside comes back inside
        values[outside] = _feistel(values[outside], half_bits=half_bits, keys=keys)
        outside = outside[values[outside] >= size]
    return values.astype(np.int64)


def _feistel(values: UInts, *, half_bits: int, keys: tuple[int, ...]) -> UInts:
    """Apply the Feistel network, a bijection of the numbers of 2 * half_bits bits."""
    shift, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = values >> shift, values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ np.uint64(key)) & mask)
    return (left << shift) | right


def _mix(values: UInts) -> UInts:
    """Apply the finalizer of splitmix64: every input bit flips about half of the output bits. Wraps modulo 2**64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOrder:
    """The orders of all instances over the rows of a run."""

    seed: int | str
    num_rows: int

    def rows(self, instance: InstanceId, *, first_sample: int, num_samples: int) -> npt.NDArray[np.int64]:
        """Return the rows [num_samples] of the samples first_sample .. first_sample + num_samples - 1 of the instance."""
        end = first_sample + num_samples
        pieces = [np.empty(0, dtype=np.int64)]
        for epoch in range(first_sample // self.num_rows, -(-end // self.num_rows)):
            start = epoch * self.num_rows
            places = np.arange(max(first_sample, start), min(end, start + self.num_rows), dtype=np.int64) - start
            pieces.append(permute(places, size=self.num_rows, keys=round_keys(self.seed, instance, epoch)))
        return np.concatenate(pieces)


WEIGHT_PARTS = 1 << 20
"""The number of equal parts in which weights are counted, so that every machine mixes alike, in whole numbers."""


class MixedOrder:
    """The orders of all instances over several data sets, from which samples are drawn in proportion to weights.

    Of the first n samples, floor(n w) come from the first data set, whose share is w; the other data sets divide the rest in
    the same way. So the place of sample n in its own data set is known without a cursor, and each data set has an order of its
    own, epoch after epoch.
    """

    def __init__(self, *, seed: int | str, sizes: Sequence[int], weights: Sequence[float]) -> None:
        assert len(sizes) == len(weights) >= 1 and all(size >= 1 for size in sizes) and all(weight > 0 for weight in weights)
        self._orders = [SampleOrder(seed=f"{seed}/{number}", num_rows=size) for number, size in enumerate(sizes)]
        self._first_rows = [sum(sizes[:number]) for number in range(len(sizes))]
        self._shares = [max(1, round(WEIGHT_PARTS * weight / sum(weights[number:]))) for number, weight in enumerate(weights)]

    def rows(self, instance: InstanceId, *, first_sample: int, num_samples: int) -> npt.NDArray[np.int64]:
        """Return the rows of the samples first_sample .. first_sample + num_samples - 1 of the instance, counted over all data
        sets."""
        found = np.empty(num_samples, dtype=np.int64)
        left, numbers = np.arange(num_samples), np.arange(first_sample, first_sample + num_samples, dtype=np.int64)
        for order, first_row, share in zip(self._orders, self._first_rows, self._shares, strict=True):
            before, after = (count * share // WEIGHT_PARTS for count in (numbers, numbers + 1))
            is_ours = after > before
            ours = before[is_ours]  # consecutive, because the samples are
            if len(ours):
                rows = order.rows(instance, first_sample=int(ours[0]), num_samples=len(ours))
                found[left[is_ours]] = first_row + rows
            left, numbers = left[~is_ours], (numbers - before)[~is_ours]
        assert not len(left), "the last share is the whole"
        return found
