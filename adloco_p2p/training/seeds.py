"""Seeds of a run for torch's generators."""

from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.scalars import InstanceId


def derived_seed(*parts: object) -> int:
    """Return a seed for torch from plain values: equal on every peer, unrelated for unequal values."""
    return int(canonical.digest(parts)[:15], 16)


def initial_seed(run: RunConfig, instance: InstanceId) -> int:
    """Return the seed of an instance's random weights: the same for all instances, unless they are to start different."""
    return derived_seed(run.seed, "weights", instance if run.instances.start == "different" else 0)
