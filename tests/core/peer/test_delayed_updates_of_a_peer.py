"""Delayed outer updates of whole peers, in virtual time: a round begins while the one before it is averaged."""

import random

import pytest

from adloco_p2p.core.averaging.adaptive_timeout import AdaptiveTimeout
from adloco_p2p.core.averaging.outer_round import OuterRound
from adloco_p2p.core.averaging.phases import Phase
from adloco_p2p.core.model.events import (
    ApplyOuter,
    Average,
    CarryOver,
    Commanded,
    Effect,
    Evaluate,
    InnerResult,
    PeerBack,
    RunInner,
    Stop,
)
from adloco_p2p.core.model.messages import AttemptStart
from adloco_p2p.core.model.rules import Rules
from adloco_p2p.core.model.types import InstanceId, PeerId
from tests.core.averaging.test_outer_round import RULES, A, B, C, outer_round
from tests.core.averaging.test_outer_round import averaging as averaged_at_once
from tests.core.peer.test_peer import PEER0, PEER1, PEER2, PEER3, finished, rules, same_states
from tests.core.world import RefereedWorld, World

INSTANCE = InstanceId(0)


class Trace:
    """Inner steps and outer steps of every peer, in the order in which the device was asked for them."""

    def __init__(self, world: World) -> None:
        self.asked: dict[PeerId, list[RunInner | ApplyOuter | CarryOver]] = {name: [] for name in world.hosts}
        self.training_seconds = 0.0
        self.world = world
        world.on_effect = self.note

    def note(self, peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, RunInner | ApplyOuter | CarryOver):
            self.asked[peer].append(effect)
        if isinstance(effect, RunInner) and peer == PEER0:
            self.training_seconds += effect.share.samples / self.world.hosts[peer].speed

    def ahead(self, peer: PeerId) -> list[int]:
        return [effect.round for effect in self.asked[peer] if isinstance(effect, RunInner) and effect.is_ahead]

    def check_order(self) -> None:
        """Outer steps of an instance come in order, and inner steps are at most one round ahead of them."""
        for asked in self.asked.values():
            applied: dict[InstanceId, int] = {}
            for effect in asked:
                if isinstance(effect, ApplyOuter | CarryOver):
                    assert effect.round > applied.get(effect.instance, -1)
                    applied[effect.instance] = effect.round
                elif effect.is_ahead:
                    assert applied.get(effect.plan.instance, effect.round - 2) == effect.round - 2


def delayed(run: Rules | None = None, *, kind: type[World] = World, peers: int = 2, **settings: object) -> tuple[World, Trace]:
    world = kind(rules=run or rules(rounds=12), num_peers=peers, is_delayed=True, **settings)  # type: ignore[arg-type]
    return world, Trace(world)


def test_a_round_begins_while_the_last_one_is_averaged() -> None:
    world, trace = delayed(speeds=(20.0, 20.0))
    world.run()
    same_states(world)
    trace.check_order()
    assert all(finished(host) for host in world.hosts.values())
    assert world.rounds_logged(PEER0) == [(number, 0) for number in range(12)]
    assert trace.ahead(PEER0) == list(range(1, 12)), "the last plan trains nothing, so nothing runs ahead into it"


def test_a_slow_link_costs_no_computing_time() -> None:
    """An averaging takes 0.5 s here, the inner steps of a round 0.8 s."""
    idle = {}
    for is_delayed in (False, True):
        world = World(rules=rules(rounds=30), num_peers=2, speeds=(20.0, 20.0), is_delayed=is_delayed)
        trace = Trace(world)
        world.run()
        idle[is_delayed] = 1.0 - trace.training_seconds / world.now
    assert idle[False] > 0.35
    assert idle[True] < 0.08


def test_a_link_slower_than_the_device_is_never_idle_either() -> None:
    """The inner steps of a round are done long before the average of the last one: it is handed over right after that."""
    world, trace = delayed(rules(rounds=20), speeds=(40.0, 40.0), averaging_seconds=2.0)
    phases = []
    world.run()
    same_states(world)
    trace.check_order()
    phases = [log.phase for log in world.hosts[PEER0].logs if log.event == "phase"]
    assert phases.count("trained") >= 15
    assert world.now < 20 * 2.0 + 10.0


def test_the_report_of_a_round_does_not_wait_for_the_next() -> None:
    world, _ = delayed(speeds=(20.0, 20.0))
    world.run()
    for host in world.hosts.values():
        told = [log for log in host.logs if log.event == "round" or getattr(log, "phase", None) == "averaging"]
        order = [(log.event, log.round) for log in told]
        assert order.index(("round", 4)) < order.index(("phase", 5))
    assert any(getattr(log, "phase", None) == "evaluating" for log in world.hosts[PEER0].logs), "also where it is evaluated"


def test_without_the_setting_nothing_runs_ahead() -> None:
    world = World(rules=rules(), num_peers=2)
    trace = Trace(world)
    world.run()
    assert trace.ahead(PEER0) == []


def test_alone_there_is_nothing_to_hide() -> None:
    world, trace = delayed(peers=1)
    world.run()
    assert trace.ahead(PEER0) == []
    assert finished(world.hosts[PEER0])


def test_several_instances_hide_each_other_and_a_single_one_itself() -> None:
    """All four fork at round 1 and are one again at the end; boundaries that fork, merge or probe wait for every instance."""
    world, trace = delayed(rules(rounds=24, count=4, guard=True), merged_loss=1.9)
    live: dict[int, int] = {}
    world.run()
    same_states(world)
    trace.check_order()
    for event in world.logged(PEER0, "plan"):
        hosted = [i for i in event["instances"] if any(share["peer"] == PEER0 for share in i["hosts"])]
        live[event["round"]] = len(hosted)
        if event["forks"] or event["merges"]:
            assert event["round"] not in trace.ahead(PEER0)
        if event["probe"]:
            assert event["round"] + 1 not in trace.ahead(PEER0)
    assert trace.ahead(PEER0), "one instance was left for some rounds"
    assert all(live[number] == live.get(number - 1, 1) == 1 for number in trace.ahead(PEER0))
    assert all(finished(host) for host in world.hosts.values())


@pytest.mark.parametrize("seed", range(12))
def test_lost_messages_and_unequal_speeds_only_cost_time(seed: int) -> None:
    chance = random.Random(seed)
    world, trace = delayed(
        rules(rounds=8),
        peers=3,
        seed=seed,
        loss=0.3,
        speeds=tuple(chance.choice((10.0, 40.0, 160.0)) for _ in range(3)),
        averaging_seconds=chance.choice((0.1, 0.5, 2.0)),
    )
    world.run()
    same_states(world)
    trace.check_order()
    assert all(finished(host) for host in world.hosts.values())


@pytest.mark.parametrize("seed", range(16))
def test_a_peer_dies_or_freezes_at_any_moment(seed: int) -> None:
    chance = random.Random(seed)
    world, trace = delayed(
        rules(rounds=40),
        kind=RefereedWorld,
        peers=4,
        seed=seed,
        loss=0.05,
        speeds=(10.0,) * 4,
        averaging_seconds=chance.choice((0.2, 0.8, 1.2)),
    )
    moment, seconds = chance.uniform(0.1, 8.0), chance.choice((2.0, 12.0))
    if seed % 2:
        world.at(moment, lambda: world.kill(PEER3, notice_seconds=chance.uniform(0.5, 8.0)))
    else:
        world.at(moment, lambda: world.freeze(PEER3, seconds))
    world.run(until=400.0)
    same_states(world)
    trace.check_order()
    assert all(finished(world.hosts[name]) for name in (PEER0, PEER1, PEER2))
    assert world.rounds_logged(PEER0)[-1] == (39, 0)
    assert finished(world.hosts[PEER3]) is (seed % 2 == 0)


@pytest.mark.parametrize("command", ["drain", "leave"])
@pytest.mark.parametrize("asked_at", [2.4, 3.0, 3.5])
def test_a_peer_goes_and_comes_back_from_its_checkpoint(command: str, asked_at: float) -> None:
    """It trains the round again that it had begun early, from the outer parameters that it has."""
    world, trace = delayed(rules(rounds=24), kind=RefereedWorld, peers=3, speeds=(10.0, 10.0, 10.0))
    world.deliver(PEER2, Commanded(command=command), asked_at)  # type: ignore[arg-type]

    def come_back(peer: PeerId, effect: Effect) -> None:
        trace.note(peer, effect)
        if peer == PEER2 and isinstance(effect, Stop) and not effect.is_finished:
            world.at(2.0, restart)

    def restart() -> None:
        trace.asked[PEER2] = []
        world.restart(PEER2)
        world.tell_others(PEER2, PeerBack(peer=PEER2), 0.1)

    world.on_effect = come_back
    world.run(until=400.0)
    same_states(world)
    trace.check_order()
    assert all(finished(host) for host in world.hosts.values())
    assert len(world.hosts[PEER2].applied) >= 5, "it took part again"


# --- one round -------------------------------------------------------------------------------------------------------


def trained(*peers: PeerId) -> tuple[OuterRound, InnerResult]:
    """The round of the first peer, its inner steps about to end."""
    example = averaged_at_once(*peers, adaptive_timeout=AdaptiveTimeout())
    outer = outer_round(peers[0], example.plan, AdaptiveTimeout())
    (inner,) = [effect for effect in outer.start(0.0, progress_end=0.1, is_ahead=True) if isinstance(effect, RunInner)]
    assert inner.is_ahead
    assert example.result is not None
    return outer, example.result


def test_inner_steps_that_ran_ahead_are_handed_over_when_the_round_before_is_applied() -> None:
    assert RULES.work.inner_steps == 4
    outer, result = trained(A, B)
    assert not any(isinstance(effect, Average) for effect in outer.inner_finished(result, 10.0, (), is_ahead=True))
    assert outer.phase is Phase.TRAINED
    assert not any(isinstance(effect, Evaluate) for effect in outer.tick(11.0, ()))
    (average,) = [effect for effect in outer.hand_over(14.0, ()) if isinstance(effect, Average)]
    assert average.attempt == 0
    assert outer.seconds["trained"] == 4.0


def test_a_retry_without_us_that_came_meanwhile_holds() -> None:
    outer, result = trained(A, B, C)
    outer.inner_finished(result, 10.0, (), is_ahead=True)
    outer.received(B, AttemptStart(instance=INSTANCE, round=0, attempt=3, members=(B, C)), 11.0, ())
    assert outer.phase is Phase.TRAINED
    assert not any(isinstance(effect, Average) for effect in outer.hand_over(12.0, ()))
    assert outer.phase is Phase.RETRYING
