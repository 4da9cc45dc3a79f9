"""What other peers send in vain, told seldom: a bad peer must not fill the log. Pure."""

from collections import OrderedDict

from adloco_p2p.core.model.types import PeerId

PERIOD_SECONDS = 60.0
"""Between two lines about one peer and one reason."""
MAX_REASONS = 8
"""Reasons that are told apart per peer, since a peer may have a say in their words; further ones count as one."""
MAX_REMOTES = 1024
"""Peers that are told apart; the ones not heard of for longest are forgotten."""


class Refusals:
    """Counts refusals. For one log."""

    def __init__(self) -> None:
        self._told: OrderedDict[PeerId, dict[str, tuple[float, int]]] = OrderedDict()
        """Peer and reason -> when it was told last, and how many there were since."""

    def count(self, peer: PeerId, reason: str, now: float) -> int:
        """One more. How many to tell of: those since the last time, this one included; 0 where that was a moment ago."""
        reasons = self._told.setdefault(peer, {})
        self._told.move_to_end(peer)
        if len(self._told) > MAX_REMOTES:
            self._told.popitem(last=False)
        if reason not in reasons and len(reasons) >= MAX_REASONS:
            reason = ""
        told_at, untold = reasons.get(reason, (now - PERIOD_SECONDS, 0))
        if now - told_at < PERIOD_SECONDS:
            reasons[reason] = told_at, untold + 1
            return 0
        reasons[reason] = now, 0
        return untold + 1
