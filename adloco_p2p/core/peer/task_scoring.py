"""The scoring of the model on the run's tasks by this peer, and its part of the next report."""

from dataclasses import replace

from adloco_p2p.core.model import telemetry
from adloco_p2p.core.model.effects import Effect
from adloco_p2p.core.model.measurers import task_scorer
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.roster_entry import Capacity
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.model.task_scores import ScoreTasks, TaskClaim, TasksScored

_KEY = "tasks"


class TaskScoring:
    """Scores one model at a time, however long it takes. Call `ended` for every round that this peer ended."""

    def __init__(self, me: PeerId, *, period_rounds: int) -> None:
        self._me = me
        self._period_rounds = period_rounds
        self._is_scoring = False
        self._has_failed = False
        self._claim: TaskClaim | None = None

    def ended(self, plan: RoundPlan) -> list[Effect]:
        """Begin to score if this peer is drawn for it."""
        if self._is_scoring or self._has_failed or task_scorer(plan, period_rounds=self._period_rounds) != self._me:
            return []
        self._is_scoring = True
        return [ScoreTasks()]

    def scored(self, event: TasksScored) -> list[Effect]:
        """Keep the scores for the next report. After a failure this peer no longer reports that it can score, because the next
        try would fail, too."""
        self._is_scoring = False
        if event.claim is not None:
            self._claim = event.claim
            return []
        self._has_failed = True
        message = f"this peer cannot score the run's tasks, and leaves them to others until it starts again: {event.reason}"
        return [telemetry.Warning(key=_KEY, message=message, active=True)]

    def capacity(self, offered: Capacity) -> Capacity:
        return replace(offered, scores_tasks=False) if self._has_failed else offered

    def take(self) -> TaskClaim | None:
        """Return the scores for the report that is being made, once."""
        claim, self._claim = self._claim, None
        return claim
