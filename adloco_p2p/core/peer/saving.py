"""The checkpoints of this peer and its totals: a checkpoint is complete once every hosted instance is in it."""

from collections.abc import Callable
from dataclasses import replace

from adloco_p2p.core.averaging.outer_round import OuterRound
from adloco_p2p.core.model.effects import Effect, SaveCheckpoint, SaveInstance
from adloco_p2p.core.model.events import Durable, Totals
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.core.model.telemetry import Checkpoint
from adloco_p2p.core.peer.state import PeerState


class Checkpoints:
    """Makes checkpoints: `save` each instance at a boundary, then `complete` the boundary."""

    def __init__(self, state: PeerState, *, is_on_schedule: Callable[[int], bool], least_seconds: float) -> None:
        """`is_on_schedule` tells whether a checkpoint is due at a boundary by the schedule, besides those at the user's request
        and at the end of the run. A scheduled one is made only if the last one is at least `least_seconds` old."""
        self.newest = -1
        """The last boundary whose checkpoint is complete."""
        self._state = state
        self._book = state.book
        self._is_on_schedule = is_on_schedule
        self._least_seconds = least_seconds
        self._next_at = 0.0
        self._is_time: dict[int, bool] = {}
        """Whether the last checkpoint was old enough when the first instance reached a boundary, by boundary: one answer for
        all instances."""
        self._requested_at: int | None = None
        """First boundary at which a checkpoint that the user asked for is due; None without a request."""
        self._ruled_out = -1
        """Newest boundary whose state is known to have no finite loss, so that it is not saved."""
        self._totals = Totals()
        self._started_at = 0.0

    def start(self, durable: Durable, now: float) -> None:
        self.newest = durable.round
        self._totals = durable.totals
        self._started_at = self._next_at = now

    def count(self, outer: OuterRound) -> None:
        """Count a finished round of one instance."""
        self._totals += outer.totals()

    def totals(self, now: float) -> Totals:
        return replace(self._totals, seconds=self._totals.seconds + now - self._started_at)

    # --- when --------------------------------------------------------------------------------------------------------

    def request(self) -> None:
        """Take the user's request for a checkpoint: it is due at the next boundary that no hosted instance has passed yet."""
        has_passed = any(outer.is_done and outer.round == self._state.opened for outer in self._state.rounds)
        self._requested_at = self._state.opened + (2 if has_passed else 1)

    def rule_out(self, boundary: int) -> None:
        """Rule out a boundary from whose state no training can continue; the checkpoint before stays the newest one."""
        self._ruled_out = boundary

    def withdraw_request(self) -> None:
        self._requested_at = None

    def is_due(self, boundary: int, now: float) -> bool:
        if boundary == self._ruled_out:
            return False
        following = self._book.get(boundary)
        is_end = following is not None and following.is_last
        return (
            is_end or self._is_requested(boundary) or (self._is_on_schedule(boundary) and self._is_late_enough(boundary, now))
        )

    def _is_late_enough(self, boundary: int, now: float) -> bool:
        if boundary not in self._is_time:
            self._is_time = {
                old: is_time for old, is_time in self._is_time.items() if old >= boundary - self._state.rounds_kept
            }
            self._is_time[boundary] = now >= self._next_at
        return self._is_time[boundary]

    def _is_requested(self, boundary: int) -> bool:
        return self._requested_at is not None and boundary >= self._requested_at

    # --- saving ------------------------------------------------------------------------------------------------------

    def save(self, instance: InstanceId, boundary: int) -> SaveInstance:
        self._state.instance(instance).saved.add(boundary)
        return SaveInstance(instance=instance, round=boundary)

    def complete_due(self, now: float) -> list[Effect]:
        """Complete every checkpoint for which all hosted instances are saved, even if one of them is already a round
        further."""
        effects: list[Effect] = []
        for boundary in sorted(number + 1 for number in self._state.own_reports if number in self._book.plans):
            if self.newest < boundary and self.is_due(boundary, now) and not self._unsaved(boundary):
                effects += self.complete(boundary, now)
        return effects

    def save_present(self, boundary: int, now: float) -> list[Effect]:
        """Make a checkpoint at the boundary, if the state of every hosted instance is that of the boundary."""
        if self._book.get(boundary - 1) is None or boundary == self._ruled_out:
            return []
        unsaved = self._unsaved(boundary)
        if not all(self._state.is_at(instance, boundary) for instance in unsaved):
            return []
        return [*(self.save(instance, boundary) for instance in unsaved), *self.complete(boundary, now)]

    def _unsaved(self, boundary: int) -> list[InstanceId]:
        hosted = self._book.mine(self._book.plans[boundary - 1])
        return [instance for instance in hosted if boundary not in self._state.known(instance).saved]

    def complete(self, boundary: int, now: float, *, is_finished: bool = False) -> list[Effect]:
        """Complete the checkpoint with everything as it was at the boundary, for the instances that were saved there."""
        if self._is_requested(boundary):
            self._requested_at = None
        self.newest = boundary
        self._next_at = now + self._least_seconds
        plans, reports = self._book.plans, self._state.own_reports
        totals = self.totals(now)
        for outer in self._state.rounds:
            if outer.round >= boundary and outer.is_done:  # done again after a resume, so not counted yet
                totals -= outer.totals()
        durable = Durable(
            round=boundary,
            plans=tuple(plans[number] for number in sorted(plans) if number >= boundary - 1),
            reports=tuple(report for number, report in sorted(reports.items()) if number >= boundary - 2),
            held=tuple(sorted(key for key, item in self._state.instances.items() if boundary in item.saved)),
            totals=totals,
            is_finished=is_finished,
            doubtful=tuple(
                sorted(
                    key
                    for key, item in self._state.instances.items()
                    if boundary in item.saved and item.doubtful_from is not None and item.doubtful_from <= boundary
                )
            ),
        )
        for item in self._state.instances.values():
            item.saved = {saved for saved in item.saved if saved > boundary}
        return [SaveCheckpoint(durable=durable), Checkpoint(round=boundary)]

    def cut(self, *, after: int) -> None:
        """Forget checkpoints after this boundary, from which on another history counts."""
        self._is_time = {boundary: is_time for boundary, is_time in self._is_time.items() if boundary <= after}
        self.newest = min(self.newest, after)
