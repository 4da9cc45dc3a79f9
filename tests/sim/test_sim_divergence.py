"""Hosts whose training diverges, in the simulated world: what is lost is their share or the round, and no checkpoint holds a
diverged state."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from adloco_p2p.core.model.effects import ApplyOuter, RunInner
from adloco_p2p.core.model.events import InnerResult
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.core.peer.divergence import FRUITLESS_ROUNDS
from adloco_p2p.sim.checkers import Violation
from adloco_p2p.sim.device import DeviceTraits, HashDevice
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.world import Parts, World


def device(diverges: Callable[[str, int], bool], *, is_refused: bool = False) -> Callable[[DeviceTraits, Random], "HashDevice"]:
    """A device whose inner steps diverge on the hosts and in the rounds that `diverges` names, or all of whose outer steps are
    refused."""

    class Diverging(HashDevice):
        def inner_result(self, effect: RunInner, seconds: float, num_steps: int) -> InnerResult:
            result = super().inner_result(effect, seconds, num_steps)
            return replace(result, has_diverged=diverges(self._traits.peer, effect.round))

        def apply_outer(self, effect: ApplyOuter, average: object) -> bool:
            return not is_refused and super().apply_outer(effect, average)

    return Diverging


def world(seed: int, peers: int, make_device: Callable[[DeviceTraits, Random], HashDevice]) -> World:
    faults = Faults(loss=0.02, faults_end_at=5.0)
    return World(seed, peers=peers, rounds=8, faults=faults, round_seconds=1.2, parts=Parts(device=make_device))


def reports(played: World) -> list[tuple[str, int, bool, bool, int]]:
    """Peer, round, diverged, void and samples of every report that a plan was made from."""
    entries = {digest: entry for machine in played.machines.values() for digest, entry in machine.disk.entries.items()}
    return [
        (signed.report.peer, signed.report.round, item.has_diverged, item.is_void, item.samples)
        for entry in entries.values()
        for signed in entry.reports
        for item in signed.report.instances
    ]


@pytest.mark.parametrize("seed", range(3))
def test_hosts_that_diverge_now_and_then_cost_their_share_only(seed: int) -> None:
    played = world(seed, 5, device(lambda name, number: (sum(name.encode()) + number) % 5 == 0))
    played.run()
    diverged = [found for found in reports(played) if found[2]]
    assert diverged and all(samples == 0 for *_, samples in diverged)
    assert not all(is_void for *_, is_void, _ in diverged)


@pytest.mark.parametrize("seed", range(3))
def test_rounds_that_diverge_everywhere_are_void_and_the_run_goes_on(seed: int) -> None:
    played = world(seed, 4, device(lambda _name, number: number in (3, 4)))
    played.run()
    assert all(is_void for _, number, _, is_void, _ in reports(played) if number in (3, 4))


@pytest.mark.parametrize("is_refused", [False, True])
@pytest.mark.parametrize("peers", [1, 4])
def test_training_that_leads_nowhere_ends_with_an_error(peers: int, *, is_refused: bool) -> None:
    played = world(1, peers, device(lambda _name, number: not is_refused and number >= 3, is_refused=is_refused))
    with pytest.raises(Violation, match="nobody has ended the run"):
        played.run()
    for machine in played.machines.values():
        assert machine.process is not None and machine.process.stop is not None
        stop = machine.process.stop
        assert stop.error == "E503" and f"{FRUITLESS_ROUNDS} rounds in a row" in stop.reason
        if is_refused and machine.disk.durable is not None:  # the states of all boundaries are the first one
            states = {instance: state for (_, instance), state in machine.disk.states.items()}
            assert states[InstanceId(0)] == machine.process.device.fresh(InstanceId(0))
