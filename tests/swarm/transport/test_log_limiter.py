"""Refusals by a bad peer are logged once a minute and reason, with their number."""

from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.swarm.transport.log_limiter import MAX_LINES, MAX_REASONS, MAX_REMOTES, PERIOD_SECONDS, LogLimiter

BAD, OTHER = PeerId("bad"), PeerId("other")


def test_the_first_refusal_is_logged_at_once_and_the_number_of_the_rest_a_minute_later() -> None:
    refusals = LogLimiter()
    assert [refusals.count(BAD, "noise", now) for now in (0.0, 0.1, 30.0, 59.9)] == [1, 0, 0, 0]
    assert refusals.count(BAD, "noise", PERIOD_SECONDS) == 4
    assert refusals.count(BAD, "noise", PERIOD_SECONDS + 1.0) == 0


def test_peers_and_reasons_are_counted_separately() -> None:
    refusals = LogLimiter()
    assert [refusals.count(*what, now=5.0) for what in ((BAD, "noise"), (BAD, "shape"), (OTHER, "noise"))] == [1, 1, 1]


def test_refusals_in_ever_new_words_are_logged_seldom_too() -> None:
    refusals = LogLimiter()
    told = [refusals.count(BAD, f"noise {number}", 0.0) for number in range(1000)]
    assert sum(told) == MAX_REASONS + 1
    assert refusals.count(BAD, "one more", PERIOD_SECONDS) == 1000 - MAX_REASONS


def test_what_is_remembered_is_bounded() -> None:
    refusals = LogLimiter()
    for number in range(3 * MAX_REMOTES):
        refusals.count(PeerId(f"peer {number}"), "noise", 0.0)
    assert len(refusals._logged) == MAX_REMOTES
    assert refusals.count(PeerId("peer 0"), "noise", PERIOD_SECONDS) == 1


def test_refusals_under_ever_new_names_are_logged_seldom_too() -> None:
    """A stranger makes a name for each of its messages."""
    refusals = LogLimiter()
    told = [refusals.count(PeerId(f"peer {number}"), "noise", number / 1000) for number in range(3000)]
    assert sum(map(bool, told)) == MAX_LINES
    assert refusals.count(PeerId("peer 2999"), "noise", 2 * PERIOD_SECONDS) == 2
