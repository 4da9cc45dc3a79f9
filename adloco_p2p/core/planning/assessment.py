"""Assessment of contributions: hosts that do not train on the rows that they were given are given fewer. Pure.

Three assessors look at one contribution to the average of a round (`core/model/measurers.py`), and report how much more it
lowers the loss of the given rows than that of others. A single score proves nothing and moves nothing: the median counts once
two scores agree, which they do if honest, because all assessors measure the same bytes on the same rows. Plans remember the
last scores of each host. A host whose mean is far below that of the median host is idle: it gets a quarter of the rows, and so
of the weight, until its scores are better. It keeps its seat and its vote.
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
"""Two scores of one contribution agree if they are this close: honest ones differ only by rounding."""
AWAITED_ROUNDS = MAX_LOOKS
"""Rounds after its own after which a look ends without a score, if reports on them have brought no two that agree."""
LEAST_SCORES = 4
"""Scores that a host has before they have consequences: among fewer, two false ones decide too often."""
IDLE_PART = 1 / 3
"""An idle host has a mean score below this part of the median host's, and below it by IDLE_ERRORS."""
IDLE_ERRORS = 3.0
"""Standard errors of the mean by which an idle host's mean is below the median host's; a single score of a host that trained
nothing has one of 1. So small scores, as with large batches, have no consequences (docs/results/robustness.md)."""
IDLE_FRACTION = 0.25
"""Fraction that an idle host gets of the rows that it would be given otherwise."""
IDLE_SHARE = 3
"""If one host in this many or more would be idle, none is, because then it is not clear what the scores mean."""


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
    """Return the instance's next plan with its open looks and the agreed scores.

    `plan` is the instance in the plan before, whose roster is `roster`; `moved` is the instance in the next plan, without looks
    and scores. `places` are the numbers by which the reports `claims` on `round` name hosts. `every` is the number of rounds
    from one look to the next.
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
    """Return the look with the scores that its assessors report. The first score of each counts."""

    def score_of(peer: PeerId, known: int | None) -> int | None:
        item = given.get(peer)
        is_about_it = item is not None and item.round == look.round and named.get(item.subject) == look.subject
        return item.score if known is None and item is not None and is_about_it else known

    scores = (score_of(peer, known) for peer, known in zip(look.assessors, look.scores, strict=True))
    return replace(look, scores=tuple(scores))


def agreed_score(look: Look) -> int | None:
    """Return the median of the scores so far, the lower middle one of an even number, once two of them agree; else None."""
    scores = sorted(score for score in look.scores if score is not None)
    if not any(higher - lower <= AGREED_TENTHS for lower, higher in pairwise(scores)):
        return None
    return median_low(scores)


def _is_open(look: Look) -> bool:
    """Return whether a score is still to come, and no two agree yet."""
    return agreed_score(look) is None and sum(score is not None for score in look.scores) < ASSESSORS


def idle_hosts(scores: Mapping[PeerId, Sequence[int]]) -> frozenset[PeerId]:
    """Return the idle hosts among those that work, by the scores of each; none until most of them have enough scores."""
    means = {peer: fmean(known) for peer, known in scores.items() if len(known) >= LEAST_SCORES}
    if not is_majority(len(means), len(scores)):
        return frozenset()
    middle = median_low(means.values())
    idle = {peer for peer in means if _is_far_below(scores[peer], middle)}
    return frozenset(idle) if IDLE_SHARE * len(idle) < len(scores) else frozenset()


def _is_far_below(scores: Sequence[int], middle: float) -> bool:
    """Return whether the mean score is far below `middle`, the mean of the median host, in tenths. Each score is clamped to the
    range from 0 to `middle`, so that no single score on which liars agreed, however high or low, decides a mean of four."""
    mean = fmean(min(max(0.0, score), middle) for score in scores)
    return mean < IDLE_PART * middle and middle - mean >= 10 * IDLE_ERRORS / sqrt(len(scores))


def describe_idle(hosts: Iterable[HostShare], idle: Iterable[PeerId]) -> str:
    """Describe which hosts get fewer rows because they are idle; empty if none is."""
    means = {share.peer: fmean(share.scores) / 10 for share in hosts if share.scores}
    named = ", ".join(f"{peer} (mean score {means[peer]:.1f})" for peer in sorted(idle))
    return f"a quarter of the rows for {named}: what it sent does not show training on those it was given" if named else ""
