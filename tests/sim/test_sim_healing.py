"""Two sides of a partition train apart and meet again: nothing that somebody still has is forgotten, and no lie gets far."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from adloco_p2p.core.model.branches import FIRST_BRANCH_ID
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.peer.branch_store import BranchStore
from adloco_p2p.core.planning import branch_merge
from adloco_p2p.sim.checkers import Violation
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.world import World


def parted(seed: int, *, liars: float | None = None) -> World:
    random = Random(f"parted {seed}")
    faults = Faults(
        loss=random.choice((0.0, 0.1)),
        crash_chance=random.choice((0.0, 0.0, 0.002)),
        liars=random.choice((0.0, 0.25)) if liars is None else liars,
        partition_at=random.uniform(2.0, 10.0),
        partition_seconds=random.uniform(10.0, 30.0),
        slow_peers=random.choice((0.0, 0.3)),
        faults_end_at=45.0,
    )
    peers = random.randint(3, 6)
    return World(seed, peers=peers, rounds=24, faults=faults)


def plans(world: World) -> list[RoundPlan]:
    processes = [machine.process for machine in world.machines.values() if machine.process is not None]
    ledgers = [process.agreement.ledger for process in processes if process.stop is not None and process.stop.is_finished]
    return [entry.plan for entry in ledgers[0].since(1)] if ledgers else []


def num_merged(world: World) -> int:
    merges = [merge for plan in plans(world) for merge in plan.merges]
    return sum(source >= FIRST_BRANCH_ID for merge in merges for source in merge.sources)


def reasons(world: World) -> list[str]:
    return [plan.reason for plan in plans(world)]


@pytest.mark.parametrize("block", range(3))
def test_what_was_trained_apart_is_settled(block: int) -> None:
    merged = 0
    for seed in range(4 * block, 4 * block + 4):
        world = parted(seed)
        world.run()
        merged += num_merged(world)
    assert merged


@pytest.mark.heavy
@pytest.mark.parametrize("block", range(3, 60))
def test_what_was_trained_apart_is_settled_at_length(block: int) -> None:
    for seed in range(4 * block, 4 * block + 4):
        parted(seed).run()


def test_without_liars_and_crashes_all_of_it_is_merged() -> None:
    faults = Faults(partition_at=5.0, partition_seconds=25.0, faults_end_at=30.0)
    world = World(3, peers=6, rounds=24, faults=faults)
    world.run()
    assert num_merged(world) > 0
    assert not [reason for reason in reasons(world) if "dropped" in reason]


# --- planted bugs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "result"), [("set_aside", []), ("claims", ())])
def test_a_peer_that_forgets_what_it_trained_is_caught(method: str, result: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BranchStore, method, lambda self, *arguments: result)
    assert any(caught(parted(seed)) for seed in range(10))


def test_believing_anybody_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "adloco_p2p.core.ledger.branch_claims._is_credible",
        lambda history, claimant, branch_state: branch_state.fork in history.position,
    )
    assert any(caught(parted(seed, liars=0.5)) for seed in range(10))


def test_forgetting_the_strays_of_the_plan_before_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = branch_merge.settle

    def forgetful(*arguments: Any, **settings: Any) -> branch_merge.Settlement:
        return replace(honest(*arguments, **settings), pending=())

    monkeypatch.setattr("adloco_p2p.core.planning.round_plan.settle", forgetful)
    assert any(caught(parted(seed, liars=0.0)) for seed in range(10))


def caught(world: World) -> bool:
    try:
        world.run()
    except Violation as violation:
        if " raises " in str(violation):  # the planted bug does not fit the code any more
            raise
        return True
    return False
