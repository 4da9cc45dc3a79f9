"""Gradient noise from the pseudo-gradients of one round, for hosts that did different numbers of inner steps on different
batches.

The estimator of docs/mathematics.md, 4.3: that of 4.1 with n_m for b_m, extended to unequal steps. The model: host m did h_m
steps on n_m samples, its pseudo-gradient is D_m = h_m (g + x_m) with E norm2(x_m) = S / n_m, where g is the gradient and S the
trace of the per-sample covariance, both in the metric of the inner optimizer. The average is A = sum of u_m D_m; its weights
u_m, of sum 1, are proportional to n_m times the standing of the host. With w_m = n_m / N and

    h = sum of u_m h_m,  q = sum of u_m^2 h_m^2 / w_m,  residual R_m = D_m / h_m - A / h

g cancels in R_m, and for any weights v_m of sum 1

    E sum of v_m norm2(R_m) = (S / N) (sum of v_m / w_m - 2 sum of v_m u_m h_m / (w_m h) + q / h^2)
    E norm2(A) = h^2 norm2(g) + (S / N) q

are two equations for S / N and norm2(g), exact under the model. With equal steps and u = v = w they are the formulas of 4.1.
The result is what hosts with equal steps would show on the same samples: signal h^2 norm2(g), noise h^2 S / N.

The weights are batches: v_m is proportional to n_m / h_m. Samples, the inverse of the model's variance, would be optimal under
the model. But paths bend, more so the longer they are, and bends look like noise: in measurements samples overestimate more.

Bias: if pseudo-gradients grow like steps to the power 1 + e, a part of the signal counts as noise: e^2 times the variance of
the logarithm of the steps, a second-order error. With the plain formula, norm2(D_m - A), that part is cv^2 / (M - 1), where cv
is the coefficient of variation of the steps; it outweighs the noise if H is large. docs/results/method.md has measurements.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, fsum, inf, sqrt
from statistics import median

from adloco_p2p.core.model.gradient_statistics import NoiseSample, PseudoGradientStatistics
from adloco_p2p.core.model.instance_plan import MOST_STEP_SPREAD, InstancePlan
from adloco_p2p.core.model.report import InstanceReport
from adloco_p2p.core.model.roster_entry import FULL_STANDING
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.model.words import plural

MIN_ROBUST_HOSTS = 4
"""With this many hosts or more, outliers are left out or trimmed; with fewer, a liar cannot be identified."""
OUTLIER_FACTOR = 4.0
"""An update that alone shows more than this many times the noise of the median one is left out."""
BATCH_CLAIM_FACTOR = 2
"""A host's batch counts for at most this many times the planned one."""
STEP_CLAIM_FACTOR = 2
"""A host's inner steps count for at most this many times those that the newest plan gives it."""
MIN_RELATIVE_STANDING = 0.5
"""The hosts that count must have at least this part of the mean standing of all contributors. With less, most of the average
comes from hosts that do not count, and the noise would come out too small."""

ALL_EQUAL: Mapping[PeerId, int] = {}
"""The standings of hosts that all have the same one."""

_MAX_SCALAR = 1e30
_MAX_COUNT = 1 << 40
_MIN_DEGREES = 1e-9
"""Degrees of freedom are positive; their rounding error is not, where one host has all samples but a few of 2^60."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """One host's claims about its pseudo-gradient, clamped to bounds."""

    steps: int
    batch: int
    samples: float
    sqnorm: float
    """Squared norm of the pseudo-gradient as transmitted."""
    product: float
    """Inner product of the pseudo-gradient with the average."""
    standing: float = 1.0
    """The factor by which its samples count in the average."""

    @property
    def weight(self) -> float:
        """The weight in the average, in proportion to those of the others."""
        return self.samples * self.standing


def pool_pseudo_gradients(
    plan: InstancePlan,
    claims: Mapping[PeerId, InstanceReport],
    round: int,
    places: Mapping[PeerId, int],
    standings: Mapping[PeerId, int] = ALL_EQUAL,
    deciding: Collection[PeerId] | None = None,
) -> tuple[NoiseSample | None, str]:
    """Return the noise of the round, or None, and why. `standings` are those by which the hosts were averaged.

    Contributors are the hosts that more than half of the reports of `deciding` hosts name (None: of all hosts). Those of them
    that did not report are taken to be like the mean of the others, so a lost report costs precision but adds no bias; there is
    no sample where those that count weigh far less in the average than the others (MIN_RELATIVE_STANDING). With four or more
    hosts, claims that stand out
    are treated likewise, at most a quarter of each kind: numbers of steps that are not comparable, and updates by which alone
    the noise would be more than OUTLIER_FACTOR times that by the median one. A host weighs at most as many samples as the
    newest plan gives it. Its batch and its steps count for at most twice the planned ones, its inner product for what
    Cauchy-Schwarz allows; the norm of the average is a median.
    """
    heard = claims.keys() if deciding is None else claims.keys() & deciding
    sets = Counter(claims[peer].contributors for peer in heard)
    named, count = max(sets.items(), key=lambda item: (item[1], item[0]), default=(0, 0))
    if 2 * count <= len(heard):
        return None, "the hosts disagree on whose updates are in the average"
    agreeing = {
        peer: (claim, claim.pseudo_gradient)
        for peer, claim in sorted(claims.items())
        if claim.contributors == named and claim.pseudo_gradient is not None
    }
    inside = {
        peer: (claim, scalars)
        for peer, (claim, scalars) in agreeing.items()
        if claim.samples > 0 and claim.batch_samples > 0 and peer in places and named >> places[peer] & 1
    }
    norms = [scalars.averaged_sqnorm for peer, (_, scalars) in agreeing.items() if peer in heard]
    if len(inside) < 2 or not norms:
        return None, "fewer than two hosts reported an update"
    averaged = median(norms)
    num_hosts = named.bit_count()
    steps = _bounded_steps(inside, plan)
    comparable = _comparable(steps)
    if not comparable:
        return None, f"the hosts did too unequal numbers of steps, {min(steps.values())} to {max(steps.values())}"
    planned = {share.peer: (share.effective_batch, share.samples) for share in plan.hosts if share.samples > 0}
    most = max(planned.values(), default=(plan.effective_batch, _MAX_COUNT))
    amounts = {peer: planned.get(peer, most) for peer, place in places.items() if named >> place & 1}
    by = {peer: float(standings.get(peer, FULL_STANDING)) for peer in amounts}
    bounded = [_bounded(*inside[peer], steps[peer], averaged, amounts[peer], standing=by[peer]) for peer in comparable]
    contributions = _without_outliers(bounded, averaged)
    standing = _mean_standing((item.samples, item.standing) for item in contributions)
    if standing < MIN_RELATIVE_STANDING * _mean_standing((samples, by[peer]) for peer, (_, samples) in amounts.items()):
        return None, "the hosts that weigh most in the average reported no update that counts"
    sample = noise_of(contributions, averaged, num_hosts=num_hosts, round=round)
    return sample, f"measured between the updates of {len(contributions)} of {plural(num_hosts, 'host')}"


def _mean_standing(parts: Iterable[tuple[float, float]]) -> float:
    """Return the mean standing of hosts, given as samples and standing, by their samples."""
    items = list(parts)
    return fsum(samples * standing for samples, standing in items) / fsum(samples for samples, _ in items)


_Inside = Mapping[PeerId, tuple[InstanceReport, PseudoGradientStatistics]]


def _bounded_steps(inside: _Inside, plan: InstancePlan) -> dict[PeerId, int]:
    planned = {share.peer: share.inner_steps for share in plan.hosts if share.inner_steps > 0}
    most = max(planned.values(), default=_MAX_COUNT)
    return {peer: min(claim.inner_steps, STEP_CLAIM_FACTOR * planned.get(peer, most)) for peer, (claim, _) in inside.items()}


def _comparable(steps: Mapping[PeerId, int]) -> Sequence[PeerId]:
    """Return the hosts whose numbers of steps are comparable: all, or all except the fewest possible that are farthest from the
    median, up to a quarter. Empty if that is not enough."""
    middle = max(1, median(steps.values()))

    def distance(peer: PeerId) -> tuple[float, PeerId]:
        count = steps[peer]
        return (max(count / middle, middle / count) if count else inf), peer

    by_distance = sorted(steps, key=distance)
    for num_dropped in range(len(steps) // MIN_ROBUST_HOSTS + 1):
        kept = by_distance[: len(steps) - num_dropped]
        counts = [steps[peer] for peer in kept]
        if min(counts) >= 1 and max(counts) <= MOST_STEP_SPREAD * min(counts):
            return sorted(kept)
    return ()


def _bounded(
    claim: InstanceReport,
    scalars: PseudoGradientStatistics,
    steps: int,
    averaged: float,
    most: tuple[int, int],
    *,
    standing: float,
) -> Contribution:
    """Clamp a host's claims. `most` is what the newest plan gives the host: samples per inner step, and samples per round."""
    batch, samples = most
    bound = sqrt(scalars.own_sqnorm) * sqrt(averaged)
    return Contribution(
        steps=steps,
        batch=min(claim.batch_samples, BATCH_CLAIM_FACTOR * batch),
        samples=float(min(claim.samples, samples)),
        sqnorm=scalars.own_sqnorm,
        product=min(max(scalars.inner_product, -bound), bound),
        standing=standing,
    )


def _without_outliers(contributions: Sequence[Contribution], averaged: float) -> Sequence[Contribution]:
    """Of four or more contributions, leave out those, at most a quarter, by which alone the noise would be more than
    OUTLIER_FACTOR times that by the median one."""
    if len(contributions) < MIN_ROBUST_HOSTS:
        return contributions
    noise = _noise_by_each(contributions, averaged)
    most = OUTLIER_FACTOR * median(noise)
    highest = sorted(range(len(noise)), key=lambda place: (-noise[place], place))[: len(noise) // MIN_ROBUST_HOSTS]
    dropped = {place for place in highest if noise[place] > most}
    return [item for place, item in enumerate(contributions) if place not in dropped]


def _noise_by_each(contributions: Sequence[Contribution], averaged: float) -> list[float]:
    """Return S / N by the residual of each contribution alone."""
    by_samples = _fractions([item.samples for item in contributions])
    by_weight = _fractions([item.weight for item in contributions])
    factors = [u / w for u, w in zip(by_weight, by_samples, strict=True)]
    mean_steps = _dot(by_weight, [item.steps for item in contributions])
    relative = [item.steps / mean_steps for item in contributions]
    squared = _dot(by_weight, [factor * (r * r) for factor, r in zip(factors, relative, strict=True)])
    return [
        (item.sqnorm / (r * r) - 2.0 * item.product / r + averaged) / max(_MIN_DEGREES, 1.0 / w - 2.0 * (factor * r) + squared)
        for item, w, factor, r in zip(contributions, by_samples, factors, relative, strict=True)
    ]


def noise_of(contributions: Sequence[Contribution], averaged: float, *, num_hosts: int, round: int = 0) -> NoiseSample:
    """Solve the two equations of this module. `averaged` is norm2(A). The average has `num_hosts` >= 2 hosts, of which those of
    `contributions` reported: at least 2, all with steps and samples."""
    reported = len(contributions)
    samples, weights = [item.samples for item in contributions], [item.weight for item in contributions]
    mean_steps = fsum(n * item.steps for n, item in zip(weights, contributions, strict=True)) / fsum(weights)
    relative = [item.steps / mean_steps for item in contributions]  # h_m / h, so that all is in units of h^2
    by_samples, by_weight = _fractions(samples), _fractions(weights)  # w, u
    factors = [u / w for u, w in zip(by_weight, by_samples, strict=True)]
    by_batch = _fractions([n / item.steps for n, item in zip(samples, contributions, strict=True)])  # v
    squared = _dot(by_weight, [factor * (r * r) for factor, r in zip(factors, relative, strict=True)])
    inverse = fsum(v / w for v, w in zip(by_batch, by_samples, strict=True)) * num_hosts / reported
    overlap = _dot(by_batch, [factor * r for factor, r in zip(factors, relative, strict=True)])
    degrees = max(_MIN_DEGREES, inverse - 2.0 * overlap + squared)

    # the sum of v_m norm2(R_m); the averaging itself ensures that the sum of u_m <D_m, A> is norm2(A)
    own = _dot(by_batch, [item.sqnorm / (r * r) for r, item in zip(relative, contributions, strict=True)])
    lean = fsum((v / r - u) * c.product for v, u, r, c in zip(by_batch, by_weight, relative, contributions, strict=True))
    residual = max(0.0, own - averaged - 2.0 * lean)
    spread = _dot(by_batch, [(item.product / r - averaged) ** 2 for r, item in zip(relative, contributions, strict=True)])
    noise = residual / degrees
    signal = averaged - squared * noise
    orthogonal = (residual - spread / averaged) / degrees if averaged > 0.0 else noise
    batch = ceil(sum(item.batch for item in contributions) * num_hosts / reported)
    return NoiseSample(
        round=round,
        source="pseudo_gradient",
        batch_samples=max(1, min(batch, _MAX_COUNT)),
        mean_sqnorm=max(0.0, scalar(signal + noise)),
        noise=scalar(noise),
        signal=scalar(signal),
        inner_variance=scalar(spread / degrees),
        orthogonal_noise=scalar(max(0.0, orthogonal)),
    )


def _fractions(parts: Sequence[float]) -> list[float]:
    total = fsum(parts)
    return [part / total for part in parts]


def _dot(weights: Sequence[float], values: Sequence[float]) -> float:
    return fsum(weight * value for weight, value in zip(weights, values, strict=True))


def scalar(value: float) -> float:
    """Clamp a value to the range that a plan may carry."""
    return min(max(value, -_MAX_SCALAR), _MAX_SCALAR)
