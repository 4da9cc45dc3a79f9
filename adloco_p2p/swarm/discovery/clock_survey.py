"""The comparison of this machine's clock with those of other peers. No run depends on it, but readers of logs do. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.swarm.discovery.reachability import ClockReading

MAX_OFFSET_SECONDS = 60.0
"""A larger offset is reported to the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockSurvey:
    """The offsets of other clocks from ours, positive where theirs are ahead."""

    offset_seconds: float
    """The median offset."""
    uncertainty_seconds: float
    """Half the longest round trip; the true offset differs by at most this."""
    peers: tuple[PeerId, ...]
    offsets_seconds: tuple[float, ...]
    """The offset of each of `peers`."""

    @property
    def is_off(self) -> bool:
        """Whether the offset exceeds MAX_OFFSET_SECONDS beyond its uncertainty."""
        return abs(self.offset_seconds) - self.uncertainty_seconds > MAX_OFFSET_SECONDS

    @property
    def in_words(self) -> str:
        side = "behind" if self.offset_seconds > 0 else "ahead of"
        whose = f"the median of {len(self.peers)} others" if len(self.peers) > 1 else "the clock of the one other that answered"
        seconds = f"{abs(self.offset_seconds):.1f} s (give or take {self.uncertainty_seconds:.2f} s)"
        return f"this machine's clock is {seconds} {side} {whose}"


def survey(readings: Mapping[PeerId, ClockReading]) -> ClockSurvey:
    """Survey at least one reading."""
    assert readings
    peers: Sequence[PeerId] = sorted(readings)
    offsets = tuple(readings[peer].offset_seconds for peer in peers)
    return ClockSurvey(
        offset_seconds=median(offsets),
        uncertainty_seconds=max(readings[peer].round_trip_seconds for peer in peers) / 2,
        peers=tuple(peers),
        offsets_seconds=offsets,
    )
