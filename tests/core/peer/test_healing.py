"""Two sides of one partition become one again, with what both have trained: by hand, in the simulated world.

Every world checks at its end that all have one ledger that verifies, and one state.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import pytest

from adloco_p2p.core.model.branches import FIRST_BRANCH_ID
from adloco_p2p.core.model.lineage import Fork, Merge, ProbeVerdict
from adloco_p2p.core.model.rules import BatchRules, InstanceRules, MergeRules, Rules
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.core.model.telemetry import Log
from adloco_p2p.sim.device import HashDevice, hashed
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.identities import name_of, short
from adloco_p2p.sim.world import Parts, World, small_rules
from tests.sim.test_sim_healing import plans, reasons

CUT = Faults(partition_at=5.0, partition_seconds=25.0, faults_end_at=30.0)
WINNERS, LOSERS = tuple(map(name_of, range(3))), tuple(map(name_of, range(3, 5)))
"""Three electors of the last common plan are more than two."""


class Merging(HashDevice):
    """Notes the merges of each peer: the plan's, the states that went in, and what came out."""

    done: ClassVar[dict[PeerId, list[tuple[Merge, list[Digest], Digest]]]]

    def transition(self, forks: tuple[Fork, ...], merges: tuple[Merge, ...]) -> None:
        went_in = [[self._states[i] for i, w in zip(m.sources, m.weights, strict=True) if w > 0.0] for m in merges]
        super().transition(forks, merges)
        for merge, states in zip(merges, went_in, strict=True):
            self.done.setdefault(self._traits.peer, []).append((merge, states, self._states[merge.target]))


def cut_in_two(
    *, peers: int = 5, count: int = 1, rounds: int = 24, merge_at: int = 3, seed: int = 1
) -> tuple[World, type[Merging]]:
    """The last peers of five are the smaller side. Batches stay as they are, so samples can be counted by hand."""

    class Device(Merging):
        done: ClassVar[dict[PeerId, list[tuple[Merge, list[Digest], Digest]]]] = {}

    rules: Rules = replace(
        small_rules(peers, rounds),
        instances=InstanceRules(count=count, start="fork" if count > 1 else "same", fork_round=1),
        batch=BatchRules(test="constant", initial_batch=30),
        merge=MergeRules(policy="worst_with_worst" if count > 1 else "none", first_round=merge_at, period_rounds=merge_at),
    )
    world = World(seed, peers=peers, rounds=rounds, faults=CUT, rules=rules, parts=Parts(device=Device))
    world.network.place({name: int(name in LOSERS) for name in world.machines})
    return world, Device


def branch_merges(world: World) -> list[Merge]:
    return [merge for plan in plans(world) for merge in plan.merges if merge.sources[-1] >= FIRST_BRANCH_ID]


def samples(world: World, names: Sequence[PeerId], first: int, last: int) -> int:
    """That these peers reported of these rounds."""
    reports = [report for name in names for report in world.machines[name].reported if first <= report.round <= last]
    return sum(item.samples for report in reports for item in report.instances)


def test_what_the_losing_side_trained_is_merged_in_weighted_by_samples() -> None:
    world, device = cut_in_two(seed=2)
    world.run()
    ((merge, number),) = [(merge, plan.round) for plan in plans(world) for merge in plan.merges]
    found = re.findall(r"in rounds (\d+)-(\d+) \(([\d,]+) samples against ([\d,]+)\): weight ([0-9.]+)", merge.reason)
    (first, last, lost, won), weight = (int(digits.replace(",", "")) for digits in found[0][:4]), found[0][4]
    assert f"merged what p003, p004 trained apart of instance 0 in rounds {first}-{last} " in short(merge.reason)
    assert lost == samples(world, LOSERS, first, last) > 200
    measured = number - 2  # the plan that ordered the measurement weighed it
    assert won == samples(world, WINNERS, first, measured - 1) + samples(world, LOSERS, last + 1, measured - 1)
    exact = lost / (lost + won)
    assert merge.weights == pytest.approx((1.0 - min(exact, 0.25), min(exact, 0.25)))
    assert weight == f"{min(exact, 0.25):.2f}"
    ((_, went_in, came_out),) = device.done[LOSERS[0]]
    assert [device.done[name] for name in (*WINNERS, *LOSERS)] == [device.done[LOSERS[0]]] * 5
    (apart,) = [report for report in world.machines[LOSERS[0]].reported if report.round == last]
    assert went_in[1] == apart.instances[0].state_digest
    assert came_out == hashed("merge", list(zip(went_in, merge.weights, strict=True)))


def test_what_makes_the_model_worse_is_not_merged() -> None:
    class Worse(HashDevice):
        def probe(self, merge: Merge) -> ProbeVerdict:
            verdict = super().probe(merge)
            return replace(verdict, merged_loss=verdict.source_losses[0] + 0.1)

    world, _ = cut_in_two()
    world = World(1, peers=5, rounds=24, faults=CUT, rules=world.rules, parts=Parts(device=Worse))
    world.network.place({name: int(name in LOSERS) for name in world.machines})
    world.run()
    assert not branch_merges(world)
    assert any("dropped what" in reason and "without it" in reason for reason in reasons(world))


@pytest.mark.parametrize("num_victims", [1, 2])
def test_claimants_that_die_hold_nobody_up(num_victims: int) -> None:
    """They die when the first plan names what they trained apart: before anybody else has it."""
    world, _ = cut_in_two()
    victims, logged = LOSERS[:num_victims], world.checkers.logged

    def watch(peer: PeerId, log: Log) -> None:
        logged(peer, log)
        if log.event == "plan" and "is to be fetched" in str(getattr(log, "reason", "")):
            for name in victims:
                world.machines[name].is_gone = True
                world.queue.after(0.0, world.machines[name].crash, "as it is named")

    world.checkers.logged = watch  # type: ignore[method-assign]
    world.run()
    assert len(branch_merges(world)) == 2 - num_victims
    dropped = [short(reason) for reason in reasons(world) if "dropped what" in reason]
    assert [("no peer that holds it is left" in reason) for reason in dropped] == [True] * (num_victims - 1)


def test_three_sides_become_one() -> None:
    world, _ = cut_in_two(peers=6, rounds=30, seed=4)
    world.network.place({name_of(5): 2})
    world.run()
    assert sum(len(merge.sources) - 1 for merge in branch_merges(world)) == 2


def test_an_instance_that_the_winners_merged_away_goes_where_it_went() -> None:
    """Two instances become one in round 10, which the losers, who are slower, do not come to before the cut is over."""
    world, _ = cut_in_two(count=2, merge_at=6, rounds=30)
    for name in LOSERS:
        world.machines[name].round_seconds *= 3.0
    world.run()
    merges = branch_merges(world)  # one or two: the losers need not report in the same round that they are back
    told = [instance for merge in merges for instance in re.findall(r"trained apart of instance (\d)", merge.reason)]
    assert sorted(told) == ["0", "1"]
    assert all(merge.target == InstanceId(1) for merge in merges) and sum(len(merge.sources) - 1 for merge in merges) == 2
