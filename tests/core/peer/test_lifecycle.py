"""What the user asks a peer to do: whole peers in virtual time."""

import heapq
import itertools
from typing import Literal

import pytest

from adloco_p2p.core.model.events import (
    ApplyOuter,
    Command,
    Commanded,
    DiscardRound,
    Durable,
    Effect,
    Evaluate,
    FetchState,
    Outcome,
    PeerBack,
    PeerGone,
    Probe,
    ReportHeard,
    RunInner,
    SaveCheckpoint,
    SaveInstance,
    StateServed,
    Stop,
    Transition,
)
from adloco_p2p.core.model.telemetry import Log
from adloco_p2p.core.model.types import Capacity, PeerId, Report
from adloco_p2p.core.peer.agreement_port import Agreement
from tests.core.peer.test_peer import PEER0, PEER1, PEER2, finished, rules, same_states
from tests.core.world import Refereed, RefereedWorld, World


class Telling(Refereed):
    """Others hear of a report at once, and a peer may come back."""

    def __init__(self, refereed: Agreement, world: "AskedWorld") -> None:
        assert isinstance(refereed, Refereed)
        super().__init__(refereed._referee)
        self._world = world

    def submit(self, report: Report, now: float) -> list[Outcome]:
        self._world.tell_others(report.peer, ReportHeard(report=report), 0.05)
        return super().submit(report, now)

    def rejoin(self, capacity: Capacity, now: float) -> list[Outcome]:
        assert not capacity.is_leaving
        return []


class AskedWorld(RefereedWorld):
    """Who pauses is gone for the others, until it is back; `effects` of the peer that is asked, with their times."""

    def __init__(
        self, *, rounds: int, num_peers: int = 3, checkpoint_period: int = 1, count: int = 1, max_instances: int = 8
    ) -> None:
        self.effects: list[tuple[float, Effect]] = []
        super().__init__(
            rules=rules(rounds=rounds, count=count, period=100),
            num_peers=num_peers,
            checkpoint_period=checkpoint_period,
            capacity=Capacity(samples_per_second=0.0, micro_batch_limit=8, max_instances=max_instances),
        )
        self.on_effect = self.note

    def agreement(self) -> Agreement:
        return Telling(super().agreement(), self)

    def note(self, peer: PeerId, effect: Effect) -> None:
        if peer == PEER0:
            self.effects.append((self.now, effect))
        if isinstance(effect, Log) and effect.event == "paused":
            self.tell_others(peer, PeerGone(peer=peer), 0.05)
        if isinstance(effect, Log) and effect.event == "resumed":
            self.tell_others(peer, PeerBack(peer=peer), 0.05)

    def ask(self, command: Command, delay: float) -> None:
        self.deliver(PEER0, Commanded(command=command), delay)

    def trained(self) -> list[float]:
        """When inner steps began on the peer that is asked."""
        return [at for at, effect in self.effects if isinstance(effect, RunInner)]

    def when(self, name: str) -> float:
        return next(at for at, effect in self.effects if isinstance(effect, Log) and effect.event == name)


@pytest.mark.parametrize("paused_seconds", [0.2, 4.0, 10.0])
def test_who_pauses_trains_nothing_meanwhile_and_goes_on_afterwards(paused_seconds: float) -> None:
    world = AskedWorld(rounds=40)
    world.ask("pause", 1.3)
    world.ask("resume", 6.0 + paused_seconds)
    world.run(until=300.0)
    paused, resumed = world.when("paused"), world.when("resumed")
    assert 1.3 < paused < 6.0
    assert not [at for at in world.trained() if paused < at < resumed]
    assert [at for at in world.trained() if at > resumed]
    assert all(finished(host) for host in world.hosts.values())
    same_states(world)
    hosts = [log["hosts"] for log in world.logged(PEER1, "round")]
    assert hosts[0] == hosts[-1] == [PEER0, PEER1, PEER2]
    if paused_seconds > 4.0:
        assert [PEER1, PEER2] in hosts


@pytest.mark.parametrize("count", [1, 2])
def test_checkpoints_leave_time_between_them(count: int) -> None:
    """Each is complete, of every hosted instance, though they come to the boundary at different times."""
    world = World(rules=rules(rounds=12, count=count, period=100), num_peers=2, checkpoint_seconds=2.0)
    saved: list[tuple[float, Durable]] = []
    world.on_effect = lambda peer, effect: (
        saved.append((world.now, effect.durable)) if peer == PEER0 and isinstance(effect, SaveCheckpoint) else None
    )
    world.run(until=400.0)
    assert saved[-1][1].is_finished
    others = [(at, durable) for at, durable in saved if durable.round < 12]  # the end is saved whatever the time
    assert 2 <= len(others) < 11, "some boundaries are passed over"
    assert all(later - earlier >= 2.0 for (earlier, _), (later, _) in itertools.pairwise(others))
    assert all(durable.held for _, durable in saved)


def test_a_round_under_way_is_ended_and_saved_before_the_pause() -> None:
    world = AskedWorld(rounds=8, checkpoint_period=100)
    world.ask("pause", 1.3)
    world.ask("resume", 20.0)
    world.run(until=200.0)
    before = [effect for at, effect in world.effects if at <= world.when("paused")]
    (saved,) = [effect.durable for effect in before if isinstance(effect, SaveCheckpoint)]
    ended = [effect.round for effect in before if isinstance(effect, Log) and effect.event == "round"]
    assert saved.round == ended[-1] + 1  # type: ignore[operator]


def test_a_pause_can_be_repeated_and_taken_back() -> None:
    world = AskedWorld(rounds=60)
    for start in (1.3, 12.0, 25.0):
        world.ask("pause", start)
        world.ask("resume", start + 8.0)
    world.ask("pause", 38.0)
    world.ask("resume", 38.01)  # before the round has ended
    world.ask("resume", 38.02)
    world.run(until=400.0)
    names = [effect.event for _, effect in world.effects if isinstance(effect, Log)]
    assert [name for name in names if name in ("paused", "resumed")] == ["paused", "resumed"] * 3 + ["resumed"]
    assert all(finished(host) for host in world.hosts.values())
    same_states(world)


def test_a_peer_alone_pauses_and_goes_on_where_it_was() -> None:
    def states(pause: bool) -> object:
        world = AskedWorld(rounds=8, num_peers=1, count=2)
        if pause:
            world.ask("pause", 0.9)
            world.ask("resume", 50.0)
        world.run(until=200.0)
        assert finished(world.hosts[PEER0])
        return world.hosts[PEER0].states

    assert states(pause=True) == states(pause=False)


@pytest.mark.parametrize("command", ["drain", "leave"])
def test_who_is_paused_can_go(command: Literal["drain", "leave"]) -> None:
    world = AskedWorld(rounds=30)
    world.ask("pause", 1.3)
    world.ask(command, 20.0)
    world.run(until=300.0)
    stop = world.hosts[PEER0].stop
    assert stop is not None and not stop.is_finished
    assert world.effects[-1][0] == 20.0
    assert finished(world.hosts[PEER1])


def test_a_pause_does_not_stop_a_peer_that_is_leaving() -> None:
    world = AskedWorld(rounds=30)
    world.ask("drain", 1.3)
    world.ask("pause", 1.31)
    world.ask("resume", 1.32)
    world.run(until=300.0)
    assert world.hosts[PEER0].stop is not None
    names = [effect.event for _, effect in world.effects if isinstance(effect, Log)]
    assert "stopping" in names and not {"pausing", "paused", "resumed"} & set(names)


# --- leaving at once -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", [RunInner, ApplyOuter, Evaluate, Transition, Probe, SaveInstance, SaveCheckpoint])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("period", [1, 3])
def test_what_is_saved_when_a_peer_leaves_at_once_is_the_state_of_its_boundary(
    moment: type[Effect], count: int, period: int
) -> None:
    """Leaving at the beginning of the first, second, ... piece of work of a kind, as long as there is one."""

    def play(number: int | None) -> World:
        world = World(rules=rules(rounds=8, count=count, guard=True), merged_loss=1.9, checkpoint_period=period)
        begun = 0

        def ask(peer: PeerId, effect: Effect) -> None:
            nonlocal begun
            if isinstance(effect, moment):
                begun += 1
                if begun == number:
                    world.deliver(peer, Commanded(command="leave"), 0.0)

        world.on_effect = ask
        world.run()
        while world.queue:  # what the device still has to do, in order
            world.now, _, act = heapq.heappop(world.queue)
            act()
        return world

    undisturbed = World(rules=rules(rounds=8, count=count, guard=True), merged_loss=1.9)
    undisturbed.run()
    expected = undisturbed.hosts[PEER0].saved
    for number in range(1, 40):
        host = play(number).hosts[PEER0]
        assert host.stop is not None
        if host.stop.is_finished:
            break
        assert host.stop.is_urgent
        if host.durable is not None:
            kept = {instance: host.saved[host.durable.round, instance] for instance in host.durable.held}
            assert kept == {instance: expected[host.durable.round, instance] for instance in host.durable.held}, number


def test_leaving_at_once_does_not_wait_for_the_round() -> None:
    world = AskedWorld(rounds=8, checkpoint_period=100)
    world.ask("leave", 1.3)
    world.run(until=200.0)
    at = [at for at, effect in world.effects if isinstance(effect, Stop)]
    assert at == [1.3]
    last = [effect for when, effect in world.effects if when == 1.3]
    assert any(isinstance(effect, DiscardRound) for effect in last)
    assert isinstance(last[-1], Stop) and last[-1].is_urgent


# --- saving ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked_at", [0.1, 0.4, 0.9, 1.5, 2.2])
def test_a_checkpoint_comes_at_the_next_boundary_and_then_the_cadence_counts_again(asked_at: float) -> None:
    world = World(rules=rules(rounds=9, count=2, period=100), checkpoint_period=100)
    effects: list[tuple[float, Effect]] = []
    world.on_effect = lambda peer, effect: effects.append((world.now, effect))
    world.deliver(PEER0, Commanded(command="checkpoint"), asked_at)
    world.run()
    saved = [(at, effect.durable.round) for at, effect in effects if isinstance(effect, SaveCheckpoint)]
    ends = [(at, effect.round) for at, effect in effects if isinstance(effect, Log) and effect.event == "round"]
    first = saved[0][1]
    assert [boundary for _, boundary in saved] == [first, 9, 9]  # at the end and, once evaluated, as finished
    before = [number for at, number in ends if at <= asked_at]
    assert first <= max(before, default=-1) + 3  # type: ignore[type-var, operator]
    kept = [effect.round for _, effect in effects if isinstance(effect, SaveInstance) and effect.round <= first]
    assert set(kept) == {first}


# --- handing over ----------------------------------------------------------------------------------------------------


class HandingWorld(AskedWorld):
    """Two instances are hosted by the third peer alone. It hears that a state was fetched, unless `is_deaf`."""

    is_deaf = False

    def __init__(self) -> None:
        super().__init__(rounds=30, count=4, max_instances=2)

    def note(self, peer: PeerId, effect: Effect) -> None:
        super().note(PEER0 if peer == PEER2 else PEER1, effect)

    def fetch(self, name: PeerId, effect: FetchState) -> None:
        super().fetch(name, effect)
        if not self.is_deaf:
            for donor in effect.from_peers:
                self.deliver(donor, StateServed(instance=effect.instance, round=effect.round), 1.0)

    def drain(self, delay: float) -> None:
        self.deliver(PEER2, Commanded(command="drain"), delay)

    def rounds_of(self, name: PeerId) -> dict[int, list[int]]:
        """Instance -> the rounds that the peer ended with it."""
        found: dict[int, list[int]] = {}
        for number, instance in self.rounds_logged(name):
            found.setdefault(instance, []).append(number)
        return found


@pytest.mark.parametrize("asked_at", [6.0, 6.6, 7.5])
def test_who_alone_hosts_an_instance_hands_it_over_before_it_goes(asked_at: float) -> None:
    world = HandingWorld()
    world.drain(asked_at)
    world.run(until=600.0)
    stop = world.hosts[PEER2].stop
    assert stop is not None and not stop.is_finished
    handed = {instance: max(rounds) for instance, rounds in world.rounds_of(PEER2).items()}
    taken: dict[int, list[int]] = {}
    for name in (PEER0, PEER1):
        for instance, rounds in world.rounds_of(name).items():
            taken.setdefault(instance, []).extend(rounds)
    for instance, last in handed.items():
        assert min(number for number in taken[instance] if number > 0) <= last + 1, "a round is missing"
    assert not [log for name in (PEER0, PEER1) for log in world.logged(name, "warning") if log["active"]]
    assert finished(world.hosts[PEER0]) and finished(world.hosts[PEER1])


def test_nobody_waits_for_ever_for_an_heir_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adloco_p2p.core.peer.lifecycle.HANDOVER_SECONDS", 20.0)
    world = HandingWorld()
    world.is_deaf = True
    world.drain(6.0)
    world.run(until=300.0)
    (stopped,) = [at for at, effect in world.effects if isinstance(effect, Stop)]
    ended = max(at for at, effect in world.effects if isinstance(effect, Log) and effect.event == "round")
    assert 20.0 <= stopped - ended < 25.0
    assert finished(world.hosts[PEER1])
