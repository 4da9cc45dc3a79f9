"""The data of an instance, where instances have data of their own (`instances.data`). Pure."""

from collections.abc import Sequence

from adloco_p2p.core.model.rules import InstanceRules
from adloco_p2p.core.model.scalars import InstanceId


def own_data(instance: InstanceId, rules: InstanceRules) -> tuple[InstanceId, ...]:
    """The data that an instance reads from its start or its fork on, as `InstancePlan.reads`."""
    return (instance,) if rules.data else ()


def joined_data(reads: Sequence[tuple[InstanceId, ...]], rules: InstanceRules) -> tuple[InstanceId, ...]:
    """The data of all sources of a merge. Also of a source that ends without a weight: no other instance reads its data."""
    joined = tuple(sorted({instance for one in reads for instance in one}))
    return () if not all(reads) or len(joined) == len(rules.data) else joined
