"""The guard: whether an outer step raised the loss so much that its instance goes back to the state before it.

Hosts drawn by lot (`core/model/measurers.py`) measure the loss before and after the step on the same rows, and report both. The
plan made from these reports raises an alarm if most of the drawn hosts report that the loss rose; if one of two does, there is
a dispute, and more hosts are drawn next time. After an alarm the instance goes back by two rounds, the step and the round that
was trained on top of it, and the next two rounds are averaged by the stricter rule and not judged. So at least half of the
rounds stand, whatever reports claim. Only hosts that the stricter rule leaves out of these two begin their probation anew.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from adloco_p2p.core.model.electorate import is_majority
from adloco_p2p.core.model.instance_plan import MAX_RISES, InstancePlan
from adloco_p2p.core.model.measurers import PAIR, PAIRS_AFTER_DISPUTE, measurers
from adloco_p2p.core.model.plan import REPORT_LAG
from adloco_p2p.core.model.report import InstanceReport
from adloco_p2p.core.model.roster_entry import RosterEntry
from adloco_p2p.core.model.rules import GuardRules
from adloco_p2p.core.model.scalars import InstanceId, PeerId, shortened
from adloco_p2p.core.planning.witnesses import Witnesses

LEAST_TOLERANCE = 0.02
"""Least tolerance, in nats per token. Without liars no step raised the loss with float32, and the largest rise with `topk2` was
0.0124, measured before and after on the same rows (docs/results/robustness.md, The guard)."""
RISE_FACTOR = 3.0
"""A rise of more than this many times the largest recent one is beyond what training shows by itself."""
MOST_TOLERANCE = 0.1
"""Greatest tolerance, in nats per token: otherwise steps that raise the loss a little more each time would widen the tolerance
without bound."""
STRICT_ROUNDS = 2
"""Rounds after an alarm that are averaged by the stricter rule, and stand whatever is reported of them."""


def judged(
    plan: InstancePlan,
    moved: InstancePlan,
    claims: Mapping[PeerId, InstanceReport],
    roster: Sequence[RosterEntry],
    *,
    round: int,
    rules: GuardRules,
) -> tuple[InstancePlan, str]:
    """Return the instance's next plan with the consequences of the reports on `round`, and the alarm in words.

    `plan` is the instance in the plan before, whose roster is `roster`; `moved` is the instance in the next plan, without the
    guard.
    """
    if not rules.enabled:
        return moved, ""
    quiet = replace(moved, measurers=PAIR, rewind=None)
    if moved.state_digest is None or round < plan.judged_from:
        return quiet, ""
    workers = plan.workers_before(round)
    count = PAIR * (PAIRS_AFTER_DISPUTE if plan.measurers_before > PAIR else 1)
    drawn = measurers(moved.state_digest, workers, roster, count=count)
    measured = [claims[peer].step for peer in drawn if peer in claims]
    rises = [step.after - step.before for step in measured if step is not None]
    tolerance = min(MOST_TOLERANCE, max(LEAST_TOLERANCE, RISE_FACTOR * max(plan.rises, default=0.0)))
    num_rises = sum(rise > tolerance for rise in rises)
    if is_majority(num_rises, len(drawn)) and plan.state_digest not in (None, moved.state_digest):
        least = min(rise for rise in rises if rise > tolerance)
        why = f"{num_rises} of {len(drawn)} hosts measured that round {round} raised the loss of instance {moved.instance} by"
        why += f" {least:.3f} or more, {tolerance:.3f} is tolerated; it goes back to the state before that round, and"
        why += f" {STRICT_ROUNDS} rounds are averaged by the stricter rule"
        until = round + REPORT_LAG + STRICT_ROUNDS
        back = replace(quiet, rewind=plan.state_digest, judged_from=until, strict_before=until)
        return replace(back, reason=shortened(f"{why}; {moved.reason}")), why
    if num_rises:
        return replace(quiet, measurers=PAIR * PAIRS_AFTER_DISPUTE), ""
    if len(rises) == len(drawn):  # the least rise, so that a single liar widens no tolerance
        quiet = replace(quiet, rises=(*plan.rises, max(0.0, min(rises)))[-MAX_RISES:])
    return quiet, ""


LEAST_WORKERS = 4
"""Number of contributors from which on the aggregation rules leave hosts out."""


def left_out_when_strict(
    plan: InstancePlan,
    claims: Mapping[PeerId, InstanceReport],
    roster: Sequence[RosterEntry],
    places: Mapping[PeerId, int],
    *,
    round: int,
) -> set[PeerId]:
    """Return the hosts that were left out of the average of `round`, if that is one of the strict rounds.

    `plan` is the instance in the plan whose roster this is. A host counts if most of the hosts that had work report it, as
    `Witnesses` counts them; if that applies to half of the hosts or more, none counts. `places` are the bits by which the
    reports name hosts.
    """
    if not plan.strict_before - STRICT_ROUNDS <= round < plan.strict_before:
        return set()
    workers = plan.workers_before(round)
    witnesses, found = Witnesses.among(workers, roster), set()
    for peer in workers:
        if witnesses.are_mostly({other for other in workers & claims.keys() if claims[other].left_out >> places[peer] & 1}):
            found.add(peer)
    return found if len(workers) >= LEAST_WORKERS and 2 * len(found) < len(workers) else set()


def kept_apart(plans: Sequence[InstancePlan], changed: Collection[InstanceId], round: int) -> tuple[InstancePlan, ...]:
    """Return the plans of a round such that no rewind undoes the forks and merges, which involve the instances in `changed`."""
    return tuple(
        replace(plan, rewind=None, judged_from=max(plan.judged_from, round)) if plan.instance in changed else plan
        for plan in plans
    )
