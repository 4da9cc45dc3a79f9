"""A keeper holds the newest states: others go on from them when all that trained are gone for good."""

from dataclasses import replace
from functools import partial
from random import Random

import pytest

from adloco_p2p.core.model.events import Commanded
from adloco_p2p.core.model.ledger_entry import LedgerEntry
from adloco_p2p.core.model.rules import Rules
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.sim.event_queue import EventQueue
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.identities import name_of
from adloco_p2p.sim.links import Links
from adloco_p2p.sim.machine import Machine
from adloco_p2p.sim.world import Parts, World, rules_of_one

KEEPER = name_of(2)


class Watched(World):
    """Remembers the entries that became final, by round. The last of the founders is a keeper."""

    def __init__(
        self,
        seed: int,
        *,
        rounds: int,
        faults: Faults,
        peers: int = 3,
        rules: Rules | None = None,
        parts: Parts | None = None,
    ) -> None:
        parts = replace(parts or Parts(), keepers=frozenset([peers - 1]))
        super().__init__(seed, peers=peers, rounds=rounds, faults=faults, round_seconds=1.5, rules=rules, parts=parts)
        self.entries: dict[int, LedgerEntry] = {}
        note = self.checkers.persisting

        def persisting(peer: PeerId, record: object) -> None:
            if isinstance(record, LedgerEntry):
                self.entries[record.plan.round] = record
            note(peer, record)

        self.checkers.persisting = persisting  # type: ignore[method-assign]


@pytest.mark.parametrize("seed", range(3))
def test_newcomers_go_on_from_the_keeper_when_all_that_trained_are_gone(seed: int) -> None:
    world = Watched(seed, rounds=16, faults=Faults(faults_end_at=70.0))
    world.queue.at(9.0, world._vanish, [name_of(0), name_of(1)])
    known: dict[str, int] = {}
    world.queue.at(50.0, lambda: known.update(before=max(world.entries)))
    for at in (51.0, 52.0):
        world.queue.at(at, world._join)
    world.run()
    stopped_at = known["before"]
    assert 2 < stopped_at < 16, f"seed {seed}"
    assert max(world.entries) == 16, f"seed {seed}"
    assert world.entries[stopped_at + 1].value.joined, "the first plan after the pause lets a newcomer in"
    for round, entry in world.entries.items():
        voters = {cast.peer for cast in entry.certificate.votes}
        assert (KEEPER in voters) == (voters == {KEEPER}), f"seed {seed}, round {round}: a keeper votes where nobody else is"
        for item in entry.plan.instances:
            work = {share.peer: share.samples for share in item.hosts}
            assert work.get(KEEPER, 0) == 0, f"seed {seed}, round {round}"
    keeper = world.machines[KEEPER]
    assert keeper.disk.durable is not None and keeper.disk.durable.is_finished


@pytest.mark.parametrize("seed", range(2))
def test_a_keeper_that_restarts_holds_up_nobody(seed: int) -> None:
    world = Watched(seed, rounds=10, faults=replace(Faults(loss=0.02), faults_end_at=12.0))
    keeper = world.machines[KEEPER]
    world.queue.at(4.0, keeper.crash, "is restarted")
    world.queue.at(7.0, keeper.boot)
    world.run()
    assert max(world.entries) == 10


class SlowKeeper(Links):
    """In the first half minute every average reaches the keeper of a world of two seconds after the round."""

    def __init__(self, queue: EventQueue, *, seed: int) -> None:
        super().__init__(uplink=2e6, rates={}, random=Random(seed))
        self._queue = queue

    def vector_seconds(self, peer: PeerId) -> float:
        return 3.0 if peer == name_of(1) and self._queue.now < 30.0 else super().vector_seconds(peer)


def one_that_trains(seed: int, *, is_keeper_slow: bool = False) -> Watched:
    """One founder that trains, and a keeper; a newcomer at 40 s."""
    rules = rules_of_one(30)
    parts = Parts(links=partial(SlowKeeper, seed=seed) if is_keeper_slow else None)
    world = Watched(seed, peers=2, rounds=30, faults=Faults(faults_end_at=120.0), rules=rules, parts=parts)
    world.queue.at(40.0, world._join)
    return world


def newest_state(machine: Machine) -> Digest:
    """Digest of the newest state of the instance that the machine can serve."""
    assert machine.process is not None
    offers = machine.process.offers[InstanceId(0)]
    return offers[max(offers)][0]


def drain(machine: Machine) -> None:
    machine.is_gone = True
    machine.command(Commanded(command="drain"))


@pytest.mark.parametrize("at", [9.0 + 0.4 * step for step in range(4)])
@pytest.mark.parametrize("seed", range(3))
def test_the_last_that_trains_stays_until_the_keeper_has_its_newest_state(seed: int, at: float) -> None:
    world = one_that_trains(seed)
    founder, keeper = world.machines.values()
    world.queue.at(at - 0.6, lambda: setattr(keeper, "frozen_until", world.time + 1.2))
    world.queue.at(at, drain, founder)
    known: dict[Machine, Digest] = {}
    world.queue.at(30.0, lambda: known.update({machine: newest_state(machine) for machine in (founder, keeper)}))
    world.run()
    assert founder.process is not None
    assert founder.process.stop is not None
    assert founder.process.stopped_at < at + 5.0
    assert known[founder] == known[keeper], f"seed {seed}"
    assert not any(item.orphaned_rounds for entry in world.entries.values() for item in entry.plan.instances)


@pytest.mark.parametrize("at", [10.0 + 0.25 * step for step in range(6)])
@pytest.mark.parametrize("seed", range(3))
def test_newcomers_go_on_from_an_older_state_where_nobody_alive_has_the_newest(seed: int, at: float) -> None:
    """The plan names a state of which the keeper knows the digest alone."""
    world = one_that_trains(seed, is_keeper_slow=True)
    world.queue.at(at, world._vanish, [name_of(0)])
    known: dict[str, int] = {}
    world.queue.at(39.0, lambda: known.update(before=max(world.entries)))
    world.run()
    plans = [entry.plan for entry in world.entries.values() if entry.plan.round > known["before"] + 1]
    named = [plan.round for plan in plans if plan.instances[0].state_digest is not None]
    assert named, f"seed {seed}: a newcomer has trained"
    assert min(named) - known["before"] < 12, f"seed {seed}: rounds that nobody can train are few"
