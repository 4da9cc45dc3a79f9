"""A retry completes an attempt that had decided: only where all of its members can, and once per new suspect."""

from dataclasses import replace

import pytest

from adloco_p2p.core.averaging.adaptive_timeout import AdaptiveTimeout
from adloco_p2p.core.averaging.outer_round import OuterRound
from adloco_p2p.core.averaging.phases import Phase
from adloco_p2p.core.model.averages import Average, CancelAverage
from adloco_p2p.core.model.effects import Effect, Send
from adloco_p2p.core.model.events import AverageDecided
from adloco_p2p.core.model.messages import AttemptFailed, AttemptStart
from adloco_p2p.core.model.scalars import Digest, PeerId
from tests.core.averaging.test_outer_round import INSTANCE, A, B, C, D, E, asked, averaging, failure

DECISION, OTHER = Digest("8" * 64), Digest("9" * 64)


def decided(*peers: PeerId, decision: Digest = DECISION) -> OuterRound:
    """The round of the first peer, whose attempt of all has decided at 12 s."""
    outer = averaging(*peers, adaptive_timeout=AdaptiveTimeout())
    assert outer.average_decided(AverageDecided(asked=asked(), decision=decision)) == []
    return outer


def report(*suspects: PeerId, attempt: int = 0, decision: Digest | None = DECISION) -> AttemptFailed:
    return AttemptFailed(instance=INSTANCE, round=0, attempt=attempt, suspects=suspects, decision=decision)


def begun(effects: list[Effect]) -> Average:
    """The average that the host begins, as it says to the others."""
    [average] = [effect for effect in effects if isinstance(effect, Average)]
    starts = {effect.message for effect in effects if isinstance(effect, Send) and isinstance(effect.message, AttemptStart)}
    [start] = starts
    assert (start.attempt, start.completes) == (average.attempt, average.completes)
    assert start.members == tuple(peer for peer, _ in average.weights)
    return average


def led(outer: OuterRound) -> Average:
    """The next attempt, which this host leads."""
    assert outer.next_deadline is not None
    return begun(outer.tick(outer.next_deadline))


def test_a_death_after_the_decision_leads_to_a_retry_that_completes_it() -> None:
    outer = decided(A, B, C, D)
    effects = outer.average_failed(failure(attempt=0, suspects=(D,)), 14.0)
    reports = {effect.message for effect in effects if isinstance(effect, Send)}
    assert reports == {report(D)}
    for peer in (B, C):
        outer.received(peer, report(D), 14.2)
    average = led(outer)
    assert average.completes == DECISION
    assert average.lost == ((3, 1.0),) and [peer for peer, _ in average.weights] == [A, B, C]
    assert average.key != key_of(outer, completes=None), "those that average afresh cannot meet those that complete"


def key_of(outer: OuterRound, *, completes: Digest | None) -> Digest:
    current = outer.attempts.current
    return outer.attempts.key(current.number, current.members, completes)


@pytest.mark.parametrize("told", [None, OTHER])
def test_where_one_has_not_decided_or_otherwise_everything_is_averaged_afresh(told: Digest | None) -> None:
    outer = decided(A, B, C, D)
    outer.average_failed(failure(attempt=0, suspects=(D,)), 14.0)
    outer.received(B, report(D), 14.2)
    outer.received(C, report(D, decision=told), 14.2)
    assert led(outer).completes is None
    assert outer.attempts.decision is None, "what the attempt left behind is let go"


def test_where_one_has_not_reported_in_time_everything_is_averaged_afresh() -> None:
    outer = decided(A, B, C, D)
    outer.average_failed(failure(attempt=0, suspects=(D,)), 14.0)
    outer.received(B, report(D), 14.2)
    assert led(outer).completes is None


def test_the_retry_of_the_same_members_completes_nothing() -> None:
    outer = decided(A, B, C)
    outer.average_failed(failure(attempt=0, suspects=()), 14.0)
    for peer in (B, C):
        outer.received(peer, report(), 14.2)
    average = led(outer)
    assert average.completes is None and len(average.weights) == 3


def test_a_second_death_is_completed_and_a_completion_that_fails_without_one_is_not_tried_again() -> None:
    outer = decided(A, B, C, D, E)
    outer.average_failed(failure(attempt=0, suspects=(E,)), 14.0)
    for peer in (B, C, D):
        outer.received(peer, report(E), 14.2)
    assert led(outer).completes == DECISION
    outer.average_failed(failure(attempt=1, suspects=(D,)), 20.0)
    for peer in (B, C):
        outer.received(peer, report(D, attempt=1), 20.2)
    second = led(outer)
    assert second.completes == DECISION and [peer for peer, _ in second.weights] == [A, B, C]
    outer.average_failed(failure(attempt=2, suspects=()), 30.0)
    for peer in (B, C):
        outer.received(peer, report(attempt=2), 30.2)
    assert led(outer).completes is None


def test_an_attempt_without_a_contributor_is_not_completed() -> None:
    """It has dealt the parts of the first dead host anew already; dealt again, some would be in both averages."""
    outer = averaging(A, B, C, D, E, adaptive_timeout=AdaptiveTimeout())
    outer.average_failed(failure(attempt=0, suspects=(E,)), 14.0)
    for peer in (B, C, D):
        outer.received(peer, report(E, decision=None), 14.2)
    assert [peer for peer, _ in led(outer).weights] == [A, B, C, D]
    outer.average_decided(AverageDecided(asked=asked(attempt=1), decision=DECISION))
    outer.average_failed(failure(attempt=1, suspects=(D,)), 20.0)
    for peer in (B, C):
        outer.received(peer, report(D, attempt=1), 20.2)
    average = led(outer)
    assert average.completes is None and [peer for peer, _ in average.weights] == [A, B, C]


def start(*members: PeerId, completes: Digest | None) -> AttemptStart:
    return AttemptStart(instance=INSTANCE, round=0, attempt=1, members=members, completes=completes)


def test_a_host_follows_a_leader_that_completes_what_it_has_decided() -> None:
    outer = decided(C, A, B, D)
    outer.average_failed(failure(attempt=0, suspects=(D,)), 14.0)
    effects = outer.received(A, start(A, B, C, completes=DECISION), 15.0)
    [average] = [effect for effect in effects if isinstance(effect, Average)]
    assert average.completes == DECISION and outer.attempts.decision == DECISION


@pytest.mark.parametrize("own", [None, OTHER])
def test_a_host_that_cannot_complete_it_says_so_and_goes_on(own: Digest | None) -> None:
    outer = averaging(C, A, B, D, adaptive_timeout=AdaptiveTimeout())
    if own is not None:
        outer.average_decided(AverageDecided(asked=asked(), decision=own))
    effects = outer.received(A, start(A, B, C, completes=DECISION), 15.0)
    assert outer.phase is Phase.AVERAGING and outer.attempts.current.number == 0
    assert not any(isinstance(effect, (Average, CancelAverage)) for effect in effects)
    sent = {effect.message for effect in effects if isinstance(effect, Send)}
    assert sent == {replace(report(attempt=1, decision=own), because=A)}


def test_a_decision_of_an_attempt_that_is_over_is_no_news() -> None:
    outer = averaging(A, B, C, D, adaptive_timeout=AdaptiveTimeout())
    outer.average_failed(failure(attempt=0, suspects=(D,)), 14.0)
    outer.average_decided(AverageDecided(asked=asked(), decision=DECISION))
    assert outer.attempts.decision is None
    for peer in (B, C):
        outer.received(peer, report(D, decision=None), 14.2)
    assert led(outer).completes is None
    outer.average_decided(AverageDecided(asked=asked(), decision=DECISION))
    assert outer.attempts.decision is None
