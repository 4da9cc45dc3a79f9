"""Traffic of the links of simulated machines beside messages, vectors and states, and its duration."""

from collections.abc import Mapping, Sequence
from random import Random

from adloco_p2p.core.model.averages import Average
from adloco_p2p.core.model.scalars import PeerId

VECTOR_BYTES = 400_000
"""Bytes of one pseudo-gradient on the wire."""
STATE_BYTES = 400_000
LONE_SECONDS = 0.01
"""What an average takes a host that has the instance for itself."""


class Links:
    """One link per machine, as fast up as down."""

    vector_bytes = VECTOR_BYTES
    have_deadlines = True
    """Members give an average up after the time that their peers allow it."""

    def __init__(self, *, uplink: float, rates: Mapping[PeerId, float], random: Random) -> None:
        """`uplink`: bytes per second of each machine, but for those that have other `rates`."""
        self._uplink, self._rates = uplink, rates
        self._random = random

    @property
    def are_rated(self) -> bool:
        """Whether rates are stated. Only then averages take what the rates give, and slow links are judged."""
        return bool(self._rates)

    def rate(self, peer: PeerId) -> float:
        """Bytes per second."""
        return self._rates.get(peer, self._uplink)

    def vector_seconds(self, peer: PeerId) -> float:
        """That a vector takes on the machine's link."""
        return self.vector_bytes / self.rate(peer)

    def num_bytes(self, effect: Average, peer: PeerId) -> int:
        """That a member sends, and receives: see `reduction_shares`."""
        num_members = len(effect.weights)
        fraction = effect.shares[list(dict(effect.weights)).index(peer)] if effect.shares else 1 / num_members
        return round(self.vector_bytes * (1 + (num_members - 2) * fraction))

    def exchange(self, peer: PeerId, effect: Average, average: object) -> float:
        """Seconds until this member has the average, from when all have joined. Links whose rates are stated take what
        `reduction_shares` gives."""
        del peer, average
        if len(effect.weights) == 1:
            return LONE_SECONDS
        if not self._rates:
            return self.vector_bytes / self._uplink * self._random.uniform(1.0, 2.0)
        links = [self.rate(member) for member, _ in effect.weights]
        return self.vector_bytes * max(1 / min(links), 2 * (len(links) - 1) / sum(links))

    def fetch(self, peer: PeerId, donors: Sequence[PeerId]) -> float:
        """Seconds until the peer has a state of one of the donors."""
        del peer, donors
        return STATE_BYTES / self._uplink
