"""Which hosts an attempt at an average ends without: a rule on measured uploads."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adloco_p2p.core.model.electorate import is_majority
from adloco_p2p.core.model.quorum import Quorum, Upload, quorum_of, stragglers, words_of
from adloco_p2p.core.model.rules import Rules, WorkRules
from adloco_p2p.core.planning.round_plan import genesis
from tests.core.core_values import RUN, capacity, peer

QUORUM = Quorum(fraction=0.75, num_planned=4, tolerance_seconds=15.0)
HERE = Upload(weight=10, is_there=True)
SLOW = Upload(weight=10, is_there=False, num_bytes=12_000_000, rest_bytes=28_000_000, seconds=22.0)
"""Its rest takes 28 / 12 * 22 = 51.3 s."""


def late(**changes: float) -> Upload:
    return Upload(**{"weight": 10, "is_there": False, "num_bytes": 12, "rest_bytes": 28, "seconds": 22.0, **changes})  # type: ignore[arg-type]


def test_a_host_whose_rest_takes_longer_than_the_others_wait_is_a_straggler() -> None:
    assert SLOW.rest_seconds == pytest.approx(154 / 3)
    assert stragglers(QUORUM, [HERE, SLOW, HERE, HERE]) == (1,)
    assert words_of(SLOW, QUORUM, round=7) == (
        "left out of round 7: 12 of 40 MB here after 22 s; the others are here and wait 15 s at most"
    )


@pytest.mark.parametrize(
    "other",
    [
        late(num_bytes=24, rest_bytes=16),  # 14.7 s more
        late(num_bytes=0, rest_bytes=40),  # nothing has come: its rate is not known
        late(seconds=1.9),  # too early to tell
        late(is_known=False),  # it is waited for until the plan knows its link
        Upload(weight=10, is_there=False),  # it has not begun, and may still compute
    ],
)
def test_a_host_that_will_be_here_in_time_or_is_not_measured_is_waited_for(other: Upload) -> None:
    assert stragglers(QUORUM, [HERE, other, HERE, HERE]) == ()
    two = Quorum(fraction=0.5, num_planned=5, tolerance_seconds=15.0)
    assert stragglers(two, [HERE, SLOW, other, HERE, HERE]) == (), "the attempt has to wait for it all the same"


def test_without_the_quorum_nobody_is_left_out() -> None:
    assert stragglers(QUORUM, [HERE, SLOW, SLOW, HERE]) == (), "half of the weight"
    heavy = Upload(weight=31, is_there=False, num_bytes=1, rest_bytes=99, seconds=10.0)
    assert stragglers(QUORUM, [HERE, heavy, HERE, HERE]) == (), "30 of 61"
    retry = Quorum(fraction=0.5, num_planned=6, tolerance_seconds=15.0)
    assert stragglers(retry, [HERE, SLOW, HERE, HERE]) == (), "three of the six that the plan counts on are no majority"


def test_where_the_others_have_more_to_send_only_the_time_counts_in_which_they_wait() -> None:
    assert stragglers(QUORUM, [HERE, SLOW, HERE, HERE], waiting=0.3) == (1,), "15.4 s"
    assert stragglers(QUORUM, [HERE, SLOW, HERE, HERE], waiting=0.29) == (), "14.9 s"


def test_a_quorum_follows_from_the_plan() -> None:
    rules, names = WorkRules(quorum=0.8, straggler_tolerance=0.25), tuple(peer(index) for index in range(3))
    first = genesis(RUN, [(name, capacity()) for name in names], Rules())
    known = [replace(entry, uplinks=(1e6,) * count) for entry, count in zip(first.roster, (2, 1, 3), strict=True)]
    plan = replace(first, roster=tuple(known), expected_seconds=600.0)
    expected = Quorum(fraction=0.8, num_planned=3, tolerance_seconds=150.0, unmeasured=frozenset(names[1:2]))
    assert quorum_of(rules, plan, names, average_seconds=30.0) == expected
    for average_seconds, tolerance_seconds in ((0.0, 10.0), (9.0, 10.0), (30.0, 30.0)):
        short = quorum_of(rules, replace(plan, expected_seconds=1.0), names, average_seconds=average_seconds)
        assert short is not None and short.tolerance_seconds == tolerance_seconds
    assert quorum_of(rules, plan, names, average_seconds=0.0, known=names) == replace(expected, unmeasured=frozenset()), (
        "an attempt failed at it"
    )
    assert quorum_of(WorkRules(quorum=None), plan, names, average_seconds=0.0) is None


@given(
    uploads=st.lists(
        st.builds(
            Upload,
            weight=st.integers(1, 100),
            is_there=st.booleans(),
            num_bytes=st.integers(0, 100),
            rest_bytes=st.integers(1, 100),
            seconds=st.floats(0.0, 100.0),
        ),
        min_size=1,
        max_size=9,
    ),
    gone=st.integers(0, 3),
    fraction=st.floats(0.01, 1.0),
)
def test_what_remains_is_always_a_majority_of_the_planned_hosts_and_the_quorum_of_the_weight(
    uploads: list[Upload], gone: int, fraction: float
) -> None:
    num_planned = len(uploads) + gone
    found = stragglers(Quorum(fraction=fraction, num_planned=num_planned, tolerance_seconds=15.0), uploads)
    kept = [upload for place, upload in enumerate(uploads) if place not in found]
    if found:
        assert all(upload.is_there for upload in kept) and is_majority(len(kept), num_planned)
        assert sum(upload.weight for upload in kept) >= fraction * sum(upload.weight for upload in uploads)
