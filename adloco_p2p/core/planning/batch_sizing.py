"""Scalars of a round -> gradient noise -> requested batch (method sections 3 and 4). Pure arithmetic on what hosts report.

Two statistics exist. The pseudo-gradient form (4.3 B) compares what the hosts transmitted with the average they received; the
micro-batch form (4.2 within one host) compares the two halves of a batch. Both become a `NoiseSample` about the mean over the
whole effective batch, so one formula serves both: requested batch = batch * noise / (eta^2 * signal).

Reports are claims of strangers. The effect of one liar among four or more hosts is bounded; each bound is stated where it
applies. Sums use `math.fsum`: the built-in `sum` rounds differently from one Python version to the next, and peers must agree.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import ceil, floor, fsum, sqrt
from statistics import median

from adloco_p2p.core.model.rules import BatchRules
from adloco_p2p.core.model.types import MAX_HISTORY, InstancePlan, InstanceReport, NoiseSample, PeerId
from adloco_p2p.core.model.words import plural

MIN_ROBUST_HOSTS = 4
"""From this many hosts on, outliers are clipped or trimmed; with fewer, a liar cannot be identified."""
OUTLIER_FACTOR = 4.0
"""A squared norm counts for at most this many times what the median host shows."""
BATCH_CLAIM_FACTOR = 2
"""A host's batch counts for at most this many times the planned effective batch of the whole instance."""
SHRINK_STREAK = 5
"""Rounds in a row below half the batch, before a batch that may shrink does."""
SHRINK = 0.9
"""Factor by which the batch shrinks after such a streak."""
ROUNDING = 1e-9
"""Rounding noise that never adds a sample."""

_MAX_SCALAR = 1e30
_MAX_COUNT = 1 << 40


def window_length(rules: BatchRules) -> int:
    """How many rounds of statistics a plan carries."""
    return min(rules.window_rounds, MAX_HISTORY)


# --- reports of one round -> noise -----------------------------------------------------------------------------------


def pool_round(
    plan: InstancePlan,
    round: int,
    claims: Mapping[PeerId, InstanceReport],
    rules: BatchRules,
    *,
    places: Mapping[PeerId, int],
) -> tuple[NoiseSample | None, str]:
    """The gradient noise of one instance in one round, pooled over the hosts that trained; none where the statistics do not
    suffice.

    `claims` holds each host's report about the instance, `plan` the newest plan of it: the yardstick for claimed batches.
    `places` gives the bit by which claims name a host. The text names which statistic was used, or why none.
    """
    trained = {peer: claims[peer] for peer in sorted(claims) if claims[peer].samples > 0 and claims[peer].batch_samples > 0}
    if not trained:
        return None, "no report of a host that trained"
    limit = BATCH_CLAIM_FACTOR * plan.effective_batch
    why = ""
    if rules.statistic == "pseudo_gradient":
        sample, why = _pool_pseudo_gradients(trained, claims, limit, round, places)
        if sample is not None:
            return sample, why
    sample, text = _pool_half_batches(trained, limit, round)
    return sample, f"{why}; {text}" if why else text


def is_untestable(claims: Mapping[PeerId, InstanceReport]) -> bool:
    """Whether hosts trained, but each with a single sample per step, which cannot be halved."""
    batches = [claim.batch_samples for claim in claims.values() if claim.samples > 0]
    return bool(batches) and max(batches) <= 1


def _pool_pseudo_gradients(
    trained: Mapping[PeerId, InstanceReport],
    claims: Mapping[PeerId, InstanceReport],
    limit: int,
    round: int,
    places: Mapping[PeerId, int],
) -> tuple[NoiseSample | None, str]:
    """Method 4.3 B, with n_m for b_m of 4.1 where hosts did unequal work.

    Contributors are those that more than half of the reports name. Those of them that did not report are taken to be like
    the mean of the others, so a lost report costs precision and adds no bias. One liar among four or more: its squared norm
    is clipped to OUTLIER_FACTOR times the median host's (the larger of the bounds for pure signal and for pure noise at its
    number of samples), its inner product to what Cauchy-Schwarz allows, and the norm of the average is a median.
    """
    sets = Counter(claim.contributors for claim in claims.values())
    named, count = max(sets.items(), key=lambda item: (item[1], item[0]), default=(0, 0))
    if 2 * count <= len(claims):
        return None, "no majority on who is in the average"
    num_hosts = named.bit_count()
    norms_of_average, inside = [], []
    for peer in sorted(claims):
        claim = claims[peer]
        if claim.pseudo_gradient is None or claim.contributors != named:
            continue
        norms_of_average.append(claim.pseudo_gradient.averaged_sqnorm)
        if peer in trained and peer in places and named >> places[peer] & 1:
            inside.append((claim, claim.pseudo_gradient))
    if len(inside) < 2:
        return None, f"{len(inside)} pseudo-gradient reported, 2 needed"
    steps = {claim.inner_steps for claim, _ in inside}
    if len(steps) > 1 or 0 in steps:
        return None, f"unequal inner steps, {min(steps)} to {max(steps)}"

    averaged = median(norms_of_average)  # V
    batches = [min(claim.batch_samples, limit) for claim, _ in inside]
    samples = [
        float(min(claim.samples, batch * claim.inner_steps, _MAX_COUNT))
        for (claim, _), batch in zip(inside, batches, strict=True)
    ]
    sqnorms = _without_outliers([scalars.own_sqnorm for _, scalars in inside], samples)
    products = []
    for (_, scalars), sqnorm in zip(inside, sqnorms, strict=True):
        bound = sqrt(sqnorm) * sqrt(averaged)
        products.append(min(max(scalars.inner_product, -bound), bound))

    total = fsum(samples)
    degrees = num_hosts - 1
    mean_sqnorm = fsum(n * s for n, s in zip(samples, sqnorms, strict=True)) / total
    mean_square_product = fsum(n * p * p for n, p in zip(samples, products, strict=True)) / total
    spread = fsum(n * (p - averaged) ** 2 for n, p in zip(samples, products, strict=True)) / total
    noise = max(0.0, (mean_sqnorm - averaged) / degrees)
    orthogonal = (mean_sqnorm - mean_square_product / averaged) / degrees if averaged > 0.0 else noise
    batch = ceil(sum(batches) * num_hosts / len(inside))
    sample = NoiseSample(
        round=round,
        source="pseudo_gradient",
        batch_samples=max(1, min(batch, _MAX_COUNT)),
        mean_sqnorm=_scalar(averaged),
        noise=_scalar(noise),
        signal=_scalar(averaged - noise),
        inner_variance=_scalar(spread / degrees),
        orthogonal_noise=_scalar(max(0.0, orthogonal)),
    )
    return sample, f"pseudo-gradients of {len(inside)} of {plural(num_hosts, 'host')}"


def _without_outliers(sqnorms: Sequence[float], samples: Sequence[float]) -> list[float]:
    if len(sqnorms) < MIN_ROBUST_HOSTS:
        return list(sqnorms)
    signal = median(sqnorms)
    noise = median(n * s for n, s in zip(samples, sqnorms, strict=True))
    return [min(s, OUTLIER_FACTOR * max(signal, noise / n)) for n, s in zip(samples, sqnorms, strict=True)]


def _pool_half_batches(trained: Mapping[PeerId, InstanceReport], limit: int, round: int) -> tuple[NoiseSample | None, str]:
    """Method 4.2 within the hosts: a mean over hosts, weighted by measured steps. From four hosts on the outer quarters are
    left out, so that fewer than a quarter of the hosts cannot move it beyond what the honest ones span."""
    halves = [trained[peer].half_batch for peer in sorted(trained)]
    measured = [half for half in halves if half is not None]
    if not measured:
        return None, "no host measured two halves of a batch"
    weights = [float(min(half.num_steps, _MAX_COUNT)) for half in measured]
    batch = max(1, min(sum(min(claim.batch_samples, limit) for claim in trained.values()), _MAX_COUNT))
    noise = max(0.0, _trimmed_mean([half.covariance_trace for half in measured], weights)) / batch
    signal = _trimmed_mean([half.true_sqnorm for half in measured], weights)
    sample = NoiseSample(
        round=round,
        source="micro_batch",
        batch_samples=batch,
        mean_sqnorm=_scalar(max(0.0, signal + noise)),
        noise=_scalar(noise),
        signal=_scalar(signal),
        inner_variance=_scalar(_trimmed_mean([half.inner_variance for half in measured], weights) / batch),
        orthogonal_noise=_scalar(_trimmed_mean([half.orthogonal_trace for half in measured], weights) / batch),
    )
    return sample, f"halves of batches of {plural(len(measured), 'host')}"


def _trimmed_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    pairs = sorted(zip(values, weights, strict=True))
    cut = len(pairs) // 4 if len(pairs) >= MIN_ROBUST_HOSTS else 0
    kept = pairs[cut : len(pairs) - cut]
    return fsum(value * weight for value, weight in kept) / fsum(weight for _, weight in kept)


def _scalar(value: float) -> float:
    return min(max(value, -_MAX_SCALAR), _MAX_SCALAR)


# --- noise -> request ------------------------------------------------------------------------------------------------


def next_request(
    *,
    requested: int,
    effective: int,
    shrink_streak: int,
    history: Sequence[NoiseSample],
    inner_steps: int,
    rules: BatchRules,
    untestable: bool = False,
) -> tuple[int, int, str]:
    """The next global batch, the new shrink streak, and why.

    `history` is the window of statistics, empty where the last round gave none. The demand T is about the batch that was
    really used (it sits in the samples), so a device that caps the batch does not make the request climb on itself; the
    growth cap is about the request, or a capped instance could never pass the switch multiple. `untestable`: every host had
    one sample per step. Then, and for a batch of one, the request climbs to the smallest batch that can be tested, in which
    some host has two.
    """
    assert requested >= 1 and effective >= 1 and shrink_streak >= 0
    if rules.test == "constant":
        return requested, 0, f"constant batch of {requested}"
    if not history:
        if untestable or effective == requested == 1:
            new = _grown(requested, max(requested, effective) + 1, rules)
            return new, shrink_streak, f"{requested} -> {new}: one sample per host cannot be tested"
        return requested, shrink_streak, f"hold {requested}: no statistics of the last round"
    demand, basis = demanded_batch(history, inner_steps=inner_steps, rules=rules)
    if demand is None:
        return requested, shrink_streak, f"hold {requested}: {basis}"
    asked = max(1, ceil(min(demand, float(_MAX_COUNT)) - ROUNDING))
    if asked > requested:
        new = _grown(requested, asked, rules)
        limit = "" if new == asked else f", growth limited to {rules.growth_cap:g} a round and {rules.max_batch}"
        return new, 0, f"{requested} -> {new}: {basis} asks {demand:.6g}{limit}"
    streak = shrink_streak + 1 if demand < requested / 2 else 0
    if rules.may_shrink and streak >= SHRINK_STREAK:
        new = max(ceil(SHRINK * requested - ROUNDING), asked)
        return new, 0, f"{requested} -> {new}: {basis} asks {demand:.6g}, below half for {plural(streak, 'round')}"
    return requested, streak, f"{requested} is enough: {basis} asks {demand:.6g}"


def demanded_batch(history: Sequence[NoiseSample], *, inner_steps: int, rules: BatchRules) -> tuple[float | None, str]:
    """T, the global batch that the test asks for, with the basis in words; none where the statistics do not suffice.

    Only samples of the newest sample's kind are pooled: norms of gradients and of pseudo-gradients do not compare.
    """
    assert history and inner_steps >= 1 and rules.is_tested
    source = history[-1].source
    window = [sample for sample in history[-window_length(rules) :] if sample.source == source]
    basis = f"{rules.test} test on {source} noise of {plural(len(window), 'round')}"
    demands: list[float | None] = []
    if rules.test == "norm":
        demands = [_norm_demand(window, rules)]
    if rules.test in ("inner_product", "augmented"):
        numerators = [s.batch_samples * s.inner_variance for s in window]
        demands.append(_ratio(numerators, [rules.theta**2 * s.mean_sqnorm**2 for s in window], rules))
    if rules.test == "augmented":
        numerators = [s.batch_samples * s.orthogonal_noise for s in window]
        demands.append(_ratio(numerators, [rules.nu**2 * s.mean_sqnorm for s in window], rules))
    known = [demand for demand in demands if demand is not None]
    if len(known) < len(demands):
        return None, f"{basis} finds no signal"
    return max(known) * _level_factor(source, inner_steps, rules), basis


def _norm_demand(window: Sequence[NoiseSample], rules: BatchRules) -> float | None:
    """Method 3.3 and 4.4: naive over V, or unbiased over V minus noise with a floor under it."""
    numerators = [s.batch_samples * s.noise for s in window]
    eta2 = rules.eta**2
    if rules.denominator == "naive":
        return _ratio(numerators, [eta2 * s.mean_sqnorm for s in window], rules)
    if rules.pooling == "median":
        return _ratio(numerators, [eta2 * max(s.signal, rules.floor_fraction * s.mean_sqnorm) for s in window], rules)
    signal = fsum(s.signal for s in window)
    if signal <= 0.0:  # never read as an infinite demand
        return None
    return _ratio([fsum(numerators)], [eta2 * max(signal, rules.floor_fraction * fsum(s.mean_sqnorm for s in window))], rules)


def _ratio(numerators: Sequence[float], denominators: Sequence[float], rules: BatchRules) -> float | None:
    """Ratio of sums, or median of the ratios that exist; none where there is nothing to divide by."""
    if rules.pooling == "window":
        total = fsum(denominators)
        return fsum(numerators) / total if total > 0.0 else None
    ratios = [n / d for n, d in zip(numerators, denominators, strict=True) if d > 0.0]
    return median(ratios) if ratios else None


def _level_factor(source: str, inner_steps: int, rules: BatchRules) -> float:
    """The noise of one inner step is H times that of the averaged update (4.3). Where micro-batches stand in for the
    pseudo-gradient, they are brought to the level of the run: a run whose hosts alternate must not change by a factor of H."""
    if source == "pseudo_gradient":
        return float(inner_steps) if rules.level == "inner" else 1.0
    stands_in = rules.statistic == "pseudo_gradient"
    return 1.0 / inner_steps if stands_in and rules.level == "outer" else 1.0


def _grown(requested: int, asked: int, rules: BatchRules) -> int:
    """Towards `asked`, at least by one sample and at most by the growth cap, never beyond the largest batch of the run."""
    cap = max(floor(rules.growth_cap * requested + ROUNDING), requested + 1)
    return max(requested, min(asked, cap, rules.max_batch))
