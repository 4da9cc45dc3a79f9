"""Names that never report, in an open run: an honest newcomer gets a seat all the same."""

from functools import partial

import pytest

from adloco_p2p.core.model.first_seats import FIRST_SEATS
from adloco_p2p.core.model.plan import roster_of
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.identities import NAME_CHARS, sign
from adloco_p2p.sim.world import Parts, World, rules_of_one
from benchmarks.adversary.strangers import Aim, Strangers, beat, join_request

ROUND_SECONDS = 4.0
CAME_AT = 30.0
ROUNDS = 22
MOST_ROUNDS = 8
"""Within so many rounds the newcomer has its seat, beside eight names that ask whenever one of them has lost its seat."""
RULES = rules_of_one(ROUNDS, probation_rounds=0)


class Renewed:
    """Eight names at a time keep asking, and living. One that has lost its seat is never used again."""

    def __init__(self) -> None:
        self._seated: set[PeerId] = set()
        self._generation = [0] * FIRST_SEATS

    def __call__(self, at: Aim) -> tuple[object, ...]:
        roster = {*roster_of(at.plan)}
        for place in range(FIRST_SEATS):
            if self._name(place) in self._seated - roster:
                self._generation[place] += 1
        names = [self._name(place) for place in range(FIRST_SEATS)]
        self._seated |= roster.intersection(names)
        newest = 10**7 + int(10 * at.port.now())
        requests = tuple(join_request(name, partial(sign, name), at.plan, beat=newest) for name in names)
        return (beat(at, joins=requests),)

    def _name(self, place: int) -> PeerId:
        return PeerId(f"x{place}-{self._generation[place]:04d}".ljust(NAME_CHARS, "-"))


@pytest.mark.parametrize("seed", range(2))
def test_a_newcomer_gets_a_seat_beside_eight_names_that_never_report_and_are_renewed(seed: int) -> None:
    attackers = Strangers(deeds=(Renewed(),))
    faults = Faults(faults_end_at=CAME_AT + 1.0)
    world = World(
        seed, peers=2, rounds=ROUNDS, faults=faults, round_seconds=ROUND_SECONDS, rules=RULES, parts=Parts(adversary=attackers)
    )
    world.queue.at(CAME_AT, world._join)
    world.run()
    *_, newcomer = world.machines
    plans = [entry.plan for entry in world.ledger()]
    came_in = min(plan.round for plan in plans if min(world.decided[plan.round]) > CAME_AT)
    crowd = [peer for plan in plans if plan.round == came_in for peer in roster_of(plan) if peer.startswith("x")]
    assert len(crowd) == FIRST_SEATS, "the names have all first seats when it comes"
    seated_in = min(plan.round for plan in plans if newcomer in roster_of(plan))
    assert seated_in - came_in <= MOST_ROUNDS
