"""Peers drawn by lot: the hosts that measure an outer step, those that look at a contribution to it, and the peer that scores
the model on tasks."""

import hashlib
from collections.abc import Collection, Sequence

from adloco_p2p.core.model.assessments import ASSESSORS, Look
from adloco_p2p.core.model.instance_plan import InstancePlan
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.roster_entry import RosterEntry
from adloco_p2p.core.model.scalars import Digest, PeerId

PAIR = 2
"""An evaluator and a confirmer, whose losses count only where they agree."""
PAIRS_AFTER_DISPUTE = 2
"""This many pairs measure the next step after one on which a pair did not agree: one of it may have lied."""
LEAST_FULL = ASSESSORS + 2
"""Full members that had work in an instance whose contributions are looked at: a subject, its assessors, and one to compare
with."""


def measurers(state: Digest, workers: Collection[PeerId], roster: Sequence[RosterEntry], *, count: int) -> tuple[PeerId, ...]:
    """Up to `count` of the hosts that had work, of the full members alone where there are any: those of least hash.

    `state` is that after the outer step, which follows from the committed average: contributors are bound before it exists.
    """
    full = [entry.peer for entry in roster if entry.peer in workers and not entry.probation]
    return tuple(sorted(full or workers, key=lambda peer: lot(state, peer))[:count])


def is_assessed(round: int, *, every: int) -> bool:
    """Whether a contribution to the average of the round is looked at. None is in the first: the learning rate begins at 0."""
    return every > 0 and round > 0 and round % every == 0


def drawn_look(state: Digest, plan: InstancePlan, roster: Sequence[RosterEntry], *, round: int) -> Look | None:
    """The contributor to the average of `round` that is looked at, and its assessors, full members that had work; None where
    there are too few. A contribution of several rounds is not looked at: the plan of the last one names a part of its rows.

    `plan` is the instance in the plan after that of the round, whose roster this is. `state` is that after the outer step, as
    for the measurers: contributors are bound before it exists. Two peers in client mode cannot fetch from each other.
    """
    seats = {entry.peer: entry for entry in roster}
    workers = [share for share in plan.hosts if share.place_before is not None and share.had_work(round)]
    full = [share.peer for share in workers if share.peer in seats and not seats[share.peer].probation]
    subjects = [share.peer for share in workers if not share.spanned(round)]
    if len(full) < LEAST_FULL or not subjects:
        return None
    subject = min(subjects, key=lambda peer: lot(f"{state}:subject", peer))
    is_client = subject in seats and not seats[subject].capacity.is_reachable
    able = [peer for peer in full if peer != subject and (seats[peer].capacity.is_reachable or not is_client)]
    assessors = sorted(able, key=lambda peer: lot(f"{state}:assessor", peer))[:ASSESSORS]
    if len(assessors) < ASSESSORS:
        return None
    return Look(round=round, subject=subject, assessors=tuple(assessors), scores=(None,) * ASSESSORS)


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
