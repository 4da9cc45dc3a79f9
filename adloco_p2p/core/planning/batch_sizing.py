"""From the scalars of a round to gradient noise and the requested batch (docs/mathematics.md, 3 and 4). Pure arithmetic on what
hosts report.

There are two statistics. The pseudo-gradient form (4.3) compares what the hosts transmitted with the average that they
received; the micro-batch form (4.2) compares the two halves of a batch inside a host. Both become a `NoiseSample` about the
mean over the whole effective batch, so one formula serves both: requested batch = batch * noise / (eta^2 * signal).

Reports are claims of strangers. The effect of one liar among four or more hosts is bounded; each bound is stated where it
applies. Sums use `math.fsum`: the built-in `sum` rounds differently from one Python version to the next, and peers must agree.
"""

from collections.abc import Collection, Mapping, Sequence
from math import ceil, floor, fsum
from statistics import median

from adloco_p2p.core.model.gradient_statistics import NoiseSample
from adloco_p2p.core.model.instance_plan import MAX_HISTORY, InstancePlan
from adloco_p2p.core.model.report import InstanceReport
from adloco_p2p.core.model.rules import BatchRules
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.model.words import figure, moved, plural
from adloco_p2p.core.planning.pseudo_gradient_noise import (
    ALL_EQUAL,
    BATCH_CLAIM_FACTOR,
    MIN_ROBUST_HOSTS,
    pool_pseudo_gradients,
    scalar,
)

SHRINK_STREAK = 5
"""Rounds in a row with a demand of less than half the batch, after which a batch that may shrink does."""
SHRINK = 0.9
"""Factor by which the batch shrinks after such a streak."""
ROUNDING = 1e-9
"""Tolerance for rounding errors, so that they never add a sample."""

_MAX_COUNT = 1 << 40


def window_length(rules: BatchRules) -> int:
    """Return how many rounds of statistics a plan carries."""
    return min(rules.window_rounds, MAX_HISTORY)


# --- reports of one round -> noise -----------------------------------------------------------------------------------


def pool_round(
    plan: InstancePlan,
    round: int,
    claims: Mapping[PeerId, InstanceReport],
    rules: BatchRules,
    *,
    places: Mapping[PeerId, int],
    standings: Mapping[PeerId, int] = ALL_EQUAL,
    deciding: Collection[PeerId] | None = None,
) -> tuple[NoiseSample | None, str]:
    """Return the gradient noise of one instance in one round, pooled over the hosts that trained, and a text that names the
    statistic, or why there is none. None if the statistics do not suffice.

    `claims` holds each host's report about the instance; `plan` is the newest plan of the instance, which bounds claimed
    batches. `places` gives the bit by which claims name each host, `standings` how much its samples count in the average.
    `deciding`: the hosts whose reports decide on who contributed, on how large the average is, and on the halves of batches;
    None: all that report.
    """
    trained = {peer: claims[peer] for peer in sorted(claims) if claims[peer].samples > 0 and claims[peer].batch_samples > 0}
    if not trained:
        return None, "no host that trained reported"
    why = ""
    if rules.statistic == "pseudo_gradient" and any(share.spanned(round) for share in plan.hosts if share.peer in places):
        return None, "the average holds updates of several rounds"
    if rules.statistic == "pseudo_gradient":
        sample, why = pool_pseudo_gradients(plan, claims, round, places, standings, deciding)
        if sample is not None:
            return sample, why
    halved = trained if deciding is None else {peer: claim for peer, claim in trained.items() if peer in deciding}
    batch = sum(min(claim.batch_samples, BATCH_CLAIM_FACTOR * plan.effective_batch) for claim in trained.values())
    sample, text = _pool_half_batches(halved, batch, round)
    joint = ", and " if sample is None else ", so it is "
    return sample, f"{why}{joint}{text}" if why else text


def is_untestable(claims: Mapping[PeerId, InstanceReport]) -> bool:
    """Return whether hosts trained, but all of them with a single sample per step, which cannot be halved."""
    batches = [claim.batch_samples for claim in claims.values() if claim.samples > 0]
    return bool(batches) and max(batches) <= 1


def _pool_half_batches(trained: Mapping[PeerId, InstanceReport], batch: int, round: int) -> tuple[NoiseSample | None, str]:
    """Pool the halves of these hosts (docs/mathematics.md, 4.2) for the whole batch of the instance: a mean over hosts,
    weighted by measured steps. With four or more hosts the outer quarters are left out, so that fewer than a quarter of the
    hosts cannot move the mean beyond the range of the honest ones."""
    halves = [trained[peer].half_batch for peer in sorted(trained)]
    measured = [half for half in halves if half is not None]
    if not measured:
        return None, "no host compared the halves of its batches"
    weights = [float(min(half.num_steps, _MAX_COUNT)) for half in measured]
    batch = max(1, min(batch, _MAX_COUNT))
    noise = max(0.0, _trimmed_mean([half.covariance_trace for half in measured], weights)) / batch
    signal = _trimmed_mean([half.true_sqnorm for half in measured], weights)
    sample = NoiseSample(
        round=round,
        source="micro_batch",
        batch_samples=batch,
        mean_sqnorm=scalar(max(0.0, signal + noise)),
        noise=scalar(noise),
        signal=scalar(signal),
        inner_variance=scalar(_trimmed_mean([half.inner_variance for half in measured], weights) / batch),
        orthogonal_noise=scalar(_trimmed_mean([half.orthogonal_trace for half in measured], weights) / batch),
    )
    return sample, f"measured between the halves of the batches of {plural(len(measured), 'host')}"


def _trimmed_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    pairs = sorted(zip(values, weights, strict=True))
    cut = len(pairs) // 4 if len(pairs) >= MIN_ROBUST_HOSTS else 0
    kept = pairs[cut : len(pairs) - cut]
    return fsum(value * weight for value, weight in kept) / fsum(weight for _, weight in kept)


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
    """Return the next global batch, the new shrink streak, and why.

    `history` is the window of statistics, empty if the last round gave none. The demand T is about the batch that was really
    used (it is part of the samples), so on a device that caps the batch the request does not drive itself up. The growth cap is
    about the request, or a capped instance could never pass the switch multiple. `untestable`: every host had one sample per
    step. In that case, and for a batch of one, the request grows to the smallest batch that can be tested, in which some host
    has two.
    """
    assert requested >= 1 and effective >= 1 and shrink_streak >= 0
    if rules.test == "constant":
        return requested, 0, f"{moved(requested, requested)}: the run has a constant batch"
    if not history:
        if untestable or effective == requested == 1:
            new = _grown(requested, max(requested, effective) + 1, rules)
            return new, shrink_streak, f"{moved(requested, new)}: one sample per host cannot be tested"
        return requested, shrink_streak, f"{moved(requested, requested)}: no gradient noise was measured in the last round"
    demand, basis = demanded_batch(history, inner_steps=inner_steps, rules=rules)
    if demand is None:
        return requested, shrink_streak, f"{moved(requested, requested)}: {basis}"
    asked = max(1, ceil(min(demand, float(_MAX_COUNT)) - ROUNDING))
    if asked > requested:
        new = _grown(requested, asked, rules)
        return new, 0, f"{moved(requested, new)}: {basis} asks for {_wanted(demand)}{_limit(new, asked, rules)}"
    streak = shrink_streak + 1 if demand < requested / 2 else 0
    if rules.may_shrink and streak >= SHRINK_STREAK:
        new = max(ceil(SHRINK * requested - ROUNDING), asked)
        return new, 0, f"{moved(requested, new)}: {basis} asks for {_wanted(demand)}, for {streak} rounds less than half"
    return requested, streak, f"{moved(requested, requested)}: {basis} asks for {_wanted(demand)}"


def demanded_batch(history: Sequence[NoiseSample], *, inner_steps: int, rules: BatchRules) -> tuple[float | None, str]:
    """Return T, the global batch that the test asks for, and its basis in words; None if the statistics do not suffice.

    Only samples of the newest sample's kind are pooled, because norms of gradients and of pseudo-gradients are not comparable.
    """
    assert history and inner_steps >= 1 and rules.is_tested
    source = history[-1].source
    window = [sample for sample in history[-window_length(rules) :] if sample.source == source]
    basis = f"gradient noise of {plural(len(window), 'round')} (batch.test {rules.test})"
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
        return None, f"{basis} hides the gradient"
    return max(known) * _level_factor(source, inner_steps, rules), basis


def _norm_demand(window: Sequence[NoiseSample], rules: BatchRules) -> float | None:
    """Return the demand of the norm test (docs/mathematics.md, 3.2 and 4.4): noise over V (naive), or over V minus noise with a
    lower bound."""
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
    """Return the ratio of the sums, or the median of the ratios that exist; None if there is nothing to divide by."""
    if rules.pooling == "window":
        total = fsum(denominators)
        return fsum(numerators) / total if total > 0.0 else None
    ratios = [n / d for n, d in zip(numerators, denominators, strict=True) if d > 0.0]
    return median(ratios) if ratios else None


def _level_factor(source: str, inner_steps: int, rules: BatchRules) -> float:
    """Return the factor from the level of the statistic to that of the run: the noise of one inner step is H times that of the
    averaged update (docs/mathematics.md, 3.2). Micro-batches that stand in for the pseudo-gradient are converted, too, so that
    a run whose rounds alternate between the statistics does not change by a factor of H."""
    if source == "pseudo_gradient":
        return float(inner_steps) if rules.level == "inner" else 1.0
    stands_in = rules.statistic == "pseudo_gradient"
    return 1.0 / inner_steps if stands_in and rules.level == "outer" else 1.0


def _grown(requested: int, asked: int, rules: BatchRules) -> int:
    """Move from `requested` towards `asked` by at least one sample and at most the growth cap, never beyond the largest batch
    of the run."""
    cap = max(floor(rules.growth_cap * requested + ROUNDING), requested + 1)
    return max(requested, min(asked, cap, rules.max_batch))


def _wanted(demand: float) -> str:
    """Show the demand; a batch has at least one sample, even if no noise was found."""
    return figure(demand) if demand >= 1 else "less than 1"


def _limit(new: int, asked: int, rules: BatchRules) -> str:
    """Say why the batch grows less than the test asks; empty if it does not."""
    if new == asked:
        return ""
    return (
        f", {new} is the largest batch of the run"
        if new == rules.max_batch
        else f", a round multiplies it by {rules.growth_cap:g} at most"
    )
