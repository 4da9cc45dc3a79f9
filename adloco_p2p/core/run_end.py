"""When a run ends: after so many rounds, or once its plans have given out so many samples (`WorkRules`).

With a batch that grows nobody knows the rounds beforehand, so runs of one number of rounds do not train on the same amount of
text. Counted are the samples of the agreed plans, not what hosts report: every peer counts alike, and a host that fails
cannot make a run longer.
"""

from math import ceil

from adloco_p2p.core.rules import WorkRules
from adloco_p2p.core.types import RoundPlan


def planned_samples(plan: RoundPlan) -> int:
    """Samples that all hosts of all instances train in the round."""
    return 0 if plan.is_last else sum(share.samples for item in plan.instances for share in item.hosts)


def samples_after(plan: RoundPlan) -> int:
    """Samples that the run was given by the end of the plan's round."""
    return plan.samples_before + planned_samples(plan)


def progress_at(round: int, samples_before: int, work: WorkRules) -> float:
    """Part of the run that lies behind when the round begins."""
    done, whole = (samples_before, work.samples) if work.samples is not None else (round, work.rounds)
    assert whole is not None
    return min(1.0, done / whole)


def progress_after(plan: RoundPlan, work: WorkRules) -> float:
    """Part of the run that lies behind when the plan's round has ended."""
    return progress_at(plan.round + 1, samples_after(plan), work)


def end_after(plan: RoundPlan, work: WorkRules) -> int:
    """The number that the plan with `is_last` will have, as far as the plan tells: by samples, if all rounds to come are like
    its own. The next round's number where nothing is left."""
    if work.samples is None:
        assert work.rounds is not None
        return work.rounds
    left = max(0, work.samples - samples_after(plan))
    return plan.round + 1 + ceil(left / max(1, planned_samples(plan)))


def steps_within(plan: RoundPlan, work: WorkRules) -> int:
    """Whole inner steps of the plan's round that the run still has samples for, at most those of the plan."""
    planned = planned_samples(plan)
    if work.samples is None or plan.samples_before + planned <= work.samples:
        return plan.inner_steps
    return (work.samples - plan.samples_before) * plan.inner_steps // planned
