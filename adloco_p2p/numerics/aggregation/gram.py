"""Inner products of contributions, part by part: the same bytes on every machine, so any host can check those of a reducer."""

from collections.abc import Sequence
from math import fsum, isfinite, sqrt

import numpy as np

from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.numerics.aggregation.rule import Gram

_BLOCK = 1 << 13  # values; a power of two, to be halved, and small enough that the products of eight hosts fit the cache
_ROUNDING = 1e-6
"""The relative excess over the bound of Cauchy and Schwarz that is taken for rounding."""
_MOST = 1e90
"""A bound above the squared norm of any float32 vector; sums and products of numbers up to it stay finite."""


def packed_size(num_hosts: int) -> int:
    """Return the number of entries in a packed Gram matrix."""
    return num_hosts * (num_hosts + 1) // 2


def partial_gram(vectors: Sequence[np.ndarray]) -> tuple[float, ...]:
    """Return the inner products of n parts, float32 [P] each, packed: row i holds columns 0 to i, and rows follow each other.

    Products are formed in float64, where they are exact for float32 factors, and summed by halving blocks of a fixed length.
    These are elementwise additions, which no BLAS reorders by processor or number of threads.
    """
    size = len(vectors[0])
    sums = [np.zeros(row + 1) for row in range(len(vectors))]
    block = np.zeros((len(vectors), _BLOCK))
    products = np.empty_like(block)
    for first in range(0, size, _BLOCK):
        length = min(_BLOCK, size - first)
        block[:, length:] = 0.0
        for row, vector in enumerate(vectors):
            block[row, :length] = vector[first : first + length]
        for row, summed in enumerate(sums):
            terms = np.multiply(block[: row + 1], block[row], out=products[: row + 1])
            half = _BLOCK // 2
            while half:
                terms[:, :half] += terms[:, half : 2 * half]
                half //= 2
            np.add(summed, terms[:, 0], out=summed)
    return tuple(float(value) for row in sums for value in row)


def checked_partial_gram(packed: Sequence[float], num_hosts: int) -> tuple[float, ...]:
    """Return another host's packed matrix. Raises RemoteProtocolError for one that no contributions can have.

    A matrix that passes may still be wrong, which only a holder of the contributions can determine.
    """
    if len(packed) != packed_size(num_hosts):
        raise RemoteProtocolError(f"{len(packed)} inner products of {num_hosts} hosts, {packed_size(num_hosts)} needed")
    if not all(isfinite(value) and abs(value) <= _MOST for value in packed):
        raise RemoteProtocolError("an inner product that is not finite, or larger than any of float32 values")
    matrix = summed_gram([packed], num_hosts)
    if any(matrix[host][host] < 0 for host in range(num_hosts)):
        raise RemoteProtocolError("a squared norm below zero")
    norms = [sqrt(matrix[host][host]) for host in range(num_hosts)]
    for left in range(num_hosts):
        for right in range(left):
            if abs(matrix[left][right]) > norms[left] * norms[right] * (1 + _ROUNDING):
                raise RemoteProtocolError("an inner product beyond the product of the norms")
    return tuple(packed)


def summed_gram(parts: Sequence[Sequence[float]], num_hosts: int) -> Gram:
    """Return the Gram matrix [n][n] of whole vectors from the packed matrices of their parts. `fsum` rounds each sum once, so
    the order of the parts does not matter."""
    assert all(len(part) == packed_size(num_hosts) for part in parts)
    sums = [fsum(column) for column in zip(*parts, strict=True)]
    matrix = [[0.0] * num_hosts for _ in range(num_hosts)]
    values = iter(sums)
    for row in range(num_hosts):
        for column in range(row + 1):
            matrix[row][column] = matrix[column][row] = next(values)
    return matrix
