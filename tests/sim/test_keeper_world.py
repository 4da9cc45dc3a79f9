"""A keeper holds the newest states: others go on from them when all that trained are gone for good."""

from dataclasses import replace

import pytest

from adloco_p2p.core.model.ledger_entry import LedgerEntry
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.identities import name_of
from adloco_p2p.sim.world import Parts, World

KEEPER = name_of(2)


class Watched(World):
    """Remembers the entries that became final, by round."""

    def __init__(self, seed: int, *, rounds: int, faults: Faults) -> None:
        parts = Parts(keepers=frozenset([2]))
        super().__init__(seed, peers=3, rounds=rounds, faults=faults, round_seconds=1.5, parts=parts)
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
