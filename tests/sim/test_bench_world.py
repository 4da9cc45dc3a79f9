"""Whole peers take turns: nine of them, and work for four at a time."""

from dataclasses import replace

from adloco_p2p.core.model.effects import RunInner
from adloco_p2p.core.model.rules import BatchRules, InstanceRules, WorkRules
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.sim.device import HashDevice
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.world import Parts, World, small_rules

PEERS, PLACES, ROUNDS = 9, 4, 14


def played(seed: int, faults: Faults) -> tuple[World, list[tuple[PeerId, int]]]:
    """The world at its end, and who trained in which round."""
    worked: list[tuple[PeerId, int]] = []

    class Noting(HashDevice):
        def pseudo_gradient(self, effect: RunInner) -> object:
            worked.append((self._traits.peer, effect.round))
            return super().pseudo_gradient(effect)

    rules = replace(
        small_rules(PEERS, ROUNDS),
        work=WorkRules(rounds=ROUNDS, inner_steps=4, turn_rounds=3),
        instances=InstanceRules(count=1, start="same"),
        batch=BatchRules(initial_batch=PLACES, max_batch=PLACES),
    )
    world = World(seed, peers=PEERS, rounds=ROUNDS, faults=faults, rules=rules, parts=Parts(device=Noting))
    world.run()
    return world, worked


def test_all_train_in_turn_and_those_that_wait_outrun_nobody() -> None:
    """Peers on the bench report at the beginning of a round, and are most of the electors: plans wait for the hosts all the
    same. All hold the state, so four work in every round, and everybody ends with the model."""
    world, worked = played(0, Faults(faults_end_at=0.0))
    for number in range(ROUNDS):
        there = [peer for peer, trained in worked if trained == number]
        assert len(there) == len({*there}) == PLACES
    assert {peer for peer, _ in worked} == {*world.machines}
    for machine in world.machines.values():
        assert machine.disk.durable is not None and machine.disk.durable.held


def test_turns_go_on_while_hosts_crash_and_peers_come_and_go() -> None:
    _, worked = played(1, Faults(crashes=2, joins=2, leaves=1, loss=0.05, faults_end_at=15.0))
    assert {number for _, number in worked} == {*range(ROUNDS)}
