"""What signers' orders make of a run, against hand-worked rounds."""

from dataclasses import replace

import pytest

from adloco_p2p.core.ledger.orders import course_after
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.course import Change, Course, Settings, in_words, is_paused_at, pending, settings_at, until, work_at
from adloco_p2p.core.model.ledger_entry import Action, Statement
from adloco_p2p.core.model.plan import RosterChange, RoundPlan
from adloco_p2p.core.model.rules import InstanceRules, Rules, WorkRules
from adloco_p2p.core.model.scalars import LARGEST_COUNT
from adloco_p2p.core.planning.round_plan import genesis, next_plan
from adloco_p2p.decode import decode
from tests.core.core_values import RUN, capacity, peer


def order(action: Action, *, round: int = 0, **settings: float) -> Statement:
    changed = Settings(**settings) if settings else None  # type: ignore[arg-type]
    return Statement(run=RUN, signer=peer(0), serial=0, action=action, round=round, settings=changed, signature="")


def plans(work: WorkRules, orders: dict[int, list[Statement]], *, limit: int = 20) -> list[RoundPlan]:
    """Of a run of one peer whose plan of a round carries these statements, to the last one."""
    rules = Rules(work=work, instances=InstanceRules(count=1))
    made = [genesis(RUN, [(peer(0), capacity())], rules, signers=[peer(0)])]
    while not made[-1].is_last and len(made) < limit:
        round = made[-1].round + 1
        course = course_after(made[-1].course, orders.get(round, []), round=round)
        made.append(next_plan(made[-1], (), rules, roster=RosterChange(course=course)))
    return made


@pytest.mark.parametrize(("carried", "asked", "last_trained"), [(3, 6, 6), (3, 3, 3), (3, 1, 3), (3, 0, 3), (3, 50, 9)])
def test_a_run_ends_after_the_round_that_a_signer_names_or_the_next(carried: int, asked: int, last_trained: int) -> None:
    made = plans(WorkRules(rounds=10), {carried: [order("stop", round=asked)]})
    assert made[-1].is_last
    assert made[-1].round == last_trained + 1
    assert not made[-2].is_last
    assert made[-2].progress == pytest.approx(last_trained / 10), "a stop does not bend the schedule"


def test_a_stop_is_withdrawn_before_it_comes() -> None:
    made = plans(WorkRules(rounds=10), {3: [order("stop", round=6)], 5: [order("resume")]})
    assert made[-1].round == 10


def test_more_rounds_make_the_run_longer_and_its_schedule_too() -> None:
    made = plans(WorkRules(rounds=10), {2: [order("change", round=5, rounds=16)]})
    assert made[-1].round == 16
    assert made[4].progress == pytest.approx(4 / 10)
    assert made[5].progress == pytest.approx(5 / 16)
    assert "16 rounds in all from round 5 on" in made[2].reason


def test_fewer_rounds_than_are_over_leave_one_more() -> None:
    assert plans(WorkRules(rounds=10), {6: [order("change", rounds=2)]})[-1].round == 7


def test_a_run_that_counted_rounds_ends_by_samples_where_a_signer_says_so() -> None:
    work = WorkRules(rounds=10, inner_steps=4)
    per_round = plans(work, {})[1].samples_before
    made = plans(work, {2: [order("change", samples=5 * per_round)]})
    assert made[-1].round == 5
    assert made[-1].samples_before == 5 * per_round


def test_changes_hold_from_their_rounds_on_and_are_kept_as_one() -> None:
    course = course_after(Course(), [order("change", round=4, learning_rate_factor=0.5)], round=2)
    course = course_after(course, [order("change", round=6, rounds=40)], round=3)
    course = course_after(course, [order("change", round=8, learning_rate_factor=0.1, samples=7)], round=3)
    factors = [settings_at(course, round).learning_rate_factor for round in (3, 4, 7, 8)]
    assert factors == [None, 0.5, 0.5, 0.1]
    later = course_after(course, [], round=6)
    assert [change.from_round for change in later.changes] == [6, 8]
    assert later.changes[0].settings == Settings(rounds=40, learning_rate_factor=0.5)
    assert work_at(WorkRules(rounds=10), later, 7).rounds == 40
    last = course_after(later, [], round=9)
    assert last.changes == (Change(from_round=8, settings=Settings(samples=7, learning_rate_factor=0.1)),)
    assert work_at(WorkRules(rounds=10), last, 9) == WorkRules(rounds=None, samples=7)


@pytest.mark.parametrize("action", ["stop", "pause", "change"])
def test_plans_that_carry_an_order_for_the_largest_round_can_be_read(action: Action) -> None:
    """They are in the journal of every peer: none could start again."""
    settings = {"rounds": 1, "samples": 1} if action == "change" else {}
    course = course_after(Course(), [order(action, round=LARGEST_COUNT, **settings)], round=1)
    assert decode(Course, canonical.encode(course), max_bytes=1 << 12) == course


def test_a_pause_begins_after_the_plan_that_carries_it_and_ends_with_a_resumption() -> None:
    course = course_after(Course(), [order("pause", round=1)], round=5)
    assert [is_paused_at(course, round) for round in (5, 6, 9)] == [False, True, True]
    assert not is_paused_at(course_after(course, [order("resume")], round=6), 6)
    assert course_after(course, [order("resume"), replace(order("pause", round=8), serial=1)], round=6).paused_from == 8


def test_what_signers_ordered_is_said_in_words() -> None:
    course = course_after(Course(), [order("stop", round=57), order("pause", round=20)], round=5)
    course = course_after(course, [order("change", learning_rate_factor=0.5, samples=12_000)], round=5)
    assert in_words(course, 5) == (
        "a signer pauses the run before round 20; a signer ends the run after round 57;"
        " 12,000 samples in all and learning rate times 0.5 by a signer's order"
    )


def test_what_holds_already_is_not_to_come() -> None:
    course = course_after(Course(), [order("stop", round=57), order("change", round=8, learning_rate_factor=0.5)], round=5)
    assert in_words(pending(course, 7), 7) == "a signer ends the run after round 57; learning rate times 0.5 from round 8 on"
    assert in_words(pending(course, 8), 8) == "a signer ends the run after round 57"


def test_what_holds_beyond_the_last_round_holds_until_the_run_ends() -> None:
    work = WorkRules(rounds=24)
    assert [until(last, work) for last in (22, 23, 1007)] == ["until round 22", "until the run ends", "until the run ends"]
    assert until(1007, replace(work, rounds=None, samples=4096)) == "until round 1007"
