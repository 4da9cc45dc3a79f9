"""The learning rate of an inner step, by hand."""

import math
from dataclasses import replace

import pytest

from adloco_p2p.config.run_config import InnerConfig
from adloco_p2p.training.learning_rate import LearningRateSchedule

INNER = InnerConfig(learning_rate=1.0, warmup_steps=10, final_fraction=0.1, adoption_warmup_steps=4, batch_scaling_cap=2.0)
ROUND = LearningRateSchedule(inner=INNER, steps_before=100, num_steps=8, progress_start=0.5, progress_end=0.75, batch_ratio=9.0)


def test_cosine_is_interpolated_inside_the_round() -> None:
    assert ROUND.learning_rate(0, None) == pytest.approx(0.1 + 0.9 * 0.5)
    assert ROUND.learning_rate(4, None) == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * 0.625)))


def test_the_cosine_ends_at_the_final_fraction() -> None:
    last = replace(ROUND, progress_start=1.0, progress_end=1.0)
    assert last.learning_rate(7, None) == pytest.approx(0.1)


def test_one_round_ends_where_the_next_begins() -> None:
    following = replace(ROUND, progress_start=0.75, progress_end=1.0, steps_before=108)
    assert ROUND.learning_rate(8, None) == pytest.approx(following.learning_rate(0, None))


def test_warmup_counts_the_lineage_not_the_round() -> None:
    young = replace(ROUND, steps_before=3, inner=replace(INNER, schedule="constant"))
    assert [young.learning_rate(step, None) for step in (0, 5, 6, 7)] == pytest.approx([0.4, 0.9, 1.0, 1.0])


def test_warmup_by_samples_is_the_same_part_of_the_run_at_every_batch() -> None:
    """20 samples: by steps of 4 over all hosts the first gives a fifth, and 12 are done after the third."""
    inner = replace(INNER, schedule="constant", warmup_samples=20)
    first = replace(ROUND, inner=inner, num_steps=3, num_samples=12)
    second = replace(first, samples_before=12, num_steps=2, num_samples=12)
    assert [first.learning_rate(step, None) for step in range(3)] == pytest.approx([0.2, 0.4, 0.6])
    assert [second.learning_rate(step, None) for step in range(2)] == pytest.approx([0.9, 1.0])
    assert replace(first, inner=replace(inner, warmup_samples=0)).learning_rate(0, None) == 1.0


def test_warmup_by_samples_of_one_batch_is_that_by_steps() -> None:
    by_steps = replace(ROUND, steps_before=3, inner=replace(INNER, schedule="constant"))
    by_samples = replace(
        by_steps, samples_before=24, num_samples=64, inner=replace(by_steps.inner, warmup_samples=80, warmup_steps=0)
    )
    for step in range(8):
        assert by_samples.learning_rate(step, None) == pytest.approx(by_steps.learning_rate(step, None))


def test_adoption_warms_up_again() -> None:
    steady = replace(ROUND, inner=replace(INNER, schedule="constant"))
    assert [steady.learning_rate(0, steps) for steps in (0, 1, 3, 4, 99)] == pytest.approx([0.25, 0.5, 1.0, 1.0, 1.0])


def test_no_warmup_at_all() -> None:
    none = replace(ROUND, steps_before=0, inner=replace(INNER, schedule="constant", warmup_steps=0, adoption_warmup_steps=0))
    assert none.learning_rate(0, 0) == 1.0


@pytest.mark.parametrize(("ratio", "factor"), [(1.0, 1.0), (2.25, 1.5), (4.0, 2.0), (9.0, 2.0)])
def test_batch_scaling_is_a_capped_square_root(ratio: float, factor: float) -> None:
    scaled = replace(ROUND, batch_ratio=ratio, inner=replace(INNER, schedule="constant", batch_scaling="sqrt"))
    assert scaled.learning_rate(0, None) == pytest.approx(factor)
