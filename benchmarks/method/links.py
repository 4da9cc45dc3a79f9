"""The links of a profile (`benchmarks/method/clock.py`) in the simulated world, and their traffic."""

from collections.abc import Mapping, Sequence
from math import inf
from random import Random
from typing import TYPE_CHECKING

from adloco_p2p.core.model.averages import Average
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.sim.event_queue import EventQueue
from adloco_p2p.sim.links import Links
from benchmarks.method.clock import Profile, transferred

if TYPE_CHECKING:
    from benchmarks.method.device import Mean


class ProfileLinks(Links):
    """Links on which averages and states take the time of the profile."""

    def __init__(
        self, profile: Profile, queue: EventQueue, *, places: Mapping[PeerId, int], have_deadlines: bool = False
    ) -> None:
        """`places`: 0 for the first host, and so on."""
        link = profile.link
        super().__init__(uplink=link.bits_per_second * link.efficiency / 8, rates={}, random=Random(0))
        self.vector_bytes, self.have_deadlines = round(profile.payload_bytes), have_deadlines
        self._profile = profile
        self._queue = queue
        self._places = places
        self.num_parameters = 0
        """P, set with the first device."""
        self._uplink_free: dict[int, float] = {}
        """When each island's uplink has carried the states that others fetch."""
        self._sent: list[tuple[float, float]] = []
        """Instants and bytes sent: pseudo-gradients in float32 and fetched states; messages are not counted."""
        self.averaged_at: dict[int, float] = {}
        """When the last average of each round was there."""

    def bytes_per_peer(self, *, before: float = inf) -> float:
        """Return the bytes that a peer has sent, on average."""
        return sum(num_bytes for at, num_bytes in self._sent if at < before) / len(self._places)

    def exchange(self, peer: PeerId, effect: Average, average: "Mean") -> float:  # type: ignore[override]
        del peer
        now, size, members = self._queue.now, average.vector.numel(), [self._places[peer] for peer, _ in effect.weights]
        seconds = self._profile.averaging(size / self.num_parameters * self._profile.payload_bytes, members)
        self._sent.append((now, transferred(4 * size, len(members))))
        self.averaged_at[effect.round] = max(now + seconds, self.averaged_at.get(effect.round, 0.0))
        return seconds

    def fetch(self, peer: PeerId, donors: Sequence[PeerId]) -> float:
        """Fetch from the own island, where one of the donors is there; otherwise after the states that wait for the first
        donor's uplink."""
        profile, now = self._profile, self._queue.now
        self._sent.append((now, 8 * self.num_parameters))  # its donor's, on average the same: parameters, momentum
        islands = profile.islands
        if islands is None or islands.island_of(self._places[peer]) in {islands.island_of(self._places[one]) for one in donors}:
            return profile.link.transfer(profile.state_bytes) + profile.link.latency_seconds
        island = islands.island_of(self._places[donors[0]])
        end = max(now, self._uplink_free.get(island, 0.0)) + islands.uplink.transfer(profile.state_bytes)
        self._uplink_free[island] = end
        return end - now + islands.uplink.latency_seconds
