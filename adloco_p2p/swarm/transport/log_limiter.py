"""Lines about other peers, their refusals for the most part, logged seldom: a bad peer must not fill the log. Pure."""

from collections import OrderedDict, deque

from adloco_p2p.core.model.scalars import PeerId

PERIOD_SECONDS = 60.0
"""Between two lines about one peer and one reason."""
MAX_REASONS = 8
"""Reasons that are counted apart per peer, since a peer may influence their words; further ones count as one."""
MAX_REMOTES = 1024
"""Peers that are counted apart; the least recent ones are forgotten."""
MAX_LINES = 32
"""Lines about all peers together in this period: names cost nothing, and a line for each would fill the disk."""


class LogLimiter:
    """Counts events for one kind of line."""

    def __init__(self) -> None:
        self._logged: OrderedDict[PeerId, dict[str, tuple[float, int]]] = OrderedDict()
        """Peer and reason -> when it was logged last, and how many there were since."""
        self._lines: deque[float] = deque(maxlen=MAX_LINES)
        """When the last lines were logged."""

    def count(self, peer: PeerId, reason: str, now: float) -> int:
        """One more event of this peer and reason. Returns how many to log: those since the last time, this one included; 0
        where that was a moment ago, or where there were too many lines."""
        reasons = self._logged.setdefault(peer, {})
        self._logged.move_to_end(peer)
        if len(self._logged) > MAX_REMOTES:
            self._logged.popitem(last=False)
        if reason not in reasons and len(reasons) >= MAX_REASONS:
            reason = ""
        logged_at, unlogged = reasons.get(reason, (now - PERIOD_SECONDS, 0))
        is_full = len(self._lines) == MAX_LINES and now - self._lines[0] < PERIOD_SECONDS
        if now - logged_at < PERIOD_SECONDS or is_full:
            reasons[reason] = logged_at, unlogged + 1
            return 0
        reasons[reason] = now, 0
        self._lines.append(now)
        return unlogged + 1
