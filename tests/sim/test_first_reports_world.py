"""Reports that come first are not all reports: what a minority reports before the others replaces nobody's state."""

from random import Random

import pytest

from adloco_p2p.core.model.effects import ApplyOuter
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.sim.device import DeviceTraits, HashDevice, hashed
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.identities import name_of
from adloco_p2p.sim.world import Parts, World, rules_of_one

LIE_ROUND = 5
INSTANCE, LIE = InstanceId(0), hashed("a lie")


def world_of(seed: int, *, peers: int, liars: set[int], slow: set[int]) -> World:
    """The liars report one state of their own after a round; each short job of the slow hosts takes 4 s, so that their reports
    come late."""
    lying, late = ({name_of(number) for number in numbers} for numbers in (liars, slow))

    def device(traits: DeviceTraits, random: Random) -> HashDevice:
        made = Liar(traits, random) if traits.peer in lying else HashDevice(traits, random)
        made.short_job_seconds = 4.0 if traits.peer in late else made.short_job_seconds
        return made

    rules = rules_of_one(12, batch=8)
    return World(seed, peers=peers, rounds=12, faults=Faults(), rules=rules, parts=Parts(device=device), round_seconds=2.0)


class Liar(HashDevice):
    def apply_outer(self, effect: ApplyOuter, average: object) -> bool:
        is_finite = super().apply_outer(effect, average)
        if effect.round == LIE_ROUND:
            self._states[effect.instance] = LIE
        return is_finite


@pytest.mark.parametrize(("peers", "liars", "slow"), [(3, {0}, {2}), (5, {3, 4}, {1, 2})])
def test_a_minority_whose_reports_come_first_takes_no_state_away(peers: int, liars: set[int], slow: set[int]) -> None:
    world = world_of(1, peers=peers, liars=liars, slow=slow)
    while world.queue.now < 600.0:
        world.queue.step()
        holders = [machine.process for machine in world.machines.values() if machine.process is not None]
        assert not [p for number, p in enumerate(holders) if number not in liars and p.device.state(INSTANCE) == LIE]
        if any(process.stop is not None for process in holders):
            break
    heads = [process.agreement.ledger.head.round for process in holders]
    assert max(heads) == 12, "the run has come to its end"
