"""Scores on tasks through a whole swarm with losses and a crash: drawn peers claim them, and the ledger keeps them."""

import pytest

from adloco_p2p.core.model.measurers import task_scorer
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.identities import name_of
from adloco_p2p.sim.world import Parts, World

PERIOD = 2


@pytest.mark.parametrize("seed", range(3))
def test_claims_of_drawn_peers_are_in_the_ledger(seed: int) -> None:
    world = World(
        seed,
        peers=3,
        rounds=12,
        faults=Faults(loss=0.01, faults_end_at=10.0),
        round_seconds=1.5,
        parts=Parts(task_period=PERIOD),
    )
    world.queue.at(4.0, world.machines[name_of(1)].crash, "is restarted")
    world.run()
    plans = {entry.plan.round: entry.plan for entry in world.ledger()} | {0: world.genesis}
    drawn: dict[PeerId, list[int]] = {}
    for number, plan in plans.items():
        if (name := task_scorer(plan, period_rounds=PERIOD)) is not None:
            drawn.setdefault(name, []).append(number)
    claims = [(r.report.peer, r.report.round) for entry in world.ledger() for r in entry.reports if r.report.tasks is not None]
    assert claims, f"seed {seed}"
    for name, number in claims:
        before = [due for due in drawn.get(name, []) if due < number]
        assert before, f"seed {seed}: {name} claims scores in round {number} and was not drawn before"
        assert sum(1 for other, at in claims if other == name and at <= number) <= len(before), f"seed {seed}: one claim a draw"
