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


def mean_of(vectors: np.ndarray, weights: Sequence[float]) -> np.ndarray:
    return np.average(vectors, axis=0, weights=weights)


def lower_median(values: Sequence[float], weights: Sequence[int]) -> float:
    """Of the list in which each value stands as often as it weighs, the middle one, or the lower one of two."""
    spread = sorted(value for value, weight in zip(values, weights, strict=True) for _ in range(weight))
    return float(spread[(len(spread) - 1) // 2])


def cosine(left: np.ndarray, right: np.ndarray) -> float:
    scale = np.linalg.norm(left) * np.linalg.norm(right)
    return float(left @ right / scale) if scale > 0 else 0.0


def robust(
    vectors: np.ndarray, weights: Sequence[int], steps: Sequence[int], least_cosine: float = 0.1
) -> tuple[np.ndarray, set[int], float]:
    """The average, who was left out, and how near the nearest comparison was to the other answer."""
    short, kept, margin = clipped(vectors, weights, steps), set(range(len(vectors))), 1.0
    for _ in range(2 if len(vectors) >= 4 else 0):
        found = []
        for host, vector in enumerate(vectors):
            others = sorted(kept - {host})
            found.append(
                lower_median([cosine(vector, vectors[j]) for j in others], [weights[j] for j in others]) if others else 1.0
            )
        middle = upper_median([found[host] for host in sorted(kept)], [weights[host] for host in sorted(kept)])
        margin = min(margin, abs(middle), *(abs(one - least_cosine * middle) for one in found))
        if middle <= 0:
            break
        kept = {host for host, one in enumerate(found) if one >= least_cosine * middle}
        ranked = sorted(range(len(vectors)), key=lambda host: (-found[host], host))
        while sum(weights[host] for host in kept) < sum(weights) / 2:
            last = ranked[len(kept)]
            margin = min([margin, *(abs(found[last] - found[host]) for host in ranked if host != last)])
            kept.add(last)
    counted, nearest = without_copies(vectors, weights)
    order = sorted(kept)
    return mean_of(short[order], [counted[host] for host in order]), set(range(len(vectors))) - kept, min(margin, nearest)


def without_copies(vectors: np.ndarray, weights: Sequence[int]) -> tuple[list[float], float]:
    """Weights after near copies were counted once, and how near the nearest comparison was to the other answer."""
    hosts, margin = range(len(vectors)), 1.0
    if len(vectors) < 4:
        return [float(weight) for weight in weights], margin
    apart = np.array([[1 - cosine(one, other) for other in vectors] for one in vectors])
    usual = [lower_median([apart[i][j] for j in hosts if j != i], [weights[j] for j in hosts if j != i]) for i in hosts]
    near = {host: {host} for host in hosts}
    for one in hosts:
        for other in hosts:
            if one != other:
                bar = 0.1 * min(usual[one], usual[other])
                margin = min(margin, abs(apart[one][other] - bar)) if bar > 1e-9 else margin
                if apart[one][other] + 1e-9 < bar:
                    near[one].add(other)
    for _ in hosts:  # copies of copies
        near = {host: set().union(*(near[other] for other in found)) for host, found in near.items()}
    return [
        weights[host] * max(weights[other] for other in near[host]) / sum(weights[other] for other in near[host])
        for host in hosts
    ], margin


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
