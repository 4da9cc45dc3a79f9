"""The time that a volunteer waited until the machine's work counted."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.model.telemetry import FirstContribution, Log, Round
from adloco_p2p.runtime.node.ports import EventSink

_SINCE_BOOT_FIELD = 19
"""Of /proc/PID/stat, behind the name of the program: when the process started, in ticks; see proc_pid_stat(5)."""


def process_start() -> float:
    """When this process began, by the monotonic clock; now, where the system does not report it."""
    now, stat = time.monotonic(), Path("/proc/self/stat")
    if not stat.exists():
        return now
    ticks = int(stat.read_text().rpartition(")")[2].split()[_SINCE_BOOT_FIELD])
    return now - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))


class ContributionSink:
    """Passes events on, and adds one behind the first round whose committed average holds this peer's work."""

    def __init__(self, sink: EventSink, *, me: PeerId, began: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`began` is when the user's command did, by the same clock."""
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
