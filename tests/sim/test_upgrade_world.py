"""Whole peers that are upgraded one by one while their run goes on: one switch, at one round, for all."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from adloco_p2p.core.agreement.consensus import SPLIT
from adloco_p2p.core.agreement.ledger_sync import _next_entries
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.effects import Effect, Stop
from adloco_p2p.core.model.events import Commanded, Event
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.protocol import CANNOT_FOLLOW, FIRST_UPGRADABLE, UPGRADE_REMEDY
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.model.telemetry import Log, Round, Warning  # noqa: A004  # as its event is named
from adloco_p2p.core.peer.agreement_port import Agreement
from adloco_p2p.core.peer.lifecycle import OUTGROWN, Stage
from adloco_p2p.core.peer.peer import Cadence, Peer
from adloco_p2p.sim.adversary import Liar
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.identities import name_of
from adloco_p2p.sim.machine import Machine
from adloco_p2p.sim.world import Parts, World, rules_of_one, small_rules
from tests.core.peer.story import PEER0, Story, Told

_Kind = TypeVar("_Kind")
OLD, NEW = FIRST_UPGRADABLE, FIRST_UPGRADABLE + 1


def upgrade(machine: Machine, *, should_restart: bool = True) -> None:
    """From its next life on, which begins soon, it can follow the next protocol."""
    machine.capacity = replace(machine.capacity, newest_protocol=NEW)
    if should_restart and not machine.is_gone:
        machine.crash("is upgraded")
        machine.around.queue.after(0.5, machine.boot)


def upgrade_newcomers(world: World) -> None:
    for machine in tuple(world.machines.values()):
        if machine.capacity.newest_protocol == OLD:
            upgrade(machine)


def plans_of(world: World) -> list[RoundPlan]:
    return [entry.plan for entry in world.ledger()]


def first_round_of_the_new(plans: list[RoundPlan]) -> int:
    """The switch came once, after a notice."""
    numbers = [plan.protocol for plan in plans]
    assert numbers == sorted(numbers) and {*numbers} == {OLD, NEW}, numbers
    first = next(plan for plan in plans if plan.protocol == NEW)
    assert plans[first.round - 2].upgrade_round == first.round
    return first.round


@pytest.mark.parametrize("seed", range(8))
def test_peers_that_are_upgraded_one_by_one_in_churn_and_a_partition_go_over_at_one_round(seed: int) -> None:
    faults = Faults(
        loss=0.05,
        crashes=2,
        joins=1,
        pauses=1,
        partition_at=8.0 if seed % 2 else None,
        partition_seconds=10.0 if seed % 2 else 0.0,
        faults_end_at=30.0,
    )
    world = World(seed, peers=5, rounds=30, faults=faults, rules=rules_of_one(30), parts=Parts(protocol=OLD))
    for number, machine in enumerate(tuple(world.machines.values())):
        world.queue.at(4.0 + 4.0 * number, upgrade, machine)
    world.queue.at(26.0, upgrade_newcomers, world)
    world.run()
    first = first_round_of_the_new(plans_of(world))
    heads = [machine.process.agreement.ledger for machine in world.machines.values() if machine.process is not None]
    switched = {next(entry.plan.round for entry in ledger.since(1) if entry.plan.protocol == NEW) for ledger in heads}
    assert switched == {first}, f"seed {seed}"


def story_of(rounds: int = 30, *, peers: int = 4, seed: int = 0) -> Story:
    rules = rules_of_one(rounds, probation_rounds=60)
    return Story(rules=rules, peers=peers, seed=seed, speeds=(40.0,) * (peers + 1), protocol=OLD)


def test_peers_that_are_upgraded_before_they_start_go_over_within_some_rounds_and_lose_none() -> None:
    story = story_of(18)
    for machine in story.world.machines.values():
        upgrade(machine, should_restart=False)
    story.play()
    first = first_round_of_the_new(plans_of(story.world))
    assert first <= 8
    for peer in story.world.machines:
        assert sorted({number for number, _ in story.rounds_logged(peer)}) == list(range(18))
        assert [log for log in story.logged(peer, "warning") if log["key"] == CANNOT_FOLLOW] == []
    process = story.machine(PEER0).process
    assert process is not None
    ledger = process.agreement.ledger
    batches = [_next_entries(ledger, ledger.digests[number]) for number in (0, first - 1, first)]
    assert [batch[-1].plan.round for batch in batches] == [first, first, 18], "an old peer can read all of an answer"


def joined_late(story: Story, at: float) -> PeerId:
    """A newcomer on probation that can follow the old protocol only."""
    name = name_of(len(story.world.machines))
    story.at(at, story.world._join)
    return name


def test_one_that_is_not_upgraded_pauses_before_that_round_and_returns_once_it_is() -> None:
    story = story_of(70)
    for machine in story.world.machines.values():
        story.at(40.0, upgrade, machine)
    late = joined_late(story, 39.0)
    story.at(70.0, lambda: upgrade(story.machine(late)))
    story.play()
    plans = plans_of(story.world)
    first = first_round_of_the_new(plans)
    assert Stage.PAUSED in story.stages[late]
    assert story.stop(late) is not None and story.is_finished(late)
    warned = [log["message"] for log in story.logged(late, "warning") if log["key"] == CANNOT_FOLLOW and log["active"]]
    assert warned == [
        f"from round {first} on the run follows protocol 22, which the installed version cannot: {UPGRADE_REMEDY}",
        f"the run follows protocol 22, and the installed version knows only 21: {UPGRADE_REMEDY}",
    ]
    (paused,) = [at for at, log in story.effects(Log, late) if log.event == "paused"]
    trained = [at for at, log in story.effects(Log, late) if log.event == "round"]
    assert not [at for at in trained if paused < at < 70.0] and max(trained) > 70.0
    before = [log.round for at, log in story.effects(Round, late) if at <= paused]
    assert max(before) == first - 1, "it takes part in the last round of the protocol that it knows"


def test_a_user_that_resumes_it_before_the_upgrade_or_starts_it_again_changes_nothing() -> None:
    story = story_of(70)
    for machine in story.world.machines.values():
        story.at(40.0, upgrade, machine)
    late = joined_late(story, 39.0)
    story.at(58.0, lambda: story.machine(late).command(Commanded(command="resume")))
    story.at(62.0, lambda: story.machine(late).crash("is started again"))
    story.at(63.0, lambda: story.machine(late).boot())
    story.at(75.0, lambda: upgrade(story.machine(late)))
    story.play()
    stops = [stop for _, stop in story.effects(Stop, late) if not stop.is_finished]
    assert stops and {stop.error for stop in stops} == {OUTGROWN}
    assert "the run follows protocol 22, and the installed version knows only 21: in the checkout `git pull" in stops[0].reason
    assert not story.logged(late, "resumed")
    assert story.is_finished(late)


def test_a_newcomer_that_cannot_follow_stops_with_the_reason() -> None:
    story = story_of(30)
    for machine in story.world.machines.values():
        upgrade(machine, should_restart=False)
    late = joined_late(story, 20.0)

    def is_left(told: Told) -> None:
        if told.peer == late and isinstance(told.effect, Stop):
            story.machine(late).is_gone = True

    story.on_effect = is_left
    story.play()
    stop = story.stop(late)
    assert stop is not None and stop.error == OUTGROWN
    assert late not in {entry.peer for plan in plans_of(story.world) for entry in plan.roster}


def world_with_a_liar(alters: Callable[[Report], Report], *, rounds: int) -> World:
    parts = Parts(protocol=OLD, liars={1: Liar(alters=alters)})
    return World(0, peers=4, rounds=rounds, faults=Faults(), rules=small_rules(4, rounds), parts=parts)


@pytest.mark.parametrize("claimed", [0, NEW, 1 << 40])
def test_a_member_that_announces_nonsense_moves_no_run_and_holds_none_up(claimed: int) -> None:
    def nonsense(report: Report) -> Report:
        return replace(report, capacity=replace(report.capacity, newest_protocol=claimed))

    world = world_with_a_liar(nonsense, rounds=14)
    world.run()
    assert {plan.protocol for plan in plans_of(world)} == {OLD}
    assert max(plan.round for plan in plans_of(world)) == 14


def test_a_member_that_announces_what_it_cannot_follow_pauses_alone() -> None:
    def boast(report: Report) -> Report:
        return replace(report, capacity=replace(report.capacity, newest_protocol=NEW))

    world = world_with_a_liar(boast, rounds=60)
    machines = tuple(world.machines.values())
    honest, boasting = [m for m in machines if m.is_honest], [m for m in machines if not m.is_honest]
    for machine in honest:
        upgrade(machine, should_restart=False)
    while world.queue and world.queue.now < 60.0:
        world.queue.step()
    newest = [machine.process.agreement.ledger.plans[-1] for machine in honest if machine.process is not None]
    assert len(newest) == 3 and {plan.protocol for plan in newest} == {NEW}
    (alone,) = [machine.process for machine in boasting if machine.process is not None]
    plan = alone.agreement.ledger.plans[-1]
    assert alone.peer.stage is Stage.PAUSED and plan.protocol == NEW and min(other.round for other in newest) > plan.round + 8


def test_plans_and_reports_of_a_run_that_nobody_upgrades_have_the_bytes_that_they_had() -> None:
    world = World(3, peers=3, rounds=5, faults=Faults(), rules=small_rules(3, 5), parts=Parts(protocol=OLD))
    world.run()
    assert all(
        b"protocol" not in canonical.encode(entry) and b"upgrade" not in canonical.encode(entry) for entry in world.ledger()
    )


class Apart:
    """One peer, the last, knows the old protocol only; it and the others, which know the new one, train apart for 60 s."""

    def __init__(self, peers: int, *, round_seconds: float) -> None:
        """`round_seconds`: of the old peer."""
        self.told: list[tuple[PeerId, Effect]] = []
        self.world = World(
            0,
            peers=peers,
            rounds=0,
            faults=Faults(partition_at=8.0, partition_seconds=60.0, faults_end_at=69.0),
            rules=rules_of_one(150, probation_rounds=2),
            parts=Parts(protocol=OLD, peer=self._peer),
        )
        *others, self.old = self.world.machines
        self.world.network.place({self.old: 1, **dict.fromkeys(others, 0)})
        for name in others:
            upgrade(self.world.machines[name], should_restart=False)
        self.world.machines[self.old].round_seconds = round_seconds

    def _peer(self, *, me: PeerId, cadence: Cadence, agreement: Agreement) -> Peer:
        told = self.told

        class ToldPeer(Peer):
            def handle(self, event: Event, now: float) -> list[Effect]:
                effects = super().handle(event, now)
                told.extend((me, effect) for effect in effects)
                return effects

        return ToldPeer(me=me, cadence=cadence, agreement=agreement)

    def play_to(self, seconds: float) -> list[tuple[int, int]]:
        """Round and protocol of the newest plan of each peer at that time."""
        queue = self.world.queue
        while queue and queue.now < seconds and not self.world.is_over():
            queue.step()
        processes = [machine.process for machine in self.world.machines.values() if machine.process is not None]
        newest = [process.agreement.ledger.plans[-1] for process in processes]
        return [(plan.round, plan.protocol) for plan in newest]

    def of_old(self, kind: type[_Kind]) -> list[_Kind]:
        return [effect for peer, effect in self.told if peer == self.old and isinstance(effect, kind)]


def test_a_peer_that_the_electors_left_behind_follows_them_to_the_plan_that_goes_over_and_ends() -> None:
    """It cannot check what follows, and had gone on longer by itself."""
    apart = Apart(3, round_seconds=1.0)
    (before, _), _, (alone, protocol) = apart.play_to(67.0)
    assert alone > before and protocol == OLD
    assert [number for _, number in apart.play_to(90.0)] == [NEW, NEW, NEW]
    assert [stop.error for stop in apart.of_old(Stop)] == [OUTGROWN]


def test_where_the_electors_are_undecided_and_the_old_side_did_more_the_others_come_back_to_it() -> None:
    apart = Apart(2, round_seconds=1.0)
    assert [number for _, number in apart.play_to(67.0)] == [NEW, OLD]
    assert [number for _, number in apart.play_to(90.0)] == [OLD, OLD]
    assert [log.active for log in apart.of_old(Warning) if log.key == SPLIT] == [True, False]


def test_where_the_electors_are_undecided_and_the_old_side_did_less_it_warns_until_it_is_upgraded() -> None:
    apart = Apart(2, round_seconds=4.0)
    assert [number for _, number in apart.play_to(100.0)] == [NEW, OLD]
    (warning,) = [log for log in apart.of_old(Warning) if log.key == SPLIT]
    assert warning.active and "to protocol 22, which the installed version cannot follow" in warning.message
    upgrade(apart.world.machines[apart.old])
    (ours, number), theirs = apart.play_to(130.0)
    assert number == NEW and abs(ours - theirs[0]) <= 1 and theirs[1] == NEW
