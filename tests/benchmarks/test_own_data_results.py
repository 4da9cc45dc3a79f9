"""The pure parts of `python -m benchmarks.own_data`."""

from dataclasses import replace

import pytest

from adloco_p2p.core.model.gradient_statistics import NoiseSample
from benchmarks.own_data import ROWS, key_of, merge_weights, run_of
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


def test_every_row_is_a_run_and_has_a_key_of_its_own() -> None:
    assert len({key_of(name, seed) for name in ROWS for seed in (1, 2)}) == 2 * len(ROWS)
    counts = {name: (run_of(name, 1).instances.count, len(run_of(name, 1).instances.data)) for name in ROWS}
    assert [*counts.values()] == [(1, 0), (3, 3), (3, 3), (3, 3), (3, 0)]
