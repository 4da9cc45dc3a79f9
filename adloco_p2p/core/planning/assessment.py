"""Contributions looked at: hosts that do not train on the rows that they were given are given fewer. Pure.

Of the average of a round one contribution is looked at by three assessors (`core/model/measurers.py`), which report how much
more it lowers the loss of the given rows than that of others. None of them proves anything, and one alone moves nothing: the
median counts where two agree, all of them have measured the same bytes on the same rows. Of each host plans remember the last
scores. One whose mean is far below that of the median host is idle: it gets a quarter of the rows, and so of the weight, until
its scores are better. It keeps its seat and its vote.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import sqrt
from statistics import fmean, median_low

from adloco_p2p.core.model.assessments import ASSESSORS, MAX_LOOKS, Assessment, Look
from adloco_p2p.core.model.electorate import is_majority
from adloco_p2p.core.model.instance_plan import MAX_SCORES, HostShare, InstancePlan
from adloco_p2p.core.model.measurers import drawn_look, is_assessed
from adloco_p2p.core.model.plan import REPORT_LAG
from adloco_p2p.core.model.report import InstanceReport
from adloco_p2p.core.model.roster_entry import RosterEntry
from adloco_p2p.core.model.scalars import PeerId

AGREED_TENTHS = 5
"""Two scores of one contribution that are this close agree: honest ones differ by rounding alone."""
AWAITED_ROUNDS = MAX_LOOKS
"""A look ends without a score where the reports on so many rounds after its own have brought no two that agree."""
LEAST_SCORES = 4
"""A host has so many scores before anything follows from them: of fewer ones two false ones decide too often."""
IDLE_PART = 1 / 3
"""Idle is a host whose mean score is below this part of the median host's, ..."""
IDLE_ERRORS = 3.0
"""... by so many standard errors of the mean: a single score has one of 1 where nothing was trained. So nothing follows where
scores are small, as with large batches (docs/results/robustness.md)."""
IDLE_FRACTION = 0.25
"""Of the rows that an idle host would be given otherwise."""
IDLE_SHARE = 3
"""Where one host in so many would be idle, or more, nobody is: then it is not clear what the scores mean."""


def with_scores(
    plan: InstancePlan,
    moved: InstancePlan,
    claims: Mapping[PeerId, InstanceReport],
    roster: Sequence[RosterEntry],
    places: Mapping[PeerId, int],
    *,
    round: int,
    every: int,
) -> InstancePlan:
    """The instance's next plan with the looks whose scores are to come, and the scores that were agreed on.

    `plan` is the instance in the plan before, whose roster this is, `moved` in the next one, but for this. `places`: by which
    numbers the reports `claims` on `round` name hosts. `every`: rounds from one look to the next.
    """
    named = {place: peer for peer, place in places.items()}
    given = {peer: claim.assessment for peer, claim in claims.items() if claim.assessment is not None}
    looks = [_heard(look, given, named) for look in plan.looks]
    scores = {share.peer: share.scores for share in moved.hosts}
    for look in looks:
        score = agreed_score(look)
        if score is not None and look.subject in scores:
            scores[look.subject] = (*scores[look.subject], score)[-MAX_SCORES:]
    awaited = [look for look in looks if _is_open(look) and round < look.round + AWAITED_ROUNDS]
    is_new = moved.state_digest not in (None, plan.state_digest)  # else there was no outer step, or no agreed one
    if plan.is_assessed and is_new and moved.state_digest is not None:
        drawn = drawn_look(moved.state_digest, plan, roster, round=round)
        awaited += [drawn] if drawn is not None else []
    return replace(
        moved,
        is_assessed=is_new and is_assessed(round + REPORT_LAG - 1, every=every),  # else it holds steps of a void round, too
        looks=tuple(awaited),
        hosts=tuple(replace(share, scores=scores[share.peer]) for share in moved.hosts),
    )


def _heard(look: Look, given: Mapping[PeerId, Assessment], named: Mapping[int, PeerId]) -> Look:
    """The look with the scores that its assessors report. The first one of each counts."""

    def score_of(peer: PeerId, known: int | None) -> int | None:
        item = given.get(peer)
        is_about_it = item is not None and item.round == look.round and named.get(item.subject) == look.subject
        return item.score if known is None and item is not None and is_about_it else known

    scores = (score_of(peer, known) for peer, known in zip(look.assessors, look.scores, strict=True))
    return replace(look, scores=tuple(scores))


def agreed_score(look: Look) -> int | None:
    """The median of the scores that are there, the lower one of two, once two of them agree; else None."""
    scores = sorted(score for score in look.scores if score is not None)
    if not any(higher - lower <= AGREED_TENTHS for lower, higher in pairwise(scores)):
        return None
    return median_low(scores)


def _is_open(look: Look) -> bool:
    """A score is still to come, and two that agree are not there yet."""
    return agreed_score(look) is None and sum(score is not None for score in look.scores) < ASSESSORS


def idle_hosts(scores: Mapping[PeerId, Sequence[int]]) -> frozenset[PeerId]:
    """The idle ones of the hosts that work, by the scores of each; none before most of them have scores."""
    means = {peer: fmean(known) for peer, known in scores.items() if len(known) >= LEAST_SCORES}
    if not is_majority(len(means), len(scores)):
        return frozenset()
    middle = median_low(means.values())
    idle = {peer for peer in means if _is_far_below(scores[peer], middle)}
    return frozenset(idle) if IDLE_SHARE * len(idle) < len(scores) else frozenset()


def _is_far_below(scores: Sequence[int], middle: float) -> bool:
    """Each score counts as 0 at least, and at most as the median host's mean, all in tenths: one that liars agreed on, however
    high or low, decides no mean of four."""
    mean = fmean(min(max(0.0, score), middle) for score in scores)
    return mean < IDLE_PART * middle and middle - mean >= 10 * IDLE_ERRORS / sqrt(len(scores))


def describe_idle(hosts: Iterable[HostShare], idle: Iterable[PeerId]) -> str:
    """In words, which hosts get fewer rows for it; empty where none is idle."""
    means = {share.peer: fmean(share.scores) / 10 for share in hosts if share.scores}
    named = ", ".join(f"{peer} (mean score {means[peer]:.1f})" for peer in sorted(idle))
    return f"a quarter of the rows for {named}: what it sent does not show training on those it was given" if named else ""
