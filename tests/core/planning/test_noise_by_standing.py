"""The pseudo-gradient statistic while newcomers weigh little in the average: by hand, against the truth, in whole runs."""

import random
from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from statistics import fmean

import pytest

from adloco_p2p.core.model.gradient_statistics import PseudoGradientStatistics
from adloco_p2p.core.model.protocol import FIRST_UPGRADABLE, STANDINGS_IN_NOISE
from adloco_p2p.core.model.report import InstanceReport
from adloco_p2p.core.model.roster_entry import FULL_STANDING
from adloco_p2p.core.model.rules import BatchRules, InstanceRules, Rules, WorkRules
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.planning.pseudo_gradient_noise import Contribution, noise_of, pool_pseudo_gradients
from adloco_p2p.core.planning.round_plan import next_plan
from tests.core.core_values import PLACES, claims_of, dot, instance_plan, mean, peer
from tests.core.planning.test_round_plan import run, start
from tests.core.planning.test_uneven_noise import training

Vector = Sequence[float]


def contributions(
    vectors: Sequence[Vector], samples: Sequence[int], standings: Sequence[int], steps: Sequence[int] = ()
) -> tuple[list[Contribution], float]:
    """What hosts report of one inner step each, or of so many, and the squared norm of their average."""
    average = mean(vectors, [float(count * standing) for count, standing in zip(samples, standings, strict=True)])
    found = [
        Contribution(
            steps=count,
            batch=number // count,
            samples=float(number),
            sqnorm=dot(vector, vector),
            product=dot(vector, average),
            standing=float(standing),
        )
        for vector, number, standing, count in zip(vectors, samples, standings, steps or [1] * len(samples), strict=True)
    ]
    return found, dot(average, average)


def test_a_host_that_weighs_three_times_the_other_by_hand() -> None:
    """D = (1, 0) and (0, 1), u = 3/4 and 1/4, w = v = 1/2: A = (.75, .25), norm2(A) = .625. The residuals (.25, -.25) and
    (-.75, .75) have norms .125 and 1.125, Z = .625. u / w = 1.5 and .5: q = 1.25 and degrees 2 - 2 + 1.25. The noise .5 is half
    of the variance between the two, 1, as with equal weights; signal .625 - 1.25 * .5 = 0."""
    found, averaged = contributions([(1.0, 0.0), (0.0, 1.0)], [1, 1], [192, 64])
    sample = noise_of(found, averaged, num_hosts=2)
    assert averaged == pytest.approx(0.625)
    assert sample.noise == pytest.approx(0.5) and sample.signal == pytest.approx(0.0, abs=1e-12)


def test_hosts_of_one_and_two_steps_of_which_one_weighs_three_times_by_hand() -> None:
    """D = (1, 1) and (2, 1), samples 1 and 2, standings 3 and 1: u = 3/5 and 2/5, A = (7/5, 1), h = 7/5, r = 5/7 and 10/7.
    D / r = (7/5, 7/5) and (7/5, 7/10): residuals (0, .4) and (0, -.3), v = 1/2, Z = .125. u / w = 9/5 and 3/5,
    q = 3/5 9/5 25/49 + 2/5 3/5 100/49 = 51/49, degrees = 9/4 - 9/7 - 6/7 + 51/49 = 225/196, noise = .125 196/225 = 49/450."""
    found, averaged = contributions([(1.0, 1.0), (2.0, 1.0)], [1, 2], [3, 1], steps=[1, 2])
    sample = noise_of(found, averaged, num_hosts=2)
    assert sample.noise == pytest.approx(49 / 450)
    assert sample.signal == pytest.approx(74 / 25 - 51 / 49 * 49 / 450)


def test_standings_that_are_equal_change_no_bit() -> None:
    chance = random.Random(11)
    vectors = [[chance.gauss(1, 2) for _ in range(5)] for _ in range(5)]
    samples, steps = [8, 30, 12, 7, 40], [4, 10, 6, 7, 8]
    full, averaged = contributions(vectors, samples, [FULL_STANDING] * 5, steps)
    plain = [replace(item, standing=1.0) for item in full]
    assert noise_of(full, averaged, num_hosts=6) == noise_of(plain, averaged, num_hosts=6)


@pytest.mark.parametrize("standings", [(256, 256, 256, 1), (256, 256, 1, 1), (256, 200, 64, 64), (256, 256, 256, 256)])
def test_the_noise_is_that_of_equal_weights_whatever_the_standings(standings: tuple[int, ...]) -> None:
    """The truth is the variance of the mean by samples. Within 4 %: the seed is fixed, and 6,000 rounds of three dimensions
    give about 1 %."""
    chance, samples = random.Random(str(standings)), (3, 5, 8, 4)
    noise, signal = [], []
    for _ in range(6000):
        vectors = [[1.0 + chance.gauss(0, 1) / count**0.5 for _ in range(3)] for count in samples]
        found, averaged = contributions(vectors, samples, standings)
        sample = noise_of(found, averaged, num_hosts=4)
        noise.append(sample.noise)
        signal.append(sample.signal)
    assert fmean(noise) == pytest.approx(3 / sum(samples), rel=0.04)
    assert fmean(signal) == pytest.approx(3.0, rel=0.04)


def claims_by_standing(vectors: Sequence[Vector], standings: Sequence[int]) -> dict[PeerId, InstanceReport]:
    """What honest hosts report of a round of one step and one sample each, averaged by their standings."""
    average = mean(vectors, [float(standing) for standing in standings])
    claims = claims_of(vectors, [1] * len(vectors), inner_steps=1)
    scalars = [
        PseudoGradientStatistics(
            own_sqnorm=dot(vector, vector), inner_product=dot(vector, average), averaged_sqnorm=dot(average, average)
        )
        for vector in vectors
    ]
    return {name: replace(claim, pseudo_gradient=own) for (name, claim), own in zip(claims.items(), scalars, strict=True)}


UNIT = ((1.0, 0.0, 0.0, 0.0), (0.0, 1.0, 0.0, 0.0), (0.0, 0.0, 1.0, 0.0), (0.0, 0.0, 0.0, 1.0))


def test_an_update_that_stands_out_is_told_by_its_weight() -> None:
    """Four hosts of which two weigh little. Their updates are as far from the average as noise explains, so none is left
    out; one that is ten times as far is."""
    plan = instance_plan(hosts={peer(index): 1 for index in range(4)}, inner_steps=1)
    weights = (256, 256, 1, 1)
    standings = {peer(index): weights[index] for index in range(4)}
    for factor, kept in ((1.0, 4), (10.0, 3)):
        claims = claims_by_standing([*UNIT[:3], tuple(factor * value for value in UNIT[3])], weights)
        _, why = pool_pseudo_gradients(plan, claims, 0, PLACES, standings)
        assert why == f"measured between the updates of {kept} of 4 hosts"


@pytest.mark.parametrize(
    ("weights", "silent", "told"),
    [
        ((256, 1, 1, 1), (0,), None),  # mean standing 1 of 64.75
        ((256, 256, 1, 1), (0,), 3),  # 86 of 128.5
        ((256, 256, 1, 1), (0, 1), None),  # 1 of 128.5
        ((256, 256, 1, 1), (2, 3), 2),
        ((256, 256, 256, 256), (0, 1), 2),
    ],
)
def test_there_is_no_noise_where_the_hosts_that_weigh_most_did_not_report(
    weights: tuple[int, ...], silent: tuple[int, ...], told: int | None
) -> None:
    plan = instance_plan(hosts={peer(index): 1 for index in range(4)}, inner_steps=1)
    claims = claims_by_standing(UNIT, weights)
    heard = {name: claim for index, (name, claim) in enumerate(claims.items()) if index not in silent}
    sample, why = pool_pseudo_gradients(plan, heard, 0, PLACES, {peer(index): weights[index] for index in range(4)})
    if told is None:
        assert sample is None and why == "the hosts that weigh most in the average reported no update that counts"
    else:
        assert sample is not None and why == f"measured between the updates of {told} of 4 hosts"


def test_a_host_with_all_samples_but_a_few_gives_finite_numbers() -> None:
    most = 1 << 60
    for steps in ([], [1, 1, most]):
        found, averaged = contributions(UNIT[:3], [1, 1, most], [256, 256, 256], steps)
        sample = noise_of(found, averaged, num_hosts=3)
        assert isfinite(sample.noise) and isfinite(sample.signal)
    plan = instance_plan(hosts={peer(0): 1, peer(1): 1, peer(2): most, peer(3): 1}, inner_steps=1)
    assert pool_pseudo_gradients(plan, claims_of(UNIT, [1, 1, most, 1], inner_steps=1), 0, PLACES)[0] is not None


def test_a_plan_counts_standings_from_the_protocol_on_that_does() -> None:
    """Whole plans of five hosts, two of them on probation, at both protocols: the window of the newer one has the noise of the
    drawn updates, that of the older one the biased one."""
    rules = Rules(
        work=WorkRules(inner_steps=32, rounds=12, step_tolerance=0.0),
        instances=InstanceRules(count=1),
        batch=BatchRules(initial_batch=10, eta=100.0),
    )
    noise = {}
    for protocol in (FIRST_UPGRADABLE, STANDINGS_IN_NOISE):
        first = replace(start(rules, 5), protocol=protocol)
        newcomers = [replace(entry, probation=100, standing=1) for entry in first.roster[3:]]
        plans = [replace(first, roster=(*first.roster[:3], *newcomers))]
        say = training([1.0] * 5, seed=3)
        while len(plans) < 8:
            plans.append(next_plan(plans[-1], say(plans[-2]) if len(plans) > 1 else [], rules))
        assert [entry.standing for entry in plans[-1].roster] == [256, 256, 256, 1, 1] and plans[-1].protocol == protocol
        noise[protocol] = [sample.noise for sample in plans[-1].instances[0].history]
    even = [
        sample.noise for sample in run(rules, num_peers=5, until=7, say=training([1.0] * 5, seed=3))[-1].instances[0].history
    ]
    assert len(even) > 3
    for true, old, new in zip(even, noise[FIRST_UPGRADABLE], noise[STANDINGS_IN_NOISE], strict=True):
        assert new == pytest.approx(true, rel=0.15), "the same draws by another weight"
        assert old == pytest.approx(0.833 * true, rel=0.15), (
            "s2 (1 - sum of u^2) / (M - 1) of the draws, u = 1/3, 1/3, 1/3, 0, 0"
        )
