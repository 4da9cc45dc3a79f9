"""Messages of a host of the instance, well formed, about hosts that may be none: they raise no error, whatever the phase."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adloco_p2p.core.averaging.outer_round import OuterRound
from adloco_p2p.core.averaging.phases import Phase
from adloco_p2p.core.model.effects import Send
from adloco_p2p.core.model.messages import AttemptFailed, AttemptStart, AverageDigest, AveragingMessage
from adloco_p2p.core.model.scalars import Digest, PeerId
from tests.core.averaging.test_declined_rounds import HOSTS, INSTANCE, OTHERS, plan_of, training
from tests.core.averaging.test_outer_round import inner_result
from tests.core.averaging.test_partial_contributions import ended_early, waiting

ANYBODY = st.sampled_from([*HOSTS, PeerId("nobody"), PeerId("nobody else")])
SOME = st.lists(ANYBODY, max_size=8).map(tuple)
NUMBER = st.integers(0, 6)
ROUND = {"instance": st.just(INSTANCE), "round": st.just(0), "attempt": NUMBER}
DIGEST = st.sampled_from([Digest("0" * 64), Digest("a" * 64)])
STEPS = st.lists(st.tuples(ANYBODY, st.integers(1, 9)), max_size=4).map(tuple)
STARTS = st.builds(AttemptStart, **ROUND, members=SOME | st.just(HOSTS), completes=st.none() | DIGEST, partial_steps=STEPS)
FAILURES = st.builds(
    AttemptFailed,
    **ROUND,
    suspects=SOME,
    because=st.none() | ANYBODY,
    is_question=st.booleans(),
    decision=st.none() | DIGEST,
    partial_steps=st.integers(0, 9),
)
VOTES = st.builds(
    AverageDigest,
    **ROUND,
    contributors=SOME | st.just(HOSTS),
    digest=DIGEST,
    signature=st.sampled_from(["", "forged"]),
    is_answer=st.booleans(),
    is_held=st.booleans(),
    backers=st.lists(st.tuples(ANYBODY, st.just("forged")), max_size=3).map(tuple),
)
MESSAGES: st.SearchStrategy[AveragingMessage] = STARTS | FAILURES | VOTES


@pytest.mark.parametrize("num_liars", [1, 2])
@pytest.mark.parametrize("begun", [waiting, lambda: training(plan_of()), lambda: ended_early()[0]])
def test_a_host_waits_once_for_an_attempt_of_others_whose_leader_begins_it_again_and_again(
    begun: Callable[[], OuterRound], num_liars: int
) -> None:
    """By the word of one member, or of two in turn, the others average without this one; it would have waited for ever."""
    outer, now, liars = begun(), 140.0, OTHERS[:num_liars]
    started: list[AttemptStart] = []
    for number in range(1, 400):
        now += 0.5
        if outer.phase is Phase.TRAINING and number == 20:
            outer.inner_finished(inner_result(outer), now)
        start = AttemptStart(instance=INSTANCE, round=0, attempt=2 * number, members=OTHERS)
        outer.received(liars[number % num_liars], start, now)
        sent = [effect.message for effect in outer.tick(now) if isinstance(effect, Send)]
        started += [message for message in sent if isinstance(message, AttemptStart) and message.attempt > 0]
    assert outer.hosts.suspects & {*liars}
    assert any(HOSTS[0] in start.members and not {*liars} <= {*start.members} for start in started)


@pytest.mark.parametrize("begun", [waiting, lambda: training(plan_of()), lambda: ended_early()[0]])
def test_no_message_drives_the_attempts_beyond_what_honest_hosts_reach_in_the_time(begun: Callable[[], OuterRound]) -> None:
    """Hosts that were driven far apart would call no attempt of each other new."""
    outer = begun()
    before = outer.attempts.current, outer.attempts.pending
    outer.received(OTHERS[0], AttemptStart(instance=INSTANCE, round=0, attempt=1 << 20, members=OTHERS), 141.0)
    assert (outer.attempts.current, outer.attempts.pending) == before


@pytest.mark.parametrize(
    "begun", [waiting, lambda: training(plan_of()), lambda: ended_early()[0]], ids=["averaging", "training", "retrying"]
)
@settings(max_examples=150, deadline=None)
@given(told=st.lists(st.tuples(st.sampled_from(OTHERS), MESSAGES, st.integers(0, 40)), min_size=1, max_size=12))
def test_no_message_about_anybody_raises(
    begun: Callable[[], OuterRound], told: list[tuple[PeerId, AveragingMessage, int]]
) -> None:
    outer, now = begun(), 140.0
    for sender, message, seconds in told:
        now += seconds
        outer.received(sender, message, now)
        outer.tick(now)
