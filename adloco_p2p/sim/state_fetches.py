"""States of others, as one life of a simulated machine fetches them: from the first donor that still serves the digest."""

from typing import TYPE_CHECKING

from adloco_p2p.core.model.events import FetchFailed, FetchState, StateFetched, StateServed
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.sim.process import Process

if TYPE_CHECKING:
    from adloco_p2p.sim.machine import Machine

STATE_BYTES = 400_000
REFUSAL_SECONDS = 0.5
"""A fetch without a donor fails after so long."""


class StateFetches:
    """Ends come back as events of the process. A fetch that another one of the instance follows ends unheard."""

    def __init__(self, machine: "Machine", process: Process) -> None:
        self._machine = machine
        self._process = process
        self._around = machine.around
        self._newest: dict[InstanceId, FetchState] = {}

    def begin(self, effect: FetchState) -> None:
        self._newest[effect.instance] = effect
        around = self._around
        seconds = STATE_BYTES / around.faults.uplink_bytes_per_second + around.network.delay_seconds()
        around.queue.after(seconds, self._end, effect)

    def cancel(self, instance: InstanceId) -> None:
        self._newest.pop(instance, None)

    def _end(self, effect: FetchState) -> None:
        process, queue = self._process, self._around.queue
        if self._newest.get(effect.instance) is not effect or not process.is_alive:
            return
        if self._machine.waits_for_thaw(self._end, effect):
            return
        for peer in effect.from_peers:
            donor = self._around.machines.get(peer)
            if donor is None or donor.process is None or not donor.is_responsive:
                continue
            offers = donor.process.offers.get(effect.instance, {}).values()
            offer = next((offer for offer in offers if offer[0] == effect.digest), None)
            if offer is not None and self._around.network.are_connected(self._machine.peer, peer):
                served = StateServed(instance=effect.instance, round=effect.round)
                queue.after(0.0, donor.feed, served, donor.process)
                queue.at(max(process.device_free_at, queue.now), self._adopt, effect, offer[1])
                return
        failed = FetchFailed(instance=effect.instance, round=effect.round, reason="no donor")
        queue.after(REFUSAL_SECONDS, self._machine.feed, failed, process)

    def _adopt(self, effect: FetchState, state: object) -> None:
        """On the device, in order."""
        if self._process.has_crashed:
            return
        self._process.device.adopt(effect.instance, state)
        fetched = StateFetched(instance=effect.instance, round=effect.round, digest=effect.digest)
        self._machine.feed(fetched, self._process)
