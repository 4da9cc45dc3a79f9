"""Which round is the last one of a peer whose version cannot follow the newest plan, and how it ends."""

from dataclasses import replace

import pytest

from adloco_p2p.core.model import telemetry
from adloco_p2p.core.model.commands import Command
from adloco_p2p.core.model.effects import Effect, Stop
from adloco_p2p.core.model.events import Commanded, Durable, Received, Started, TransitionApplied
from adloco_p2p.core.model.outcomes import Decided
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.protocol import FIRST_UPGRADABLE
from adloco_p2p.core.peer.lifecycle import OUTGROWN, Stage
from adloco_p2p.core.peer.peer import Peer
from adloco_p2p.core.planning.round_plan import genesis, next_plan
from adloco_p2p.sim.identities import RUN
from tests.core.peer.story import CAPACITY, PEER0, PEER1, rules
from tests.core.peer.test_peer_churn import INSTANCE, NEWS, Scripted, _cadence

OVER = 6
"""The plan that goes over to a protocol that is unknown here."""


def plans() -> list[RoundPlan]:
    made = [genesis(RUN, [(PEER0, CAPACITY), (PEER1, CAPACITY)], rules(rounds=30))]
    while len(made) <= OVER:
        made.append(next_plan(made[-1], (), rules(rounds=30)))
    return [*made[:OVER], replace(made[OVER], protocol=FIRST_UPGRADABLE + 1)]


class Behind:
    """A peer that has the plans up to that of the round that it trains, or is about to."""

    def __init__(self, round: int, *, has_begun: bool = True, has_state: bool = True) -> None:
        self.plans = plans()
        self.agreement = Scripted()
        self.peer = Peer(me=PEER0, cadence=_cadence(), agreement=self.agreement)
        known = tuple(self.plans[: round + 1])
        durable = Durable(round=round, plans=known, held=(INSTANCE,) if has_state else ())
        self.peer.handle(Started(durable=durable, capacity=CAPACITY), 0.0)
        if has_begun:
            self.peer.handle(TransitionApplied(round=round), 0.5)

    def learn(self, *rounds: int) -> list[Effect]:
        self.agreement.outcomes = [Decided(plan=self.plans[number]) for number in rounds]
        return self.peer.handle(Received(sender=PEER1, message=NEWS), 1.0)

    def ask(self, command: Command) -> None:
        self.peer.handle(Commanded(command=command, reason="the user"), 0.8)

    @property
    def last_round(self) -> int | None:
        return self.peer._lifecycle.last_round


@pytest.mark.parametrize(("round", "last"), [(OVER - 1, OVER - 1), (OVER - 2, OVER - 1), (OVER - 3, OVER - 3)])
@pytest.mark.parametrize("has_begun", [True, False])
def test_a_peer_that_is_near_ends_with_the_round_before_and_another_one_with_that_which_it_has_begun(
    round: int, last: int, *, has_begun: bool
) -> None:
    behind = Behind(round, has_begun=has_begun)
    effects = behind.learn(*range(round + 1, OVER + 1))
    assert behind.last_round == last and behind.peer.stage is Stage.PAUSING
    (line,) = [effect for effect in effects if isinstance(effect, telemetry.Pausing)]
    assert line.reason.startswith("the run follows protocol 22") and line.reason.endswith(f"; ends after round {last}")
    assert not behind.learn(), "it is announced once"


def test_one_that_ends_earlier_anyway_ends_then() -> None:
    behind = Behind(OVER - 2)
    behind.ask("pause")
    behind.peer._lifecycle.last_round = OVER - 2
    behind.learn(OVER - 1, OVER)
    assert (behind.last_round, behind.peer.stage) == (OVER - 2, Stage.PAUSING)


def test_one_that_would_stay_longer_for_others_to_take_over_ends_with_the_round_before_and_still_stops() -> None:
    behind = Behind(OVER - 2)
    behind.ask("drain")
    behind.peer._lifecycle.last_round = OVER + 2
    behind.learn(OVER - 1, OVER)
    assert (behind.last_round, behind.peer.stage) == (OVER - 1, Stage.DRAINING)


@pytest.mark.parametrize("has_state", [True, False])
@pytest.mark.parametrize("is_starting", [True, False])
def test_one_that_starts_and_one_without_a_state_stop(*, has_state: bool, is_starting: bool) -> None:
    if is_starting:
        peer = Peer(me=PEER0, cadence=_cadence(), agreement=Scripted())
        durable = Durable(round=OVER, plans=tuple(plans()), held=(INSTANCE,) if has_state else ())
        effects = peer.handle(Started(durable=durable, capacity=CAPACITY), 0.0)
    else:
        effects = Behind(OVER - 2, has_state=has_state).learn(OVER - 1, OVER)
    stops = [(stop.error, stop.is_finished) for stop in effects if isinstance(stop, Stop)]
    assert stops == ([(OUTGROWN, False)] if is_starting or not has_state else [])
