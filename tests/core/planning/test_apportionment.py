"""Largest remainder, hosts over instances, and a batch over hosts, against slow versions and the promises in their words."""

from fractions import Fraction
from math import floor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adloco_p2p.core.averaging.reduction_shares import FASTEST_UPLINK, reduction_shares
from adloco_p2p.core.model.rules import WorkRules
from adloco_p2p.core.model.scalars import MAX_HOSTS, InstanceId, PeerId
from adloco_p2p.core.planning.apportionment import allocate_hosts, largest_remainder, share_batch
from tests.core.core_values import peer


def slow_largest_remainder(total: int, weights: list[int]) -> list[int]:
    """Word by word (docs/mathematics.md, 7), in exact fractions."""
    quotas = [Fraction(total * weight, sum(weights)) for weight in weights]
    shares = [max(1, floor(quota)) for quota in quotas]
    while sum(shares) < total:
        largest = max(quota - share for quota, share in zip(quotas, shares, strict=True))
        shares[next(i for i, (q, s) in enumerate(zip(quotas, shares, strict=True)) if q - s == largest)] += 1
    while sum(shares) > total:
        smallest = min(q - s for q, s in zip(quotas, shares, strict=True) if s > 1)
        shares[next(i for i, (q, s) in enumerate(zip(quotas, shares, strict=True)) if s > 1 and q - s == smallest)] -= 1
    return shares


@given(st.lists(st.sampled_from([1, 2, 4, 8, 16, 32, 64]), min_size=1, max_size=8), st.integers(0, 60))
def test_largest_remainder_against_its_words(weights: list[int], extra: int) -> None:
    """Powers of two over a power-of-two sum are exact in floats; other sums differ in ties only, so they are left out."""
    weights = [*weights, *[1] * ((1 << (sum(weights) - 1).bit_length()) - sum(weights))]
    total = len(weights) + extra
    assert largest_remainder(total, [float(w) for w in weights]) == slow_largest_remainder(total, weights)


def test_ties_go_to_the_lower_index() -> None:
    assert largest_remainder(5, [1.0, 1.0, 1.0]) == [2, 2, 1]
    assert largest_remainder(4, [0.0, 0.0]) == [2, 2]
    assert largest_remainder(10, [1000.0, 1.0, 1.0]) == [8, 1, 1]
    assert largest_remainder(10, [1000.0, 1.0, 1.0], caps=[4, 9, 9]) == [4, 3, 3]


# --- hosts -----------------------------------------------------------------------------------------------------------


def allocate(
    requests: list[int], slots: list[int], previous: dict[InstanceId, list[PeerId]] | None = None
) -> dict[InstanceId, tuple[PeerId, ...]]:
    return allocate_hosts(
        {InstanceId(i): request for i, request in enumerate(requests)},
        {peer(i): slot for i, slot in enumerate(slots)},
        previous or {},
    )


def test_a_lone_peer_hosts_every_live_instance_whatever_it_offers() -> None:
    assert allocate([4, 4, 4], [1]) == {i: (peer(0),) for i in range(3)}


def test_peers_host_several_instances_while_the_requests_feed_them() -> None:
    assert allocate([4, 4, 4], [8, 8]) == {i: (peer(0), peer(1)) for i in range(3)}
    eight = allocate([4, 4, 4], [8] * 8)  # a second instance each would need 16 samples per step of the 12 asked for
    assert [len(eight[InstanceId(i)]) for i in range(3)] == [3, 3, 2]


def test_hosts_follow_the_requested_batches() -> None:
    hosts = allocate([30, 10], [1] * 8)
    assert [len(hosts[InstanceId(i)]) for i in range(2)] == [6, 2]


def test_a_newcomer_changes_nobody_elses_instance() -> None:
    before = allocate([40, 40], [1] * 4)
    after = allocate([40, 40], [1] * 5, {i: list(h) for i, h in before.items()})
    assert all(set(before[i]) <= set(after[i]) for i in before)
    assert sum(len(after[i]) - len(before[i]) for i in before) == 1, "it has a seat itself"


def test_an_instance_with_few_knowing_hosts_chooses_first() -> None:
    previous = {InstanceId(0): [peer(0), peer(1)], InstanceId(1): [peer(0)]}
    assert allocate([4, 4], [1, 1], previous) == {0: (peer(1),), 1: (peer(0),)}


@given(
    st.lists(st.integers(1, 100), min_size=1, max_size=6),
    st.lists(st.integers(1, 8), min_size=1, max_size=12),
    st.data(),
)
@settings(max_examples=150, deadline=None)
def test_every_instance_has_a_host_and_every_peer_an_instance(
    requests: list[int], slots: list[int], data: st.DataObject
) -> None:
    names = [peer(i) for i in range(len(slots) + 2)]
    previous = {
        InstanceId(i): data.draw(st.lists(st.sampled_from(names), max_size=len(names), unique=True))
        for i in range(len(requests))
    }
    hosts = allocate(requests, slots, previous)
    assert sorted(hosts) == list(range(len(requests)))
    loads = {peer(i): 0 for i in range(len(slots))}
    for names_of_instance in hosts.values():
        assert names_of_instance and list(names_of_instance) == sorted(set(names_of_instance))
        for name in names_of_instance:
            loads[name] += 1
    assert min(loads.values()) >= 1
    if sum(min(slot, len(requests)) for slot in slots) >= len(requests):
        assert all(loads[peer(i)] <= slot for i, slot in enumerate(slots))
    again = allocate(requests, slots, {i: list(h) for i, h in hosts.items()})
    assert again == hosts, "the same roster and requests move nobody"


def test_an_instance_has_no_more_hosts_than_a_plan_may_name() -> None:
    hosts = allocate([4], [1] * (MAX_HOSTS + 3))
    assert len(hosts[InstanceId(0)]) == MAX_HOSTS


# --- shares ----------------------------------------------------------------------------------------------------------

WORK = WorkRules(inner_steps=32, step_tolerance=0.25, max_step_ratio=4.0)


def test_shares_follow_the_speeds() -> None:
    assert share_batch(12, [30.0, 10.0, 20.0], WORK) == [(6, 32), (2, 32), (4, 32)]


def test_a_host_too_slow_for_one_sample_does_fewer_steps() -> None:
    (fast, _), (slow, steps) = share_batch(9, [80.0, 4.0], WORK)
    assert (fast, slow) == (8, 1)
    assert steps == round(9 * 4 / 84 * 32)


def test_fast_hosts_do_more_steps_up_to_a_cap_when_the_batch_is_small() -> None:
    """Two samples for hosts of 100 and 1 sample per second: the batch is not raised to keep the fast one busy."""
    assert share_batch(2, [100.0, 1.0], WORK) == [(1, 63), (1, 1)]
    assert share_batch(8, [100.0] + [1.0] * 7, WORK)[0] == (1, 128)


def test_capped_sharing_lets_the_fast_wait() -> None:
    """Twice the median would be 20 of 70; a quarter is 17.5, which leaves 11.7 for each of the others."""
    capped = WorkRules(share="capped")
    assert [samples for samples, _ in share_batch(70, [100.0, 10.0, 20.0, 10.0, 10.0], capped)] == [17, 12, 17, 12, 12]
    assert share_batch(40, [100.0, 10.0, 20.0, 10.0], capped) == [(10, 32)] * 4
    assert share_batch(5, [0.0, 0.0], capped) == [(3, 32), (2, 32)]


def test_equal_sharing_and_unknown_speeds_do_exactly_h() -> None:
    assert share_batch(5, [9.0, 1.0], WorkRules(share="equal")) == [(3, 32), (2, 32)]
    assert share_batch(5, [0.0, 0.0], WORK) == [(3, 32), (2, 32)]


def test_an_unknown_host_is_taken_for_a_mean_one() -> None:
    assert share_batch(40, [0.0, 30.0, 10.0], WORK) == share_batch(40, [20.0, 30.0, 10.0], WORK)


@given(
    st.integers(1, 400),
    st.lists(st.one_of(st.just(0.0), st.floats(0.1, 1000.0)), min_size=1, max_size=9),
    st.integers(1, 64),
    st.sampled_from([0.0, 0.25, 0.5]),
)
@settings(max_examples=200, deadline=None)
def test_hosts_end_together_and_the_batch_is_kept(batch: int, speeds: list[float], inner_steps: int, tolerance: float) -> None:
    work = WorkRules(inner_steps=inner_steps, step_tolerance=tolerance, max_step_ratio=4.0)
    shares = share_batch(batch, speeds, work)
    total = max(batch, len(speeds))
    assert sum(samples for samples, _ in shares) == total
    assert all(samples >= 1 and 1 <= steps <= 4 * inner_steps for samples, steps in shares)
    known = [v for v in speeds if v > 0]
    if not known:
        return
    filled = [v or sum(known) / len(known) for v in speeds]
    common_seconds = inner_steps * total / sum(filled)
    for (samples, steps), speed in zip(shares, filled, strict=True):
        seconds, one_step = samples * steps / speed, samples / speed
        if steps == inner_steps:
            is_clamped = steps in (1, 4 * inner_steps)
            close_enough = common_seconds / seconds == pytest.approx(1.0, abs=tolerance + 0.5 / steps + 1e-9)
            assert close_enough or is_clamped
        elif steps == 4 * inner_steps:
            assert seconds <= common_seconds + one_step
        elif steps == 1:
            assert seconds >= common_seconds - one_step
        else:
            assert abs(seconds - common_seconds) <= one_step / 2 + 1e-9 * common_seconds


@given(st.lists(st.floats(0.0, 1e30), min_size=1, max_size=6), st.integers(1, 50))
def test_absurd_speeds_give_some_share(speeds: list[float], batch: int) -> None:
    assert all(samples >= 1 and steps >= 1 for samples, steps in share_batch(batch, speeds, WORK))


@pytest.mark.parametrize(
    ("uplinks", "shares"),
    [
        ((), ()),
        ((5.0, 1.0), ()),  # two members send one vector each, however it is cut
        ((0.0, 0.0, 0.0), ()),
        ((5e-324, 5e-324, 0.0), ()),  # a claim of nothing is no claim
        ((7.0, 7.0, 7.0), (1 / 3, 1 / 3, 1 / 3)),
        ((7.0, 0.0, 7.0), (1 / 3, 1 / 3, 1 / 3)),
        ((10.0, 10.0, 10.0, 1.0), (1 / 3, 1 / 3, 1 / 3, 0.0)),
        ((4.0, 2.0, 2.0), (2 / 3, 1 / 6, 1 / 6)),  # not all of it (T = 1/2): two thirds, and T = 7/12 for the others
        ((8.0, 8.0, 1.0, 1.0, 1.0), (0.4, 0.4, 1 / 15, 1 / 15, 1 / 15)),  # 4 counts; two fifths at the most, T = 6/5
        ((3.0, 2.0, 2.0, 2.0), (0.5, 1 / 6, 1 / 6, 1 / 6)),  # T = 2/3: 2, 4/3, 4/3, 4/3 vectors
    ],
)
def test_what_each_uplink_reduces_by_hand(uplinks: tuple[float, ...], shares: tuple[float, ...]) -> None:
    assert reduction_shares(uplinks, [True] * len(uplinks)) == pytest.approx(shares)


@pytest.mark.parametrize(
    ("uplinks", "reachable", "shares"),
    [
        ((5.0, 1.0), (False, True), (0.0, 1.0)),
        ((0.0, 0.0, 0.0), (True, False, False), (1.0, 0.0, 0.0)),
        ((0.0, 0.0, 0.0), (True, True, False), (1.0, 1.0, 0.0)),  # in any unit: equally
        ((2.0, 2.0, 9.0), (True, True, False), (0.5, 0.5, 0.0)),  # T = 3/4: one and a half vectors each
        ((9.0, 2.0, 3.0, 9.0), (False, True, True, False), (0.0, 0.5, 0.5, 0.0)),  # of two reducers, each a half
        ((0.0, 1.0, 9.0, 0.0, 0.0, 0.0), (False, True, True, False, False, False), (0.0, 0.5, 0.5, 0.0, 0.0, 0.0)),
        ((7.0, 7.0, 7.0), (False, False, False), (1 / 3, 1 / 3, 1 / 3)),  # nobody can take it from them
    ],
)
def test_who_cannot_be_dialled_reduces_nothing(
    uplinks: tuple[float, ...], reachable: tuple[bool, ...], shares: tuple[float, ...]
) -> None:
    assert reduction_shares(uplinks, reachable) == pytest.approx(shares)


@given(st.lists(st.tuples(st.floats(1.0, 1e9), st.booleans()), min_size=3, max_size=12))
def test_no_small_shift_of_the_reduction_ends_earlier(members: list[tuple[float, bool]]) -> None:
    uplinks, reachable = [uplink for uplink, _ in members], [reach for _, reach in members]
    shares = reduction_shares(uplinks, reachable)
    reducers = sum(reachable) or len(members)
    largest = max(2 / len(members), 1 / reducers)
    assert sum(shares) == pytest.approx(1.0) and min(shares) >= 0 and max(shares) <= largest * (1 + 1e-9)
    middle = sorted(uplinks)[(len(uplinks) - 1) // 2]
    speeds = [min(uplink, FASTEST_UPLINK * middle) for uplink in uplinks]
    seconds = [(1 + (len(uplinks) - 2) * share) / speed for share, speed in zip(shares, speeds, strict=True)]
    asked = [
        (time, share) for time, share, reach in zip(seconds, shares, reachable, strict=True) if reach or not any(reachable)
    ]
    full = [time for time, share in asked if share >= largest * (1 - 1e-9)]
    busy = [time for time, share in asked if 1e-12 < share < largest * (1 - 1e-9)] or [max(full)]
    assert max(busy) == pytest.approx(min(busy), rel=1e-6)  # who reduces ends together ...
    assert not full or max(full) <= max(busy) * (1 + 1e-6)  # ... who does all that one may, before that ...
    idle = [time for time, share in asked if share <= 1e-12]
    assert not idle or min(idle) >= max(busy) * (1 - 1e-6)  # ... and who does not needs longer for its own vector alone


def test_a_boast_is_worth_four_times_the_median() -> None:
    everybody = [True] * 4
    assert reduction_shares((1e12, 2.0, 2.0, 2.0), everybody) == reduction_shares((8.0, 2.0, 2.0, 2.0), everybody)
