"""Seeds of well-formed, wrong messages: no honest process ends, and the honest peers end the run with one state."""

import pytest

from adloco_p2p.sim.adversary import Liar
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.identities import sign
from adloco_p2p.sim.simulate import run_seed, summary
from adloco_p2p.sim.world import Parts
from tests.sim.half_valid import HalfValidMember, HalfValidStrangers

FAULTS = Faults(loss=0.02, faults_end_at=10.0)
BLOCK = 5


def failures_of_strangers(seeds: range) -> list[str]:
    failed = []
    for seed in seeds:
        strangers = HalfValidStrangers()
        parts = Parts(adversary=strangers, liars={0: Liar(sends=strangers.tap)})
        result = run_seed(seed, peers=5, rounds=6, faults=FAULTS, round_seconds=1.2, measures_bytes=False, parts=parts)
        if result.violation is not None:
            failed.append(summary([result]))
        assert strangers.num_sent > 20
    return failed


def failures_of_a_member(seeds: range) -> list[str]:
    failed = []
    for seed in seeds:
        member = HalfValidMember(seed, sign)
        parts = Parts(liars={seed % 5: Liar(sends=member)})
        result = run_seed(seed, peers=5, rounds=6, faults=FAULTS, round_seconds=1.2, measures_bytes=False, parts=parts)
        if result.violation is not None:
            failed.append(summary([result]))
        assert member.num_sent > 20
    return failed


@pytest.mark.parametrize("block", range(2))
def test_half_valid_messages_of_strangers(block: int) -> None:
    failed = failures_of_strangers(range(block * BLOCK, (block + 1) * BLOCK))
    assert not failed, failed[0]


@pytest.mark.parametrize("block", range(2))
def test_half_valid_messages_of_a_member(block: int) -> None:
    failed = failures_of_a_member(range(block * BLOCK, (block + 1) * BLOCK))
    assert not failed, failed[0]
