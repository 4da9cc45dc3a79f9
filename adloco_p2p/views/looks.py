"""The results of looks at a peer's contributions (`averaging.assess_every`). Pure."""

from collections.abc import Sequence
from math import sqrt
from statistics import fmean

from adloco_p2p.core.model.telemetry import Plan
from adloco_p2p.core.planning.assessment import IDLE_ERRORS, LEAST_SCORES, idle_hosts


def look_scores(plan: Plan | None) -> dict[str, list[float]]:
    """Return the last scores of each host whose contributions were looked at, in its instances."""
    found: dict[str, list[float]] = {}
    for host in (host for item in (plan.instances if plan is not None else ()) for host in item.hosts):
        if host.scores:
            found.setdefault(host.peer, []).extend(score / 10 for score in host.scores)
    return found


def look_words(plan: Plan | None, peer: str) -> str:
    """Describe the results of the last looks at the peer's work, which are called checks for volunteers; empty where there were
    none."""
    scores = look_scores(plan).get(peer)
    if plan is None or not scores:
        return ""
    times = {1: "once", 2: "twice"}.get(len(scores), f"{len(scores)} times")
    return f"work checked {times}: {_found(plan, peer, scores)} (score {fmean(scores):.1f})"


def _found(plan: Plan, peer: str, scores: Sequence[float]) -> str:
    working = ({host.peer: host.scores for host in item.hosts if host.samples} for item in plan.instances)
    if any(peer in idle_hosts(known) for known in working):
        return "no sign of training on its rows, so fewer rows"
    if fmean(scores) >= IDLE_ERRORS / sqrt(len(scores)):
        return "trained on its rows"
    return "too few checks to tell" if len(scores) < LEAST_SCORES else "not clear whether it trained on its rows"
