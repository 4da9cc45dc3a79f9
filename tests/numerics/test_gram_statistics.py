"""The batch test's statistics from the Gram matrix: those of the vectors, and T as hosts report it today."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adloco_p2p.core.model.gradient_statistics import PseudoGradientStatistics, noise_from_products
from adloco_p2p.core.model.rules import BatchRules
from adloco_p2p.core.model.scalars import LARGEST_SCALAR
from adloco_p2p.core.planning.batch_sizing import demanded_batch, pool_round
from adloco_p2p.numerics.aggregation.gram import partial_gram, summed_gram
from adloco_p2p.numerics.aggregation.rule import Gram
from adloco_p2p.numerics.aggregation.statistics import gram_statistics
from adloco_p2p.numerics.reduction import pseudo_gradient_statistics, weighted_average
from tests.core.core_values import PLACES, instance_plan, instance_report, peer

H = 32


def gram_of(vectors: Sequence[torch.Tensor]) -> Gram:
    return summed_gram([partial_gram([vector.numpy() for vector in vectors])], len(vectors))


def contributions(count: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(500, generator=generator)
    return [shared + torch.randn(500, generator=generator) for _ in range(count)]


def demand_of(statistics: Sequence[PseudoGradientStatistics], batches: Sequence[int], **rules: str) -> float:
    """T of hosts that report these scalars after H steps of these batches."""
    names = [peer(index) for index in range(len(batches))]
    claims = {
        peer(index): instance_report(batch=batch, inner_steps=H, contributors=names, pseudo_gradient=own)
        for index, (own, batch) in enumerate(zip(statistics, batches, strict=True))
    }
    made = BatchRules(**rules)  # type: ignore[arg-type]
    sample, _ = pool_round(instance_plan(requested=sum(batches)), 3, claims, made, places=PLACES)
    assert sample is not None
    demand, _ = demanded_batch([sample], inner_steps=H, rules=made)
    assert demand is not None
    return demand


def test_by_hand() -> None:
    """(2, 0) and (0, 4) of weights 3 and 1: their mean is (1.5, 1); the liar beside them is not in it."""
    vectors = [torch.tensor(values) for values in ([2.0, 0.0], [1e6, 1e6], [0.0, 4.0])]
    assert gram_statistics(gram_of(vectors), [3, 9, 1], [0, 2]) == (
        PseudoGradientStatistics(own_sqnorm=4.0, inner_product=3.0, averaged_sqnorm=3.25),
        PseudoGradientStatistics(own_sqnorm=16.0, inner_product=4.0, averaged_sqnorm=3.25),
    )


@given(st.integers(2, 8), st.integers(0, 1000), st.data())
def test_they_are_those_of_the_vectors(count: int, seed: int, data: st.DataObject) -> None:
    vectors = contributions(count, seed)
    weights = data.draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
    kept = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1)))
    average = weighted_average([vectors[host] for host in kept], [weights[host] for host in kept])
    for host, found in zip(kept, gram_statistics(gram_of(vectors), weights, kept), strict=True):
        expected = pseudo_gradient_statistics(vectors[host], average)
        for name in ("own_sqnorm", "inner_product", "averaged_sqnorm"):
            assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-5, abs=1e-3)


@pytest.mark.parametrize("test", ["norm", "inner_product", "augmented"])
@pytest.mark.parametrize("batches", [(2, 2, 2, 2), (1, 2, 3, 4)])
def test_the_test_asks_for_the_same_batch_as_of_reports(test: str, batches: tuple[int, ...]) -> None:
    vectors, samples = contributions(4), [H * batch for batch in batches]
    average = weighted_average(vectors, samples)
    reported = demand_of([pseudo_gradient_statistics(vector, average) for vector in vectors], batches, test=test)
    found = demand_of(gram_statistics(gram_of(vectors), samples, range(4)), batches, test=test)
    assert found == pytest.approx(reported, rel=1e-5)


def test_the_noise_is_that_of_the_products() -> None:
    """`noise_from_products` of the same matrix: trace over samples is the noise of the mean."""
    vectors, samples = contributions(4), [H * batch for batch in (1, 2, 3, 4)]
    noise = noise_from_products(gram_of(vectors), samples)
    found = demand_of(gram_statistics(gram_of(vectors), samples, range(4)), (1, 2, 3, 4), denominator="naive", level="outer")
    eta = BatchRules().eta
    assert found == pytest.approx(10 * noise.covariance_trace / sum(samples) / noise.mean_sqnorm / eta**2, rel=1e-9)


def test_what_diverged_is_still_a_report() -> None:
    vectors = [np.full(4, 3e38, dtype=np.float32), np.full(4, -3e38, dtype=np.float32)]
    statistics = gram_statistics(summed_gram([partial_gram(vectors)], 2), [1, 2], [0, 1])
    assert statistics[0].own_sqnorm == LARGEST_SCALAR
    assert statistics[0].inner_product == -LARGEST_SCALAR
