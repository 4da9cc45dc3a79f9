"""What a simulated message weighs is what its canonical bytes do."""

from random import Random

import pytest

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.messages import Entries
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.sim.event_queue import EventQueue
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.network import Network
from adloco_p2p.sim.world import World

FAULTS = Faults(faults_end_at=0.0)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_entries_that_are_measured_one_by_one_weigh_what_the_message_does(count: int) -> None:
    world = World(1, peers=3, rounds=4, faults=FAULTS)
    world.run()
    message = Entries(entries=tuple(world.ledger()[:count]))
    network = Network(EventQueue(), random=Random(0), faults=FAULTS, deliver=lambda *arrived: None)
    network.send(PeerId("a"), [PeerId("b"), PeerId("c")], message)
    assert network.bytes == {PeerId("a"): 2 * canonical.size(message)}
