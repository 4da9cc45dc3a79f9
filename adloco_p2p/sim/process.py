"""One process of a simulated machine: everything that a crash ends."""

from adloco_p2p.core.agreement.gossip_agreement import GossipAgreement
from adloco_p2p.core.model.averages import results_kept
from adloco_p2p.core.model.effects import Stop
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.core.peer.peer import Peer
from adloco_p2p.sim.averaging import AverageBuffers
from adloco_p2p.sim.device import Device

STATES_OFFERED = 2
"""The number of boundaries of an instance whose states are served."""


class Process:
    """A peer, its agreement and its device, with the data that they hold in memory and serve to others."""

    def __init__(self, me: PeerId, peer: Peer, agreement: GossipAgreement, device: Device, buffers: AverageBuffers) -> None:
        self.me = me
        self.peer = peer
        self.agreement = agreement
        self.device = device
        self.buffers = buffers
        self.is_alive = True
        """Whether the process has neither crashed nor stopped."""
        self.has_crashed = False
        self.stop: Stop | None = None
        self.stopped_at = 0.0
        self.contributions: dict[tuple[InstanceId, int], object] = {}
        self.trained: dict[tuple[InstanceId, int], int] = {}
        """The samples of the inner steps of each round whose contribution this process can show."""
        self.carried: set[tuple[InstanceId, int]] = set()
        """The rounds whose inner steps are part of the next contribution."""
        self.averagings: dict[tuple[InstanceId, int, int], object] = {}
        """The attempts and repairs under way."""
        self.decisions: set[Digest] = set()
        """The decisions of attempts that this process can complete."""
        self.served_averages: dict[tuple[InstanceId, int], dict[Digest, object]] = {}
        self.offers: dict[InstanceId, dict[int, tuple[Digest, object]]] = {}
        self.device_free_at = 0.0
        self.tick_at: float | None = None

    def shown_samples(self, instance: InstanceId, number: int) -> float:
        """Return the samples of the contribution to this round's average, per round that it spans; 0 if none can be shown."""
        first = number
        while (instance, first - 1) in self.carried:
            first -= 1
        return self.trained.get((instance, number), 0) / (number - first + 1)

    def serve_average(self, instance: InstanceId, number: int, average: object) -> None:
        num_served = results_kept(self.peer.cadence.work.rounds_kept)
        self.served_averages.setdefault((instance, number), {})[self.device.average_digest(average)] = average
        for key in [key for key in self.served_averages if key[0] == instance and key[1] <= number - num_served]:
            del self.served_averages[key]

    def offer(self, instance: InstanceId, boundary: int) -> Digest:
        """Serve the instance's present state as that of the boundary."""
        offers, digest = self.offers.setdefault(instance, {}), self.device.digests(instance)[1]
        for other in [other for other, (root, _) in offers.items() if other == boundary or root == digest]:
            del offers[other]  # a void round does not change the state
        offers[boundary] = (digest, self.device.state(instance))
        for older in list(offers)[:-STATES_OFFERED]:
            del offers[older]
        return digest

    def keep_newest(self, instance: InstanceId) -> None:
        """Serve only the newest state, because an average begins."""
        offers = self.offers.get(instance, {})
        for older in list(offers)[:-1]:
            del offers[older]

    def forget(self, instance: InstanceId) -> None:
        """Drop an instance. Its offered state is still served, because hosts that are a little behind may need it."""
        self.contributions = {key: held for key, held in self.contributions.items() if key[0] != instance}
        self.buffers.forget(instance)
