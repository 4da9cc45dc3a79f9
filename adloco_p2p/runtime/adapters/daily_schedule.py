"""The daily schedule: the quiet hours and the day's budget of traffic, in local time.

It acts only when the permission changes, so that the user's commands in between stand, and it resumes only its own pauses. In
quiet hours the lower of their cap and the user's applies. When they end, the user's caps, set before or meanwhile, apply alone.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.quiet_hours import quiet_until
from adloco_p2p.core.model.commands import Command
from adloco_p2p.storage.disk import keep_file
from adloco_p2p.swarm.transport.rate_limiter import RateLimiter

LOOK_SECONDS = 5.0
DAY_BOOK = "traffic.json"
"""The name of the day book in a working directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """The permission that the schedule gives now."""

    pause: str | None = None
    """Why the node has to pause; None if it may work."""
    is_quiet: bool = False
    """Whether the caps of the quiet hours apply."""


def permission(config: PeerConfig, now: datetime, *, used_bytes: int) -> Permission:
    """Return the permission at `now`; `used_bytes` is the traffic of that day."""
    if config.daily_budget_bytes and used_bytes >= config.daily_budget_bytes:
        budget = config.daily_budget_bytes / 1e9
        return Permission(pause=f"the day's budget of {budget:g} GB is used up; training continues after midnight")
    until = quiet_until(config.quiet_hours, now)
    if until is None:
        return Permission()
    if config.quiet_upload_bytes_per_second or config.quiet_download_bytes_per_second:
        return Permission(is_quiet=True)
    return Permission(pause=f"quiet hours until {until:%H:%M}")


class DayBook:
    """The traffic of the current day, in a file, so that a restart does not forget it. A broken file counts as none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._day, self._bytes, self._last_total = "", 0, 0
        try:
            kept = json.loads(path.read_bytes())
            self._day, self._bytes = str(kept["day"]), int(kept["bytes"])
        except (OSError, ValueError, KeyError, TypeError):
            pass

    def used(self, now: datetime, total: int) -> int:
        """Return the bytes of today, given the `total` of this process, and save them if new. Raises StorageError."""
        day = f"{now:%Y-%m-%d}"
        if day != self._day:
            self._day, self._bytes = day, 0
        if total != self._last_total:
            self._bytes += total - self._last_total
            self._last_total = total
            keep_file(self._path, json.dumps({"day": self._day, "bytes": self._bytes}).encode())
        return self._bytes


class DailySchedule:
    """Applies the schedule. `command` is the node's; `is_paused` returns whether it is paused, or pauses after its round."""

    def __init__(
        self,
        config: PeerConfig,
        rate_limiter: RateLimiter,
        *,
        book: DayBook,
        command: Callable[[Command, str], None],
        is_paused: Callable[[], bool],
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._config, self._rate_limiter, self._book = config, rate_limiter, book
        self._command, self._is_paused, self._now = command, is_paused, now
        self._current = Permission()
        self._has_paused = self._is_seen_paused = False

    async def run(self) -> None:
        """Look every few seconds, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_SECONDS)

    def look(self) -> None:
        """Update the budget, and apply a permission that has changed."""
        config, now, traffic = self._config, self._now(), self._rate_limiter.traffic()
        total = traffic.sent_bytes + traffic.received_bytes
        used = self._book.used(now, total) if config.daily_budget_bytes else 0
        self._rate_limiter.set_budget(config.daily_budget_bytes, config.daily_budget_bytes - used)
        permitted = permission(config, now, used_bytes=used)
        self._note_resumption()
        if permitted == self._current:
            return
        if permitted.is_quiet != self._current.is_quiet:
            quiet = config.quiet_upload_bytes_per_second, config.quiet_download_bytes_per_second
            self._rate_limiter.set_quiet_caps(quiet if permitted.is_quiet else None)
        if permitted.pause is not None and self._current.pause is None and not self._is_paused():
            self._command("pause", permitted.pause)
            self._has_paused, self._is_seen_paused = True, False
        elif permitted.pause is None and self._has_paused:
            self._command("resume", "the time or the budget allows it again")
            self._has_paused = False
        self._current = permitted

    def _note_resumption(self) -> None:
        """Forget the schedule's own pause once the user has ended it: a later pause is the user's."""
        if self._is_paused():
            self._is_seen_paused = True
        elif self._is_seen_paused:
            self._has_paused = self._is_seen_paused = False
