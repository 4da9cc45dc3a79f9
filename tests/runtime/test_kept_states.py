"""What a lost history trained, with real tensors: set aside, fetched by the hosts that won, and merged."""

import asyncio
import queue
from collections.abc import Iterator

import pytest
import torch

from adloco_p2p.core.model.branches import FIRST_BRANCH_ID
from adloco_p2p.core.model.effects import (
    ApplyOuter,
    DeviceEffect,
    FetchState,
    ReleaseState,
    RunInner,
    SnapshotState,
    Transition,
)
from adloco_p2p.core.model.events import Event, StateKept
from adloco_p2p.core.model.lineage import Merge
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.errors import StateTransferFailed
from adloco_p2p.runtime.node.device_worker import DeviceWorker
from adloco_p2p.swarm.in_memory import MemoryPort, MemorySwarm
from adloco_p2p.training.hosting import Hosting
from tests.runtime.fakes import FakeAverage
from tests.training.small_run import ONE, effect, hosting

WAIT_LIMIT_SECONDS = 240.0
BRANCH, OTHER_BRANCH = InstanceId(FIRST_BRANCH_ID + 7), InstanceId(FIRST_BRANCH_ID + 8)
State = tuple[torch.Tensor, torch.Tensor]


class NoCheckpoints:
    """Nothing is saved here."""


class Device:
    """One host: its worker on its own instances, and its place in the swarm."""

    def __init__(self, name: str, swarm: MemorySwarm) -> None:
        self.port: MemoryPort = swarm.port(PeerId(name))
        self.port.listen(lambda sender, message: None)
        self.engine: Hosting = hosting()
        self.engine.start([ONE])
        self.events: queue.Queue[Event | BaseException] = queue.Queue()
        self.worker = DeviceWorker(
            engine=self.engine,
            checkpoints=NoCheckpoints(),  # type: ignore[arg-type]
            states=self.port,
            post=self.events.put,
            progress=lambda fields: None,
        )
        self.worker.start()

    def does(self, asked: DeviceEffect) -> Event:
        """Perform the effect to its end."""
        self.worker.submit(asked)
        event = self.events.get(timeout=WAIT_LIMIT_SECONDS)
        assert not isinstance(event, BaseException), event
        return event

    def trains(self, work: RunInner) -> None:
        """A round of a lonely host."""
        self.does(work)
        average = self.worker.pseudo_gradient(work.plan.instance, work.round).clone()
        self.worker.put_average(work.plan.instance, work.round, FakeAverage(average))
        self.does(ApplyOuter(instance=work.plan.instance, round=work.round))

    def keeps(self, copy: InstanceId, *, of: InstanceId, boundary: int) -> Digest:
        event = self.does(SnapshotState(instance=of, copy=copy, round=boundary))
        assert isinstance(event, StateKept) and (event.instance, event.round) == (copy, boundary)
        return event.digest

    def fetches(self, instance: InstanceId, boundary: int, digest: Digest, *donors: "Device") -> None:
        """As the node does: verified by the digest, then adopted."""
        peers = tuple(donor.port.me for donor in donors)
        asked = FetchState(instance=instance, round=boundary, digest=digest, from_peers=peers)
        outer, momentum = asyncio.run(self.port.fetch(asked))
        self.engine.adopt(instance, outer, momentum)

    def stands(self) -> State:
        outer, momentum = self.engine.state(ONE)
        return outer, momentum


@pytest.fixture
def swarm() -> MemorySwarm:
    return MemorySwarm()


@pytest.fixture
def devices(swarm: MemorySwarm) -> Iterator[dict[str, Device]]:
    made = {name: Device(name, swarm) for name in ("winner", "other winner", "loser", "other loser")}
    yield made
    for device in made.values():
        assert device.worker.stop(timeout_seconds=WAIT_LIMIT_SECONDS)


def test_a_lost_state_is_merged_by_weight_on_every_host(swarm: MemorySwarm, devices: dict[str, Device]) -> None:
    winner, other, loser, second = devices.values()
    winners = (winner, other)
    for round in range(4):
        for device in winners:
            device.trains(effect(round=round))
        if round < 3:
            loser.trains(effect(round=round, first_sample=1000 * (round + 1)))
        if round < 2:
            second.trains(effect(round=round, first_sample=5000 * (round + 1)))
    won, lost, lost_too = winner.stands(), loser.stands(), second.stands()
    assert not torch.equal(won[0], lost[0]) and float(lost[1].norm()) > 0

    kept = loser.keeps(BRANCH, of=ONE, boundary=3)
    assert kept == loser.engine.digests(ONE)[1]
    kept_too = second.keeps(OTHER_BRANCH, of=ONE, boundary=2)
    for device in (loser, second):  # they take the winning history over, and train in it: the copy stays as it was
        device.fetches(ONE, 4, winner.engine.digests(ONE)[1], *winners)
        device.trains(effect(round=4))
    for device in winners:
        device.trains(effect(round=4))
    won = winner.stands()

    winner.fetches(BRANCH, 3, kept, loser)
    assert winner.keeps(BRANCH, of=BRANCH, boundary=3) == kept
    swarm.cut[loser.port.me] = None  # whoever fetched it serves it on
    other.fetches(BRANCH, 3, kept, loser, winner)
    for device in (winner, other, loser):
        device.fetches(OTHER_BRANCH, 2, kept_too, second)
    second.fetches(BRANCH, 3, kept, loser, winner)

    weights = (0.5, 0.3, 0.2)
    merge = Merge(sources=(ONE, BRANCH, OTHER_BRANCH), target=ONE, weights=weights, reason="test")
    everybody = tuple(devices.values())
    loser.fetches(ONE, 5, winner.engine.digests(ONE)[1], winner)  # hosts of an instance stand at one boundary
    second.fetches(ONE, 5, winner.engine.digests(ONE)[1], winner)
    for device in everybody:
        device.does(Transition(round=5, forks=(), merges=(merge,)))
    for number in range(2):  # outer parameters, and momentum
        by_hand = sum(w * s[number].double() for w, s in zip(weights, (won, lost, lost_too), strict=True))
        for device in everybody:
            torch.testing.assert_close(device.stands()[number].double(), by_hand, rtol=0, atol=1e-7)
    assert len({device.engine.digests(ONE) for device in everybody}) == 1
    assert all(device.engine.hosted == (ONE,) for device in everybody)
    for device in everybody:
        device.trains(effect(round=5))  # from the merged parameters on
    assert winner.engine.digests(ONE) == other.engine.digests(ONE)


def test_what_is_forgotten_is_served_no_more(swarm: MemorySwarm, devices: dict[str, Device]) -> None:
    winner, _, loser, _ = devices.values()
    loser.trains(effect())
    kept = loser.keeps(BRANCH, of=ONE, boundary=1)
    loser.worker.submit(ReleaseState(instance=BRANCH))
    loser.trains(effect(round=1))  # done after it
    assert loser.engine.hosted == (ONE,)
    with pytest.raises(StateTransferFailed):
        winner.fetches(BRANCH, 1, kept, loser)
