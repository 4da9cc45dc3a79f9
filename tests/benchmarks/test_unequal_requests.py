"""The pure parts of `python -m benchmarks.unequal_requests`, and the weights of merges."""

from dataclasses import replace

import pytest

from adloco_p2p.core.model.gradient_statistics import NoiseSample
from benchmarks import unequal_requests
from benchmarks.method.merging import merge_weights
from tests.core.core_values import instance_plan


def test_instances_are_weighed_by_what_each_way_names() -> None:
    noise = NoiseSample(
        round=1,
        source="pseudo_gradient",
        batch_samples=4,
        mean_sqnorm=9.0,
        noise=1.0,
        signal=8.0,
        inner_variance=0.0,
        orthogonal_noise=0.0,
    )
    calm = replace(instance_plan(), requested_batch=10, lineage_samples=300, history=(noise,))
    loud = replace(calm, requested_batch=30, lineage_samples=100, history=(noise, replace(noise, noise=5.0)))
    assert merge_weights([calm, loud]) == {
        "request": [0.25, 0.75],
        "equal": [0.5, 0.5],
        "samples": [0.75, 0.25],
        "inverse noise": pytest.approx([0.75, 0.25]),  # 1/4 and 1/12
    }


def test_data_sets_have_the_numbers_by_which_their_rows_are_given() -> None:
    """The runs were made twice, because the first had the two exchanged."""
    for name in unequal_requests.ROWS:
        run = unequal_requests.run_of(name, 1)
        assert tuple(run.data.data_sets) == unequal_requests.KINDS
        assert run.instances.data in ((), unequal_requests.KINDS)


def test_a_merge_before_the_end_is_measured_where_its_share_of_the_samples_is_spent() -> None:
    """Requests of 10, 10, 20 and 40: half of the 80 are spent after the third round, three quarters only after the last."""
    history = unequal_requests._History()
    plans = [(replace(instance_plan(), requested_batch=request),) for request in (10, 10, 20, 40)]
    history.rounds = [(plan, []) for plan in plans]
    assert [unequal_requests.placed_at(place, history)[0] for place in (0.25, 0.5, 0.75)] == [plans[1], plans[2], plans[3]]
