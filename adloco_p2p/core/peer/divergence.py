"""Rounds of this peer without a result: inner steps that diverged, outer steps that were refused, and contributions that the
aggregation rule left out.

The first two do not change the outer state, so training can always continue from the newest checkpoint. All hosts refuse the
same outer steps, because the decision follows from the state and the average, which are equal everywhere.
"""

from collections.abc import Mapping

from adloco_p2p.core.averaging.outer_round import OuterRound
from adloco_p2p.core.model import telemetry
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.core.peer.hosted_instance import HostedInstance

FRUITLESS_ROUNDS = 4
"""Rounds in a row after which a peer gives up. A single bad batch, or a false contribution to an average, has passed after one
or two; with a learning rate that is too high, or with faulty memory, no later round is better."""
REMEDY = "lower inner.learning_rate; on one machine only: faulty memory or an overclocked GPU"
LEFT_OUT_REMEDY = "if it lasts: faulty memory, an overclocked GPU, or data that have little in common with those of the others"


def note_round(hosted: HostedInstance, outer: OuterRound) -> list[telemetry.Log]:
    """Count a finished round, and return the warnings for the user."""
    instance, key = outer.instance, f"diverged {outer.instance}"
    if not outer.has_diverged:
        was_fruitless, hosted.fruitless_rounds = hosted.fruitless_rounds > 0, 0
        return [telemetry.Warning(key=key, message=f"instance {instance} trains again", active=False)] if was_fruitless else []
    hosted.fruitless_rounds += 1
    if outer.applied is not None and outer.applied.is_refused:
        what = "the outer step would have led to parameters that are not finite or far too large, and was not taken"
    else:
        what = "the inner steps diverged, and nothing was sent"
    message = f"round {outer.round}, instance {instance}: {what}; going on from the state before ({REMEDY})"
    return [telemetry.Warning(key=key, message=message, active=True)]


def note_left_out(hosted: HostedInstance, outer: OuterRound) -> list[telemetry.Log]:
    """Return the warning that begins when a committed average lacks this peer's contribution by the aggregation rule, or that
    ends with the next one that has it."""
    instance, key = outer.instance, f"left out {outer.instance}"
    if outer.is_left_out:
        hosted.is_left_out = True
        message = (
            f"round {outer.round}, instance {instance}: the aggregation rule left this peer's contribution out, because it"
            f" contradicts most others ({LEFT_OUT_REMEDY})"
        )
        return [telemetry.Warning(key=key, message=message, active=True)]
    if not (hosted.is_left_out and outer.is_averaged):
        return []
    hosted.is_left_out = False
    return [telemetry.Warning(key=key, message=f"instance {instance}: the averages have this peer's work again", active=False)]


def reason_to_stop(instances: Mapping[InstanceId, HostedInstance]) -> str:
    """Say why this peer should give up; empty as long as it should not."""
    for instance, hosted in sorted(instances.items(), key=lambda item: item[0]):
        if hosted.fruitless_rounds >= FRUITLESS_ROUNDS:
            count = hosted.fruitless_rounds
            return f"training has diverged: {count} rounds in a row of instance {instance} led nowhere; {REMEDY}"
    return ""
