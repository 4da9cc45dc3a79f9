"""The measurement of the time from a volunteer's command to the first committed work of the machine."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.model.telemetry import FirstContribution, Log, Round
from adloco_p2p.runtime.node.ports import EventSink

_SINCE_BOOT_FIELD = 19
"""The field of /proc/PID/stat, after the program's name, with the start of the process in ticks; see proc_pid_stat(5)."""


def process_start() -> float:
    """Return when this process began, by the monotonic clock, or now if the system does not report it."""
    stat = Path("/proc/self/stat")
    if not stat.exists():
        return time.monotonic()
    ticks = int(stat.read_text().rpartition(")")[2].split()[_SINCE_BOOT_FIELD])
    return time.monotonic() - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))


class ContributionSink:
    """Passes events on, and adds one after the first round whose committed average contains this peer's work."""

    def __init__(self, sink: EventSink, *, me: PeerId, began: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`began` is the start of the user's command, by the same clock."""
        self._sink = sink
        self._me = me
        self._began = began
        self._clock = clock
        self._is_reported = False

    def write(self, event: Log) -> None:
        self._sink.write(event)
        if isinstance(event, Round) and not self._is_reported and event.samples > 0 and self._me in event.hosts:
            self._is_reported = True
            seconds = round(self._clock() - self._began, 3)
            self._sink.write(FirstContribution(round=event.round, seconds=seconds))
