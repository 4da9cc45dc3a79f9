"""Orders of a run's author to a live swarm of whole peers, under loss, crashes and restarts."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from adloco_p2p.core.model.course import Settings
from adloco_p2p.core.model.ledger_entry import Action, Statement
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.rules import AdmissionRules
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.sim.adversary import stranger_names
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.identities import RUN, name_of, signed_by
from adloco_p2p.sim.world import Parts, World, small_rules
from benchmarks.adversary.strangers import Aim, Deed, Strangers, beat

AUTHOR = name_of(0)


def order(action: Action, serial: int, *, round: int = 0, rounds: int | None = None, about: PeerId | None = None) -> Statement:
    unsigned = Statement(
        run=RUN,
        signer=AUTHOR,
        serial=serial,
        action=action,
        round=round,
        subject=about or PeerId(""),
        settings=Settings(rounds=rounds, learning_rate_factor=0.5) if rounds is not None else None,
        signature="",
    )
    return signed_by(AUTHOR, unsigned)


def bringing(orders: Mapping[float, Statement]) -> Deed:
    """The author's statements to members, from the instant at which each of them is made; any of them may be lost."""

    def brings(at: Aim) -> tuple[object, ...]:
        made = tuple(statement for instant, statement in orders.items() if at.port.now() >= instant)
        return (replace(beat(at), statements=made),)

    return brings


def played(seed: int, orders: Mapping[float, Statement], *, rounds: int, faults: Faults) -> tuple[World, dict[int, RoundPlan]]:
    """The world after its end, and the plans of its ledger."""
    rules = replace(small_rules(4, rounds), admission=AdmissionRules(kind="tickets"))
    parts = Parts(adversary=Strangers(deeds=(bringing(orders),), names=stranger_names(1)))
    world = World(seed, peers=4, rounds=rounds, rules=rules, faults=faults, round_seconds=1.2, parts=parts)
    world.run()
    return world, {entry.plan.round: entry.plan for entry in world.ledger()}


@pytest.mark.parametrize("seed", range(3))
def test_all_peers_end_the_run_after_the_round_that_the_author_named(seed: int) -> None:
    _, plans = played(seed, {1.0: order("stop", 0, round=5)}, rounds=40, faults=Faults(loss=0.02, crashes=1, faults_end_at=8.0))
    last = max(plans)
    assert plans[last].is_last
    assert last == plans[last].course.last_round + 1, f"seed {seed}"  # type: ignore[operator]
    assert last < 12, f"seed {seed}: an order reaches the ledger within a few rounds"


@pytest.mark.parametrize("seed", range(3))
def test_a_paused_run_waits_through_crashes_until_the_author_resumes_it(seed: int) -> None:
    orders = {1.0: order("pause", 0, round=3), 60.0: order("resume", 1)}
    faults = Faults(loss=0.02, crashes=2, faults_end_at=60.0)
    world, plans = played(seed, orders, rounds=8, faults=faults)
    paused_from = max(plan.course.paused_from or 0 for plan in plans.values())
    assert paused_from >= 3
    assert min(world.decided[paused_from]) >= 60.0, f"seed {seed}"
    assert max(world.decided[paused_from - 1]) < 60.0, f"seed {seed}"
    assert max(plans) == 8


@pytest.mark.parametrize("seed", range(2))
def test_a_change_holds_from_one_round_on_for_all_and_a_new_signer_is_one_for_all(seed: int) -> None:
    orders = {1.0: order("change", 0, round=4, rounds=9), 2.0: order("add_signer", 1, about=name_of(2))}
    _, plans = played(seed, orders, rounds=6, faults=Faults(loss=0.02, faults_end_at=5.0))
    assert max(plans) == 9
    assert plans[9].signers == (AUTHOR, name_of(2))
    (change,) = plans[9].course.changes
    assert change.settings == Settings(rounds=9, learning_rate_factor=0.5)
