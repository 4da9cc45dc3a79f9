"""The fetches of others' states by one process of a simulated machine, from the first living donor."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from adloco_p2p.core.model.effects import FetchState
from adloco_p2p.core.model.events import FetchFailed, StateFetched, StateServed
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.sim.process import Process

if TYPE_CHECKING:
    from adloco_p2p.sim.machine import Machine

Offer = tuple[Process, object]
REFUSAL_SECONDS = 0.5
"""The time after which a fetch without a donor fails."""


class StateFetches:
    """The fetches of one process, whose ends come back as its events, except that of a fetch which a newer one of the instance
    replaced."""

    def __init__(self, machine: "Machine", process: Process) -> None:
        self._machine = machine
        self._process = process
        self._around = machine.around
        self._newest: dict[InstanceId, FetchState] = {}

    def begin(self, effect: FetchState) -> None:
        self._newest[effect.instance] = effect
        around = self._around
        offers = list(self._offers(effect))
        donors = [donor.me for donor, _ in offers]
        seconds = around.links.fetch(self._machine.peer, donors or effect.from_peers) + around.network.delay_seconds()
        self._machine.fetch_seconds = max(self._machine.fetch_seconds, seconds)
        around.queue.after(seconds, self._end, effect, offers)

    def cancel(self, instance: InstanceId) -> None:
        self._newest.pop(instance, None)

    def _end(self, effect: FetchState, begun: Sequence[Offer]) -> None:
        """End a fetch. `begun` are the donors that served the state when it began, which keep the state until its end."""
        process, queue = self._process, self._around.queue
        if self._newest.get(effect.instance) is not effect or not process.is_alive:
            return
        if self._machine.waits_for_thaw(self._end, effect, begun):
            return
        offers = (*(offer for offer in begun if self._is_reached(offer[0])), *self._offers(effect))
        if offers:
            served = StateServed(instance=effect.instance, round=effect.round, peer=self._machine.peer)
            for donor in dict.fromkeys(donor for donor, _ in offers):  # every donor learns that the state is here
                queue.after(0.0, self._around.machines[donor.me].feed, served, donor)
            queue.at(max(process.device_free_at, queue.now), self._adopt, effect, offers[0][1])
            return
        failed = FetchFailed(instance=effect.instance, round=effect.round, reason="no donor")
        queue.after(REFUSAL_SECONDS, self._machine.feed, failed, process)

    def _offers(self, effect: FetchState) -> Iterator[Offer]:
        """Yield the donors that serve the state and can be reached now, in order, each with the state."""
        for peer in effect.from_peers:
            donor = self._around.machines.get(peer)
            if donor is not None and donor.process is not None and self._is_reached(donor.process):
                offers = donor.process.offers.get(effect.instance, {}).values()
                yield from ((donor.process, state) for digest, state in offers if digest == effect.digest)

    def _is_reached(self, donor: Process) -> bool:
        machine = self._around.machines[donor.me]
        is_here = machine.process is donor and machine.is_responsive
        return is_here and self._around.network.are_connected(self._machine.peer, donor.me)

    def _adopt(self, effect: FetchState, state: object) -> None:
        """Load the state on the device when its turn comes."""
        if self._process.has_crashed:
            return
        self._process.device.adopt(effect.instance, state)
        if self._machine.state_since is None:
            self._machine.state_since = self._around.queue.now
        self._process.offer(effect.instance, effect.round)
        fetched = StateFetched(instance=effect.instance, round=effect.round, digest=effect.digest)
        self._machine.feed(fetched, self._process)
