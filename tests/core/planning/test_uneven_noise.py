"""The pseudo-gradient statistic of hosts with unequal numbers of inner steps: by hand, against the truth, in whole runs."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from math import fsum, sqrt

import pytest

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.gradient_statistics import NoiseSample, PseudoGradientStatistics
from adloco_p2p.core.model.instance_plan import MOST_STEP_SPREAD
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.report_form import bits_of
from adloco_p2p.core.model.rules import BatchRules, InstanceRules, Rules, WorkRules
from adloco_p2p.core.planning.pseudo_gradient_noise import (
    STEP_CLAIM_FACTOR,
    Contribution,
    noise_of,
    pool_pseudo_gradients,
)
from tests.core.core_values import PLACES, capacity, claims_of, dot, instance_plan, instance_report, mean, peer
from tests.core.planning.test_round_plan import run

Vector = Sequence[float]


def contributions(vectors: Sequence[Vector], steps: Sequence[int], batches: Sequence[int]) -> tuple[list[Contribution], float]:
    """What honest hosts report, and the squared norm of their average."""
    samples = [float(count * batch) for count, batch in zip(steps, batches, strict=True)]
    average = mean(vectors, samples)
    found = [
        Contribution(steps=count, batch=batch, samples=n, sqnorm=dot(vector, vector), product=dot(vector, average))
        for vector, count, batch, n in zip(vectors, steps, batches, samples, strict=True)
    ]
    return found, dot(average, average)


def noise_scale(samples: Sequence[NoiseSample], steps: float) -> float:
    """Per-sample noise over signal, as the test at the inner level uses it."""
    noise = fsum(sample.batch_samples * sample.noise for sample in samples)
    return steps * noise / fsum(sample.signal for sample in samples)


# --- by hand ---------------------------------------------------------------------------------------------------------


def test_two_hosts_of_one_and_two_steps_by_hand() -> None:
    """One sample a step. D = (1, 1) and (2, 1), w = 1/3 and 2/3, v = 1/2, A = (5/3, 1) with norm2(A) = 34/9. Mean steps 5/3: A
    a step is (1, .6), the residuals (0, .4) and (0, -.1), sum v norm2(R) = .085. Steps over the mean .6 and 1.2, q / h^2 = 1.08
    and degrees 2.25 - 1.8 + 1.08 = 1.53. S / N = .085 / 1.53 = 1/18, noise 25/162, signal 34/9 - 1.08 * 25/162."""
    found, averaged = contributions([(1.0, 1.0), (2.0, 1.0)], [1, 2], [1, 1])
    sample = noise_of(found, averaged, num_hosts=2)
    assert averaged == pytest.approx(34 / 9)
    assert sample.noise == pytest.approx(25 / 162)
    assert sample.signal == pytest.approx(34 / 9 - 1.08 * 25 / 162)
    assert sample.mean_sqnorm == pytest.approx(sample.signal + sample.noise)
    assert sample.batch_samples == 2


def test_hosts_that_only_went_farther_show_no_noise() -> None:
    found, averaged = contributions([(h * 3.0, h * -1.0) for h in (8, 20, 64)], [8, 20, 64], [1, 3, 2])
    sample = noise_of(found, averaged, num_hosts=3)
    assert sample.noise == pytest.approx(0.0, abs=1e-9) and sample.inner_variance == pytest.approx(0.0, abs=1e-9)
    assert sample.signal == pytest.approx(averaged)


def test_residuals_of_vectors_and_of_their_scalars_are_the_same() -> None:
    chance = random.Random(7)
    steps, batches = [5, 9, 16, 30], [2, 1, 3, 1]
    vectors = [[count + 3 * chance.gauss(0, 1) for _ in range(3)] for count in steps]
    found, averaged = contributions(vectors, steps, batches)
    weights = [item.samples / fsum(item.samples for item in found) for item in found]
    average = mean(vectors, [item.samples for item in found])
    h, q = (fsum(w * s**power for w, s in zip(weights, steps, strict=True)) for power in (1, 2))
    even = [batch / sum(batches) for batch in batches]
    residual = fsum(
        v * sum((d / s - a / h) ** 2 for d, a in zip(vector, average, strict=True))
        for v, s, vector in zip(even, steps, vectors, strict=True)
    )
    of_residual = fsum(v / w - 2 * v * s / h for v, w, s in zip(even, weights, steps, strict=True)) + q / h**2
    sample = noise_of(found, averaged, num_hosts=4)
    assert sample.noise == pytest.approx(h * h * residual / of_residual)
    assert sample.signal == pytest.approx(averaged - q * residual / of_residual)
    spread = fsum(v * (h / s * item.product - averaged) ** 2 for v, s, item in zip(even, steps, found, strict=True))
    assert sample.inner_variance == pytest.approx(spread / of_residual)
    assert sample.orthogonal_noise == pytest.approx(sample.noise - sample.inner_variance / averaged)


# --- against the truth -----------------------------------------------------------------------------------------------

SPREADS: dict[str, Callable[[float], float]] = {
    "24 to 40": lambda part: 24 + 16 * part,
    "16 to 48": lambda part: 16 + 32 * part,
    "8 to 64": lambda part: 8 * 8**part,
}


@pytest.mark.parametrize("hosts", [4, 8, 16, 32])
@pytest.mark.parametrize("spread", sorted(SPREADS))
def test_the_noise_scale_of_a_regression_by_brute_force(spread: str, hosts: int) -> None:
    """SGD with a small rate on linear regression. The truth is that of all per-sample gradients at the common point; hosts do
    uneven steps of one to three samples. Within 8 %: the seed is fixed, and 1,600 pseudo-gradients give about 3 %."""
    chance = random.Random(f"{spread}/{hosts}")
    size, rows = 6, 160
    data = [[chance.gauss(0, 1) for _ in range(size)] for _ in range(rows)]
    targets = [fsum(row) + chance.gauss(0, 3.0) for row in data]
    gradients = [[(0.0 - target) * x for x in row] for row, target in zip(data, targets, strict=True)]  # at the point 0
    true = [fsum(column) / rows for column in zip(*gradients, strict=True)]
    trace = fsum(dot(g, g) for g in gradients) / rows - dot(true, true)

    steps = [round(SPREADS[spread](index / (hosts - 1))) for index in range(hosts)]
    batches = [1 + index % 3 for index in range(hosts)]
    samples = []
    for _ in range(1600 // hosts):
        # a small rate: every step sees the gradient at the common point, so a host's samples are drawn as one sum
        vectors = [_drawn(gradients, count, batch, chance) for count, batch in zip(steps, batches, strict=True)]
        found, averaged = contributions(vectors, steps, batches)
        samples.append(noise_of(found, averaged, num_hosts=hosts))
    total = sum(count * batch for count, batch in zip(steps, batches, strict=True))
    assert noise_scale(samples, total / sum(batches)) == pytest.approx(trace / dot(true, true), rel=0.08)


def _drawn(gradients: Sequence[Vector], steps: int, batch: int, chance: random.Random) -> list[float]:
    rows = chance.choices(gradients, k=steps * batch)
    return [fsum(column) / batch for column in zip(*rows, strict=True)]


@pytest.mark.parametrize(("spread", "largest"), [("24 to 40", 1.02), ("16 to 48", 1.07), ("8 to 64", 1.19)])
def test_the_bias_where_pseudo_gradients_do_not_grow_like_steps(spread: str, largest: float) -> None:
    """Expected values put into the equations: the signal grows like steps to the power `growth`, the noise like steps. `ratio`:
    noise over signal of the average of equal hosts, where the batch grows with eta 1.7 and H 32 and with H 128."""
    for hosts, growth, ratio in product((4, 8, 16, 32), (0.9, 1.0, 1.1), (0.09, 0.023)):
        steps = [round(SPREADS[spread](index / (hosts - 1))) for index in range(hosts)]
        even, uneven = (expected_noise_scale(counts, growth, ratio) for counts in ([32] * hosts, steps))
        assert 1 / largest < uneven / even < largest, (hosts, growth, ratio)


def expected_noise_scale(steps: Sequence[int], growth: float, ratio: float) -> float:
    """What the equations make of expected values, of hosts with one sample a step."""
    total, hosts = float(sum(steps)), len(steps)
    signal = [(count / 32) ** growth for count in steps]
    noise = [hosts * ratio * count / 32 for count in steps]
    weights = [count / total for count in steps]
    mean_signal = fsum(w * s for w, s in zip(weights, signal, strict=True))
    averaged = mean_signal**2 + fsum(w * w * v for w, v in zip(weights, noise, strict=True))
    items = [
        Contribution(steps=count, batch=1, samples=float(count), sqnorm=s * s + v, product=s * mean_signal + w * v)
        for count, s, v, w in zip(steps, signal, noise, weights, strict=True)
    ]
    return noise_scale([noise_of(items, averaged, num_hosts=hosts)], total / hosts)


# --- whole runs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hosts", [4, 8, 16, 32])
@pytest.mark.parametrize("spread", [1.3, 8.0])
def test_batches_of_an_uneven_swarm_follow_those_of_an_even_one(hosts: int, spread: float) -> None:
    """Plans of whole runs, from pseudo-gradients of a gradient whose noise grows with the samples. Speeds are spread by the
    factor, and shares differ in samples and in steps; the requests stay within 20 % of those of equal hosts."""
    rules = Rules(
        work=WorkRules(inner_steps=32, rounds=12, step_tolerance=0.0),
        instances=InstanceRules(count=1),
        batch=BatchRules(initial_batch=hosts, level="inner", eta=1.3, max_batch=64 * hosts),
    )
    speeds = [spread ** (index / (hosts - 1)) for index in range(hosts)]
    even = run(rules, num_peers=hosts, say=training([1.0] * hosts, seed=1))
    uneven = run(rules, num_peers=hosts, say=training(speeds, seed=2))
    assert any(share.inner_steps != 32 for share in uneven[-2].instances[0].hosts), "steps are unequal"
    assert all(sample.source == "pseudo_gradient" for sample in uneven[-1].instances[0].history)
    assert even[-2].instances[0].requested_batch > 4 * hosts
    for one, other in zip(even, uneven, strict=True):
        requested = one.instances[0].requested_batch
        assert abs(other.instances[0].requested_batch / requested - 1) <= 0.2, f"round {one.round}: {requested}"


def training(speeds: Sequence[float], *, seed: int) -> Callable[[RoundPlan], list[Report]]:
    """Reports of hosts with these speeds; their pseudo-gradients are drawn by the model of the statistic."""
    size = 2048 // len(speeds)

    def say(done: RoundPlan) -> list[Report]:
        chance = random.Random(f"{seed}/{done.round}")
        (plan,) = done.instances
        trace = 8.0 * len(speeds) * (1 + done.round / 2)
        shares = [share for share in plan.hosts if share.samples > 0]
        vectors = []
        for share in shares:
            scale = sqrt(trace / size / share.samples)
            vectors.append([share.inner_steps * (1 / sqrt(size) + scale * chance.gauss(0, 1)) for _ in range(size)])
        standings = {entry.peer: entry.standing for entry in done.roster}
        average = mean(vectors, [float(share.samples * standings[share.peer]) for share in shares])
        named = bits_of([share.peer for share in shares], [share.peer for share in plan.hosts])
        reports = []
        for share, vector in zip(shares, vectors, strict=True):
            scalars = PseudoGradientStatistics(
                own_sqnorm=dot(vector, vector), inner_product=dot(vector, average), averaged_sqnorm=dot(average, average)
            )
            item = instance_report(
                batch=share.effective_batch,
                inner_steps=share.inner_steps,
                pseudo_gradient=scalars,
                state=canonical.digest([done.round, 0]),
            )
            speed = 10 * speeds[[entry.peer for entry in done.roster].index(share.peer)]
            reports.append(
                Report(
                    peer=share.peer,
                    round=done.round,
                    plan=canonical.digest(done),
                    capacity=replace(capacity(limit=1 << 16), samples_per_second=speed),
                    instances=(replace(item, contributors=named),),
                )
            )
        return reports

    return say


# --- bounds ----------------------------------------------------------------------------------------------------------


def claims_with_steps(steps: Sequence[int]) -> dict[str, object]:
    claims = claims_of([[float(count), 1.0 - index] for index, count in enumerate(steps)], [1] * len(steps))
    return {
        name: replace(claim, inner_steps=count, samples=count)
        for (name, claim), count in zip(claims.items(), steps, strict=True)
    }


def pooled(steps: Sequence[int], *, planned: int = 64) -> tuple[NoiseSample | None, str]:
    plan = instance_plan(hosts={peer(index): 1 for index in range(len(steps))}, inner_steps=planned)
    return pool_pseudo_gradients(plan, claims_with_steps(steps), 0, PLACES)  # type: ignore[arg-type]


def test_a_spread_beyond_the_bound_is_refused() -> None:
    assert pooled([8, 32, 8 * MOST_STEP_SPREAD])[0] is not None
    sample, why = pooled([8, 32, 8 * MOST_STEP_SPREAD + 1])
    assert sample is None and why == "the hosts did too unequal numbers of steps, 8 to 65"
    assert pooled([3, 3, 32, 32])[0] is None and pooled([0, 0, 0, 32])[0] is None and pooled([0, 0])[0] is None


@pytest.mark.parametrize("lie", [0, 1, 10**6])
def test_one_of_four_that_claims_other_steps_is_left_out_and_the_others_are_measured(lie: int) -> None:
    sample, why = pooled([16, 16, lie, 16], planned=16 if lie < 16 else 128)
    assert sample is not None and why == "measured between the updates of 3 of 4 hosts"


def test_a_host_that_claims_absurd_steps_counts_for_twice_the_planned_ones() -> None:
    honest, lied = (pooled([16, 16, 16, steps], planned=16)[0] for steps in (STEP_CLAIM_FACTOR * 16, 10**6))
    assert honest is not None and lied is not None
    claims = claims_with_steps([16, 16, 16, 10**6])
    clipped = {**claims, peer(3): replace(claims[peer(3)], inner_steps=32, samples=32)}  # type: ignore[type-var]
    plan = instance_plan(hosts={peer(index): 1 for index in range(4)}, inner_steps=16)
    assert pool_pseudo_gradients(plan, clipped, 0, PLACES)[0] == lied  # type: ignore[arg-type]
