"""Strangers that forge, and members that lie in one part of the protocol: the honest peers end the run with one state."""

import pytest

from adloco_p2p.sim.adversary import Liar, Outgoing
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.simulate import everyday_seed, run_seed, summary
from adloco_p2p.sim.world import Parts
from benchmarks.adversary.members import accuses_all, lies_about_averages, withholds_its_votes
from benchmarks.adversary.strangers import Strangers

LIARS: dict[str, Outgoing] = {
    "lies about averages": lies_about_averages,
    "withholds its votes": withholds_its_votes,
    "accuses all": accuses_all,
}


@pytest.mark.parametrize("seed", range(5))
def test_strangers_hold_up_and_take_over_nothing(seed: int) -> None:
    strangers = Strangers()
    faults = Faults(loss=0.02, crashes=1, joins=1, faults_end_at=10.0)
    result = run_seed(
        seed, peers=5, rounds=8, faults=faults, round_seconds=1.2, measures_bytes=False, parts=Parts(adversary=strangers)
    )
    assert result.violation is None, summary([result])
    assert strangers.num_sent > 50


@pytest.mark.parametrize("seed", range(2))
def test_strangers_in_an_everyday_world(seed: int) -> None:
    result = everyday_seed(seed, parts=Parts(adversary=Strangers()))
    assert result.violation is None, summary([result])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("lie", sorted(LIARS))
def test_a_lying_member_does_not_keep_the_others_from_the_end(lie: str, seed: int) -> None:
    faults = Faults(loss=0.02, faults_end_at=10.0)
    parts = Parts(liars={seed % 5: Liar(sends=LIARS[lie])})
    result = run_seed(seed, peers=5, rounds=8, faults=faults, round_seconds=1.2, measures_bytes=False, parts=parts)
    assert result.violation is None, summary([result])


def test_two_lying_members_of_six() -> None:
    parts = Parts(liars={1: Liar(sends=lies_about_averages), 4: Liar(sends=withholds_its_votes)})
    faults = Faults(loss=0.02, faults_end_at=10.0)
    result = run_seed(7, peers=6, rounds=8, faults=faults, round_seconds=1.2, measures_bytes=False, parts=parts)
    assert result.violation is None, summary([result])
