"""The score of a contribution where there is none, and the mean of the other contributions. `tests/benchmarks/test_assessed.py`
holds the score against another way to compute it."""

import numpy as np
import pytest
import torch

from adloco_p2p.numerics.assessment import assessment_score, mean_of_others

IS_GIVEN = np.arange(20) < 8


def drawn(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=len(IS_GIVEN))


@pytest.mark.parametrize("loss", [np.inf, np.nan])
def test_losses_that_are_not_finite_are_no_training(loss: float) -> None:
    drops, common = drawn(1) + IS_GIVEN, drawn(2)
    without = assessment_score(drops, np.zeros_like(common), IS_GIVEN)
    assert assessment_score(drops, np.where(np.arange(20) == 3, loss, common), IS_GIVEN) == pytest.approx(without)
    assert assessment_score(np.where(np.arange(20) == 3, loss, drops), common, IS_GIVEN) == 0.0


def test_too_few_rows_and_rows_of_one_kind_give_no_score() -> None:
    assert assessment_score(drawn(1)[:3], drawn(2)[:3], np.array([True, True, False])) == 0.0
    for marks in (np.ones(20, dtype=bool), np.zeros(20, dtype=bool)):
        assert assessment_score(drawn(1), drawn(2), marks) == 0.0
    assert assessment_score(drawn(1), IS_GIVEN.astype(np.float64), IS_GIVEN) == 0.0, "`common` explains the mark"


def test_the_mean_of_the_others_is_the_average_without_one() -> None:
    vectors, weights = torch.randn(4, 50, generator=torch.Generator().manual_seed(1)), (1, 2, 3, 1)
    averaged = sum(weight * vector for weight, vector in zip(weights, vectors, strict=True)) / 7
    assert isinstance(averaged, torch.Tensor)
    expected = (vectors[0] + 2 * vectors[1] + vectors[3]) / 4
    before = averaged.clone()
    assert torch.allclose(mean_of_others(averaged, vectors[2], coefficient=3 / 7, total=1.0), expected, atol=1e-6)
    assert torch.equal(mean_of_others(averaged, vectors[2], coefficient=0.0, total=1.0), averaged), "it was left out"
    assert torch.equal(averaged, before)
    others = mean_of_others(averaged, vectors[2], coefficient=3 / 7, total=1.0, is_scratch=True)
    assert others is averaged and torch.allclose(others, expected, atol=1e-6)
