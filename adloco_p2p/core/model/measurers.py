"""Draws by lot: the hosts that measure an outer step, those that look at a contribution to it, and the peer that scores the
model on tasks."""

import hashlib
from collections.abc import Collection, Sequence

from adloco_p2p.core.model.assessments import ASSESSORS, Look
from adloco_p2p.core.model.instance_plan import InstancePlan
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.roster_entry import RosterEntry
from adloco_p2p.core.model.scalars import Digest, PeerId

PAIR = 2
"""Measurers of a step: an evaluator and a confirmer, whose losses count only if they agree."""
PAIRS_AFTER_DISPUTE = 2
"""Pairs that measure the step after one on which a pair disagreed, because one of that pair may have lied."""
LEAST_FULL = ASSESSORS + 2
"""Full members that an instance needs at work for a look: a subject, its assessors, and one more to compare with."""


def measurers(state: Digest, workers: Collection[PeerId], roster: Sequence[RosterEntry], *, count: int) -> tuple[PeerId, ...]:
    """Return up to `count` of the hosts that had work, those with the least hashes; only full members are drawn if there are
    any.

    `state` is that after the outer step. It follows from the committed average, so contributors are bound before it exists.
    """
    full = [entry.peer for entry in roster if entry.peer in workers and not entry.probation]
    return tuple(sorted(full or workers, key=lambda peer: lot(state, peer))[:count])


def is_assessed(round: int, *, every: int) -> bool:
    """Return whether a contribution to the average of the round is looked at. The first round is left out because the learning
    rate is still warming up."""
    return every > 0 and round > 0 and round % every == 0


def drawn_look(state: Digest, plan: InstancePlan, roster: Sequence[RosterEntry], *, round: int) -> Look | None:
    """Draw the contributor to the average of `round` that is looked at, and its assessors, which are full members that had
    work. None if there are too few. A contribution that spans several rounds is not looked at, because the plan of the last one
    names only a part of its rows.

    `plan` is the instance's plan after that of the round, `roster` the roster of that plan, and `state` the state after the
    outer step, as for `measurers`. The draw respects that two peers in client mode cannot fetch from each other.
    """
    seats = {entry.peer: entry for entry in roster}
    workers = [share for share in plan.hosts if share.had_work(round)]
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
    """Draw the full member that scores the model on the run's tasks after the round, among those that report that they can.
    None in a round without scoring; with `period_rounds` 0, in every round. Nobody can influence the lot: it depends on the
    run, the round and the peer."""
    if not period_rounds or (plan.round + 1) % period_rounds:
        return None
    able = [
        entry.peer
        for entry in plan.roster
        if entry.capacity.scores_tasks and not entry.probation and not (entry.capacity.is_leaving or entry.capacity.is_keeper)
    ]
    return min(able, key=lambda peer: lot(f"{plan.run}:{plan.round}", peer), default=None)


def lot(of: str, peer: PeerId) -> bytes:
    """Return the peer's draw in the lottery named `of`; the least draw wins."""
    return hashlib.sha256(f"{of}:{peer}".encode()).digest()
