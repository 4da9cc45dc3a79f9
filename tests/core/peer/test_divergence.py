"""Rounds that led nowhere: what the user is told, and when the peer gives up."""

from dataclasses import dataclass, replace

from adloco_p2p.core.model.events import OuterApplied
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.core.peer.divergence import FRUITLESS_ROUNDS, note_left_out, note_round, reason_to_stop
from adloco_p2p.core.peer.hosted_instance import HostedInstance
from tests.core.core_values import STATE

ZERO, SEVEN = InstanceId(0), InstanceId(7)


@dataclass
class Ended:
    """What is read of a round of an instance that ended."""

    instance: InstanceId
    round: int
    has_diverged: bool = True
    applied: OuterApplied | None = None
    is_left_out: bool = False
    is_averaged: bool = True


def note(instances: dict[InstanceId, HostedInstance], ended: Ended) -> list[tuple[str, bool]]:
    hosted = instances.setdefault(ended.instance, HostedInstance())
    return [(log.message, log.active) for log in note_round(hosted, ended)]  # type: ignore[arg-type, attr-defined]


def test_the_warning_names_the_failure_and_ends_with_the_next_good_round() -> None:
    instances: dict[InstanceId, HostedInstance] = {}
    ((message, active),) = note(instances, Ended(SEVEN, 3))
    assert active and message.startswith("round 3, instance 7: the inner steps diverged, and nothing was sent; ")
    refused = OuterApplied(instance=SEVEN, round=4, digest=STATE, state_digest=STATE, is_refused=True)
    ((message, active),) = note(instances, Ended(SEVEN, 4, applied=refused))
    assert active and message.startswith("round 4, instance 7: the outer step would have led to parameters")
    assert note(instances, Ended(SEVEN, 5, has_diverged=False)) == [("instance 7 trains again", False)]
    assert note(instances, Ended(SEVEN, 6, has_diverged=False)) == []  # said once


def test_the_warning_of_a_contribution_that_was_left_out_ends_with_the_next_one_that_is_averaged() -> None:
    hosted, ended = HostedInstance(), Ended(SEVEN, 3, has_diverged=False)

    def noted(**changes: bool) -> list[tuple[str, bool]]:
        logs = note_left_out(hosted, replace(ended, **changes))  # type: ignore[arg-type]
        return [(log.message, log.active) for log in logs]  # type: ignore[attr-defined]

    assert noted() == []
    ((message, active),) = noted(is_left_out=True, is_averaged=False)
    assert active and message.startswith(
        "round 3, instance 7: the aggregation rule left this peer's contribution out, because it"
    )
    assert noted(is_averaged=False) == [], "a void round shows nothing"
    assert noted() == [("instance 7: the averages have this peer's work again", False)]
    assert noted() == []


def test_only_so_many_rounds_in_a_row_of_one_instance_are_a_reason_to_stop() -> None:
    instances: dict[InstanceId, HostedInstance] = {}
    for number in range(FRUITLESS_ROUNDS - 1):
        note(instances, Ended(ZERO, number))
        note(instances, Ended(SEVEN, number))
    note(instances, Ended(ZERO, FRUITLESS_ROUNDS, has_diverged=False))
    note(instances, Ended(ZERO, FRUITLESS_ROUNDS + 1))
    assert reason_to_stop(instances) == ""
    note(instances, Ended(SEVEN, FRUITLESS_ROUNDS))
    assert reason_to_stop(instances).startswith("training has diverged: 4 rounds in a row of instance 7 led nowhere; ")
