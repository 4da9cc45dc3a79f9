"""A host that began late ends its inner steps early and contributes those that are done: the attempt under way ends, and the
retry weighs what it did.

The plan is that of `test_declined_rounds.py`: six hosts, 8 inner steps of one sample each, 80 s.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from adloco_p2p.core.averaging.adaptive_timeout import AdaptiveTimeout
from adloco_p2p.core.averaging.failed_attempts import TOLERATED_PARTIAL, Ended, FailedAttempts
from adloco_p2p.core.averaging.outer_round import OuterRound
from adloco_p2p.core.averaging.phases import Phase
from adloco_p2p.core.model.averages import Average, CancelAverage
from adloco_p2p.core.model.effects import DiscardRound, Effect, EndInner, Send
from adloco_p2p.core.model.messages import AttemptFailed, AttemptStart
from adloco_p2p.core.model.scalars import PeerId
from tests.core.averaging.test_declined_rounds import HOSTS, INSTANCE, ME, OTHERS, plan_of, queried, training
from tests.core.averaging.test_outer_round import averaging, inner_result

LATE = HOSTS[5]


def stated(steps: int, *, attempt: int = 0) -> AttemptFailed:
    return AttemptFailed(instance=INSTANCE, round=0, attempt=attempt, suspects=(), partial_steps=steps)


def start(attempt: int, *, partial: Sequence[tuple[PeerId, int]] = ()) -> AttemptStart:
    return AttemptStart(instance=INSTANCE, round=0, attempt=attempt, members=HOSTS, partial_steps=tuple(partial))


def messages(effects: Sequence[Effect]) -> set[object]:
    return {effect.message for effect in effects if isinstance(effect, Send)}


def waiting() -> OuterRound:
    """The first host, which leads retries, in the first attempt at 10 s, after the 4 inner steps of its plan."""
    return averaging(*HOSTS, adaptive_timeout=AdaptiveTimeout(), batch=6)


def ended_early(steps: int = 3) -> tuple[OuterRound, list[Effect]]:
    """A host that was asked to end its steps, and has."""
    outer = training(plan_of())
    assert EndInner(instance=INSTANCE, round=0, least_steps=1) in queried(outer, OTHERS[:4], 130.0)
    result = replace(inner_result(outer), samples=steps, inner_steps=steps)
    return outer, outer.inner_finished(result, 131.0)


def test_a_late_host_ends_its_inner_steps_once_a_majority_waits() -> None:
    outer = training(plan_of())
    assert queried(outer, OTHERS[:3], 130.0) == [], "three of six"
    assert queried(outer, OTHERS[3:], 130.0) == [EndInner(instance=INSTANCE, round=0, least_steps=1)], "once"
    assert outer.phase is Phase.TRAINING and outer.is_contributor


@pytest.mark.parametrize(("elapsed", "ends"), [(9.9, False), (10.1, True), (75.9, True), (76.1, False)])
def test_it_needs_an_eighth_of_the_planned_steps_and_some_seconds_to_save(elapsed: float, ends: bool) -> None:
    effects = queried(training(plan_of()), OTHERS, 100.0 + elapsed)
    assert any(isinstance(effect, EndInner) for effect in effects) == ends
    assert any(isinstance(effect, DiscardRound) for effect in effects) == (elapsed < 10.0)


def test_reports_of_failed_attempts_show_who_waits() -> None:
    """Where a planned host is gone, attempts fail before their members ask anything."""
    outer, failed = training(plan_of()), AttemptFailed(instance=INSTANCE, round=0, attempt=0, suspects=(OTHERS[4],))
    effects = [effect for peer in OTHERS[:4] for effect in outer.received(peer, failed, 130.0)]
    assert effects == [EndInner(instance=INSTANCE, round=0, least_steps=1)]


def test_it_states_its_steps_and_waits_for_the_retry_that_counts_them() -> None:
    outer, effects = ended_early()
    assert outer.phase is Phase.RETRYING
    assert messages(effects) == {stated(3)}
    assert outer.received(OTHERS[0], start(0), 132.0) == [Send(peer=OTHERS[0], message=stated(3))], "it missed that"
    begun = outer.received(OTHERS[0], start(1, partial=[(ME, 3)]), 133.0)
    assert [effect.steps for effect in begun if isinstance(effect, Average)] == [(3, 8, 8, 8, 8, 8)]


def test_all_steps_are_done_by_the_time_that_it_is_asked() -> None:
    outer, _ = ended_early(steps=8)
    assert outer.phase is Phase.AVERAGING


@pytest.mark.parametrize("partial", [(), [(ME, 4)]])
def test_nobody_else_decides_how_many_steps_of_it_count(partial: Sequence[tuple[PeerId, int]]) -> None:
    outer, _ = ended_early()
    assert outer.received(OTHERS[0], start(1, partial=partial), 133.0) == [Send(peer=OTHERS[0], message=stated(3, attempt=1))]
    assert outer.phase is Phase.RETRYING
    punctual = waiting()
    refusal = AttemptFailed(instance=INSTANCE, round=0, attempt=1, suspects=())
    assert punctual.received(OTHERS[0], start(1, partial=[(ME, 4)]), 11.0) == [Send(peer=OTHERS[0], message=refusal)]
    assert punctual.phase is Phase.AVERAGING


def test_the_others_end_their_attempt_and_the_leader_begins_the_next_at_once() -> None:
    outer = waiting()
    effects = outer.received(LATE, stated(3), 12.0)
    assert CancelAverage(instance=INSTANCE, round=0, attempt=0) in effects
    assert outer.next_deadline == pytest.approx(12.2)
    began = outer.tick(12.3)
    assert messages(began) == {start(1, partial=[(LATE, 3)])}
    [average] = [effect for effect in began if isinstance(effect, Average)]
    assert dict(average.weights) == {**dict.fromkeys(HOSTS[:5], 4), LATE: 3}
    assert average.steps == (4, 4, 4, 4, 4, 3)
    assert outer.assignment.failed_attempts.repeated(0, INSTANCE) == ()


def test_a_host_that_trained_meanwhile_begins_no_attempt_that_miscounts() -> None:
    outer = training(plan_of())
    outer.received(LATE, stated(3), 170.0)
    effects = outer.inner_finished(inner_result(outer), 180.0)
    assert outer.phase is Phase.RETRYING and CancelAverage(instance=INSTANCE, round=0, attempt=0) in effects
    assert messages(outer.tick(180.3)) == {start(1, partial=[(LATE, 3)])}


@pytest.mark.parametrize("steps", [5, 4])
def test_more_steps_than_planned_are_no_partial_contribution(steps: int) -> None:
    """Nobody gets a larger weight, or a larger norm that is not clipped, than the plan gave it."""
    outer = waiting()
    outer.received(LATE, stated(steps), 12.0)
    assert messages(outer.tick(13.1)) == {start(1)}
    assert not outer.attempts.is_news(start(2, partial=[(LATE, steps)]))


@pytest.mark.parametrize(
    "invented",
    [
        replace(start(3), members=(*HOSTS, PeerId("nobody"))),
        start(3, partial=[(PeerId("nobody"), 3)]),
        start(3, partial=[(LATE, 3), (LATE, 2)]),
    ],
    ids=["a member", "steps of nobody", "two statements of one"],
)
@pytest.mark.parametrize("is_waiting", [True, False])
def test_a_start_with_a_host_that_is_none_is_ignored(invented: AttemptStart, is_waiting: bool) -> None:
    """It raised an error, with which the node ended."""
    outer = waiting() if is_waiting else training(plan_of())
    phase = outer.phase
    assert outer.received(OTHERS[0], invented, 12.0 if is_waiting else 130.0) == []
    assert outer.phase is phase and outer.attempts.pending is None


def test_a_restarted_host_states_its_steps_anew() -> None:
    outer = waiting()
    outer.received(LATE, stated(3), 12.0)
    outer.tick(12.3)
    outer.received(LATE, stated(2, attempt=1), 13.0)
    assert messages(outer.tick(13.3)) == {start(2, partial=[(LATE, 2)])}
    outer.received(LATE, stated(0, attempt=2), 14.0)
    without = AttemptStart(instance=INSTANCE, round=0, attempt=3, members=HOSTS[:5])
    assert messages(outer.tick(15.1)) == {without}, "it has ended three attempts of this round"


def test_the_key_of_an_attempt_binds_the_steps() -> None:
    attempts = waiting().attempts
    keys = {attempts.key(1, HOSTS, None, partial) for partial in ((), ((LATE, 3),), ((LATE, 4),), ((HOSTS[4], 3),))}
    assert len(keys) == 4


def test_contributing_less_is_tolerated_in_some_rounds_and_once_in_each() -> None:
    failed, partial = FailedAttempts(), Ended(is_partial=True)

    def causes(round: int, attempt: int) -> tuple[PeerId, ...]:
        failed.note(round, INSTANCE, attempt, LATE, partial)
        failed.note(round, INSTANCE, attempt, ME, Ended(because=LATE))
        return failed.repeated(round, INSTANCE)

    assert [causes(number, 0) for number in range(TOLERATED_PARTIAL + 2)] == [()] * (TOLERATED_PARTIAL + 1) + [(LATE,)]
    failed = FailedAttempts()
    assert [causes(0, attempt) for attempt in range(3)] == [(), (), (LATE,)]


def test_a_retry_with_steps_that_never_reached_a_restarted_host_goes_on() -> None:
    """It has forgotten the statement of the late one, or the message was lost: that is no statement of all planned steps."""
    outer = training(plan_of())
    outer.received(OTHERS[0], start(1, partial=[(LATE, 3)]), 150.0)
    effects = outer.inner_finished(inner_result(outer), 180.0)
    assert outer.phase is Phase.AVERAGING and not any(isinstance(effect, CancelAverage) for effect in effects)
    assert [effect.steps for effect in effects if isinstance(effect, Average)] == [(8, 8, 8, 8, 8, 3)]


@pytest.mark.parametrize(("first", "second"), [(3, 2), (2, 3)])
def test_of_two_starts_with_one_number_and_other_steps_the_same_one_counts_everywhere(first: int, second: int) -> None:
    """Their keys differ: two halves would wait for each other. The other start comes with a query of the other half."""
    outer = waiting()
    outer.received(LATE, start(1, partial=[(LATE, first)]), 12.0)
    outer.received(OTHERS[0], start(1, partial=[(LATE, second)]), 14.0)
    assert outer.phase is Phase.AVERAGING and outer.attempts.current.partial_steps == ((LATE, 2),)
    trains = training(plan_of())
    for sender, steps in ((LATE, first), (OTHERS[0], second)):
        trains.received(sender, start(1, partial=[(LATE, steps)]), 112.0)
    assert trains.attempts.pending is not None and trains.attempts.pending.partial_steps == ((LATE, 2),)
