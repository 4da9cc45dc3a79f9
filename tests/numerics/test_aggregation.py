"""Aggregation rules: hand-worked numbers, slow versions on whole vectors, invariances, degenerate contributions."""

import math
import random
from typing import get_args, get_type_hints

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from adloco_p2p.config.run_config import AveragingConfig
from adloco_p2p.core.model.median import upper_weighted_median
from adloco_p2p.numerics.aggregation import robust
from adloco_p2p.numerics.aggregation.centered_clip import CenteredClip
from adloco_p2p.numerics.aggregation.clip import Clip
from adloco_p2p.numerics.aggregation.geometric_median import GeometricMedian
from adloco_p2p.numerics.aggregation.mean import Mean
from adloco_p2p.numerics.aggregation.registry import RULES, rule_named
from adloco_p2p.numerics.aggregation.robust import Robust
from adloco_p2p.numerics.aggregation.rule import AggregationRule, Decision
from tests.numerics import aggregates

EVERY_RULE = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
GUARDED = pytest.mark.parametrize("rule", [rule for rule in RULES if rule.name != "mean"], ids=lambda rule: rule.name)


def exact_gram(vectors: np.ndarray) -> list[list[float]]:
    return [[math.fsum(float(x) * float(y) for x, y in zip(v, w, strict=True)) for w in vectors] for v in vectors]


def decide(
    rule: AggregationRule, vectors: object, weights: list[int] | None = None, steps: list[int] | None = None
) -> Decision:
    array = np.array(vectors, dtype=np.float64)
    ones = [1] * len(array)
    return rule.decide(exact_gram(array), weights or ones, steps or ones)


def average(decision: Decision, vectors: np.ndarray) -> np.ndarray:
    taken = [c * v for c, v in zip(decision.coefficients, vectors.astype(np.float64), strict=True) if c > 0]
    return sum(taken, np.zeros(vectors.shape[1]))


@st.composite
def swarms(draw: st.DrawFn) -> tuple[np.ndarray, list[int], list[int]]:
    """Contributions [n, P] of hosts that share a direction, of strangers to it, of zeros and copies; weights; steps."""
    count, size = draw(st.integers(1, 9)), draw(st.integers(1, 6))
    number = st.integers(-8, 8)
    shared = np.array(draw(st.lists(number, min_size=size, max_size=size)), dtype=np.float64)
    vectors = []
    for _ in range(count):
        own = np.array(draw(st.lists(number, min_size=size, max_size=size)), dtype=np.float64)
        vectors.append(draw(st.sampled_from([own, own + 8 * shared, shared, -10 * shared, 1000 * own, 0 * own])))
    few = st.lists(st.integers(1, 5), min_size=count, max_size=count)
    return np.stack(vectors), draw(few), draw(few)


# --- by hand ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "weights", "expected"),
    [([3.0], [1], 3.0), ([1.0, 2.0], [1, 1], 2.0), ([4.0, 1.0, 2.0], [1, 1, 1], 2.0), ([1.0, 2.0, 9.0], [3, 1, 1], 1.0),
     ([1.0, 2.0, 9.0], [2, 1, 1], 2.0)],
)  # fmt: skip
def test_the_median_is_the_upper_one(values: list[float], weights: list[int], expected: float) -> None:
    assert upper_weighted_median(values, weights) == expected


def test_mean_by_hand() -> None:
    assert Mean().decide(None, [1, 3], [32, 32]).coefficients == (0.25, 0.75)


def test_clip_by_hand() -> None:
    assert decide(Clip(), [[1, 0], [0, 2], [4, 0]]).coefficients == pytest.approx((1 / 3, 1 / 3, 1 / 6))
    assert decide(Clip(), [[1, 0], [0, 2], [4, 0]], weights=[3, 1, 1]).coefficients == pytest.approx((0.6, 0.1, 0.05))


def test_a_host_of_more_steps_may_send_a_longer_one() -> None:
    """Norms 2, 4, 12 in 1, 2, 3 steps: 2, 2 and 4 a step."""
    assert decide(Clip(), [[2], [4], [12]], steps=[1, 2, 3]).coefficients == pytest.approx((1 / 3, 1 / 3, 1 / 6))


def test_two_are_not_clipped() -> None:
    assert decide(Clip(), [[1.0], [100.0]]).coefficients == (0.5, 0.5)


def test_robust_by_hand() -> None:
    """All norms are 5. Cosines of three to each other: 0.6, 0.96 and 0.8; of the last one to them -0.8, 0 and -0.6. The lower
    one of two middle ones counts: 0.6, 0.6, 0.8 and -0.6."""
    vectors = np.array([[3, 4], [5, 0], [4, 3], [0, -5]])
    decision = decide(Robust(), vectors)
    assert decision.left_out == (3,)
    assert decision.kept == (0, 1, 2)
    assert decision.reasons == ("cosine -0.60 to most others",)
    assert average(decision, vectors) == pytest.approx([4, 7 / 3])


def test_two_that_say_the_same_against_the_others_do_not_keep_each_other() -> None:
    """Six honest hosts have little in common: cosines of 1/5. To the sum of the other seven the cosine of a liar would be 0.2,
    that of an honest host 0.32, so that the two would keep each other by a comparison with a mean."""
    vectors = np.zeros((8, 8))
    vectors[:6, 0] = 1.0
    vectors[range(6), range(1, 7)] = 2.0
    vectors[6:, 0] = -0.1
    vectors[6:, 7] = 2.0
    assert decide(Robust(), vectors).left_out == (6, 7)
    sums = vectors.sum(axis=0) - vectors
    by_mean = [aggregates.cosine(vector, others) for vector, others in zip(vectors, sums, strict=True)]
    assert min(by_mean[6:]) > 0.1 * sorted(by_mean)[4]


def test_near_copies_count_once_by_hand() -> None:
    """Six of weight 2 at right angles but for a shared direction: distances of 4/5. Two more, of weights 3 and 2, are the first
    one: the three of them weigh 3, as the heaviest does, and all together 13."""
    vectors = np.zeros((8, 7))
    vectors[:, 0] = 1.0
    vectors[range(6), range(1, 7)] = 2.0
    vectors[6:, 1] = 2.0
    weights = [2, 2, 2, 2, 2, 2, 3, 2]
    parts = [6 / 7, 2, 2, 2, 2, 2, 9 / 7, 6 / 7]
    assert decide(Robust(), vectors, weights).coefficients == pytest.approx([part / 13 for part in parts])
    almost = vectors.copy()
    almost[6, 2] = 0.5  # a distance of 0.024, and 0.1 of 0.8 is tolerated
    assert decide(Robust(), almost, weights).coefficients[7] == pytest.approx(6 / 7 / 13)


def test_hosts_that_are_most_of_the_weight_are_no_copies_of_each_other() -> None:
    """Five hosts say nearly the same, as they do with large batches; three liars say what they want."""
    generator = np.random.default_rng(3)
    vectors = np.concatenate([1 + 0.01 * generator.standard_normal((5, 20)), generator.standard_normal((3, 20))])
    vectors[5:] += 0.5
    for liars in (vectors[5:], np.repeat(vectors[5:6], 3, axis=0), -vectors[5:]):
        decision = decide(Robust(), np.concatenate([vectors[:5], liars]))
        honest = decision.coefficients[:5]
        assert max(honest) == pytest.approx(min(honest), rel=0.05)
        assert sum(honest) >= 5 / 8 * sum(decision.coefficients)


def test_the_second_pass_takes_back_whom_the_liars_contradicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Host 4 disagrees with half of the others: an honest host and both liars. Without these it is one of four."""
    vectors = [[3, 2], [4, 4], [4, -1], [2, 1], [0, 3], [1, -4], [1, -4]]
    assert decide(Robust(), vectors).left_out == (5, 6)
    monkeypatch.setattr(robust, "PASSES", 1)
    assert decide(Robust(), vectors).left_out == (4, 5, 6)


def test_of_three_nobody_is_left_out() -> None:
    assert decide(Robust(), [[1.0], [1.0], [-1.0]]).left_out == ()


def test_nobody_is_left_out_where_the_hosts_agree_on_nothing() -> None:
    assert decide(Robust(), [[1, 0], [-1, 0], [0, 1], [0, -1]]).left_out == ()


def test_half_are_kept_where_nobody_passes_the_bar() -> None:
    """A bar that nobody passes."""
    decision = decide(Robust(least_cosine=2.0), [[1, 0], [1, 1], [1, 2], [1, 3]])
    assert len(decision.kept) == 2


def test_many_light_hosts_are_not_the_half_that_is_kept() -> None:
    """Four of weight 4 agree; six of weight 1 that send the opposite are more hosts, and less weight."""
    decision = decide(Robust(), [[1, 0], [1, 1], [2, 1], [1, 0]] + [[-1, 0]] * 6, weights=[4] * 4 + [1] * 6)
    assert decision.kept == (0, 1, 2, 3)


def test_the_geometric_median_of_a_line_is_its_middle() -> None:
    vectors = np.array([[0.0], [1.0], [2.0], [3.0], [1e6]])
    assert average(decide(GeometricMedian(), vectors), vectors) == pytest.approx([2.0], abs=1e-3)


def test_centered_clip_by_hand() -> None:
    """Five at 1, one at -1: the centre starts at 2/3, the radius is 1/3; each pass adds 5/6 of the rest and takes 1/18."""
    vectors = np.array([[1.0]] * 5 + [[-1.0]])
    expected = 2 / 3
    for _ in range(5):
        expected += 5 / 6 * (1 - expected) - 1 / 18
    assert average(decide(CenteredClip(), vectors), vectors) == pytest.approx([expected])


def test_a_run_names_every_rule() -> None:
    assert sorted(rule.name for rule in RULES) == sorted(get_args(get_type_hints(AveragingConfig)["aggregation"]))
    assert rule_named("clip").name == "clip"
    with pytest.raises(ValueError, match="'median' is unknown; known: robust, clip"):
        rule_named("median")


# --- against the slow versions ---------------------------------------------------------------------------------------


def close(found: np.ndarray, expected: np.ndarray, vectors: np.ndarray, tolerance: float) -> None:
    assert np.abs(found - expected).max() <= tolerance * max(1.0, float(np.linalg.norm(vectors, axis=1).max()))


@given(swarms())
def test_clip_is_clipping(swarm: tuple[np.ndarray, list[int], list[int]]) -> None:
    vectors, weights, steps = swarm
    expected = aggregates.mean_of(aggregates.clipped(vectors, weights, steps), weights)
    close(average(decide(Clip(), vectors, weights, steps), vectors), expected, vectors, 1e-12)


@given(swarms(), st.sampled_from([0.1, 0.3]))
def test_robust_is_leaving_out(swarm: tuple[np.ndarray, list[int], list[int]], least_cosine: float) -> None:
    vectors, weights, steps = swarm
    expected, left_out, margin = aggregates.robust(vectors, weights, steps, least_cosine)
    assume(margin > 1e-9)
    decision = decide(Robust(least_cosine=least_cosine), vectors, weights, steps)
    assert set(decision.left_out) == left_out
    close(average(decision, vectors), expected, vectors, 1e-12)


@settings(max_examples=40)
@given(swarms())
def test_the_geometric_median_is_weiszfelds(swarm: tuple[np.ndarray, list[int], list[int]]) -> None:
    vectors, weights, steps = swarm
    found = average(decide(GeometricMedian(), vectors, weights, steps), vectors)
    close(found, aggregates.geometric_median(vectors, weights, steps), vectors, 1e-5)
    best = aggregates.geometric_median(vectors, weights, steps, passes=2000)
    reached, least = (aggregates.sum_of_distances(vectors, weights, point) for point in (found, best))
    assert reached <= 1.01 * least + 1e-4


@given(swarms())
def test_centered_clip_is_centered_clipping(swarm: tuple[np.ndarray, list[int], list[int]]) -> None:
    vectors, weights, steps = swarm
    expected = aggregates.centered_clip(vectors, weights, steps)
    close(average(decide(CenteredClip(), vectors, weights, steps), vectors), expected, vectors, 1e-5)


# --- what holds for every rule ---------------------------------------------------------------------------------------


@EVERY_RULE
@given(swarm=swarms(), shuffler=st.randoms(use_true_random=False))
def test_the_order_of_the_hosts_is_no_matter(
    rule: AggregationRule, swarm: tuple[np.ndarray, list[int], list[int]], shuffler: random.Random
) -> None:
    vectors, weights, steps = swarm
    order = list(range(len(vectors)))
    shuffler.shuffle(order)
    plain = decide(rule, vectors, weights, steps)
    assume(
        not plain.left_out or 2 * sum(weights[i] for i in plain.kept) > sum(weights) + 2 * max(weights)
    )  # else equals go by order
    moved = decide(rule, vectors[order], [weights[i] for i in order], [steps[i] for i in order])
    assert moved.coefficients == tuple(plain.coefficients[i] for i in order)
    assert {order[host] for host in moved.left_out} == set(plain.left_out)


@EVERY_RULE
@given(swarm=swarms(), exponent=st.integers(-120, 100))
def test_the_scale_is_no_matter(rule: AggregationRule, swarm: tuple[np.ndarray, list[int], list[int]], exponent: int) -> None:
    vectors, weights, steps = swarm
    assert decide(rule, vectors * 2.0**exponent, weights, steps) == decide(rule, vectors, weights, steps)


@EVERY_RULE
@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("value", [0.0, 1.0, 1e30, 1e-45])
def test_equal_contributions_come_out_as_they_went_in(rule: AggregationRule, count: int, value: float) -> None:
    vectors = np.full((count, 3), value)
    decision = decide(rule, vectors, weights=list(range(1, count + 1)))
    assert decision.left_out == ()
    assert average(decision, vectors) == pytest.approx(vectors[0], rel=1e-12)


@GUARDED
@pytest.mark.parametrize("liar", [0.0, 1e-45, -1e-45, 1e3, -1e3, 1e12, 1e30, -1e30])
@pytest.mark.parametrize("count", [3, 4, 5, 8])
def test_one_liar_of_any_size_moves_little(rule: AggregationRule, liar: float, count: int) -> None:
    """The honest say about (1, 1); nothing overflows, and the average stays as near to them as one share of a clipped one may
    pull it."""
    generator = np.random.default_rng(7)
    vectors = 1 + 0.05 * generator.standard_normal((count, 2))
    honest = vectors[1:].mean(axis=0)
    vectors[0] = liar
    decision = decide(rule, vectors)
    assert all(math.isfinite(c) and c >= 0 for c in decision.coefficients)
    assert np.linalg.norm(average(decision, vectors) - honest) <= 2.2 * math.sqrt(2) / count + 0.1


@pytest.mark.parametrize("rule", [Clip(), Robust()], ids=lambda rule: rule.name)
@given(swarm=swarms(), exponents=st.lists(st.integers(-30, 30), min_size=4, max_size=4))
def test_fewer_than_half_cannot_make_the_average_longer_than_the_honest(
    rule: AggregationRule, swarm: tuple[np.ndarray, list[int], list[int]], exponents: list[int]
) -> None:
    vectors, weights, _ = swarm
    count = len(vectors)
    assume(count >= 3)
    liars = range((count - 1) // 2)
    for liar, exponent in zip(liars, exponents, strict=False):
        vectors[liar] *= 10.0**exponent
    honest = range(len(liars), count)
    assume(sum(weights[host] for host in liars) < sum(weights[host] for host in honest))
    longest = max(float(np.linalg.norm(vectors[host])) for host in honest)
    assert np.linalg.norm(average(decide(rule, vectors, weights), vectors)) <= longest * (1 + 1e-9)


@GUARDED
@pytest.mark.parametrize("count", [4, 8])
def test_zeros_of_all_but_one_are_survived(rule: AggregationRule, count: int) -> None:
    vectors = np.zeros((count, 2))
    vectors[1] = (1e30, 1.0)
    assert average(decide(rule, vectors), vectors) == pytest.approx([0, 0], abs=1e-9)
