"""The batch test against worked numbers (docs/mathematics.md, 12 A) and against slow versions of its formulas."""

from dataclasses import replace
from math import ceil, inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adloco_p2p.core.model.gradient_statistics import NoiseSample, PseudoGradientStatistics
from adloco_p2p.core.model.rules import BatchRules
from adloco_p2p.core.planning.batch_sizing import demanded_batch, is_untestable, next_request, pool_round
from tests.core.core_values import (
    ACCEPTANCE_VECTORS,
    PLACES,
    claims_of,
    dot,
    half_batch,
    instance_plan,
    instance_report,
    mean,
    named_bits,
    noise_sample,
    peer,
)

H = 32
PLAN = instance_plan(requested=32)


def acceptance_sample() -> NoiseSample:
    sample, _ = pool_round(PLAN, 3, claims_of(ACCEPTANCE_VECTORS, [8] * 4, inner_steps=H), BatchRules(), places=PLACES)
    assert sample is not None
    return sample


def demand(sample: NoiseSample, **rules: object) -> float:
    value, _ = demanded_batch([sample], inner_steps=H, rules=BatchRules(**rules))  # type: ignore[arg-type]
    assert value is not None
    return value


def test_acceptance_a_pooled_statistics() -> None:
    sample = acceptance_sample()
    assert (sample.round, sample.source, sample.batch_samples) == (3, "pseudo_gradient", 32)
    assert sample.mean_sqnorm == pytest.approx(3.5, abs=1e-6)
    assert sample.noise == pytest.approx(4 / 4, abs=1e-6)  # s2 / M
    assert sample.noise * 32 == pytest.approx(32.0, abs=1e-6)  # trSigma with b as the sample
    assert sample.signal == pytest.approx(2.5, abs=1e-6)
    assert sample.inner_variance == pytest.approx(2.833333 / 4, abs=1e-6)
    assert sample.orthogonal_noise == pytest.approx(3.190476 / 4, abs=1e-6)
    assert sample.noise == pytest.approx(sample.orthogonal_noise + sample.inner_variance / sample.mean_sqnorm)


@pytest.mark.parametrize(
    ("rules", "per_worker"),
    [
        ({"denominator": "naive", "eta": 0.8}, 3.571429),
        ({"denominator": "naive", "eta": 0.1}, 228.571429),
        ({"denominator": "unbiased", "eta": 0.8}, 5.0),
        ({"denominator": "unbiased", "eta": 0.1}, 320.0),
        ({"test": "inner_product", "theta": 0.9}, 0.571093),
        ({"test": "inner_product", "theta": 0.1}, 46.258503),
        ({"test": "augmented", "theta": 0.9, "nu": 0.3}, 20.256992),
        ({"test": "augmented", "theta": 0.1, "nu": 0.1}, 182.312925),
    ],
)
@pytest.mark.parametrize("pooling", ["window", "median"])
def test_acceptance_a_requests(rules: dict[str, object], per_worker: float, pooling: str) -> None:
    """The table is per worker; the global request is M times it."""
    assert demand(acceptance_sample(), pooling=pooling, **rules) / 4 == pytest.approx(per_worker, abs=1e-6)


def test_inner_level_is_h_times_the_outer_level() -> None:
    sample = acceptance_sample()
    assert demand(sample, level="inner") == pytest.approx(H * demand(sample, level="outer"))


def test_micro_batches_that_stand_in_keep_the_level_of_the_run() -> None:
    sample = noise_sample(source="micro_batch")
    inner = demand(sample, statistic="micro_batch")
    assert inner == pytest.approx(32 * 1.0 / (1.3**2 * 2.5))
    assert demand(sample, statistic="pseudo_gradient", level="inner") == pytest.approx(inner)
    assert demand(sample, statistic="pseudo_gradient", level="outer") == pytest.approx(inner / H)


vectors = st.lists(
    st.lists(st.floats(-5, 5, allow_subnormal=False).map(lambda x: round(x, 3)), min_size=3, max_size=3), min_size=2, max_size=3
)


@given(vectors, st.data())
@settings(max_examples=60, deadline=None)
def test_unequal_samples_follow_the_general_noise_scale(gradients: list[list[float]], data: st.DataObject) -> None:
    """With n_m for b_m, written out from the vectors (docs/mathematics.md, 4.1). At most three hosts, so nothing is dropped."""
    batches = data.draw(st.lists(st.integers(1, 9), min_size=len(gradients), max_size=len(gradients)))
    plan = instance_plan(requested=sum(batches))
    sample, _ = pool_round(plan, 0, claims_of(gradients, batches, inner_steps=5), BatchRules(), places=PLACES)
    assert sample is not None
    n = [5 * b for b in batches]
    averaged = mean(gradients, n)
    v = dot(averaged, averaged)
    deviations = [[a - b for a, b in zip(g, averaged, strict=True)] for g in gradients]
    trace = sum(w * dot(d, d) for w, d in zip(n, deviations, strict=True)) / (len(n) - 1)
    assert sample.noise == pytest.approx(trace / sum(n), abs=1e-9)
    assert sample.signal == pytest.approx(v - trace / sum(n), abs=1e-9)
    if v > 1e-6:
        assert sample.noise == pytest.approx(sample.orthogonal_noise + sample.inner_variance / v, abs=1e-6)


def test_very_unequal_steps_fall_back_to_micro_batches() -> None:
    claims = claims_of(ACCEPTANCE_VECTORS, [8] * 4)
    claims = {name: replace(claim, half_batch=half_batch(trace=40.0, signal=1.0)) for name, claim in claims.items()}
    for host in (peer(0), peer(1)):
        claims[host] = replace(claims[host], inner_steps=3, samples=24)
    sample, why = pool_round(PLAN, 0, claims, BatchRules(), places=PLACES)
    assert sample is not None and sample.source == "micro_batch"
    assert "too unequal numbers of steps, 3 to 32, so it is measured between the halves of the batches of 4 hosts" in why
    assert sample.batch_samples == 32
    assert sample.noise == pytest.approx(40 / 32)
    assert sample.signal == pytest.approx(1.0)
    assert sample.mean_sqnorm == pytest.approx(1.0 + 40 / 32)


def test_one_host_uses_micro_batches() -> None:
    claims = {peer(0): instance_report(contributors=[peer(0)], half=half_batch())}
    sample, why = pool_round(PLAN, 0, claims, BatchRules(), places=PLACES)
    assert (
        sample is not None
        and sample.source == "micro_batch"
        and why.startswith("fewer than two hosts reported an update, so it is measured between the halves")
    )


def test_micro_batch_statistics_are_weighted_by_steps() -> None:
    claims = {
        peer(0): instance_report(batch=4, half=half_batch(trace=10.0, signal=2.0, num_steps=3)),
        peer(1): instance_report(batch=4, half=half_batch(trace=50.0, signal=0.0, num_steps=1)),
    }
    sample, _ = pool_round(PLAN, 0, claims, BatchRules(statistic="micro_batch"), places=PLACES)
    assert sample is not None
    assert sample.noise == pytest.approx(20.0 / 8)
    assert sample.signal == pytest.approx(1.5)


def test_halves_are_those_of_the_deciding_hosts_and_stand_for_the_whole_batch() -> None:
    claims = {
        peer(0): instance_report(batch=4, half=half_batch(trace=10.0, signal=2.0, num_steps=3)),
        peer(1): instance_report(batch=4, half=half_batch(trace=1e9, signal=0.0, num_steps=1)),
    }
    rules = BatchRules(statistic="micro_batch")
    sample, why = pool_round(PLAN, 0, claims, rules, places=PLACES, deciding=[peer(0)])
    assert sample is not None and why == "measured between the halves of the batches of 1 host"
    assert (sample.noise, sample.signal, sample.batch_samples) == (pytest.approx(10.0 / 8), 2.0, 8)


def test_negative_estimates_stay_usable() -> None:
    claims = {peer(0): instance_report(half=half_batch(trace=-4.0, signal=-3.0))}
    sample, _ = pool_round(PLAN, 0, claims, BatchRules(statistic="micro_batch"), places=PLACES)
    assert sample is not None
    assert (sample.noise, sample.signal, sample.mean_sqnorm) == (0.0, -3.0, 0.0)


def test_only_contributors_that_a_majority_names_count() -> None:
    claims = claims_of(ACCEPTANCE_VECTORS, [8] * 4)
    outsider = replace(
        claims[peer(0)], pseudo_gradient=PseudoGradientStatistics(own_sqnorm=1e6, inner_product=0, averaged_sqnorm=3.5)
    )
    sample, _ = pool_round(PLAN, 0, {**claims, peer(9): outsider}, BatchRules(), places=PLACES)
    assert sample == replace(acceptance_sample(), round=0)
    pairs = [named_bits([peer(index % 2), peer(5)]) for index in range(4)]
    split = {name: replace(claims[name], contributors=pair) for name, pair in zip(claims, pairs, strict=True)}
    sample, why = pool_round(PLAN, 0, split, BatchRules(), places=PLACES)
    assert sample is None and "hosts disagree" in why


def test_a_host_that_only_received_confirms_the_contributors() -> None:
    claims = claims_of(ACCEPTANCE_VECTORS, [8] * 4)
    names = claims[peer(0)].contributors
    idle = replace(instance_report(batch=0, inner_steps=0, loss=None), contributors=names)
    sample, _ = pool_round(PLAN, 0, {**claims, peer(8): idle, peer(9): idle}, BatchRules(), places=PLACES)
    assert sample == replace(acceptance_sample(), round=0)


def test_a_lost_report_is_taken_for_a_mean_one() -> None:
    """Three equal squared norms of four: the fourth is assumed to be the same."""
    signs = [(1, 1, 1), (1, 1, -1), (1, -1, 1), (-1, 1, 1)]
    claims = claims_of(signs, [8] * 4)
    full, _ = pool_round(PLAN, 0, claims, BatchRules(), places=PLACES)
    del claims[peer(3)]
    partial, why = pool_round(PLAN, 0, claims, BatchRules(), places=PLACES)
    assert full is not None and partial is not None and "3 of 4" in why
    assert partial.batch_samples == 32
    assert partial.noise == pytest.approx(full.noise)
    assert partial.signal == pytest.approx(full.signal)


def test_one_liar_among_four_is_bounded() -> None:
    claims = claims_of(ACCEPTANCE_VECTORS, [8] * 4)
    liar = PseudoGradientStatistics(own_sqnorm=1e30, inner_product=-1e30, averaged_sqnorm=1e30)
    claims[peer(0)] = replace(claims[peer(0)], pseudo_gradient=liar, batch_samples=10**400, samples=10**400)
    sample, _ = pool_round(PLAN, 0, claims, BatchRules(), places=PLACES)
    assert sample is not None
    # Squared norms 6, 5, 2, 13: the liar counts for four times the median at most, and for twice the planned batch.
    assert sample.mean_sqnorm == pytest.approx(3.5)
    assert sample.noise <= 4 * 13 / 3
    assert sample.batch_samples <= 2 * 32 + 24


def test_one_liar_among_four_cannot_move_micro_batch_statistics_beyond_the_honest() -> None:
    claims = {peer(i): instance_report(half=half_batch(trace=trace)) for i, trace in enumerate((30.0, 40.0, 50.0, 1e30))}
    claims[peer(3)] = replace(claims[peer(3)], half_batch=half_batch(trace=1e30, num_steps=10**400))
    sample, _ = pool_round(PLAN, 0, claims, BatchRules(statistic="micro_batch"), places=PLACES)
    assert sample is not None
    assert 30.0 / 32 <= sample.noise <= 50.0 / 32


# --- requests --------------------------------------------------------------------------------------------------------


def ask(requested: int, *history: NoiseSample, **more: object) -> tuple[int, int]:
    return _ask(requested, *history, **more)[:2]  # type: ignore[arg-type]


def why(requested: int, *history: NoiseSample, **more: object) -> str:
    return _ask(requested, *history, **more)[2]  # type: ignore[arg-type]


def _ask(
    requested: int, *history: NoiseSample, effective: int | None = None, shrink_streak: int = 0, **rules: object
) -> tuple[int, int, str]:
    return next_request(
        requested=requested,
        effective=requested if effective is None else effective,
        shrink_streak=shrink_streak,
        history=history,
        inner_steps=H,
        rules=BatchRules(**rules),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({"denominator": "naive", "eta": 0.8}, 8),
        ({"denominator": "naive", "eta": 0.1}, 229),
        ({"eta": 0.8}, 8),
        ({"eta": 0.1}, 320),
        ({"test": "inner_product", "theta": 0.9}, 8),
        ({"test": "inner_product", "theta": 0.1}, 47),
        ({"test": "augmented", "theta": 0.9, "nu": 0.3}, 21),
        ({"test": "augmented", "theta": 0.1, "nu": 0.1}, 183),
    ],
)
def test_acceptance_a_next_batch(rules: dict[str, object], expected: int) -> None:
    """max(8, ceil T) of the table, on statistics scaled to one worker's batch so that the request is T itself."""
    sample = replace(acceptance_sample(), batch_samples=8)
    assert ask(8, sample, growth_cap=1000.0, **rules)[0] == expected


def test_rounding_noise_never_adds_a_sample() -> None:
    assert ask(8, noise_sample(batch=10, noise=1.0 + 1e-12, signal=1.0), eta=1.0, growth_cap=10.0)[0] == 10


def test_no_statistics_hold() -> None:
    assert ask(8) == (8, 0)


def test_constant_never_changes() -> None:
    assert ask(8, noise_sample(noise=1e6), test="constant") == (8, 0)


def test_a_single_sample_cannot_be_tested() -> None:
    assert ask(1) == (2, 0)


def test_one_sample_on_each_host_climbs_until_some_host_has_two() -> None:
    claims = {peer(i): instance_report(batch=1) for i in range(4)}
    assert is_untestable(claims) and not is_untestable({})
    assert not is_untestable({**claims, peer(4): instance_report(batch=2)})
    arguments = {"shrink_streak": 0, "history": (), "inner_steps": H, "rules": BatchRules(), "untestable": True}
    assert next_request(requested=4, effective=4, **arguments)[0] == 5  # type: ignore[arg-type]
    assert next_request(requested=2, effective=4, **arguments)[0] == 3  # type: ignore[arg-type]
    # A device that holds one sample caps a request of two: the climb goes on until accumulation begins.
    assert next_request(requested=2, effective=1, **arguments)[0] == 3  # type: ignore[arg-type]


def test_growth_is_capped_but_never_stuck() -> None:
    huge = noise_sample(batch=4096, noise=1e6)
    assert ask(8, huge, growth_cap=1.5)[0] == 12
    assert ask(1, huge, growth_cap=1.0)[0] == 2
    assert ask(100, huge, growth_cap=1.5, max_batch=120)[0] == 120
    assert ask(120, huge, growth_cap=1.5, max_batch=120)[0] == 120


def test_a_newcomer_can_read_why_a_batch_grows_or_stays() -> None:
    noise = "gradient noise of 1 round (batch.test norm)"
    huge, little = noise_sample(batch=4096, noise=1.0, signal=1.0), noise_sample(batch=2, noise=1.0, signal=1.0)
    grown = why(8, huge, growth_cap=1.5, eta=1.0)
    assert grown == f"grows from 8 to 12: {noise} asks for 4,096, a round multiplies it by 1.5 at most"
    full = why(120, huge, max_batch=120, eta=1.0)
    assert full == f"stays at 120: {noise} asks for 4,096, 120 is the largest batch of the run"
    assert why(8, little, eta=1.0) == f"stays at 8: {noise} asks for 2"


def test_the_effective_batch_enters_the_test_not_the_request() -> None:
    """Capped at 16 of 24 requested: the demand is that of statistics made with 16."""
    sample = noise_sample(batch=16, noise=1.0, signal=1.0)
    assert ask(24, sample, effective=16, eta=1.0)[0] == 24
    assert ask(17, replace(sample, noise=1.25), effective=16, eta=1.0)[0] == 20


def test_no_signal_holds_instead_of_asking_for_infinity() -> None:
    assert ask(8, noise_sample(noise=3.0, signal=-1.0), pooling="window")[0] == 8
    assert ask(8, noise_sample(noise=0.0, signal=0.0), pooling="median")[0] == 8
    assert ask(8, noise_sample(mean_sqnorm=0.0, signal=0.0), test="augmented")[0] == 8


def test_window_is_a_ratio_of_sums_with_a_floor() -> None:
    history = [noise_sample(batch=8, noise=2.0, signal=1.0), noise_sample(batch=16, noise=1.0, signal=-0.5)]
    value, _ = demanded_batch(history, inner_steps=H, rules=BatchRules(eta=1.0, floor_fraction=0.25))
    assert value == pytest.approx((16 + 16) / max(0.5, 0.25 * 3.5))
    value, _ = demanded_batch(history, inner_steps=H, rules=BatchRules(eta=1.0, floor_fraction=0.0))
    assert value == pytest.approx(32 / 0.5)


def test_median_takes_the_guarded_ratio_of_each_round() -> None:
    history = [noise_sample(batch=8, noise=n, signal=s) for n, s in ((1.0, 1.0), (2.0, -1.5), (3.0, 2.0))]
    value, _ = demanded_batch(history, inner_steps=H, rules=BatchRules(eta=1.0, pooling="median"))
    ratios = sorted([8 / 1, 16 / (0.25 * 0.5), 24 / 2])
    assert value == pytest.approx(ratios[1])


def test_only_the_newest_kind_of_statistics_and_the_newest_rounds_are_pooled() -> None:
    other = noise_sample(source="micro_batch", noise=1e9)
    old = noise_sample(noise=1e9)
    new = noise_sample(batch=10, noise=1.0, signal=1.0)
    value, why = demanded_batch([old, other, new, new], inner_steps=H, rules=BatchRules(eta=1.0, window_rounds=3))
    assert value == pytest.approx(10.0)
    assert "2 rounds" in why


def test_the_batch_is_a_ratchet_unless_it_may_shrink() -> None:
    low = noise_sample(batch=10, noise=1.0, signal=1.0)
    assert ask(100, low, eta=1.0, shrink_streak=3) == (100, 4)
    assert ask(100, low, eta=1.0, shrink_streak=7) == (100, 8)
    assert ask(100, low, eta=1.0, shrink_streak=3, may_shrink=True) == (100, 4)
    assert ask(100, low, eta=1.0, shrink_streak=4, may_shrink=True) == (90, 0)
    assert ask(100, replace(low, noise=9.5), eta=1.0, shrink_streak=4, may_shrink=True) == (100, 0)
    assert ask(10, replace(low, batch_samples=4), eta=1.0, shrink_streak=4, may_shrink=True) == (9, 0)


samples = st.builds(
    noise_sample,
    batch=st.integers(1, 10**6),
    noise=st.floats(0, 1e30),
    signal=st.floats(-1e30, 1e30),
    mean_sqnorm=st.floats(0, 1e30),
    inner_variance=st.floats(0, 1e30),
    orthogonal=st.floats(0, 1e30),
    source=st.sampled_from(["pseudo_gradient", "micro_batch"]),
)
batch_rules = st.builds(
    BatchRules,
    test=st.sampled_from(["constant", "norm", "inner_product", "augmented"]),
    level=st.sampled_from(["outer", "inner"]),
    statistic=st.sampled_from(["pseudo_gradient", "micro_batch"]),
    denominator=st.sampled_from(["unbiased", "naive"]),
    pooling=st.sampled_from(["window", "median"]),
    floor_fraction=st.sampled_from([0.0, 0.25]),
    eta=st.sampled_from([1e-3, 0.8, 1.3]),
    growth_cap=st.sampled_from([1.0, 1.25, 2.0]),
    may_shrink=st.booleans(),
)


@given(st.integers(1, 4096), st.integers(0, 9), st.lists(samples, max_size=6), batch_rules)
@settings(max_examples=200, deadline=None)
def test_requests_stay_within_bounds_for_any_statistics(
    requested: int, shrink_streak: int, history: list[NoiseSample], rules: BatchRules
) -> None:
    new, shrink_streak, why = next_request(
        requested=requested, effective=requested, shrink_streak=shrink_streak, history=history, inner_steps=H, rules=rules
    )
    assert why and shrink_streak >= 0
    assert new <= rules.max_batch
    assert new <= max(int(rules.growth_cap * requested + 1e-9), requested + 1)
    assert new >= (ceil(0.9 * requested - 1e-9) if rules.may_shrink else requested)
    if history and rules.test != "constant":
        value, _ = demanded_batch(history, inner_steps=H, rules=rules)
        assert value is None or 0 <= value <= inf


def test_a_demand_below_one_sample_is_not_shown_as_a_batch_of_none() -> None:
    silent = replace(acceptance_sample(), noise=0.0)
    _, _, why = next_request(requested=8, effective=8, shrink_streak=0, history=(silent,), inner_steps=4, rules=BatchRules())
    assert why == "stays at 8: gradient noise of 1 round (batch.test norm) asks for less than 1"
