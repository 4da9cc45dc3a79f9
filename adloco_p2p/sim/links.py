"""The links of simulated machines: the bytes and the durations of averages and of fetched states."""

from collections.abc import Mapping, Sequence
from random import Random

from adloco_p2p.core.model.averages import Average
from adloco_p2p.core.model.scalars import PeerId

VECTOR_BYTES = 400_000
"""The bytes of one pseudo-gradient on the wire."""
STATE_BYTES = 400_000
LONE_SECONDS = 0.01
"""The duration of an average on a host that has the instance for itself."""


class Links:
    """The links of all machines, one each, as fast up as down."""

    vector_bytes = VECTOR_BYTES
    have_deadlines = True
    """Whether members give up an average after the timeout that their peer sets."""

    def __init__(self, *, uplink: float, rates: Mapping[PeerId, float], random: Random) -> None:
        """`uplink` is the bytes per second of each machine, except those with other `rates`."""
        self._uplink, self._rates = uplink, rates
        self._random = random

    @property
    def are_rated(self) -> bool:
        """Whether rates are stated. Only then do averages take as long as the rates give, and are slow links judged."""
        return bool(self._rates)

    def rate(self, peer: PeerId) -> float:
        """Return the bytes per second of the machine's link."""
        return self._rates.get(peer, self._uplink)

    def vector_seconds(self, peer: PeerId) -> float:
        """Return the seconds that a vector takes on the machine's link."""
        return self.vector_bytes / self.rate(peer)

    def repair_seconds(self, peer: PeerId) -> float:
        """Return the seconds in which the machine fetches an average that others made."""
        return self.vector_seconds(peer)

    def num_bytes(self, effect: Average, peer: PeerId) -> int:
        """Return the bytes that a member sends, and receives, in an average; see `reduction_shares`."""
        num_members = len(effect.weights)
        fraction = effect.shares[list(dict(effect.weights)).index(peer)] if effect.shares else 1 / num_members
        return round(self.vector_bytes * (1 + (num_members - 2) * fraction))

    def exchange(self, peer: PeerId, effect: Average, average: object) -> float:
        """Return the seconds from the last join until this member has the average; for stated rates, the time that
        `reduction_shares` aims at."""
        del peer, average
        if len(effect.weights) == 1:
            return LONE_SECONDS
        if not self._rates:
            return self.vector_bytes / self._uplink * self._random.uniform(1.0, 2.0)
        links = [self.rate(member) for member, _ in effect.weights]
        return self.vector_bytes * max(1 / min(links), 2 * (len(links) - 1) / sum(links))

    def fetch(self, peer: PeerId, donors: Sequence[PeerId]) -> float:
        """Return the seconds until the peer has a state from one of the donors."""
        del peer, donors
        return STATE_BYTES / self._uplink
