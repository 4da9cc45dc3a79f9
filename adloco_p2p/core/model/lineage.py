"""How instances fork and merge, and the verdict on a possible merge."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from typing import Annotated

from annotated_types import MaxLen

from adloco_p2p.core.model.scalars import MAX_INSTANCES, Fraction, InstanceId, NonNegative, Text


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeVerdict:
    """Held-out losses of the sources of a possible merge and of the merged point, in nats per token."""

    sources: Annotated[tuple[InstanceId, ...], MaxLen(MAX_INSTANCES)]
    target: InstanceId
    source_losses: Annotated[tuple[NonNegative, ...], MaxLen(MAX_INSTANCES)]
    merged_loss: NonNegative


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """Copies of a warmed-up instance, made before the round."""

    source: InstanceId
    targets: Annotated[tuple[InstanceId, ...], MaxLen(MAX_INSTANCES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """Instances that become one. The target is one of the sources and keeps its id; a weight of 0 ends a source without taking
    anything from it. A source may be a branch state, named by its key. A probe has the same form, but only measures."""

    sources: Annotated[tuple[InstanceId, ...], MaxLen(MAX_INSTANCES)]
    target: InstanceId
    weights: Annotated[tuple[Fraction, ...], MaxLen(MAX_INSTANCES)]
    """One weight per source; they sum to one."""
    reason: Text


def normalized(amounts: Sequence[float], *, survivor: int) -> tuple[float, ...]:
    """Return weights that sum to one, proportional to the amounts; if all amounts are zero, `survivor` (an index) gets all the
    weight."""
    total = fsum(amounts)
    if total <= 0.0:
        return tuple(1.0 if index == survivor else 0.0 for index in range(len(amounts)))
    return tuple(amount / total for amount in amounts)
