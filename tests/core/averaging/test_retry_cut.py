"""A retry cuts the vector as the first attempt did."""

from dataclasses import replace

import pytest

from adloco_p2p.core.averaging.attempt import Attempt
from adloco_p2p.core.model.averages import Average, LostShare
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.rules import Rules
from adloco_p2p.core.planning.round_plan import genesis
from tests.core.averaging.assignments import attempts_of
from tests.core.core_values import RUN, capacity, peer

NAMES = tuple(peer(index) for index in range(4))


def average_of(plan: RoundPlan, members: tuple[int, ...], *, number: int = 1) -> Average:
    """That peer 0 begins with these members."""
    attempts = attempts_of(plan)
    attempts.current = Attempt(number=number, members=tuple(peer(index) for index in members))
    return attempts.average()


def plan_with(uplinks: tuple[float, ...], *, newcomers: tuple[int, ...] = ()) -> RoundPlan:
    capacities = [replace(capacity(), upload_bytes_per_second=uplink) for uplink in uplinks]
    plan = genesis(RUN, list(zip(NAMES, capacities, strict=True)), Rules())
    seats = [replace(entry, probation=3) if NAMES.index(entry.peer) in newcomers else entry for entry in plan.roster]
    return replace(plan, roster=tuple(seats))


def test_the_shares_of_a_retry_are_those_of_the_first_attempt() -> None:
    plan = plan_with((4e6, 1e6, 2e6, 2e6))
    first = average_of(plan, (0, 1, 2, 3), number=0)
    assert first.lost == () and len(set(first.shares)) > 1
    retry = average_of(plan, (0, 2, 3))
    assert retry.shares == (first.shares[0], *first.shares[2:])
    assert retry.lost == (LostShare(1, first.shares[1]),)
    retry = average_of(plan, (1, 2), number=2)
    assert retry.shares == first.shares[1:3]
    assert retry.lost == (LostShare(0, first.shares[0]), LostShare(2, first.shares[3]))


def test_shares_follow_the_median_of_the_last_measured_uplinks() -> None:
    """One measurement that is off does not make equal links unequal."""
    plan = plan_with((1e6, 1e6, 4e6, 1e6))
    seats = [replace(entry, uplinks=(1e6, 1e6, entry.capacity.upload_bytes_per_second)) for entry in plan.roster]
    first = average_of(replace(plan, roster=tuple(seats)), (0, 1, 2, 3), number=0)
    assert first.shares == pytest.approx((0.25,) * 4)


def test_equal_shares_stay_equal() -> None:
    retry = average_of(plan_with((0.0,) * 4), (0, 1, 3))
    assert (retry.shares, retry.lost) == ((1.0,) * 3, (LostShare(2, 1.0),))


def test_where_none_of_the_reducers_is_left_the_vector_is_cut_anew() -> None:
    plan = plan_with((0.0,) * 4, newcomers=(0, 1, 2))
    assert average_of(plan, (0, 1, 2, 3), number=0).shares == (0.0, 0.0, 0.0, 1.0)
    retry = average_of(plan, (0, 1, 2))
    assert (retry.shares, retry.lost) == ((), ())
