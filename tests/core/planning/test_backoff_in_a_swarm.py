"""A host with which no average succeeds, in a whole swarm: what it costs the others, and what becomes of it when they die."""

from dataclasses import replace

import pytest

from adloco_p2p.core.model.averages import Average
from adloco_p2p.core.model.effects import RunInner
from adloco_p2p.core.model.events import AverageFailed
from adloco_p2p.core.model.rules import InstanceRules
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.model.telemetry import AverageRetried, Log
from adloco_p2p.sim.device import HashDevice
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.identities import name_of
from adloco_p2p.sim.machine import Machine
from adloco_p2p.sim.process import Process
from adloco_p2p.sim.world import Parts, World, small_rules


class FailingWorld(World):
    """No average of several succeeds with the last founder among its members."""

    def __init__(self, peers: int, rounds: int) -> None:
        self.worked: list[tuple[PeerId, int]] = []
        """Who trained in which round, as it happens."""
        self.faulty = name_of(peers - 1)
        worked = self.worked

        class Noting(HashDevice):
            def pseudo_gradient(self, effect: RunInner) -> object:
                worked.append((self._traits.peer, effect.round))
                return super().pseudo_gradient(effect)

        rules = replace(small_rules(peers, rounds), instances=InstanceRules(count=1, start="same"))
        calm = Faults(faults_end_at=0.0)
        super().__init__(0, peers=peers, rounds=rounds, faults=calm, rules=rules, parts=Parts(device=Noting))
        self._honest_join = self._around.averaging.join
        self._around.averaging.join = self.join  # type: ignore[method-assign]

    def join(self, machine: Machine, process: Process, effect: Average, contribution: object) -> None:
        if self.faulty not in dict(effect.weights) or len(effect.weights) == 1:
            self._honest_join(machine, process, effect, contribution)
            return
        suspects = () if machine.peer == self.faulty else (self.faulty,)
        failed = AverageFailed(asked=effect, reason="failed", suspects=suspects)
        self.queue.after(0.5, machine.feed, failed, process)

    @property
    def tried(self) -> list[int]:
        """Rounds in which the faulty one trained."""
        return [number for name, number in self.worked if name == self.faulty]


def test_a_host_that_fails_every_average_costs_an_attempt_in_ten_rounds_of_forty_eight() -> None:
    world = FailingWorld(4, 48)
    retried: dict[int, None] = {}
    logged = world.checkers.logged

    def note(peer: PeerId, log: Log) -> None:
        logged(peer, log)
        if isinstance(log, AverageRetried):
            retried[log.round] = None

    world.checkers.logged = note  # type: ignore[method-assign]
    world.run()
    assert world.tried == list(retried) == [0, 1, 2, 3, 8, 9, 18, 19, 36, 37]


@pytest.mark.parametrize("peers", [2, 3])
def test_where_all_that_train_die_while_a_host_is_in_backoff_it_goes_on_alone(peers: int) -> None:
    world = FailingWorld(peers, 16)
    while not any(number == 5 and name != world.faulty for name, number in world.worked):
        world.queue.step()
    for name, machine in world.machines.items():
        if name != world.faulty:
            machine.is_gone = True
            machine.crash("for good")
    world.run()
    assert world.tried[:4] == [0, 1, 2, 3]
    assert not {4, 5} & {*world.tried}
    assert world.tried[-1] == 15
