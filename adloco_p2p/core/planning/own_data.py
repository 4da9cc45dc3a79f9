"""Which data an instance trains on, where instances have data of their own (`instances.data`). Pure."""

from collections.abc import Sequence

from adloco_p2p.core.model.rules import InstanceRules
from adloco_p2p.core.model.scalars import InstanceId


def own_data(instance: InstanceId, rules: InstanceRules) -> tuple[InstanceId, ...]:
    """What an instance reads from its start or its fork on, as `InstancePlan.reads`."""
    return (instance,) if rules.data else ()


def joined_data(reads: Sequence[tuple[InstanceId, ...]], rules: InstanceRules) -> tuple[InstanceId, ...]:
    """What the sources of a merge read, together. Also of a source that ends without a weight: nobody else reads its data."""
    joined = tuple(sorted({instance for one in reads for instance in one}))
    return () if not all(reads) or len(joined) == len(rules.data) else joined
