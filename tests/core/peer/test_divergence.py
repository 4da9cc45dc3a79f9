"""Rounds that led nowhere: what the user is told, and when the peer gives up."""

from dataclasses import dataclass

from adloco_p2p.core.model.events import OuterApplied
from adloco_p2p.core.model.types import InstanceId
from adloco_p2p.core.peer.divergence import FRUITLESS_ROUNDS, Divergence
from tests.core.core_values import STATE

ZERO, SEVEN = InstanceId(0), InstanceId(7)


@dataclass
class Ended:
    """What is read of a round of an instance that ended."""

    instance: InstanceId
    round: int
    has_diverged: bool = True
    applied: OuterApplied | None = None


def note(divergence: Divergence, ended: Ended) -> list[tuple[str, bool]]:
    return [(log.message, log.active) for log in divergence.note(ended)]  # type: ignore[arg-type, attr-defined]


def test_the_warning_names_the_failure_and_ends_with_the_next_good_round() -> None:
    divergence = Divergence()
    ((message, active),) = note(divergence, Ended(SEVEN, 3))
    assert active and message.startswith("round 3, instance 7: the inner steps diverged, and nothing was sent; ")
    refused = OuterApplied(instance=SEVEN, round=4, digest=STATE, state_digest=STATE, is_refused=True)
    ((message, active),) = note(divergence, Ended(SEVEN, 4, applied=refused))
    assert active and message.startswith("round 4, instance 7: the outer step would have led to parameters")
    assert note(divergence, Ended(SEVEN, 5, has_diverged=False)) == [("instance 7 trains again", False)]
    assert note(divergence, Ended(SEVEN, 6, has_diverged=False)) == []  # said once


def test_only_so_many_rounds_in_a_row_of_one_instance_are_a_reason_to_stop() -> None:
    divergence = Divergence()
    for number in range(FRUITLESS_ROUNDS - 1):
        note(divergence, Ended(ZERO, number))
        note(divergence, Ended(SEVEN, number))
    note(divergence, Ended(ZERO, FRUITLESS_ROUNDS, has_diverged=False))
    note(divergence, Ended(ZERO, FRUITLESS_ROUNDS + 1))
    assert divergence.reason_to_stop == ""
    note(divergence, Ended(SEVEN, FRUITLESS_ROUNDS))
    assert divergence.reason_to_stop.startswith("training has diverged: 4 rounds in a row of instance 7 led nowhere; ")
