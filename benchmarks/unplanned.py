"""Averages without a plan, for benchmarks and tests of the averaging alone."""

from typing import Any

from adloco_p2p.core.model.averages import Average
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.swarm.allreduce.allreduce_spec import NO_INSTANCE, NO_PLAN


def unplanned(*, key: Digest, weights: tuple[tuple[PeerId, int], ...], timeout_seconds: float, **more: Any) -> Average:
    """Return the first attempt, of members with equally many inner steps, unless `more` gives these fields of `Average`."""
    fields: dict[str, Any] = {
        "instance": NO_INSTANCE,
        "round": 0,
        "attempt": 0,
        "plan": NO_PLAN,
        "steps": (1,) * len(weights),
    } | more
    return Average(key=key, weights=weights, timeout_seconds=timeout_seconds, **fields)
