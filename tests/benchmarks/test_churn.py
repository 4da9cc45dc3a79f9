"""The account of `benchmarks/churn.py`: each second of a host has one purpose."""

import pytest

from adloco_p2p.core.averaging.phases import Phase
from adloco_p2p.core.model.scalars import PeerId
from benchmarks.churn import Churn, played
from benchmarks.churn_account import (
    BETWEEN,
    COMPUTES,
    DOWN,
    LOST,
    PAUSES,
    TRANSFERS,
    USELESS,
    WAITS_LATE,
    WAITS_PUNCTUAL,
    Account,
    table,
)

A, B, C = (PeerId(name) for name in "abc")


def test_each_second_of_a_host_has_one_purpose() -> None:
    """A waits 2 s for B, which is as early, then 8 s for C, which was killed and began late; an attempt fails for 1 s."""
    account = Account()
    for now, peer, phase in [
        (0.0, A, Phase.TRAINING),
        (0.0, B, Phase.TRAINING),
        (0.0, C, Phase.TRAINING),
        (3.0, C, DOWN),
        (6.0, C, BETWEEN),
        (7.0, C, Phase.TRAINING),
        (10.0, A, Phase.AVERAGING),
        (12.0, B, Phase.AVERAGING),
        (20.0, C, Phase.AVERAGING),
        (21.0, A, Phase.RETRYING),
        (22.0, A, Phase.AVERAGING),
        *((24.0, peer, Phase.COMMITTING) for peer in (A, B, C)),
    ]:
        account.note(peer, now, phase, 0)
    seconds = table(account, {A: {0}, B: {0}}, 0.0, 24.0)
    assert seconds == {
        COMPUTES: 10.0 + 12.0,
        LOST: 3.0,
        USELESS: 13.0,
        DOWN: 3.0,
        BETWEEN: 1.0,
        WAITS_PUNCTUAL: 2.0,
        WAITS_LATE: 8.0 + 8.0,
        "in an attempt that fails": 1.0,
        PAUSES: 1.0,
        TRANSFERS: 2.0 + 4.0 + 4.0,
        Phase.COMMITTING: 0.0,
    }
    assert sum(seconds.values()) == pytest.approx(3 * 24.0)
    part = table(account, {A: {0}, B: {0}}, 5.0, 11.0)
    assert part == pytest.approx(
        {**dict.fromkeys(seconds, 0.0), COMPUTES: 11.0, USELESS: 4.0, DOWN: 1.0, BETWEEN: 1.0, WAITS_PUNCTUAL: 1.0}
    )


def test_a_host_that_restarts_within_half_a_round_keeps_its_seat() -> None:
    """Each plan waits for it, and all are there in time: no host is without work, and most of the pace is left."""
    killed, quiet = (played(3, rounds=12, round_seconds=60.0, vector_seconds=7.7, churn=each) for each in (Churn(), None))
    assert killed.num_kills >= 8
    assert killed.purposes.get(BETWEEN, 0.0) < 1.0
    assert killed.samples_per_second / quiet.samples_per_second / killed.alive > 0.75
