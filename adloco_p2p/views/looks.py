"""What looks at a peer's contributions found (`averaging.assess_every`). Pure."""

from statistics import fmean

from adloco_p2p.core.model.telemetry import Plan
from adloco_p2p.core.model.words import plural
from adloco_p2p.core.planning.assessment import idle_hosts


def look_scores(plan: Plan | None) -> dict[str, list[float]]:
    """Of each host whose contributions were looked at, the last scores in its instances."""
    found: dict[str, list[float]] = {}
    for host in (host for item in (plan.instances if plan is not None else ()) for host in item.hosts):
        if host.scores:
            found.setdefault(host.peer, []).extend(score / 10 for score in host.scores)
    return found


def look_words(plan: Plan | None, peer: str) -> str:
    """What the last looks at the peer's work found; empty where there were none."""
    scores = look_scores(plan).get(peer)
    if plan is None or not scores:
        return ""
    working = ({host.peer: host.scores for host in item.hosts if host.samples} for item in plan.instances)
    is_idle = any(peer in idle_hosts(known) for known in working)
    found = "it does not show training, so it is given a quarter of the rows" if is_idle else "it shows training"
    return f"its work was looked at {plural(len(scores), 'time')} lately: {found} (mean score {fmean(scores):.1f})"
