"""Hosts whose votes do not count, beside full members: a name costs nothing, so it must cost a full member nothing.

A, B and C are full members, N and M are names on probation; A leads the retries.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from adloco_p2p.core.averaging.adaptive_timeout import AdaptiveTimeout
from adloco_p2p.core.averaging.outer_round import OuterRound
from adloco_p2p.core.averaging.phases import Phase
from adloco_p2p.core.model.messages import AttemptFailed, AttemptStart
from adloco_p2p.core.model.scalars import InstanceId, PeerId
from tests.core.averaging.test_outer_round import averaging, members_of_retry

A, B, C, N, M = (PeerId(name) for name in "abcnm")
FIRST = PeerId("0")
INSTANCE = InstanceId(0)


def averaging_beside(*names: PeerId, full: Sequence[PeerId] = (A, B, C)) -> OuterRound:
    return averaging(*full, *names, adaptive_timeout=AdaptiveTimeout(), names=names, batch=2 * len([*full, *names]))


def failed(attempt: int, *suspects: PeerId) -> AttemptFailed:
    return AttemptFailed(instance=INSTANCE, round=0, attempt=attempt, suspects=suspects)


def after(outer: OuterRound, reports: Sequence[tuple[PeerId, AttemptFailed]]) -> set[tuple[PeerId, ...]]:
    """The members of the retry that this host leads after the reports, each of which ends its attempt."""
    now, members = 20.0, set[tuple[PeerId, ...]]()
    for sender, report in reports:
        outer.received(sender, report, now)
        assert outer.phase is Phase.RETRYING and outer.next_deadline is not None
        now = outer.next_deadline
        members = members_of_retry(outer, now)
        now += 20.0
    return members


@pytest.mark.parametrize("full", [(A,), (A, B), (A, B, C)])
@pytest.mark.parametrize("names", [(N,), (N, M)])
def test_two_attempts_that_names_end_are_the_last(full: tuple[PeerId, ...], names: tuple[PeerId, ...]) -> None:
    """Whether one name ends both or each one."""
    outer = averaging_beside(*names, full=full)
    assert after(outer, [(names[0], failed(0)), (names[-1], failed(1))]) == {full}


def test_names_that_decline_in_an_attempt_end_two_at_most() -> None:
    """To decline is no fault, but each of many names could do it in turn."""
    many = tuple(PeerId(f"n{number}") for number in range(4))
    outer = averaging_beside(*many)
    assert after(outer, [(many[0], failed(0, many[0]))]) == {(A, B, C, *many[1:])}
    outer = averaging_beside(*many)
    assert after(outer, [(many[0], failed(0, many[0])), (many[1], failed(1, many[1]))]) == {(A, B, C)}


@pytest.mark.parametrize("accused", [(A,), (B,), (B, C), (B, M)])
def test_a_name_that_accuses_a_full_member_is_left_out_itself(accused: tuple[PeerId, ...]) -> None:
    outer = averaging_beside(N, M)
    assert after(outer, [(N, failed(0, *accused))]) == {(A, B, C, M)}


def test_a_full_member_may_accuse_a_name() -> None:
    outer = averaging_beside(N, M)
    assert after(outer, [(B, failed(0, N))]) == {(A, B, C, M)}


def test_a_liar_that_names_end_attempts_with_is_left_out_as_they_are() -> None:
    """Of five full members one lies; with four names it ends two attempts."""
    full, names = tuple(PeerId(name) for name in "abcde"), tuple(PeerId(name) for name in "nopq")
    outer = averaging_beside(*names, full=full)
    for attempt, now in ((0, 20.0), (1, 60.0)):
        for liar in (full[-1], *names):
            outer.received(liar, failed(attempt), now)
        assert outer.next_deadline is not None
        members = members_of_retry(outer, outer.next_deadline)
    assert members == {full[:-1]}


def test_a_name_leads_no_attempt_however_small_its_id_is() -> None:
    outer = averaging(A, B, C, FIRST, adaptive_timeout=AdaptiveTimeout(), names=(FIRST,))
    outer.received(B, failed(0), 14.0)
    start = AttemptStart(instance=INSTANCE, round=0, attempt=1, members=(FIRST, A, B))
    assert outer.received(FIRST, start, 14.1) == [] and outer.phase is Phase.RETRYING
    assert outer.hosts.leader == A


def test_accusers_are_a_minority_with_the_hosts_that_they_accuse() -> None:
    """One of five that accuses two and then votes for no average would leave two, which commit nothing."""
    five = tuple(PeerId(name) for name in "abcde")
    outer = averaging(*five, adaptive_timeout=AdaptiveTimeout(), batch=10)
    assert after(outer, [(five[4], failed(0, five[1], five[2]))]) == {five}
    outer = averaging(*five, adaptive_timeout=AdaptiveTimeout(), batch=10)
    assert after(outer, [(five[4], failed(0, five[1]))]) == {(five[0], *five[2:])}


def test_a_name_makes_no_full_member_a_cause_by_naming_it() -> None:
    """Two attempts, that names ended because of B, as they report; B answers that N ended them."""
    outer = averaging_beside(N, M)
    for attempt, (name, now) in enumerate([(N, 20.0), (M, 60.0)]):
        outer.received(name, replace(failed(attempt), because=B), now)
        outer.received(B, replace(failed(attempt), because=name), now + 0.1)
        assert outer.next_deadline is not None
        members = members_of_retry(outer, outer.next_deadline)
    assert members == {(A, B, C)} and B not in outer.hosts.unreliable


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_newcomer_that_reports_a_host_as_lost_is_not_left_out_if_that_is_so(is_gone: bool) -> None:
    """It is gone, or has declined."""
    outer = averaging_beside(N, M, full=(A, B, C, PeerId("d")))
    if is_gone:
        outer.hosts.gone = (B,)
    assert after(outer, [(N, failed(0, B)), *([] if is_gone else [(B, failed(1, B))])]) == {(A, C, PeerId("d"), M, N)}


def test_those_that_report_a_lost_host_are_no_accusers() -> None:
    """All report G, which is gone; then one of them has a broken link to another one. Seven full members."""
    seven = tuple(PeerId(name) for name in "abcdefg")
    outer = averaging(*seven, adaptive_timeout=AdaptiveTimeout(), batch=14)
    outer.hosts.gone = (seven[6],)
    for accuser in seven[1:6]:
        outer.received(accuser, failed(0, seven[6]), 20.0)
    outer.received(seven[5], failed(0, seven[6], seven[4]), 20.1)
    assert outer.next_deadline is not None
    (left,) = members_of_retry(outer, outer.next_deadline)
    assert seven[6] not in left and not {seven[4], seven[5]} <= {*left}


def test_in_client_mode_those_that_decide_keep_the_names_that_join_them() -> None:
    outer = averaging(A, B, N, M, adaptive_timeout=AdaptiveTimeout(), names=(N, M), clients=(A, B))
    assert outer.hosts.leader == M and outer.hosts.may_lead(N)
    outer.hosts.have_others_failed = True
    assert outer.hosts.remaining == (A, B, M, N)
