"""The run at a glance: its curves, the speed of the whole swarm, and this peer's part in it. Pure."""

import math
from collections import defaultdict

from adloco_p2p.views import derived, units
from adloco_p2p.views.status import Status

Point = tuple[float, float]


def training_losses(status: Status) -> list[Point]:
    """(round, mean training loss of the instances that this peer trained), by round."""
    by_round: dict[int, list[float]] = defaultdict(list)
    for result in status.results.values():
        if result.loss is not None and math.isfinite(result.loss):
            by_round[result.round].append(result.loss)
    return [(float(number), sum(losses) / len(losses)) for number, losses in sorted(by_round.items())]


def heldout_losses(status: Status) -> list[Point]:
    """(round, least held-out loss of the instances that this peer evaluated), by round."""
    best: dict[int, float] = {}
    for result in status.results.values():
        if result.heldout_loss is not None and math.isfinite(result.heldout_loss):
            best[result.round] = min(result.heldout_loss, best.get(result.round, math.inf))
    return [(float(number), loss) for number, loss in sorted(best.items())]


def swarm_tokens_per_second(status: Status) -> float | None:
    """Tokens that the plan of the round in progress gives to all peers, by the time that a round takes; none before this peer
    has finished one."""
    plan, seconds = status.current_plan, derived.seconds_per_round(status)
    trained = derived.totals(status)
    if plan is None or not seconds or not trained.samples:
        return None
    return plan.samples * (trained.tokens / trained.samples) / seconds


def standing(status: Status) -> str:
    """`this peer: 2nd of 4, 25% of the work`; empty where it has no share, or no other one has."""
    shares = {row.peer: row.share for row in derived.peer_rows(status) if row.share}
    own = shares.get(status.peer)
    if own is None or len(shares) < 2:
        return ""
    rank = 1 + sum(share > own for share in shares.values())
    return f"this peer: {_ordinal(rank)} of {len(shares)}, {units.percent(own)} of the work"


def _ordinal(number: int) -> str:
    last = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return f"{number}{last}"


def ban_words(status: Status) -> dict[str, str]:
    """Banned peer -> when, by whom and why."""
    return {
        peer: f"banned in round {ban.round} by {ban.by}{f': {units.one_line(ban.reason)}' if ban.reason else ''}"
        for peer, ban in sorted(status.bans.items())
    }
