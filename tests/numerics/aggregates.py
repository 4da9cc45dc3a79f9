"""The aggregation rules once more, on whole vectors in float64 and without a Gram matrix: slow, and with no code in common
with the product's. Vectors are [n, P]."""

from collections.abc import Sequence

import numpy as np


def upper_median(values: Sequence[float], weights: Sequence[int]) -> float:
    """Of the list in which each value stands as often as it weighs, the middle one, or the upper one of two."""
    spread = sorted(value for value, weight in zip(values, weights, strict=True) for _ in range(weight))
    return float(spread[len(spread) // 2])


def clipped(vectors: np.ndarray, weights: Sequence[int], steps: Sequence[int]) -> np.ndarray:
    if len(vectors) < 3:
        return vectors
    lengths = np.linalg.norm(vectors, axis=1) / np.array(steps)
    limit = upper_median([float(length) for length in lengths], weights)
    return np.stack([v if length <= limit else v * (limit / length) for v, length in zip(vectors, lengths, strict=True)])


def mean_of(vectors: np.ndarray, weights: Sequence[int]) -> np.ndarray:
    return np.average(vectors, axis=0, weights=weights)


def robust(
    vectors: np.ndarray, weights: Sequence[int], steps: Sequence[int], least_cosine: float = 0.1
) -> tuple[np.ndarray, set[int], float]:
    """The average, who was left out, and how near the nearest comparison was to the other answer."""
    short, kept, margin = clipped(vectors, weights, steps), set(range(len(vectors))), 1.0
    for _ in range(2 if len(vectors) >= 4 else 0):
        cosines = []
        for host, vector in enumerate(vectors):
            others = sum((weights[j] * short[j] for j in sorted(kept - {host})), np.zeros(vectors.shape[1]))
            scale = np.linalg.norm(vector) * np.linalg.norm(others)
            cosines.append(float(vector @ others / scale) if scale > 0 else 0.0)
        middle = upper_median([cosines[host] for host in sorted(kept)], [weights[host] for host in sorted(kept)])
        margin = min(margin, abs(middle), *(abs(cosine - least_cosine * middle) for cosine in cosines))
        if middle <= 0:
            break
        kept = {host for host, cosine in enumerate(cosines) if cosine >= least_cosine * middle}
        ranked = sorted(range(len(vectors)), key=lambda host: (-cosines[host], host))
        while sum(weights[host] for host in kept) < sum(weights) / 2:
            last = ranked[len(kept)]
            margin = min([margin, *(abs(cosines[last] - cosines[host]) for host in ranked if host != last)])
            kept.add(last)
    order = sorted(kept)
    return mean_of(short[order], [weights[host] for host in order]), set(range(len(vectors))) - kept, margin


def geometric_median(vectors: np.ndarray, weights: Sequence[int], steps: Sequence[int], passes: int = 32) -> np.ndarray:
    point = mean_of(clipped(vectors, weights, steps), weights)
    least = 1e-6 * upper_median([float(norm) for norm in np.linalg.norm(vectors, axis=1)], weights)
    for _ in range(passes if least > 0 else 0):
        distances = np.maximum(least, np.linalg.norm(vectors - point, axis=1))
        point = np.average(vectors, axis=0, weights=np.array(weights) / distances)
    return point


def sum_of_distances(vectors: np.ndarray, weights: Sequence[int], point: np.ndarray) -> float:
    return float(np.linalg.norm(vectors - point, axis=1) @ np.array(weights))


def centered_clip(vectors: np.ndarray, weights: Sequence[int], steps: Sequence[int]) -> np.ndarray:
    centre = mean_of(clipped(vectors, weights, steps), weights)
    radius = upper_median([float(d) for d in np.linalg.norm(vectors - centre, axis=1)], weights)
    for _ in range(5):
        pieces = []
        for vector in vectors:
            distance = np.linalg.norm(vector - centre)
            pieces.append((vector - centre) * (1.0 if distance <= radius else radius / distance))
        centre = centre + mean_of(np.stack(pieces), weights)
    return centre
