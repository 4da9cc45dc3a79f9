"""A limit on log lines about other peers, mostly about refusals, so that a bad peer cannot fill the log. Pure."""

from collections import OrderedDict, deque

from adloco_p2p.core.model.scalars import PeerId

PERIOD_SECONDS = 60.0
"""The least time between two lines about one peer and one reason."""
MAX_REASONS = 8
"""Reasons of one peer that are counted separately; further ones count as one, since a peer may influence their words."""
MAX_REMOTES = 1024
"""Peers that are counted separately; the least recent ones are forgotten."""
MAX_LINES = 32
"""Lines about all peers together in one period: identities are free, and a line for each would fill the disk."""


class LogLimiter:
    """Counts the events of one kind of line."""

    def __init__(self) -> None:
        self._logged: OrderedDict[PeerId, dict[str, tuple[float, int]]] = OrderedDict()
        """By peer and reason: when it was logged last, and how many events there were since."""
        self._lines: deque[float] = deque(maxlen=MAX_LINES)
        """The instants of the last lines."""

    def count(self, peer: PeerId, reason: str, now: float) -> int:
        """Count one more event of this peer and reason. Return how many to log now: those since the last line, this one
        included; 0 within PERIOD_SECONDS of that line, or if there were too many lines."""
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
