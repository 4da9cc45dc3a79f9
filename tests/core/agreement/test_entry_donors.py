"""A peer that is far behind asks one donor at a time: the fastest, another one after silence, and no liar holds it up."""

from adloco_p2p.core.agreement.entry_donors import MAX_PATIENCE_SECONDS, PATIENCE_SECONDS, EntryDonors
from adloco_p2p.core.model.ledger_entry import Head
from adloco_p2p.core.model.scalars import Digest, PeerId
from tests.core.core_values import peer

PERIOD = 1.0
HERE = Head(round=0, digest=Digest("0" * 64), samples=0)
FAR = Head(round=100, digest=Digest("f" * 64), samples=0)


def donors(*names: PeerId) -> EntryDonors:
    made = EntryDonors(period_seconds=PERIOD)
    for name in names:
        made.note_end(name, FAR)
    return made


def asked(of: EntryDonors, now: float) -> PeerId | None:
    return of.choose(HERE, (HERE.digest,), without=(), now=now)


def test_one_is_asked_until_its_answer_is_there_or_was_awaited_for_long_enough() -> None:
    some = donors(peer(0), peer(1), peer(2))
    assert asked(some, 0.0) == peer(0)
    assert [asked(some, now / 10) for now in range(1, 20)] == [None] * 19
    assert asked(some, PATIENCE_SECONDS) == peer(1), "the first one is silent"
    some.note_answer(peer(1), 2.5, is_of_use=True)
    assert asked(some, 2.5) == peer(2)


def test_on_a_slow_link_answers_are_awaited_longer_each_time_and_a_late_one_shows_how_long_they_take() -> None:
    some = donors(*map(peer, range(20)))
    instants = [now for now in range(61) if asked(some, float(now)) is not None]
    assert instants == [0, 2, 6, 14, 30, 30 + MAX_PATIENCE_SECONDS]
    some.note_answer(peer(4), 53.5, is_of_use=True)
    assert asked(some, 53.5) is None, "the answer to the newest question is still awaited"
    some.note_answer(peer(5), 54.0, is_of_use=True)
    assert asked(some, 54.0) == peer(6)
    assert [now for now in (61.9, 62.0) if asked(some, now)] == [62.0], "twice what the last answer took"


def test_the_fastest_is_asked_again_once_it_has_rested_and_one_that_trickles_only_while_all_others_rest() -> None:
    some, seconds = donors(peer(0), peer(1), peer(2)), {peer(0): 1.9, peer(1): 0.6, peer(2): 0.7}
    now, turns = 0.0, []
    for _ in range(12):
        turn = asked(some, now)
        assert turn is not None
        turns.append(turn)
        now += seconds[turn]
        some.note_answer(turn, now, is_of_use=True)
    assert turns[:3] == [peer(0), peer(1), peer(2)]
    assert peer(0) not in turns[3:], "the others have rested by then"


def test_new_names_without_number_take_every_second_turn_at_most() -> None:
    some, now, turns = donors(peer(0)), 0.0, []
    for number in range(12):
        turn = asked(some, now)
        some.note_end(PeerId(f"new{number:02}"), FAR)
        turns.append(turn)
        now += 1.5 if turn == peer(0) else 2 * PATIENCE_SECONDS
        if turn == peer(0):
            some.note_answer(peer(0), now, is_of_use=True)
    assert turns.count(peer(0)) == 6


def test_a_useless_answer_ends_the_turn_and_the_donor_comes_last() -> None:
    some = donors(peer(0), peer(1))
    assert asked(some, 0.0) == peer(0)
    some.note_answer(peer(0), 0.1, is_of_use=False)
    assert asked(some, 0.1) == peer(1)
    some.note_answer(peer(1), 1.9, is_of_use=True)
    assert asked(some, 3.0) == peer(1)


def test_nobody_is_asked_whose_end_is_near_or_known_or_whose_history_lost() -> None:
    near = Head(round=1, digest=Digest("e" * 64), samples=0)
    some = donors(peer(0), peer(1))
    some.note_end(peer(2), near)
    assert some.choose(HERE, (FAR.digest,), without=(), now=0.0) is None
    assert some.choose(HERE, (), without=(peer(0), peer(1)), now=0.0) is None
    assert some.choose(HERE, (), without=(peer(0),), now=0.0) == peer(1)


def test_entries_that_nobody_asked_for_change_no_turn() -> None:
    some = donors(peer(0), peer(1))
    assert asked(some, 0.0) == peer(0)
    some.note_answer(peer(1), 0.1, is_of_use=True)
    assert asked(some, 0.2) is None


def test_what_comes_long_after_the_answer_says_nothing_of_the_link() -> None:
    some = donors(peer(0), peer(1))
    assert asked(some, 0.0) == peer(0)
    some.note_answer(peer(0), 0.5, is_of_use=True)
    some.note_answer(peer(0), 1000.0, is_of_use=True)
    assert asked(some, 1000.0) == peer(0)
    assert asked(some, 1000.0 + PATIENCE_SECONDS) == peer(1)
