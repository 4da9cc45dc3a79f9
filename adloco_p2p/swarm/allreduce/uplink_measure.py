"""How fast the reducers of one attempt got what this peer sent."""

import math
from statistics import median_low

from adloco_p2p.swarm.allreduce.allreduce_spec import Part
from adloco_p2p.swarm.allreduce.handshake import THROUGHPUT


class UplinkMeasure:
    """By their reports."""

    def __init__(self) -> None:
        self._reports: list[tuple[int, float]] = []
        """Bytes and seconds."""

    def note(self, payload: bytes, parts: tuple[Part, ...]) -> None:
        """A reducer reports how fast it got the first of these parts. Impossible values are ignored."""
        num_bytes, seconds = THROUGHPUT.unpack(payload) if len(payload) == THROUGHPUT.size else (0, 0.0)
        if 0 < num_bytes <= sum(part.num_sent_bytes for part in parts) and 0 < seconds < math.inf:
            self._reports.append((num_bytes, seconds))

    @property
    def bytes_per_second(self) -> float:
        """All that arrived over the time that a way took: the ways share the uplink, and are used at once. The median way
        counts, the faster of two, so that no reducer alone makes this host seem slow."""
        if not self._reports:
            return 0.0
        seconds = median_low(seconds for _, seconds in self._reports)
        return sum(num_bytes for num_bytes, _ in self._reports) / seconds
