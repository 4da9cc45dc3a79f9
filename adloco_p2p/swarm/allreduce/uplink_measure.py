"""The measurement of this peer's uplink in one attempt, from the rates at which reducers received its parts."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median_high, median_low

from adloco_p2p.core.model.quorum import LEAST_MEASURED_SECONDS
from adloco_p2p.swarm.allreduce.allreduce_spec import Part
from adloco_p2p.swarm.allreduce.handshake import THROUGHPUT

PROMPT_FRACTION = 0.25
"""A reducer that begins to read later than this fraction of its time finds parts waiting, and measures too fast an uplink."""
PROMPT_SECONDS = 0.3
"""A reducer that begins within this time is never late: it covers a round trip and a busy machine."""
MOST_BYTES_PER_SECOND = 1e11
"""The fastest rate that one path may have, 800 Gbit/s. A reducer that states a faster one lies, or found the parts waiting."""


@dataclass(frozen=True, slots=True)
class _Report:
    """A reducer's report about one path."""

    num_bytes: int
    seconds: float
    waited_seconds: float
    """How long the parts were on their way before the reducer began to read."""

    @property
    def is_possible(self) -> bool:
        """Whether a path can be so fast. The rate of a time near 0 is not even finite."""
        return self.num_bytes <= MOST_BYTES_PER_SECOND * self.seconds

    @property
    def is_prompt(self) -> bool:
        return self.waited_seconds <= max(PROMPT_SECONDS, PROMPT_FRACTION * self.seconds)


class Way:
    """Counts the bytes of the own contribution that went out on one stream, and the time they took: only while a part is sent,
    because between two parts the stream may wait for averaged parts, that is for others."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns seconds."""
        self.num_bytes = 0
        self._clock = clock
        self._seconds = 0.0
        self._since: float | None = None

    @contextmanager
    def sending(self, num_bytes: int) -> Iterator[None]:
        """Measure the block as the sending of one part of so many bytes."""
        self._since = self._clock()
        try:
            yield
            self.num_bytes += num_bytes
        finally:
            self._seconds, self._since = self.seconds, None

    @property
    def seconds(self) -> float:
        """The time of sending so far."""
        return self._seconds + (self._clock() - self._since if self._since is not None else 0.0)


class UplinkMeasure:
    """Measures the uplink by the reducers' reports, or, where an upload is cut off, by the bytes that went out."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reports: list[_Report] = []
        self._ways: list[Way] = []

    def note(self, payload: bytes, parts: tuple[Part, ...], *, waited_seconds: float) -> None:
        """Take a reducer's report of how fast it got the first of these parts, counted from when it began to read,
        `waited_seconds` after they were on their way. Impossible values are ignored; of a report with an impossibly short time
        the bytes count, because they have used the uplink."""
        num_bytes, seconds = THROUGHPUT.unpack(payload) if len(payload) == THROUGHPUT.size else (0, 0.0)
        if 0 < num_bytes <= sum(part.num_sent_bytes for part in parts) and 0 < seconds < math.inf:
            self._reports.append(_Report(num_bytes, seconds, waited_seconds))

    def new_way(self) -> Way:
        """Return the counter for a new stream on which own parts go out."""
        self._ways.append(Way(self._clock))
        return self._ways[-1]

    @property
    def sending_rate(self) -> float:
        """The rate in bytes per second of an upload that was cut off; 0 where it was too short to measure. The median path sets
        the time, so that no reducer that does not read makes this host seem slow."""
        begun = [way.seconds for way in self._ways if way.seconds > 0]
        seconds = median_low(begun) if begun else 0.0
        is_long_enough = seconds > 0 and seconds >= LEAST_MEASURED_SECONDS
        return sum(way.num_bytes for way in self._ways) / seconds if is_long_enough else 0.0

    @property
    def bytes_per_second(self) -> float:
        """The rate of the uplink in bytes per second; 0 where all reducers began too late, or stated impossible times.

        The paths share the uplink evenly, so until the median one is done no other has carried more. The rate is what all have
        carried by then over its time. The median path, the faster of two, decides, so that no single reducer makes this host
        seem slow or fast.
        """
        known = self._reports_of_readers()
        if not known:
            return 0.0
        seconds = median_low(report.seconds for report in known)
        most = seconds * median_high(report.num_bytes / report.seconds for report in known)
        return sum(min(report.num_bytes, most) for report in self._reports) / seconds

    def _reports_of_readers(self) -> list[_Report]:
        """Return the reports of reducers that were prompt; if there are none, of those that read for longer than they were
        late."""
        possible = [report for report in self._reports if report.is_possible]
        prompt = [report for report in possible if report.is_prompt]
        return prompt or [report for report in possible if report.waited_seconds <= report.seconds]
