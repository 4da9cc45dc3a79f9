"""Which members cause attempts to fail, and which are left out of the retries."""

import itertools
import random

import pytest

from adloco_p2p.core.averaging.failed_attempts import KEPT_ROUNDS, Ended, FailedAttempts, causes
from adloco_p2p.core.model.scalars import InstanceId, PeerId

A, B, C, D, E = map(PeerId, "abcde")
INSTANCE = InstanceId(0)
ALONE = Ended()


def because(peer: PeerId) -> Ended:
    return Ended(because=peer)


def names(*peers: PeerId) -> Ended:
    return Ended(suspects=frozenset(peers))


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ({}, set()),
        ({A: ALONE}, {A}),
        ({B: because(A), A: ALONE, C: because(B)}, {A}),  # the others follow from its report
        ({B: because(A), C: because(B)}, {A, B}),  # A told B alone, or B lies
        ({C: because(B), B: because(A)}, {A, B}),  # in whatever order they arrive
        ({A: because(B), B: because(A), C: because(A)}, {A, B}),  # A lies about B, which heard of it from A
        ({A: names(D), B: because(A)}, set()),  # D is silent: it died
        ({A: names(D), D: because(A)}, {A}),  # D lives
        ({A: names(D, E), D: because(A)}, {A}),
        ({B: because(A), C: because(A)}, {A}),  # two learned it from A, which tells others nothing
        ({B: because(A), A: because(C), C: because(B)}, {A, B, C}),
        ({B: because(A), A: names(D)}, set()),
    ],
)
def test_the_causes_of_an_attempt(reports: dict[PeerId, Ended], expected: set[PeerId]) -> None:
    assert set(causes(reports)) == expected


def noted(*rounds_and_reports: tuple[int, dict[PeerId, Ended]]) -> FailedAttempts:
    failed = FailedAttempts()
    for attempt, (number, reports) in enumerate(rounds_and_reports):
        for member, ended in reports.items():
            failed.note(number, INSTANCE, attempt, member, ended)
    return failed


def test_the_members_that_attempts_failed_at_count_for_some_rounds_and_by_own_reports_alone() -> None:
    failed = noted((5, {A: names(D), B: names(C)}), (6, {A: because(B)}))
    assert failed.named_by(A, 5 + KEPT_ROUNDS - 1, INSTANCE) == {D}
    assert failed.named_by(A, 5 + KEPT_ROUNDS, INSTANCE) == frozenset()
    assert failed.named_by(A, 6, InstanceId(1)) == frozenset()


def test_a_member_that_ends_two_attempts_lately_is_left_out_and_one_that_ends_one_is_not() -> None:
    assert noted((5, {A: ALONE})).repeated(5, INSTANCE) == ()
    assert noted((5, {A: ALONE}), (5, {A: ALONE})).repeated(5, INSTANCE) == (A,)
    assert noted((0, {A: ALONE}), (7, {A: ALONE})).repeated(7, INSTANCE) == (A,)
    assert noted((0, {A: ALONE}), (KEPT_ROUNDS, {A: ALONE})).repeated(KEPT_ROUNDS, INSTANCE) == ()
    assert noted((5, {A: ALONE}), (5, {A: ALONE})).repeated(6, INSTANCE) == ()  # it did nothing in this round


def test_the_same_accusation_is_no_further_cause_even_where_fewer_of_those_that_it_names_report() -> None:
    both, one = {A: names(D, E), D: because(A), E: because(A)}, {A: names(D, E), D: because(A)}
    assert noted((5, both), (6, one)).repeated(6, INSTANCE) == ()


def test_only_one_that_names_live_members_one_after_the_other_is_left_out() -> None:
    broken_link = noted((5, {A: names(D), D: because(A)}), (6, {A: names(D), D: because(A)}))
    assert broken_link.repeated(6, INSTANCE) == ()
    assert noted((5, {A: names(D), D: because(A)}), (6, {A: names(E), E: because(A)})).repeated(6, INSTANCE) == (A,)


def test_a_member_of_which_another_one_lies_is_left_out_once_the_liar_is() -> None:
    """The liar brings every attempt to an end by one report to one member."""
    failed = noted((5, {B: because(A), C: because(B)}), (5, {C: because(A), B: because(C)}))
    assert failed.repeated(5, INSTANCE) == (A,)
    failed = noted((5, {B: because(A)}), (5, {B: because(A)}))
    assert failed.repeated(5, INSTANCE) == (A, B)  # one of the two; nobody else can tell which


@pytest.mark.parametrize("seed", range(20))
def test_one_liar_ends_few_attempts_whatever_it_reports(seed: int) -> None:
    """Against honest members that name the member whose report ended the attempt for them, in a drawn order."""
    draw = random.Random(seed)
    members = [A, B, C, D, E, *map(PeerId, "fghi")]
    liar, failed, out = draw.choice(members), FailedAttempts(), tuple[PeerId, ...]()
    for attempt in itertools.count():
        remaining = [member for member in members if member not in out]
        if liar not in remaining:
            break
        honest = [member for member in remaining if member != liar]
        told, other = draw.choice(honest), draw.choice(honest)
        lie = draw.choice([ALONE, because(other), names(other), None])
        reports: dict[PeerId, Ended] = {told: because(liar)} if lie is None else {liar: lie, told: because(liar)}
        for member in draw.sample(honest, len(honest)):
            reports.setdefault(member, because(draw.choice(list(reports))))
        for member in draw.sample(list(reports), len(reports)):
            failed.note(0, INSTANCE, attempt, member, reports[member])
        out = failed.repeated(0, INSTANCE)[:4]
        assert not out or attempt == 0 or liar in out, f"seed {seed}: it is among the causes of every attempt"
    assert attempt <= 4, f"seed {seed}"
