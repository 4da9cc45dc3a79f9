"""The rate at which the reducers of one attempt got what this peer sent."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median_low

from adloco_p2p.core.model.quorum import LEAST_MEASURED_SECONDS
from adloco_p2p.swarm.allreduce.allreduce_spec import Part
from adloco_p2p.swarm.allreduce.handshake import THROUGHPUT


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
        self._reports: list[tuple[int, float]] = []
        """Bytes and seconds."""
        self._ways: list[Way] = []

    def note(self, payload: bytes, parts: tuple[Part, ...]) -> None:
        """A reducer reports how fast it got the first of these parts. Impossible values are ignored."""
        num_bytes, seconds = THROUGHPUT.unpack(payload) if len(payload) == THROUGHPUT.size else (0, 0.0)
        if 0 < num_bytes <= sum(part.num_sent_bytes for part in parts) and 0 < seconds < math.inf:
            self._reports.append((num_bytes, seconds))

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
        """All that arrived over the time that a path took: the paths share the uplink, and are used at once. The median path
        counts, the faster of two, so that no reducer alone makes this host seem slow."""
        if not self._reports:
            return 0.0
        seconds = median_low(seconds for _, seconds in self._reports)
        return sum(num_bytes for num_bytes, _ in self._reports) / seconds
