"""A process that is killed and started again at once: the others may not even have noticed."""

import itertools

import pytest

from adloco_p2p.core.model.events import PeerBack, PeerGone
from tests.core.peer.test_peer import PEER0, PEER1, finished, rules, same_states
from tests.core.world import RefereedWorld

LONGEST_GAP_SECONDS = 10.0
"""Of a round that comes and goes: an attempt times out, one goes on alone, the other one takes what it has missed."""


@pytest.mark.parametrize("moment", [3.0 + 0.17 * step for step in range(10)])
@pytest.mark.parametrize("away_seconds", [0.05, 1.3])
@pytest.mark.parametrize("notice", ["nobody", "late", "at once"])
@pytest.mark.parametrize("num_peers", [2, 3])
def test_a_peer_that_is_restarted_holds_nobody_up(num_peers: int, notice: str, away_seconds: float, moment: float) -> None:
    world = RefereedWorld(rules=rules(rounds=20), num_peers=num_peers, seed=int(100 * moment))
    ends: list[float] = []

    def note(peer: object, effect: object) -> None:
        if peer == PEER0 and getattr(effect, "event", "") == "round":
            ends.append(world.now)

    def strike() -> None:
        world.hosts[PEER1].is_alive = False
        world.at(away_seconds, lambda: world.restart(PEER1))
        noticed = {"nobody": None, "late": away_seconds, "at once": 0.01}[notice]
        if noticed is not None:
            world.tell_others(PEER1, PeerGone(peer=PEER1), noticed)
            world.tell_others(PEER1, PeerBack(peer=PEER1), away_seconds + 0.02)

    world.on_effect = note
    world.at(moment, strike)
    world.run(until=200.0)
    same_states(world)
    assert all(finished(host) for host in world.hosts.values())
    assert max(after - before for before, after in itertools.pairwise(ends)) < LONGEST_GAP_SECONDS
