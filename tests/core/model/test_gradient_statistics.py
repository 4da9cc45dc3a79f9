"""The statistics of halves by hand (docs/mathematics.md, 4.2 and 12 C): gradients of one value, the first half's 1 and the
second half's 3."""

from adloco_p2p.core.model.gradient_statistics import HalfBatchStatistics, half_batch_statistics

STEP = ([0.25, 0.75, 2.25], (2, 2))
"""Sums over two samples each, divided by the four of the batch: 0.5 and 1.5."""


def test_the_mean_is_2_and_all_of_the_noise_lies_along_it() -> None:
    assert half_batch_statistics([STEP, STEP]) == HalfBatchStatistics(
        num_steps=2,
        batch_samples=4,
        covariance_trace=4.0,  # 2 (1 - 2)^2 + 2 (3 - 2)^2
        true_sqnorm=3.0,  # 2^2 - 4 / 4
        mean_sqnorm=4.0,
        inner_variance=16.0,  # 2 (2 - 4)^2 + 2 (6 - 4)^2
        orthogonal_trace=0.0,
    )


def test_no_measured_step_is_no_statistic_and_a_mean_of_zero_leaves_all_noise_orthogonal() -> None:
    assert half_batch_statistics([]) is None
    halves = half_batch_statistics([([0.25, -0.25, 0.25], (1, 1))])
    assert halves is not None and (halves.mean_sqnorm, halves.orthogonal_trace) == (0.0, halves.covariance_trace)
