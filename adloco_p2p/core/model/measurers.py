"""Peers drawn by lot: the hosts that measure an outer step, and the peer that scores the model on tasks."""

import hashlib
from collections.abc import Collection, Sequence

from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.roster_entry import RosterEntry
from adloco_p2p.core.model.scalars import Digest, PeerId

PAIR = 2
"""An evaluator and a confirmer, whose losses count only where they agree."""
PAIRS_AFTER_DISPUTE = 2
"""So many pairs measure the next step after one on which a pair did not agree: one of it may have lied."""


def measurers(state: Digest, workers: Collection[PeerId], roster: Sequence[RosterEntry], *, count: int) -> tuple[PeerId, ...]:
    """Up to `count` of the hosts that had work, of the full members alone where there are any: those of least hash.

    `state` is that after the outer step, which follows from the committed average: contributors are bound before it exists.
    """
    full = [entry.peer for entry in roster if entry.peer in workers and not entry.probation]
    return tuple(sorted(full or workers, key=lambda peer: lot(state, peer))[:count])


def task_scorer(plan: RoundPlan, *, period_rounds: int) -> PeerId | None:
    """The full member that scores the model on the run's tasks after the round, of those that report that they can; none in a
    round without scoring (`period_rounds` 0: all of them). Nobody can choose the lot: it is of the run, the round and the
    peer."""
    if not period_rounds or (plan.round + 1) % period_rounds:
        return None
    able = [
        entry.peer
        for entry in plan.roster
        if entry.capacity.scores_tasks and not entry.probation and not (entry.capacity.is_leaving or entry.capacity.is_keeper)
    ]
    return min(able, key=lambda peer: lot(f"{plan.run}:{plan.round}", peer), default=None)


def lot(of: str, peer: PeerId) -> bytes:
    """The peer's draw in the lottery of this name: the least wins."""
    return hashlib.sha256(f"{of}:{peer}".encode()).digest()
