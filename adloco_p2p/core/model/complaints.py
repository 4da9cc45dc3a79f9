"""Complaints: a contributor to an ended average did not show its part when a member wanted to make a reducer's sum again.

No complaint proves anything; `core/planning/suspension.py` has the consequences where most contributors complain.
"""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Lt

from adloco_p2p.core.model.scalars import MAX_HOSTS, Count, InstanceId, PeerId

Place = Annotated[int, Ge(0), Lt(MAX_HOSTS)]
"""Of a host of one instance, in the order in which a plan names them."""

ROUNDS_BEFORE_REDUCING = 64
"""A host that was suspended contributes again after its suspension, and reduces again after so many rounds more."""


def may_reduce(*, suspended_until: int, round: int) -> bool:
    """`suspended_until`: 0 for a host that never was."""
    return suspended_until == 0 or round >= suspended_until + ROUNDS_BEFORE_REDUCING


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """In a report, by places of the plan that it is about. Of one host and one average there is one at most."""

    round: Count
    """Of the average; not after that of the report."""
    contributor: Place
    """It showed nothing, ..."""
    reducer: Place
    """... so no part of this host's could be made again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownComplaint:
    """In a plan, by names, for some rounds."""

    peer: PeerId
    """It complains."""
    round: Count
    contributor: PeerId
    reducer: PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class PartNotShown:
    """Event: this peer wanted to make a part of an ended average again, and the contributor did not show its part."""

    instance: InstanceId
    round: int
    contributor: PeerId
    reducer: PeerId
