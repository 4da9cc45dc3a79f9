"""The rate at which the reducers of one attempt got what this peer sent."""

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
"""A reducer that begins to read later than this part of its time finds parts waiting, and the uplink seems too fast to it."""
PROMPT_SECONDS = 0.3
"""A round trip, and a busy machine: nobody is late who begins within this time."""


@dataclass(frozen=True, slots=True)
class _Report:
    """Of one path."""

    num_bytes: int
    seconds: float
    waited_seconds: float
    """The parts were on their way for so long before the reducer began to read."""

    @property
    def is_prompt(self) -> bool:
        return self.waited_seconds <= max(PROMPT_SECONDS, PROMPT_FRACTION * self.seconds)


class Way:
    """Bytes of the own contribution that went out on one stream, and the time they took: counted only while a part is sent, for
    between two parts the stream may wait for averaged parts, that is for others."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: in seconds."""
        self.num_bytes = 0
        self._clock = clock
        self._seconds = 0.0
        self._since: float | None = None

    @contextmanager
    def sending(self, num_bytes: int) -> Iterator[None]:
        """A part of so many bytes goes out within."""
        self._since = self._clock()
        try:
            yield
            self.num_bytes += num_bytes
        finally:
            self._seconds, self._since = self.seconds, None

    @property
    def seconds(self) -> float:
        """Until now."""
        return self._seconds + (self._clock() - self._since if self._since is not None else 0.0)


class UplinkMeasure:
    """By the reducers' reports; where an upload is cut off, by the bytes that went out."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reports: list[_Report] = []
        self._ways: list[Way] = []

    def note(self, payload: bytes, parts: tuple[Part, ...], *, waited_seconds: float) -> None:
        """A reducer reports how fast it got the first of these parts, from when it began to read, `waited_seconds` after they
        were on their way. Impossible values are ignored."""
        num_bytes, seconds = THROUGHPUT.unpack(payload) if len(payload) == THROUGHPUT.size else (0, 0.0)
        if 0 < num_bytes <= sum(part.num_sent_bytes for part in parts) and 0 < seconds < math.inf:
            self._reports.append(_Report(num_bytes, seconds, waited_seconds))

    def new_way(self) -> Way:
        """For a stream on which own parts go out."""
        self._ways.append(Way(self._clock))
        return self._ways[-1]

    @property
    def sending_rate(self) -> float:
        """Bytes per second, of an upload that was cut off; 0 where it was too short to measure. The median path counts here as
        well: no reducer that does not read makes this host seem slow."""
        begun = [way.seconds for way in self._ways if way.seconds > 0]
        seconds = median_low(begun) if begun else 0.0
        is_long_enough = seconds > 0 and seconds >= LEAST_MEASURED_SECONDS
        return sum(way.num_bytes for way in self._ways) / seconds if is_long_enough else 0.0

    @property
    def bytes_per_second(self) -> float:
        """The paths share the uplink evenly, and are used at once: when the median one is done, no other has carried more. All
        that they have carried by then counts, over the time that it took. The median path decides, the faster of two, so that
        no reducer alone makes this host seem slow or fast. 0 where all reducers began too late."""
        known = self._reports_of_readers()
        if not known:
            return 0.0
        seconds = median_low(report.seconds for report in known)
        most = seconds * median_high(report.num_bytes / report.seconds for report in known)
        return sum(min(report.num_bytes, most) for report in self._reports) / seconds

    def _reports_of_readers(self) -> list[_Report]:
        """Of reducers that were there from the beginning; where there are none, of those that read for longer than they were
        late."""
        prompt = [report for report in self._reports if report.is_prompt]
        return prompt or [report for report in self._reports if report.waited_seconds <= report.seconds]
