"""The data sets of an instance, if instances have data of their own (`instances.data`). Pure."""

from collections.abc import Sequence

from adloco_p2p.core.model.rules import InstanceRules
from adloco_p2p.core.model.scalars import InstanceId


def own_data(instance: InstanceId, rules: InstanceRules) -> tuple[InstanceId, ...]:
    """Return the data that an instance reads from its start or its fork on, as in `InstancePlan.reads`."""
    return (instance,) if rules.data else ()


def joined_data(reads: Sequence[tuple[InstanceId, ...]], rules: InstanceRules) -> tuple[InstanceId, ...]:
    """Return the data of all sources of a merge, including sources that end without a weight, because no other instance reads
    their data."""
    joined = tuple(sorted({instance for one in reads for instance in one}))
    return () if not all(reads) or len(joined) == len(rules.data) else joined
