"""How fast the reducers of one attempt got what this peer sent."""

import math
from statistics import median_low

from adloco_p2p.core.model.quorum import LEAST_MEASURED_SECONDS
from adloco_p2p.swarm.allreduce.allreduce_spec import Part
from adloco_p2p.swarm.allreduce.handshake import THROUGHPUT


class UplinkMeasure:
    """By their reports."""

    def __init__(self) -> None:
        self._reports: list[tuple[int, float]] = []
        """Bytes and seconds."""
        self._sent_bytes = 0
        self._begun: float | None = None

    def note(self, payload: bytes, parts: tuple[Part, ...]) -> None:
        """A reducer reports how fast it got the first of these parts. Impossible values are ignored."""
        num_bytes, seconds = THROUGHPUT.unpack(payload) if len(payload) == THROUGHPUT.size else (0, 0.0)
        if 0 < num_bytes <= sum(part.num_sent_bytes for part in parts) and 0 < seconds < math.inf:
            self._reports.append((num_bytes, seconds))

    def sent(self, num_bytes: int, now: float) -> None:
        """So much of the own contribution is on its way; `now` in seconds."""
        self._begun = now if self._begun is None else self._begun
        self._sent_bytes += num_bytes

    def sending_rate(self, now: float) -> float:
        """Bytes per second since the first ones were sent: of an upload that was cut off. 0 where that is too short to tell."""
        seconds = now - self._begun if self._begun is not None else 0.0
        return self._sent_bytes / seconds if seconds >= LEAST_MEASURED_SECONDS else 0.0

    @property
    def bytes_per_second(self) -> float:
        """All that arrived over the time that a way took: the ways share the uplink, and are used at once. The median way
        counts, the faster of two, so that no reducer alone makes this host seem slow."""
        if not self._reports:
            return 0.0
        seconds = median_low(seconds for _, seconds in self._reports)
        return sum(num_bytes for num_bytes, _ in self._reports) / seconds
