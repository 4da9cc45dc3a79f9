"""Complaints that a contributor to a finished average did not show its part to a host that wanted to check a reducer's sum.

A complaint proves nothing; `core/planning/suspension.py` has the consequences where most contributors complain.
"""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Lt

from adloco_p2p.core.model.scalars import MAX_HOSTS, Count, InstanceId, PeerId

Place = Annotated[int, Ge(0), Lt(MAX_HOSTS)]
"""A host's index among the hosts of its instance, in the order of the plan."""

ROUNDS_BEFORE_REDUCING = 64
"""Rounds from the end of a suspension, when the host contributes again, until it reduces again."""


def may_reduce(*, suspended_until: int, round: int) -> bool:
    """Return whether a host may reduce; `suspended_until` is 0 for a host that was never suspended."""
    return suspended_until == 0 or round >= suspended_until + ROUNDS_BEFORE_REDUCING


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """A complaint in a report; hosts are named by their places in the reported plan. A report has at most one per host and
    average."""

    round: Count
    """Round of the average, at most that of the report."""
    contributor: Place
    """The host that did not show its part."""
    reducer: Place
    """The host whose sum could therefore not be checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownComplaint:
    """A complaint that a plan remembers for some rounds, by peer ids."""

    peer: PeerId
    """The host that complains."""
    round: Count
    contributor: PeerId
    reducer: PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class PartNotShown:
    """Event: the contributor did not show its part when this peer wanted to check the reducer's sum."""

    instance: InstanceId
    round: int
    contributor: PeerId
    reducer: PeerId
