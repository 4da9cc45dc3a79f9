"""A possible merge is measured by hosts that do not train all of its sources: they fetch what they lack."""

import pytest

from adloco_p2p.core.model.events import FetchState
from adloco_p2p.core.model.types import Capacity, PeerId
from tests.core.partitioned_world import PartitionedWorld
from tests.core.peer.test_peer import PEER0, finished, rules, same_states


@pytest.mark.parametrize("seed", range(2))
def test_hosts_of_one_instance_each_measure_and_merge(seed: int) -> None:
    capacity = Capacity(samples_per_second=0.0, micro_batch_limit=8, max_instances=1)
    world = PartitionedWorld(
        rules=rules(rounds=12, count=2, period=4, guard=True), num_peers=4, seed=seed, merged_loss=1.0, capacity=capacity
    )
    fetched: list[tuple[PeerId, int]] = []

    def note(peer: PeerId, effect: object) -> None:
        if isinstance(effect, FetchState):
            fetched.append((peer, effect.round))

    world.on_effect = note
    world.run(until=1000.0)
    assert all(finished(host) for host in world.hosts.values())
    merge, probe = world.logged(PEER0, "merge")[0], world.logged(PEER0, "probe")
    assert min(merge["weights"]) > 0
    measured = {name: [log["round"] for log in world.logged(name, "probe")] for name in world.hosts}
    probers = [name for name, numbers in measured.items() if merge["round"] - 2 in numbers]
    assert probers, probe
    assert all((name, merge["round"] - 1) in fetched for name in probers)
    same_states(world)
