"""A process that is killed and started again at once: the others do not even notice, and are not held up."""

import itertools
from dataclasses import replace

import pytest

from adloco_p2p.core.model.rules import InstanceRules
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.model.telemetry import Log, Round
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.identities import name_of
from adloco_p2p.sim.world import World, small_rules

LONGEST_GAP_SECONDS = 10.0
"""Of a round that comes and goes: the others train it, an attempt times out, and the restarted one takes what it has missed."""


@pytest.mark.parametrize("moment", [4.1 + 0.55 * step for step in range(4)])
@pytest.mark.parametrize("away_seconds", [0.05, 1.3])
@pytest.mark.parametrize("peers", [2, 3])
def test_a_peer_that_is_restarted_holds_nobody_up(peers: int, away_seconds: float, moment: float) -> None:
    rules = replace(small_rules(peers, 10), instances=InstanceRules(count=1, start="same"))
    world = World(round(100 * moment), peers=peers, rounds=10, faults=Faults(faults_end_at=0.0), rules=rules)
    world._around.on_crash = lambda machine: world.queue.after(away_seconds, machine.boot)
    ends: list[float] = []
    logged = world.checkers.logged

    def note(peer: PeerId, log: Log) -> None:
        logged(peer, log)
        if peer == name_of(0) and isinstance(log, Round):
            ends.append(world.time)

    world.checkers.logged = note  # type: ignore[method-assign]
    world.queue.at(moment, world.machines[name_of(1)].crash, "at once")
    world.run()
    assert world.machines[name_of(1)].life == 2
    assert max(after - before for before, after in itertools.pairwise(ends)) < LONGEST_GAP_SECONDS
