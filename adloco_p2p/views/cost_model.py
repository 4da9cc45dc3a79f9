"""Estimates how many exchanges a run needs, and how many bytes they take (docs/mathematics.md, 11), for `adloco-peer plan`.

Everything here is derived under idealised assumptions (no client drift, the norm condition held at every inner step): it is an
estimate to plan with, not the paper's theorem and not a measurement. Batches b are per worker; N counts all samples, M workers,
H inner steps per round. K(N) of linear growth, case (a) there, needs a growth per round that nothing gives before a run;
`growing_rounds` takes one that a run has shown.
"""

from dataclasses import dataclass
from math import ceil, log
from typing import Literal

from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model.assessments import ASSESSORS
from adloco_p2p.core.model.measurers import LEAST_FULL

ROUNDING = 1e-9
"""The largest error of rounding in a whole number of rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The inputs of every formula."""

    num_samples: float
    """N: samples of the whole run."""
    num_workers: int
    """M: workers."""
    inner_steps: int
    """H: inner steps per round."""
    initial_batch: float
    """b0: samples per worker and inner step at the start."""

    @property
    def batches_per_worker(self) -> float:
        """N / (M H): the sum of the per-worker batches over all rounds."""
        return self.num_samples / (self.num_workers * self.inner_steps)


def constant_rounds(work: Workload) -> float:
    """Return K(N) = N / (M H b0), case (c) (docs/mathematics.md, 11.1)."""
    return work.batches_per_worker / work.initial_batch


def geometric_rounds(work: Workload, *, ratio: float) -> float:
    """Return K(N) for b_k = b0 gamma^k, case (b) (docs/mathematics.md, 11.1); `ratio` is gamma > 1."""
    assert ratio > 1
    return log(1 + work.batches_per_worker * (ratio - 1) / work.initial_batch) / log(ratio)


def capped_geometric_rounds(work: Workload, *, ratio: float, largest_batch: float) -> float:
    """Return K(N) for geometric growth up to `largest_batch` per worker, linear in N from there: case (d)
    (docs/mathematics.md, 11.1)."""
    assert ratio > 1 and largest_batch >= work.initial_batch
    growing_rounds = ceil(log(largest_batch / work.initial_batch) / log(ratio))
    growing_batches = work.initial_batch * (ratio**growing_rounds - 1) / (ratio - 1)
    if work.batches_per_worker <= growing_batches:
        return geometric_rounds(work, ratio=ratio)
    return growing_rounds + (work.batches_per_worker - growing_batches) / largest_batch


def round_bytes(*, num_parameters: int, num_workers: int, bytes_per_value: float) -> float:
    """Return the bytes of a ring all-reduce per worker, round and direction: 2 (M - 1) / M P w."""
    return 2 * (num_workers - 1) / num_workers * num_parameters * bytes_per_value


def growing_rounds(num_samples: float, *, per_round: float, growth: float, most_per_round: float) -> int:
    """Return the rounds until `num_samples` are trained. The first takes `per_round` samples and each further one `growth` >= 0
    more, but none more than `most_per_round`."""
    assert per_round > 0 and growth >= 0
    rounds, left = 0, num_samples
    while left > 0 and growth > 0 and per_round < most_per_round:
        left -= per_round
        per_round = min(per_round + growth, most_per_round)
        rounds += 1
    return rounds + max(0, ceil(left / per_round - ROUNDING))


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The inputs from which the cost of one exchange of pseudo-gradients follows."""

    num_parameters: int
    num_workers: int
    bytes_per_value: float
    """Bytes per value on the wire, by the codec."""
    megabits_per_second: float


Price = tuple[float, float | None]
"""The held-out loss above that of float32, in nats per token, and half its 95 % interval where there are several seeds."""

MEASURED_PRICES: dict[str, dict[int, Price]] = {
    "half": {8: (0.004, None)},
    "int8": {4: (0.003, 0.043), 8: (0.000, None)},
    "sign_int4": {8: (0.004, None)},
    "sign": {4: (0.012, 0.043), 8: (-0.021, 0.030), 16: (-0.023, 0.022)},
    "sparse": {4: (0.150, 0.037), 8: (0.067, 0.027), 16: (0.070, 0.078)},
}
"""Prices by preset, or by codec without one, and by number of hosts; 64 rounds, 20,864 parameters. `python -m
benchmarks.presets report` prints them, too."""


def prices_of(run: RunConfig) -> dict[int, Price]:
    """Return the prices by number of hosts. Empty where nothing was measured, as for runs that start from a pretrained
    model."""
    averaging = run.averaging
    return {} if run.model.pretrained is not None else MEASURED_PRICES.get(averaging.preset or averaging.codec, {})


PRICED = "held-out loss beside float32, as measured with 20,864 parameters and 64 rounds"
"""What the words of `in_words` mean."""


def in_words(price: Price, *, hosts: int) -> str:
    """Describe a price: `+0.150 +- 0.037 nats with 4 hosts`."""
    nats, half_width = price
    spread = f" +- {half_width:.3f}" if half_width is not None else ""
    return f"{nats:+.3f}{spread} nats with {hosts} hosts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One exchange of pseudo-gradients, and the price of its codec."""

    codec: str
    preset: str | None
    bytes_per_peer: float
    """Bytes that one peer sends; it receives as many."""
    price_nats: float | None
    """The loss above that of float32; None where nothing was measured."""
    price_half_width: float | None
    price_hosts: int | None
    """The number of hosts with which it was measured."""


def exchange_of(run: RunConfig, link: Link) -> Exchange:
    """Return the exchange, with the price of the measured number of hosts that is nearest by ratio."""
    measured, num_hosts = prices_of(run), link.num_workers
    hosts = min(measured, key=lambda number: max(number / num_hosts, num_hosts / number), default=None)
    price, half_width = measured[hosts] if hosts is not None else (None, None)
    return Exchange(
        codec=run.averaging.codec,
        preset=run.averaging.preset,
        bytes_per_peer=round_bytes(
            num_parameters=link.num_parameters, num_workers=num_hosts, bytes_per_value=link.bytes_per_value
        ),
        price_nats=price,
        price_half_width=half_width,
        price_hosts=hosts,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LookPrice:
    """The cost of looking at contributions (`averaging.assess_every`)."""

    every: int
    """Rounds from one look to the next."""
    subject_bytes: float
    """Bytes that the host sends whose contribution is looked at, once in so many rounds for each instance; a third goes to each
    assessor."""
    bytes_per_peer_and_round: float
    """Bytes that one peer sends on average; it receives as many."""


def look_price(run: RunConfig, link: Link, *, sent_bytes_per_value: float) -> LookPrice | None:
    """Return the cost of looks; None where the run has none, or too few peers. `sent_bytes_per_value`: bytes per value of a
    contribution on the wire."""
    every = run.averaging.assess_every
    if not every or link.num_workers < LEAST_FULL:
        return None
    subject_bytes = ASSESSORS * link.num_parameters * sent_bytes_per_value
    return LookPrice(
        every=every, subject_bytes=subject_bytes, bytes_per_peer_and_round=subject_bytes / link.num_workers / every
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The communication of one way to train. Never measured."""

    method: str
    rounds: int
    bytes_per_peer: float
    """Bytes that one peer sends in the whole run; it receives as many."""
    transfer_seconds: float
    """Time in which one peer's link does nothing else."""
    basis: Literal["derived", "extrapolated"] = "derived"


def estimate_of(method: str, rounds: float, link: Link, *, basis: Literal["derived", "extrapolated"] = "derived") -> Estimate:
    """Return the cost of a number of rounds."""
    whole = ceil(rounds - ROUNDING)
    per_round = round_bytes(
        num_parameters=link.num_parameters, num_workers=link.num_workers, bytes_per_value=link.bytes_per_value
    )
    return Estimate(
        method=method,
        rounds=whole,
        bytes_per_peer=whole * per_round,
        transfer_seconds=whole * per_round / (link.megabits_per_second * 1e6 / 8),
        basis=basis,
    )


def bounds(work: Workload, link: Link, *, growth_cap: float, max_batch: int) -> tuple[Estimate, ...]:
    """Return the most rounds that the run may need, with a batch that never grows, and the fewest, with a global batch that
    grows by `growth_cap` in every round up to `max_batch`. Its growth is not known before the run: the batch test measures it.
    One estimate where the batch cannot grow."""
    most = estimate_of(f"at most: constant batch of {work.initial_batch:.3g} per host", constant_rounds(work), link)
    largest = max_batch / work.num_workers
    if growth_cap <= 1 or largest <= work.initial_batch:
        return (most,)
    fewest = capped_geometric_rounds(work, ratio=growth_cap, largest_batch=largest)
    return most, estimate_of(f"at least: times {growth_cap:g} a round up to {largest:.3g} per host", fewest, link)
