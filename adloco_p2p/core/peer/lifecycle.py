"""What the user asked of this peer, until it is done."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from adloco_p2p.core.model.types import InstanceId, PeerId
from adloco_p2p.core.peer.plan_book import PlanBook

HANDOVER_SECONDS = 600.0
"""Who goes waits this long at most for others to fetch the state that nobody else has."""


@dataclass(slots=True)
class Lifecycle:
    """A peer without one trains to the end of the run."""

    aim: Literal["train", "pause", "drain"] = "train"
    last_round: int | None = None
    """This peer begins no round after it."""
    is_paused: bool = False
    """It said goodbye and trains nothing, but lives, follows the plans and can come back."""
    deadline: float | None = None
    """Successors have until this instant to fetch what only this peer has."""
    served: set[tuple[InstanceId, int]] = field(default_factory=set)
    """State that others have fetched from this peer: instance and boundary."""
    saves_at: int | None = None
    """At the first boundary from this one on a checkpoint is due, whatever the cadence says."""

    def saves(self, boundary: int) -> bool:
        """Whether the user asked for a checkpoint there."""
        return self.saves_at is not None and boundary >= self.saves_at

    def hand_over(self, now: float) -> None:
        """Give successors their time, once."""
        if self.deadline is None:
            self.deadline = now + HANDOVER_SECONDS

    def is_handover_over(self, now: float) -> bool:
        return self.deadline is not None and now >= self.deadline

    def has_successors_to_serve(self, book: PlanBook, opened: int, gone: Collection[PeerId]) -> bool:
        """After the last round: others are to host what only this peer has, and have not fetched it yet."""
        plan, boundary = book.get(opened), opened + 1
        if plan is None or self.last_round != opened or not book.has_others(book.newest, gone):
            return False
        sole = [instance for instance in book.mine(plan) if not book.successors(instance, opened, gone)]
        is_undecided = boundary not in book.plans and bool(sole)
        heirs = [i for i in sole if book.successors(i, boundary, gone) and (i, boundary) not in self.served]
        return is_undecided or bool(heirs)


def last_before_handover(book: PlanBook, opened: int, reported: Collection[int], gone: Collection[PeerId]) -> int:
    """The round after which others take over what only this peer hosts: that it goes is in its next report, and the second
    plan after that is made from it. `opened` where there is nothing to hand over, or nobody; `reported`: by this peer."""
    plan = book.get(opened)
    mine = book.mine(plan) if plan is not None else []
    is_sole = any(not book.successors(instance, opened, gone) for instance in mine)
    if not is_sole or not book.has_others(book.newest, gone):
        return opened
    return max(reported, default=opened - 1) + 2
