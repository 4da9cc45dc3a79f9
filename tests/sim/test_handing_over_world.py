"""A founder leaves while newcomers that are to take over are still fetching the state: the run goes on with what it had."""

import pytest

from adloco_p2p.core.model.effects import FetchState
from adloco_p2p.core.model.events import Commanded, StateServed
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.links import STATE_BYTES
from adloco_p2p.sim.machine import Machine
from adloco_p2p.sim.state_fetches import StateFetches
from adloco_p2p.sim.world import World, rules_of_one

ROUNDS = 8
RULES = rules_of_one(ROUNDS, probation_rounds=0)


def drained(seed: int, *, transfer_seconds: float, at: float, founders: int = 1) -> World:
    """Founders that all leave, and three newcomers that came in their second round. A round takes ten seconds."""
    faults = Faults(uplink_bytes_per_second=STATE_BYTES / transfer_seconds, faults_end_at=20.0)
    world = World(seed, peers=founders, rounds=ROUNDS, faults=faults, round_seconds=10.0, rules=RULES)
    world.limit_seconds = 900.0
    machines = list(world.machines.values())
    for number in range(3):
        world.queue.at(12.0 + 0.1 * number, world._join)
    for founder in machines:
        world.queue.at(at, _leave, founder)
    return world


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("at", [32.0, 35.0])
def test_two_hosts_that_end_with_one_round_do_not_rely_on_each_other(seed: int, at: float) -> None:
    """Both end it within the time that a message takes. In three of these worlds both were gone with the only copies."""
    world = drained(seed, transfer_seconds=14.0, at=at, founders=2)
    assert seconds_to_the_end(world) < 300.0


def _leave(founder: Machine) -> None:
    founder.is_gone = True
    founder.command(Commanded(command="drain"))


def seconds_to_the_end(world: World) -> float:
    """Which all that stay must reach: the checkers of the world see to that."""
    world.run()
    return world.time


@pytest.mark.parametrize("seed", range(3, 7))
@pytest.mark.parametrize("at", [26.0, 32.0])
def test_a_host_stays_as_long_as_the_others_are_still_fetching_the_state(seed: int, at: float) -> None:
    assert seconds_to_the_end(drained(seed, transfer_seconds=14.0, at=at)) < 300.0


@pytest.mark.parametrize("seed", range(3, 7))
@pytest.mark.parametrize("at", [26.0, 32.0])
def test_one_heir_that_claims_to_have_the_state_lets_nobody_go(seed: int, at: float, monkeypatch: pytest.MonkeyPatch) -> None:
    world = drained(seed, transfer_seconds=14.0, at=at)
    begin = StateFetches.begin
    claimed: list[PeerId] = []

    def begins(self: StateFetches, effect: FetchState) -> None:
        liar = list(world.machines.values())[1]
        if self._machine is not liar:
            begin(self, effect)
            return
        liar.is_gone = True  # nobody expects it at the end
        for donor in effect.from_peers:
            served = StateServed(instance=effect.instance, round=effect.round, peer=liar.peer)
            world.queue.after(0.0, world.machines[donor].feed, served, world.machines[donor].process)
            claimed.append(donor)

    monkeypatch.setattr(StateFetches, "begin", begins)
    assert seconds_to_the_end(world) < 600.0  # at the end of the run the others wait five minutes for it
    assert claimed
