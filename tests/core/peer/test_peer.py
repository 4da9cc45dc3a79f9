"""The outer round of whole peers, in virtual time: what is applied, by whom, after which failures."""

import heapq
import random

import pytest

from adloco_p2p.core.averaging.phases import STEPS, Phase
from adloco_p2p.core.model.events import ApplyOuter, Commanded, RunInner, SaveCheckpoint, Transition
from adloco_p2p.core.model.rules import BatchRules, InstanceRules, MergeRules, Rules, WorkRules
from adloco_p2p.core.model.types import PeerId
from tests.core.world import Host, World

PEER0, PEER1, PEER2, PEER3 = (PeerId(f"peer{index}") for index in range(4))


def rules(*, rounds: int = 6, count: int = 1, guard: bool = False, period: int = 2) -> Rules:
    return Rules(
        work=WorkRules(inner_steps=4, rounds=rounds),
        instances=InstanceRules(count=count, start="fork" if count > 1 else "same", fork_round=1),
        batch=BatchRules(initial_batch=8),
        merge=MergeRules(policy="worst_with_worst" if count > 1 else "none", period_rounds=period, guard=guard),
    )


def same_states(world: World) -> None:
    """Every outer step of a round and instance led to one digest, on every host that applied it."""
    seen: dict[tuple[int, int], set[str]] = {}
    for host in world.hosts.values():
        for key, digest in host.applied.items():
            seen.setdefault(key, set()).add(digest)
    assert seen
    assert all(len(digests) == 1 for digests in seen.values()), seen


def finished(host: Host) -> bool:
    return host.stop is not None and host.stop.is_finished


def test_a_peer_alone_ends_its_run_and_every_round_is_logged_once() -> None:
    world = World(rules=rules())
    world.run()
    assert finished(world.hosts[PEER0])
    assert world.rounds_logged(PEER0) == [(number, 0) for number in range(6)]
    assert world.hosts[PEER0].durable is not None and world.hosts[PEER0].durable.round == 6


def test_instances_fork_merge_and_end_as_one() -> None:
    world = World(rules=rules(rounds=12, count=4))
    world.run()
    merges = world.logged(PEER0, "merge")
    assert len(world.logged(PEER0, "fork")) == 1
    assert sum(len(merge["sources"]) - 1 for merge in merges) == 3
    assert len(world.hosts[PEER0].states) == 1
    assert finished(world.hosts[PEER0])


@pytest.mark.parametrize(("merged_loss", "is_taken"), [(1.9, True), (2.5, False)])
def test_the_guard_measures_a_merge_before_it_is_done(merged_loss: float, is_taken: bool) -> None:
    world = World(rules=rules(rounds=10, count=2, guard=True), merged_loss=merged_loss)
    world.run()
    merge = world.logged(PEER0, "merge")[0]
    probe = world.logged(PEER0, "probe")[0]
    assert probe["round"] < merge["round"]
    assert (min(merge["weights"]) > 0) is is_taken
    assert finished(world.hosts[PEER0])


@pytest.mark.parametrize("seed", range(5))
def test_peers_of_different_speed_apply_the_same_averages(seed: int) -> None:
    world = World(rules=rules(count=2, rounds=8), num_peers=4, seed=seed, speeds=(100.0, 50.0, 25.0, 200.0))
    world.run()
    same_states(world)
    assert all(finished(host) for host in world.hosts.values())


def test_an_instance_is_averaged_while_the_next_one_computes() -> None:
    """An averaging takes 0.5 s here, the inner steps of a round 1.6 s per instance: two instances hide it, one cannot."""
    idle = {}
    for count in (1, 2):
        world = World(rules=rules(rounds=20, count=count, period=100), num_peers=2, speeds=(10.0, 10.0))
        computing = [0.0]

        def note(peer: PeerId, effect: object, computing: list[float] = computing) -> None:
            if peer == PEER0 and isinstance(effect, RunInner):
                computing[0] += effect.share.samples / 10.0

        world.on_effect = note
        world.run()
        idle[count] = 1.0 - computing[0] / world.now
    assert idle[1] > 0.2
    assert idle[2] < 0.1


def test_a_dead_member_is_left_out_and_the_survivors_agree() -> None:
    world = World(rules=rules(rounds=2), num_peers=4)
    world.at(0.01, lambda: world.kill(PEER2))
    _run_until_round(world, [PEER0, PEER1, PEER3], 0)
    digests = {world.hosts[name].applied[0, 0] for name in (PEER0, PEER1, PEER3)}
    assert len(digests) == 1
    hosts = world.logged(PEER0, "round")[0]["hosts"]
    assert hosts == [PEER0, PEER1, PEER3]


@pytest.mark.parametrize("seed", range(20))
def test_a_member_dies_at_any_moment(seed: int) -> None:
    chance = random.Random(seed)
    world = World(rules=rules(rounds=2), num_peers=4, seed=seed, loss=0.1)
    victim = PeerId(f"peer{chance.randrange(4)}")
    world.at(chance.uniform(0.0, 3.0), lambda: world.kill(victim, notice_seconds=chance.uniform(0.5, 8.0)))
    _run_until_round(world, [name for name in world.hosts if name != victim], 0)
    same_states(world)


@pytest.mark.parametrize("seed", range(10))
def test_lost_messages_only_cost_time(seed: int) -> None:
    world = World(rules=rules(rounds=6, count=2), num_peers=3, seed=seed, loss=0.3)
    world.run()
    same_states(world)
    assert all(finished(host) for host in world.hosts.values())


def test_nothing_is_applied_before_a_majority_named_the_digest() -> None:
    world = World(rules=rules(rounds=2), num_peers=3, loss=1.0)
    applied: list[PeerId] = []
    world.on_effect = lambda peer, effect: applied.append(peer) if isinstance(effect, ApplyOuter) else None
    with pytest.raises(AssertionError, match="not finished"):
        world.run(until=60.0)
    assert applied == []


def test_stop_ends_the_round_saves_and_a_restart_goes_on() -> None:
    world = World(rules=rules(rounds=8, count=2, period=100))
    world.deliver(PEER0, Commanded(command="drain"), 0.9)
    world.run()
    host = world.hosts[PEER0]
    assert host.stop is not None and not host.stop.is_finished
    assert host.durable is not None and 0 < host.durable.round < 8
    plain = World(rules=rules(rounds=8, count=2, period=100))
    plain.run()

    resumed = World(rules=rules(rounds=8, count=2, period=100))
    resumed.queue.clear()
    resumed.hosts[PEER0].states = {i: host.saved[host.durable.round, i] for i in host.durable.held}
    resumed.start(PEER0, host.durable)
    resumed.run()
    assert resumed.hosts[PEER0].states == plain.hosts[PEER0].states


@pytest.mark.parametrize("cut", range(0, 60, 7))
def test_a_crash_after_any_checkpoint_ends_in_the_same_state(cut: int) -> None:
    """Durable is what SaveCheckpoint carried; everything after it is done again."""
    plain = World(rules=rules(rounds=9, count=3, guard=True), merged_loss=1.9)
    plain.run()
    durables = []
    crashed = World(rules=rules(rounds=9, count=3, guard=True), merged_loss=1.9)
    crashed.on_effect = lambda peer, effect: durables.append(effect.durable) if isinstance(effect, SaveCheckpoint) else None
    crashed.run()
    durable = durables[cut % (len(durables) - 1)]
    resumed = World(rules=rules(rounds=9, count=3, guard=True), merged_loss=1.9)
    resumed.queue.clear()
    resumed.hosts[PEER0].states = {i: crashed.hosts[PEER0].saved[durable.round, i] for i in durable.held}
    resumed.start(PEER0, durable)
    resumed.run()
    assert resumed.hosts[PEER0].states == plain.hosts[PEER0].states


def test_same_events_same_effects() -> None:
    def trace() -> list[str]:
        world = World(rules=rules(rounds=8, count=3), num_peers=3, seed=7, loss=0.2)
        effects: list[str] = []
        world.on_effect = lambda peer, effect: effects.append(f"{peer} {effect}")
        world.run()
        return effects

    assert trace() == trace()


def test_a_transition_waits_for_every_instance() -> None:
    world = World(rules=rules(rounds=6, count=3))
    done: list[tuple[int, int]] = []

    def note(peer: PeerId, effect: object) -> None:
        if isinstance(effect, ApplyOuter):
            done.append((effect.round, effect.instance))
        if isinstance(effect, Transition) and effect.merges:
            live = {plan_instance for number, plan_instance in done if number == effect.round - 1}
            assert set(effect.merges[0].sources) <= live

    world.on_effect = note
    world.run()


def test_every_phase_is_reached_and_only_done_is_an_end() -> None:
    assert set(STEPS) == set(Phase)
    assert [phase for phase, following in STEPS.items() if not following] == [Phase.DONE]
    reachable = {phase for following in STEPS.values() for phase in following}
    assert set(Phase) - reachable == {Phase.TRAINING}


def _run_until_round(world: World, names: list[PeerId], number: int) -> None:
    """The stand-in agreement waits for the dead, so these worlds never end by themselves."""
    for _ in range(100_000):
        if all((number, 0) in world.rounds_logged(name) for name in names):
            return
        assert world.queue, "nothing can happen any more"
        world.now, _, action = heapq.heappop(world.queue)
        assert world.now < 300.0, f"round {number} is not over after 300 s"
        action()
    raise AssertionError("no end")
