"""What of this peer's work is saved, and what it has done in all: a checkpoint is complete once every hosted instance is in."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from adloco_p2p.core.averaging.outer_round import OuterRound
from adloco_p2p.core.model.events import Durable, Effect, SaveCheckpoint, SaveInstance, Totals
from adloco_p2p.core.model.telemetry import Log
from adloco_p2p.core.model.types import InstanceId, Report, RoundPlan


class Checkpoints:
    """`save` each instance at a boundary, then `complete` the boundary."""

    def __init__(self) -> None:
        self.newest = -1
        """The last boundary whose checkpoint is complete."""
        self._saved: dict[int, dict[InstanceId, None]] = {}
        """Boundary -> instances that were saved there."""
        self._totals = Totals()
        self._started_at = 0.0

    def start(self, durable: Durable, now: float) -> None:
        self.newest = durable.round
        self._totals = durable.totals
        self._started_at = now

    def count(self, outer: OuterRound) -> None:
        """A round of one instance ended."""
        self._totals += outer.totals()

    def totals(self, now: float) -> Totals:
        return replace(self._totals, seconds=self._totals.seconds + now - self._started_at)

    def save(self, instance: InstanceId, boundary: int) -> SaveInstance:
        self._saved.setdefault(boundary, {})[instance] = None
        return SaveInstance(instance=instance, round=boundary)

    def lacks(self, instances: Sequence[InstanceId], boundary: int) -> list[InstanceId]:
        """Those of them that are not saved there."""
        saved = self._saved.get(boundary, {})
        return [instance for instance in instances if instance not in saved]

    def complete(
        self,
        boundary: int,
        *,
        plans: Mapping[int, RoundPlan],
        reports: Mapping[int, Report],
        rounds: Iterable[OuterRound],
        now: float,
        is_finished: bool = False,
    ) -> list[Effect]:
        """Everything as it was at the boundary, for the instances that were saved there. `plans` and this peer's `reports`
        are those that it knows, `rounds` those whose totals it has counted, by the ones of a later boundary too much."""
        self.newest = boundary
        totals = self.totals(now)
        for outer in rounds:
            if outer.round >= boundary and outer.is_done:  # done again after a resume, so not counted yet
                totals -= outer.totals()
        durable = Durable(
            round=boundary,
            plans=tuple(plans[number] for number in sorted(plans) if number >= boundary - 1),
            reports=tuple(report for number, report in sorted(reports.items()) if number >= boundary - 2),
            held=tuple(sorted(self._saved.get(boundary, {}))),
            totals=totals,
            is_finished=is_finished,
        )
        self._saved = {saved: instances for saved, instances in self._saved.items() if saved > boundary}
        return [SaveCheckpoint(durable=durable), Log(name="checkpoint", fields={"round": boundary})]

    def cut(self, *, after: int) -> None:
        """Forget what was saved after this boundary: another history counts."""
        self._saved = {boundary: saved for boundary, saved in self._saved.items() if boundary <= after}
        self.newest = min(self.newest, after)
