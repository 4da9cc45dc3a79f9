"""The checker of the promise to newcomers finds peers that keep none of it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from adloco_p2p.core.agreement.gossip_agreement import GossipAgreement
from adloco_p2p.core.model.effects import FetchState
from adloco_p2p.core.model.plan import RosterChange, RoundPlan, roster_of
from adloco_p2p.core.model.report import Report
from adloco_p2p.sim.cached_rule import production_rule
from adloco_p2p.sim.checkers import Violation
from adloco_p2p.sim.faults import Faults, everyday_faults
from adloco_p2p.sim.simulate import everyday_rules
from adloco_p2p.sim.state_fetches import StateFetches
from adloco_p2p.sim.world import Parts, World, rules_of_one

RULES = rules_of_one(16, probation_rounds=0)


class LetsNobodyIn(GossipAgreement):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.members.candidates = lambda now: ()  # type: ignore[method-assign]


def without_work(parent: RoundPlan, reports: Sequence[Report], change: RosterChange) -> RoundPlan:
    """Newcomers only receive the averages."""
    plan = production_rule(RULES)(parent, reports, change)
    founders = {seat.peer for seat in plan.roster if seat.joined_round == 0}
    (item,) = plan.instances
    hosts = tuple(share if share.peer in founders else replace(share, inner_steps=0) for share in item.hosts)
    return replace(plan, instances=(replace(item, hosts=hosts),))


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        (Parts(), ""),
        (Parts(agreement=LetsNobodyIn), "got no seat in the 4 plans"),
        (Parts(rule=without_work), "no work of .* counts in the 8 plans"),
    ],
)
def test_a_newcomer_that_stays_gets_a_seat_and_its_work_counts(parts: Parts, found: str) -> None:
    world = World(0, peers=3, rounds=16, faults=Faults(faults_end_at=3.0), rules=RULES, parts=parts)
    world.queue.at(4.0, world._join)
    if not found:
        world.run()
        assert [*world.machines][-1] in roster_of(world.ledger()[-1].plan)
        return
    with pytest.raises(Violation, match=found):
        world.run()


def test_a_newcomer_that_gets_a_state_only_at_the_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not left behind, and no work of it was due before."""
    world = World(0, peers=3, rounds=16, faults=Faults(faults_end_at=3.0), rules=RULES, parts=Parts())
    offers = StateFetches._offers

    def late(self: StateFetches, effect: FetchState) -> Iterator[Any]:
        is_founder = self._machine.peer in roster_of(world.genesis)
        return offers(self, effect) if is_founder or effect.round >= 15 else iter(())

    monkeypatch.setattr(StateFetches, "_offers", late)
    world.queue.at(4.0, world._join)
    with pytest.raises(Violation, match="got no state in the 8 plans"):
        world.run()


@pytest.mark.parametrize("seed", range(6))
def test_newcomers_among_everyday_faults_work_when_these_are_over(seed: int) -> None:
    """The everyday worlds end soon after their faults; these go on for long enough to judge newcomers by."""
    random = Random(f"everyday {seed}")
    rules, faults = everyday_rules(random, 14), everyday_faults(random)
    world = World(seed, peers=5, rounds=14, faults=faults, rules=rules, is_delayed=rules.instances.count == 1)
    world.queue.at(faults.faults_end_at + random.uniform(0.0, 15.0), world._join)
    world.run()
