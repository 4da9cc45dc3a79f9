"""Stochastic rounding: right in the mean, and the same bits everywhere."""

import hashlib
import math

import pytest
import torch

from adloco_p2p.numerics.outer_optimizer import outer_step_
from adloco_p2p.numerics.stochastic_rounding import round_into_

ULP = 2.0**-7
"""Between the bfloat16 numbers from 1 to 2."""


def rounded(values: torch.Tensor, *, seed: int = 1, first: int = 0) -> torch.Tensor:
    target = torch.empty(len(values), dtype=torch.bfloat16)
    round_into_(target, values, seed=seed, first=first)
    return target


@pytest.mark.parametrize("place", [0.0, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_upper_neighbour_comes_as_often_as_the_value_is_near_it(place: float, sign: float) -> None:
    count = 40_000
    found = rounded(torch.full((count,), sign * (1 + place * ULP))).float().abs()
    assert set(found.tolist()) <= {1.0, 1.0 + ULP}
    share = float((found > 1).float().mean())
    assert abs(share - place) < 5 * math.sqrt(place * (1 - place) / count) + 2**-16


def test_what_bfloat16_holds_stays() -> None:
    values = torch.tensor([0.0, -0.0, 1.5, -3.25, 2.0**-126, 3.3e38, math.inf, -math.inf]).bfloat16()
    for seed in range(20):
        assert torch.equal(rounded(values.float(), seed=seed), values)


def test_a_value_that_is_no_number_stays_none_whatever_its_bits() -> None:
    """The noise would carry out of a NaN whose bits are all set: it would be zero, and divergence would not be seen."""
    bits = torch.tensor([0x7FFFFFFF, -1, 0x7FC00000, -0x400000] * 8, dtype=torch.int32)
    for seed in range(5):
        assert rounded(bits.view(torch.float32), seed=seed).isnan().all()


def test_pieces_come_out_as_the_whole_does_and_seeds_differ() -> None:
    values = torch.linspace(-3, 3, 4099)
    whole = rounded(values, seed=5)
    assert torch.equal(whole, torch.cat([rounded(values[:1024], seed=5), rounded(values[1024:], seed=5, first=1024)]))
    assert float((whole != rounded(values, seed=6)).float().mean()) > 0.2


def by_hand(seed: int, place: int) -> int:
    """The noise of one element, in whole numbers of Python."""

    def scrambled(state: int) -> int:
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
        return state ^ (state >> 31)

    word = scrambled(((place // 4 + 1) * 0x9E3779B97F4A7C15 + scrambled(seed)) % 2**64)
    return word >> 16 * (place % 4) & 0xFFFF


def test_the_noise_is_a_counter_in_whole_numbers() -> None:
    """Just above 1 by k / 2^16 of the way: it goes up where the noise is at least 2^16 - k."""
    way = 0x5A00
    values = torch.full((101,), 0x3F800000 + way, dtype=torch.int32).view(torch.float32)
    for seed in (0, 1, 2**60 - 1):
        expected = [by_hand(seed, place) + way >= 2**16 for place in range(101)]
        assert (rounded(values, seed=seed).float() > 1).tolist() == expected


def test_every_machine_comes_to_these_bytes() -> None:
    found = rounded(torch.arange(-5000, 5000, dtype=torch.float32) / 777, seed=42)
    assert hashlib.sha256(found.view(torch.uint8).numpy().tobytes()).hexdigest()[:16] == "054f1d0bf9effea3"


def moved(outer: torch.Tensor, *, nearest: bool = False) -> float:
    """How far 300 outer steps with small averages of one sign bring the mean parameter."""
    start, momentum = outer.float().mean(), torch.zeros_like(outer)
    generator = torch.Generator().manual_seed(3)
    for round_number in range(300):
        averaged = -2e-5 * torch.rand(len(outer), generator=generator)
        if nearest:
            wide = outer.float(), momentum.float()
            outer_step_(*wide, averaged, kind="nesterov", learning_rate=0.7, momentum_factor=0.7)
            outer, momentum = (vector.bfloat16() for vector in wide)
        else:
            seed = 1000 * round_number
            outer_step_(outer, momentum, averaged, kind="nesterov", learning_rate=0.7, momentum_factor=0.7, rounding_seed=seed)
    return float(outer.float().mean() - start)


def test_many_small_outer_steps_drift_by_less_than_a_percent() -> None:
    start = 0.02 * torch.randn(100_000, generator=torch.Generator().manual_seed(2))
    start = start.bfloat16().float()
    exact, drawn = moved(start.clone()), moved(start.bfloat16())
    assert abs(drawn / exact - 1) < 0.01
    assert moved(start.bfloat16(), nearest=True) / exact < 0.8  # rounding to nearest loses a good part of them
