"""Weighted means: worked numbers, exactness, and order."""

from fractions import Fraction

import pytest
import torch

from adloco_p2p.numerics.reduction import weighted_average


@pytest.mark.parametrize(("weights", "expected"), [((3, 5), (3.5, -0.5)), ((6, 5), (2.818182, 0.181818))])
def test_acceptance_f(weights: tuple[int, int], expected: tuple[float, float]) -> None:
    """The paper's weights and those of the public code (docs/mathematics.md, 12 F)."""
    merged = weighted_average([torch.tensor([1.0, 2.0]), torch.tensor([5.0, -2.0])], weights)
    assert merged.tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("weights", [(0.3, 0.7), (0.1, 0.2, 0.7), (7, 11, 13, 17)])
def test_equal_vectors_come_out_bit_for_bit(weights: tuple[float, ...]) -> None:
    generator = torch.Generator().manual_seed(2)
    vector = torch.randn((1 << 20) + 7, generator=generator) * torch.logspace(-30, 30, (1 << 20) + 7)
    assert torch.equal(weighted_average([vector] * len(weights), weights), vector)


def test_the_mean_is_the_exact_one_rounded() -> None:
    """Against rational arithmetic."""
    generator = torch.Generator().manual_seed(3)
    vectors = [torch.randn(50, generator=generator) for _ in range(3)]
    averaged = weighted_average(vectors, (96, 128, 31)).tolist()
    for index, value in enumerate(averaged):
        exact = sum(w * Fraction(float(v[index])) for w, v in zip((96, 128, 31), vectors, strict=True)) / 255
        assert value == float(torch.tensor(float(exact), dtype=torch.float64).float())


def test_weight_zero_takes_nothing() -> None:
    broken = torch.full((3,), float("nan"))
    assert torch.equal(weighted_average([broken, torch.ones(3)], (0, 4)), torch.ones(3))


def test_the_sources_stay_as_they_are() -> None:
    target, other = torch.tensor([1.0, 2.0]), torch.tensor([5.0, -2.0])
    assert weighted_average([target, other], (0.375, 0.625)).tolist() == [3.5, -0.5]
    assert (target.tolist(), other.tolist()) == ([1.0, 2.0], [5.0, -2.0])
