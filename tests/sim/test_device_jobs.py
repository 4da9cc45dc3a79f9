"""When a simulated device is free again after inner steps were stopped."""

import pytest

from adloco_p2p.sim.device_jobs import _InnerSteps


@pytest.mark.parametrize(("now", "end"), [(5.0, 10.0), (10.0, 10.0), (10.1, 12.5), (12.5, 12.5), (14.0, 15.0), (19.9, 20.0)])
def test_stopped_steps_end_after_the_present_one_or_never_begin(now: float, end: float) -> None:
    """Four steps from 10 to 20 s, behind those of another instance."""
    assert _InnerSteps(begin=10.0, seconds=10.0, num_steps=4).end_of_step(now) == end
