"""How many exchanges a run needs, and what they weigh (method section 12). For `adloco-peer plan`.

Everything here is derived under idealised assumptions (no client drift, the norm condition held at every inner step): it is
an estimate to plan with, not the paper's theorem and not a measurement. Batches b are per worker, as in the method; N counts
all samples, M workers, H inner steps per round.
"""

from dataclasses import dataclass
from math import ceil, log, sqrt
from typing import Literal

DEFAULT_GROWTH = 1.0
"""c, samples per worker and round, where nothing was measured: an assumption."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What every formula needs."""

    num_samples: float
    """N: samples of the whole run."""
    num_workers: int
    """M."""
    inner_steps: int
    """H."""
    initial_batch: float
    """b0: samples per worker and inner step at the start."""

    @property
    def batches_per_worker(self) -> float:
        """N / (M H): the sum of the per-worker batches over all rounds."""
        return self.num_samples / (self.num_workers * self.inner_steps)


def constant_rounds(work: Workload) -> float:
    """12 (c): K(N) = N / (M H b0)."""
    return work.batches_per_worker / work.initial_batch


def linear_rounds(work: Workload, *, growth: float) -> float:
    """12 (a) with b_k = b0 + c k exactly; `growth` is c > 0."""
    assert growth > 0
    half = work.initial_batch - growth / 2
    return (-half + sqrt(half * half + 2 * growth * work.batches_per_worker)) / growth


def linear_rounds_bound(work: Workload, *, growth: float) -> float:
    """12 (a) with b_k >= c k only, whatever b0: K(N) <= 1/2 + sqrt(1/4 + 2 N / (M H c))."""
    assert growth > 0
    return 0.5 + sqrt(0.25 + 2 * work.batches_per_worker / growth)


def geometric_rounds(work: Workload, *, ratio: float) -> float:
    """12 (b): b_k = b0 gamma^k; `ratio` is gamma > 1."""
    assert ratio > 1
    return log(1 + work.batches_per_worker * (ratio - 1) / work.initial_batch) / log(ratio)


def capped_geometric_rounds(work: Workload, *, ratio: float, largest_batch: float) -> float:
    """12 (d): geometric until `largest_batch` per worker, linear in N from there."""
    assert ratio > 1 and largest_batch >= work.initial_batch
    growing_rounds = ceil(log(largest_batch / work.initial_batch) / log(ratio))
    growing_batches = work.initial_batch * (ratio**growing_rounds - 1) / (ratio - 1)
    if work.batches_per_worker <= growing_batches:
        return geometric_rounds(work, ratio=ratio)
    return growing_rounds + (work.batches_per_worker - growing_batches) / largest_batch


def round_bytes(*, num_parameters: int, num_workers: int, bytes_per_value: float) -> float:
    """What a ring all-reduce moves per worker, round and direction: 2 (M - 1) / M P w."""
    return 2 * (num_workers - 1) / num_workers * num_parameters * bytes_per_value


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Communications of one way to train. Derived, never measured."""

    method: str
    rounds: int
    bytes_per_peer: float
    """Sent by one peer in the whole run; it receives as many."""
    transfer_seconds: float
    """Time in which one peer's link does nothing else."""
    basis: Literal["derived"] = "derived"


def estimate(
    work: Workload, *, num_parameters: int, bytes_per_value: float, megabits_per_second: float, growth: float | None = None
) -> tuple[Estimate, Estimate]:
    """AdLoCo with linear growth (`growth` samples per worker and round, DEFAULT_GROWTH where none is given), and the
    constant batch it starts from, at equal samples."""
    c = DEFAULT_GROWTH if growth is None else growth
    per_round = round_bytes(num_parameters=num_parameters, num_workers=work.num_workers, bytes_per_value=bytes_per_value)
    bytes_per_second = megabits_per_second * 1e6 / 8

    def of(method: str, rounds: float) -> Estimate:
        whole = ceil(rounds - 1e-9)
        return Estimate(
            method=method, rounds=whole, bytes_per_peer=whole * per_round, transfer_seconds=whole * per_round / bytes_per_second
        )

    return (
        of(f"adloco, batch grows by {c:g} per worker and round", linear_rounds(work, growth=c)),
        of(f"constant batch of {work.initial_batch:g} per worker", constant_rounds(work)),
    )
