"""A peer that is far behind asks one donor at a time: the fastest, another one after silence, and no liar holds it up."""

from collections import Counter
from itertools import pairwise
from math import inf

from adloco_p2p.core.agreement.entry_donors import (
    FIRST_PATIENCE_SECONDS,
    HEARD_PERIODS,
    MAX_PATIENCE_SECONDS,
    MIN_GIVEN_UP_SECONDS,
    MIN_PATIENCE_SECONDS,
    EntryDonors,
)
from adloco_p2p.core.model.ledger_entry import Head
from adloco_p2p.core.model.scalars import Digest, PeerId
from tests.core.core_values import peer

PERIOD = 1.0
HERE = Head(round=0, digest=Digest("0" * 64), samples=0)
FAR = Head(round=100, digest=Digest("f" * 64), samples=0)


MEMBERS = tuple(map(peer, range(20)))


def donors(*names: PeerId) -> EntryDonors:
    made = EntryDonors(period_seconds=PERIOD)
    for name in names:
        made.note_end(name, FAR, 0.0)
    return made


def asked(of: EntryDonors, now: float) -> PeerId | None:
    return of.choose(HERE, (HERE.digest,), roster=MEMBERS, without=(), now=now)


def beat(of: EntryDonors, *names: PeerId, now: float) -> None:
    for name in names:
        of.note_end(name, FAR, now)


def stranger(number: int) -> PeerId:
    return PeerId(f"new{number:04}")


def test_one_is_asked_until_its_answer_is_there_or_was_awaited_for_long_enough() -> None:
    some = donors(peer(0), peer(1), peer(2))
    assert asked(some, 0.0) == peer(0)
    assert [asked(some, now / 10) for now in range(1, 10)] == [None] * 9
    assert asked(some, FIRST_PATIENCE_SECONDS) == peer(1), "the first one is silent"
    some.note_answer(peer(1), 1.5, share=1.0)
    assert asked(some, 1.5) == peer(2)


def test_two_questions_are_under_way_at_most_and_silence_does_not_lengthen_their_turns() -> None:
    some, instants = donors(*MEMBERS), []
    for now in range(41):
        beat(some, *MEMBERS, now=float(now))
        if asked(some, float(now)) is not None:
            instants.append(now)
    assert instants == [0, 1, 8, 9, 16, 17, 24, 25, 32, 33, 40]
    assert MIN_GIVEN_UP_SECONDS == 8


def test_on_a_slow_link_a_late_answer_shows_how_long_they_take() -> None:
    some, instants = donors(*MEMBERS), []
    for now in range(60):
        beat(some, *MEMBERS, now=float(now))
        if asked(some, float(now)) is not None:
            instants.append(now)
        if now == 8:
            some.note_answer(peer(0), 8.0, share=1.0)
    assert instants[:4] == [0, 1, 8, 8 + 2 * 8], "twice what the late answer took"
    assert all(later - earlier <= MAX_PATIENCE_SECONDS for earlier, later in pairwise(instants))


def test_the_fastest_is_asked_again_once_it_has_rested_and_one_that_trickles_only_while_all_others_rest() -> None:
    some, seconds = donors(peer(0), peer(1), peer(2)), {peer(0): 1.9, peer(1): 0.6, peer(2): 0.7}
    now, turns = 0.0, []
    for _ in range(12):
        turn = asked(some, now)
        assert turn is not None
        turns.append(turn)
        now += seconds[turn]
        some.note_answer(turn, now, share=1.0)
    assert turns[:3] == [peer(0), peer(1), peer(2)]
    assert peer(0) not in turns[3:], "the others have rested by then"


def test_one_that_answers_soon_with_little_comes_after_those_whose_answers_are_whole() -> None:
    some, now, turns = donors(peer(0), peer(1), peer(2), peer(3)), 0.0, []
    for _ in range(12):
        turn = asked(some, now)
        assert turn is not None
        turns.append(turn)
        now += 0.3 if turn == peer(0) else 0.5
        some.note_answer(turn, now, share=0.1 if turn == peer(0) else 1.0)
    assert turns[0] == peer(0)
    assert peer(0) not in turns[1:], "the others have rested by then"


def test_after_a_quick_whole_answer_a_slow_donor_is_soon_passed_over_whatever_a_short_one_took() -> None:
    some = donors(*MEMBERS[:4])
    assert asked(some, 0.0) == peer(0)
    some.note_answer(peer(0), 0.4, share=1.0)
    assert asked(some, 0.4) == peer(1)
    assert asked(some, 1.19) is None
    assert asked(some, 1.21) == peer(0), "twice what its own answer took, and it has rested"
    some.note_answer(peer(1), 1.3, share=0.1)
    some.note_answer(peer(0), 1.6, share=1.0)
    assert asked(some, 1.6) == peer(2)
    assert asked(some, 2.35) is None
    assert asked(some, 2.41) == peer(0), "the short answer changed no patience"


def test_an_answer_that_takes_no_time_leaves_the_next_one_some() -> None:
    some = donors(peer(0), peer(1), peer(2))
    assert asked(some, 0.0) == peer(0)
    some.note_answer(peer(0), 0.01, share=1.0)
    assert asked(some, 0.01) == peer(1)
    assert asked(some, MIN_PATIENCE_SECONDS) is None
    assert asked(some, 0.01 + MIN_PATIENCE_SECONDS) == peer(2)


def test_of_the_members_the_one_that_was_heard_last_is_asked_first() -> None:
    some = donors(*MEMBERS)
    beat(some, peer(7), now=5.0)
    assert asked(some, 6.0) == peer(7)


def test_silent_names_that_came_first_and_speak_more_often_delay_no_member() -> None:
    false = [stranger(number) for number in range(100)]
    some = donors(*false, peer(0))
    beat(some, *false, now=0.5)
    assert asked(some, 0.5) == peer(0)
    some.note_answer(peer(0), 0.9, share=1.0)
    beat(some, peer(0), *false, now=0.9)
    assert asked(some, 0.9) in false, "peer 0 rests"
    beat(some, peer(0), *false, now=0.9 + FIRST_PATIENCE_SECONDS)
    assert asked(some, 0.9 + FIRST_PATIENCE_SECONDS) == peer(0)


def test_new_names_without_number_take_every_second_turn_at_most() -> None:
    """The member is slower than a name that was never asked counts for, and every name is heard after it."""
    some, turns, answers_at = donors(*map(stranger, range(100)), peer(0)), [], inf
    for tenth in range(300):
        now = tenth / 10
        beat(some, peer(0), stranger(100 + tenth), now=now)
        if now >= answers_at:
            some.note_answer(peer(0), now, share=1.0)
            answers_at = inf
        if (turn := asked(some, now)) is not None:
            turns.append(turn)
            answers_at = now + 1.5 if turn == peer(0) else answers_at
    assert turns[0] == peer(0)
    assert not any(earlier != peer(0) != later for earlier, later in pairwise(turns)), turns
    assert turns.count(peer(0)) >= 10, turns


def test_killed_donors_are_soon_passed_over() -> None:
    """All had answered; 18 of 20 die at once."""
    some, now = EntryDonors(period_seconds=PERIOD), 0.0
    for number, member in enumerate(MEMBERS):
        beat(some, member, now=now)
        assert some.choose(HERE, (), roster=MEMBERS, without=MEMBERS[:number], now=now) == member
        now += 0.3 + number / 100
        some.note_answer(member, now, share=1.0)
    beat(some, *MEMBERS, now=now)
    died_at = now
    while (turn := asked(some, now)) not in MEMBERS[18:]:
        assert turn is None or turn in MEMBERS[:18]
        now += 0.5
        beat(some, *MEMBERS[18:], now=now)
    assert now - died_at <= (HEARD_PERIODS * PERIOD) + MIN_GIVEN_UP_SECONDS


def test_a_false_end_that_was_named_once_is_not_asked_for_any_more() -> None:
    some = donors(stranger(0))
    assert asked(some, 0.0) == stranger(0)
    assert [now for now in range(1, 300) if asked(some, float(now)) is not None] == []
    some = donors(stranger(0))
    assert asked(some, 10.1 * PERIOD) is None, "nobody heard it for so long"


def test_one_that_was_asked_in_vain_and_is_heard_again_is_asked_again() -> None:
    some = donors(peer(0))
    assert asked(some, 0.0) == peer(0)
    beat(some, peer(0), now=1.0)
    assert [now for now in range(1, 10) if asked(some, float(now)) is not None] == [8]


def test_a_silent_one_takes_few_turns_of_an_end_that_is_near() -> None:
    near = Head(round=1, digest=Digest("e" * 64), samples=0)
    some = EntryDonors(period_seconds=PERIOD)
    pulled = Counter[PeerId]()
    for tenth in range(300):
        for name in (stranger(0), stranger(1 + tenth % 10)):
            some.note_end(name, near, tenth / 10)
            if some.takes_near(name, roster=MEMBERS, now=tenth / 10):
                pulled[name] += 1
                if name != stranger(0):
                    some.note_answer(name, tenth / 10, share=1.0)
    assert pulled[stranger(0)] <= 10, "one in three periods"
    assert pulled.total() == 60, "two in each period"


def test_strangers_take_no_turns_of_an_end_that_is_near_from_members() -> None:
    near = Head(round=1, digest=Digest("e" * 64), samples=0)
    some = EntryDonors(period_seconds=PERIOD)
    taken = []
    for name in (*map(stranger, range(5)), *MEMBERS[:5]):
        some.note_end(name, near, 0.0)
        taken.append(some.takes_near(name, roster=MEMBERS, now=0.0))
    assert taken == [True, *[False] * 4, True, *[False] * 4]


def test_a_useless_answer_ends_the_turn_and_the_donor_comes_last() -> None:
    some = donors(peer(0), peer(1))
    assert asked(some, 0.0) == peer(0)
    some.note_answer(peer(0), 0.1, share=0.0)
    assert asked(some, 0.1) == peer(1)
    some.note_answer(peer(1), 1.9, share=1.0)
    assert asked(some, 3.0) == peer(1)


def test_nobody_is_asked_whose_end_is_near_or_known_or_whose_history_lost() -> None:
    near = Head(round=1, digest=Digest("e" * 64), samples=0)
    some = donors(peer(0), peer(1))
    some.note_end(peer(2), near, 0.0)
    assert some.choose(HERE, (FAR.digest,), roster=MEMBERS, without=(), now=0.0) is None
    assert some.choose(HERE, (), roster=MEMBERS, without=(peer(0), peer(1)), now=0.0) is None
    assert some.choose(HERE, (), roster=MEMBERS, without=(peer(0),), now=0.0) == peer(1)


def test_entries_that_nobody_asked_for_change_no_turn() -> None:
    some = donors(peer(0), peer(1))
    assert asked(some, 0.0) == peer(0)
    some.note_answer(peer(1), 0.1, share=1.0)
    assert asked(some, 0.2) is None


def test_what_comes_long_after_the_answer_says_nothing_of_the_link() -> None:
    some = donors(peer(0), peer(1))
    assert asked(some, 0.0) == peer(0)
    some.note_answer(peer(0), 0.5, share=1.0)
    some.note_answer(peer(0), 1000.0, share=1.0)
    beat(some, peer(1), now=1000.0)
    assert asked(some, 1000.0) == peer(0)
    assert asked(some, 1000.0 + FIRST_PATIENCE_SECONDS) == peer(1)
