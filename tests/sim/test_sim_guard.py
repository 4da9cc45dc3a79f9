"""The guard in the simulated world: a contribution that raises the loss within the honest cosine is undone, and evaluators that
lie undo nothing alone and little together."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random

import pytest

from adloco_p2p.core.model.averages import Average
from adloco_p2p.core.model.effects import ApplyOuter, MeasureStep
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.rules import GuardRules, Rules
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.sim.checkers import Violation
from adloco_p2p.sim.device import DeviceTraits, HashDevice
from adloco_p2p.sim.faults import Faults, everyday_faults
from adloco_p2p.sim.identities import name_of
from adloco_p2p.sim.world import Parts, World, rules_of_one

FALL, RISE = 0.01, 0.3
"""Nats that an honest average takes off the loss, and that one with the attacker's contribution adds."""


class Losses:
    """Of all states of one world, by digest. The loss device of a world looks here."""

    def __init__(self, *, attacker: str = "", alarmists: tuple[str, ...] = (), deniers: tuple[str, ...] = ()) -> None:
        """`alarmists` say of every step that it raised the loss, `deniers` of none."""
        self.of_state: dict[Digest, float] = {}
        self.poisoned: dict[Digest, None] = {}
        self.attacker, self.alarmists, self.deniers = attacker, alarmists, deniers

    def device(self) -> Callable[[DeviceTraits, Random], HashDevice]:
        losses = self

        class LossDevice(HashDevice):
            def reduce(self, effect: Average, contributions: Mapping[PeerId, tuple[int, object]], *, is_strict: bool) -> object:
                average = Digest(str(super().reduce(effect, contributions, is_strict=is_strict)))
                if losses.attacker in contributions and not is_strict:
                    losses.poisoned[average] = None
                return average

            def apply_outer(self, effect: ApplyOuter, average: object) -> bool:
                before = losses.of_state.get(self._states[effect.instance], 3.0)
                is_applied = super().apply_outer(effect, average)
                losses.of_state[self._states[effect.instance]] = before + (RISE if average in losses.poisoned else -FALL)
                return is_applied

            def measure_step(self, effect: MeasureStep) -> tuple[float, float]:
                states = (self._kept[effect.instance][-1], self._states[effect.instance])
                before, after = (losses.of_state.get(state, 3.0) for state in states)
                if self._traits.peer in losses.alarmists:
                    return before, before + 1.0
                return before, min(after, before) if self._traits.peer in losses.deniers else after

        return LossDevice


def rules(rounds: int) -> Rules:
    return replace(rules_of_one(rounds, batch=8), guard=GuardRules(enabled=True))


def played(seed: int, losses: Losses, *, peers: int = 8, rounds: int = 24, faults: Faults | None = None) -> World:
    world = World(
        seed,
        peers=peers,
        rounds=rounds,
        faults=faults or Faults(),
        rules=rules(rounds),
        round_seconds=1.2,
        parts=Parts(device=losses.device()),
    )
    world.run()
    return world


def plans(world: World) -> list[RoundPlan]:
    """Of the machine that has the most."""
    entries = max((machine.disk.entries for machine in world.machines.values()), key=len)
    return sorted((entry.plan for entry in entries.values()), key=lambda plan: plan.round)


def num_rewinds(world: World) -> int:
    return sum(item.rewind is not None for plan in plans(world) for item in plan.instances)


def final_loss(world: World, losses: Losses) -> float:
    """The world's own check has compared the states of all machines."""
    finals = {
        losses.of_state[Digest(str(machine.disk.states[machine.disk.durable.round, InstanceId(0)]))]
        for machine in world.machines.values()
        if machine.disk.durable is not None and machine.disk.durable.is_finished
    }
    (found,) = finals
    return found


@pytest.mark.parametrize("seed", range(3))
def test_clean_rounds_raise_no_alarm(seed: int) -> None:
    losses = Losses()
    world = played(seed, losses)
    assert num_rewinds(world) == 0
    assert final_loss(world, losses) == pytest.approx(3.0 - 24 * FALL)


@pytest.mark.parametrize("seed", range(3))
def test_an_attack_within_the_honest_cosine_is_undone(seed: int) -> None:
    losses = Losses(attacker=name_of(5))
    world = played(seed, losses)
    assert num_rewinds(world) >= 4
    # unguarded: 24 rises; guarded: two of four rounds go back and two strict ones stand, so only the last few may be left
    assert final_loss(world, losses) < 3.0 + 4 * RISE
    assert all("stricter rule" in plan.reason for plan in plans(world) if plan.instances[0].rewind)


@pytest.mark.parametrize("seed", range(4))
def test_one_evaluator_that_lies_undoes_nothing(seed: int) -> None:
    losses = Losses(alarmists=(name_of(seed),))
    world = played(seed, losses)
    assert num_rewinds(world) == 0
    assert any(plan.instances[0].measurers > 2 for plan in plans(world))


@pytest.mark.parametrize("seed", range(4))
def test_two_evaluators_of_eight_that_lie_leave_at_least_half_of_the_pace(seed: int) -> None:
    losses = Losses(alarmists=(name_of(1), name_of(6)))
    world = played(seed, losses)
    assert final_loss(world, losses) <= 3.0 - 12 * FALL


@pytest.mark.parametrize("seed", range(2))
def test_evaluators_that_deny_every_rise_delay_the_alarm(seed: int) -> None:
    losses = Losses(attacker=name_of(5), deniers=(name_of(1), name_of(5)))
    assert num_rewinds(played(seed, losses)) >= 2


def test_a_peer_alone_goes_back_by_its_own_word() -> None:
    losses = Losses(attacker=name_of(0))
    assert num_rewinds(played(1, losses, peers=1)) >= 4


def test_with_crashes_joins_and_partitions_all_take_the_same_state() -> None:
    """Every world checks that at its end. In some of them faults leave too few rounds for an alarm."""
    alarms = 0
    for seed in range(6):
        losses = Losses(attacker=name_of(3), deniers=(name_of(2),))
        try:
            world = played(seed, losses, peers=6, rounds=10, faults=everyday_faults(Random(f"guard {seed}")))
        except Violation as violation:
            raise AssertionError(f"seed {seed}") from violation
        alarms += num_rewinds(world)
    assert alarms >= 4
