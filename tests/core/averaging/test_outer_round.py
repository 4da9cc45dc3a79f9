"""One round of one instance on one host, event by event."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from adloco_p2p.core.averaging.adaptive_timeout import AdaptiveTimeout
from adloco_p2p.core.averaging.outer_round import OuterRound, Phase
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.events import (
    ApplyOuter,
    Average,
    AverageFailed,
    AverageFinished,
    CancelAverage,
    Effect,
    InnerResult,
    RepairAverage,
    Send,
)
from adloco_p2p.core.model.messages import AttemptFailed, AttemptStart, AverageDigest
from adloco_p2p.core.model.rules import BatchRules, InstanceRules, MergeRules, Rules, WorkRules
from adloco_p2p.core.model.types import Capacity, Digest, InstanceId, PeerId, PseudoGradientStatistics
from adloco_p2p.core.planning.round_plan import genesis

RULES = Rules(
    work=WorkRules(inner_steps=4, rounds=6),
    instances=InstanceRules(count=1, start="same"),
    batch=BatchRules(initial_batch=8),
    merge=MergeRules(policy="none"),
)
CAPACITY = Capacity(samples_per_second=0.0, micro_batch_limit=8, max_instances=4)
A, B, C, D = (PeerId(name) for name in "abcd")
DIGEST = Digest("7" * 64)
INSTANCE = InstanceId(0)


def averaging(
    *peers: PeerId, adaptive_timeout: AdaptiveTimeout, received: Sequence[AttemptStart] = (), batch: int = 8
) -> OuterRound:
    """The round of the first peer, its inner steps done at 10 s. It has `received` from the second one before."""
    rules = replace(RULES, batch=BatchRules(initial_batch=batch))
    plan = genesis(Digest("5" * 64), [(peer, CAPACITY) for peer in peers], rules)
    outer = OuterRound(
        me=peers[0], plan=plan, plan_digest=canonical.digest(plan), instance=INSTANCE, adaptive_timeout=adaptive_timeout
    )
    outer.start(0.0, progress_end=0.1)
    for message in received:
        outer.received(peers[1], message, 9.0, ())
    outer.inner_finished(inner_result(outer), 10.0, ())
    assert outer.phase is Phase.AVERAGING
    return outer


def inner_result(outer: OuterRound) -> InnerResult:
    share = outer.share
    return InnerResult(
        samples=share.samples,
        tokens=share.samples * 7,
        inner_steps=share.inner_steps,
        batch_samples=share.effective_batch,
        accumulation_steps=1,
        loss=3.0,
        seconds=10.0,
        half_batch=None,
        micro_batch_limit=8,
    )


def finished(outer: OuterRound, *peers: PeerId) -> AverageFinished:
    return AverageFinished(
        instance=INSTANCE,
        round=outer.round,
        attempt=0,
        digest=DIGEST,
        contributors=peers,
        statistics=PseudoGradientStatistics(own_sqnorm=1.0, inner_product=1.0, averaged_sqnorm=1.0),
    )


def vote(*peers: PeerId) -> AverageDigest:
    return AverageDigest(instance=INSTANCE, round=0, attempt=0, contributors=peers, digest=DIGEST)


def failure(*, attempt: int, suspects: tuple[PeerId, ...]) -> AverageFailed:
    return AverageFailed(instance=INSTANCE, round=0, attempt=attempt, reason="nothing came", suspects=suspects)


def test_an_attempt_without_others_does_not_count_for_the_adaptive_timeout() -> None:
    adaptive_timeout = AdaptiveTimeout()
    alone = averaging(A, adaptive_timeout=adaptive_timeout)
    assert any(isinstance(effect, ApplyOuter) for effect in alone.average_finished(finished(alone, A), 10.01, ()))
    assert not adaptive_timeout.waits
    together = averaging(A, B, adaptive_timeout=adaptive_timeout)
    together.average_finished(finished(together, A, B), 12.5, ())
    assert list(adaptive_timeout.waits) == [2.5]


def test_an_average_that_is_nearly_here_is_waited_for_when_a_majority_has_it() -> None:
    outer = averaging(A, B, C, D, adaptive_timeout=AdaptiveTimeout())
    effects = [effect for peer in (B, C, D) for effect in outer.received(peer, vote(A, B, C, D), 14.0, ())]
    assert not any(isinstance(effect, (CancelAverage, RepairAverage)) for effect in effects)
    assert outer.next_deadline == 18.0, "as long again as it has taken"
    effects = outer.average_finished(finished(outer, A, B, C, D), 15.0, ())
    assert any(isinstance(effect, ApplyOuter) for effect in effects)
    assert outer.is_averaged


def test_an_average_that_does_not_come_is_fetched_from_those_that_have_it() -> None:
    outer = averaging(A, B, C, D, adaptive_timeout=AdaptiveTimeout())
    for peer in (B, C, D):
        outer.received(peer, vote(A, B, C, D), 14.0, ())
    effects = outer.tick(18.0, ())
    assert any(isinstance(effect, CancelAverage) for effect in effects)
    assert [effect.from_peers for effect in effects if isinstance(effect, RepairAverage)] == [(B, C, D)]


def test_the_average_of_another_attempt_is_not_waited_for() -> None:
    outer = averaging(A, B, C, D, adaptive_timeout=AdaptiveTimeout())
    later = replace(vote(B, C, D), attempt=1)
    effects = [effect for peer in (B, C, D) for effect in outer.received(peer, later, 14.0, ())]
    assert any(isinstance(effect, RepairAverage) for effect in effects)


@pytest.mark.parametrize(("accused", "left"), [((D,), (A, B, C)), ((C, D), (A, B, C, D)), ((B,), (A, C, D)), ((A,), (A, C, D))])
def test_a_host_may_accuse_a_minority_but_not_half_of_the_others(accused: tuple[PeerId, ...], left: tuple[PeerId, ...]) -> None:
    outer = averaging(A, B, C, D, adaptive_timeout=AdaptiveTimeout())
    outer.received(B, AttemptFailed(instance=INSTANCE, round=0, attempt=0, suspects=accused), 14.0, ())
    assert outer.phase is Phase.RETRYING and outer.next_deadline is not None
    effects = outer.tick(outer.next_deadline, ())
    assert {
        effect.message.members for effect in effects if isinstance(effect, Send) and isinstance(effect.message, AttemptStart)
    } == {left}


def members_of_retry(outer: OuterRound, now: float) -> set[tuple[PeerId, ...]]:
    """The members that the host names when it leads the next attempt."""
    messages = [effect.message for effect in outer.tick(now, ()) if isinstance(effect, Send)]
    return {message.members for message in messages if isinstance(message, AttemptStart)}


def accusation(*suspects: PeerId) -> AttemptFailed:
    return AttemptFailed(instance=INSTANCE, round=0, attempt=0, suspects=suspects)


def test_one_accuser_has_a_minority_of_the_contributors_left_out_however_often_it_accuses() -> None:
    ten = tuple(PeerId(name) for name in "abcdefghij")
    outer = averaging(*ten, adaptive_timeout=AdaptiveTimeout(), batch=20)
    assert outer.contributors == ten
    for suspects in (ten[2:6], ten[6:8], ten[8:9], ten[9:10]):
        outer.received(B, accusation(*suspects), 14.0, ())
    assert members_of_retry(outer, 60.0) == {(*ten[:2], *ten[6:])}


def test_a_repeated_accusation_is_not_counted_again_and_each_accuser_has_its_own_count() -> None:
    ten = tuple(PeerId(name) for name in "abcdefghij")
    outer = averaging(*ten, adaptive_timeout=AdaptiveTimeout(), batch=20)
    for accuser, suspects in ((B, ten[7:9]), (B, ten[7:9]), (B, ten[6:9]), (C, ten[9:])):
        outer.received(accuser, accusation(*suspects), 14.0, ())
    assert members_of_retry(outer, 60.0) == {ten[:6]}


def test_an_accuser_that_names_itself_is_left_out_whatever_it_has_named_before() -> None:
    outer = averaging(A, B, C, D, adaptive_timeout=AdaptiveTimeout())
    outer.received(B, accusation(D), 14.0, ())
    outer.received(B, accusation(B, C), 14.0, ())
    assert members_of_retry(outer, 60.0) == {(A, C)}


def test_a_leader_leaves_out_those_that_average_with_it_no_more_but_not_half_of_the_contributors() -> None:
    """They would refuse each of its attempts, and another leader with such a member of its own would take turns with it."""
    six = tuple(PeerId(name) for name in "abcdef")
    outer = averaging(*six, adaptive_timeout=AdaptiveTimeout(), batch=12)
    for accuser in six[1:4]:
        outer.received(accuser, accusation(A), 14.0, ())
    assert members_of_retry(outer, 60.0) == {(A, *six[3:])}


def test_a_leader_ends_an_attempt_that_no_failure_was_reported_of_at_most_every_32_seconds() -> None:
    def is_begun(leader: PeerId, attempt: int, now: float) -> bool:
        start = AttemptStart(instance=INSTANCE, round=0, attempt=attempt, members=(A, B, C))
        return any(isinstance(effect, Average) for effect in outer.received(leader, start, now, ()))

    outer = averaging(A, B, C, D, adaptive_timeout=AdaptiveTimeout())
    assert [step for step in range(100) if is_begun(B, 1 + step, 20.0 + step)] == [0, 32, 64, 96]
    assert is_begun(C, 200, 120.0), "each leader has its own limit"
    assert not is_begun(C, 201, 120.5)
    outer.received(B, AttemptFailed(instance=INSTANCE, round=0, attempt=200, suspects=()), 121.0, ())
    assert is_begun(C, 201, 121.5), "a reported failure calls for the next attempt"


@pytest.mark.parametrize(("uplinks", "seconds"), [((0.0, 0.0, 0.0), 54.0), ((0.0, 2e6, 8e6), 50.8)])
def test_no_attempt_waits_longer_than_computing_and_a_slow_transfer_explain(uplinks: tuple[float, ...], seconds: float) -> None:
    """Twice the 10 s of computing, 1 MB at a quarter of the median uplink, and 30 s; earlier attempts took 1000 s."""
    adaptive_timeout = AdaptiveTimeout()
    adaptive_timeout.observe(1000.0, num_bytes=1_000_000)
    peers = zip((A, B, C), uplinks, strict=True)
    capacities = [(peer, replace(CAPACITY, upload_bytes_per_second=uplink)) for peer, uplink in peers]
    plan = replace(genesis(Digest("5" * 64), capacities, RULES), expected_seconds=10.0)
    outer = OuterRound(
        me=A, plan=plan, plan_digest=canonical.digest(plan), instance=INSTANCE, adaptive_timeout=adaptive_timeout
    )
    outer.start(0.0, progress_end=0.1)
    effects = outer.inner_finished(inner_result(outer), 10.0, ())
    assert [effect.timeout_seconds for effect in effects if isinstance(effect, Average)] == [seconds]


def test_a_host_that_failed_an_attempt_here_leads_none() -> None:
    outer = averaging(B, A, C, adaptive_timeout=AdaptiveTimeout())
    outer.average_failed(failure(attempt=0, suspects=(A,)), 14.0, ())
    answers = outer.received(A, AttemptStart(instance=INSTANCE, round=0, attempt=1, members=(A, B, C)), 15.0, ())
    accusation = AttemptFailed(instance=INSTANCE, round=0, attempt=1, suspects=(A,))
    assert answers == [Send(peer=A, message=accusation), Send(peer=C, message=accusation)], "so that C does not follow it"
    assert outer.phase is Phase.RETRYING
    outer.received(C, AttemptStart(instance=INSTANCE, round=0, attempt=1, members=(B, C)), 15.0, ())
    assert outer.phase is Phase.AVERAGING


def test_a_host_joins_no_attempt_with_one_that_failed_another_here() -> None:
    outer = averaging(B, A, C, D, adaptive_timeout=AdaptiveTimeout())
    outer.average_failed(failure(attempt=0, suspects=(A,)), 14.0, ())
    answers = outer.received(C, AttemptStart(instance=INSTANCE, round=0, attempt=1, members=(A, B, C)), 15.0, ())
    assert outer.phase is Phase.RETRYING
    sent = {effect.peer: effect.message for effect in answers if isinstance(effect, Send)}
    assert sent == dict.fromkeys((A, C, D), AttemptFailed(instance=INSTANCE, round=0, attempt=1, suspects=(A,)))
    outer.received(C, AttemptStart(instance=INSTANCE, round=0, attempt=2, members=(B, C, D)), 16.0, ())
    assert outer.phase is Phase.AVERAGING


def test_pauses_grow_only_while_failures_show_no_new_suspect() -> None:
    def pause(attempt: int, *suspects: PeerId) -> float:
        outer.average_failed(failure(attempt=attempt, suspects=suspects), 14.0, ())
        assert outer.next_deadline is not None
        before = outer.next_deadline - 14.0
        outer.received(C, AttemptStart(instance=INSTANCE, round=0, attempt=attempt + 1, members=(B, C)), 15.0, ())
        assert outer.phase is Phase.AVERAGING
        return before

    outer = averaging(B, A, C, D, adaptive_timeout=AdaptiveTimeout())
    assert [pause(0, A), pause(1, D), pause(2), pause(3)] == [1.0, 1.0, 2.0, 4.0]


def test_an_attempt_that_was_begun_is_not_begun_again() -> None:
    first, second = (AttemptStart(instance=INSTANCE, round=0, attempt=attempt, members=(A, B)) for attempt in (1, 2))
    outer = averaging(B, A, C, adaptive_timeout=AdaptiveTimeout(), received=[first])
    assert outer.received(A, first, 11.0, ()) == []
    assert any(isinstance(effect, Average) for effect in outer.received(A, second, 12.0, ()))
    assert outer.received(A, second, 13.0, ()) == [], "a bad peer repeats its messages"


def test_of_two_attempts_with_one_number_the_same_one_counts_everywhere() -> None:
    of_two, of_three = (AttemptStart(instance=INSTANCE, round=0, attempt=1, members=members) for members in ((B, C), (A, B, C)))
    for first, second in ((of_two, of_three), (of_three, of_two)):
        outer = averaging(B, A, C, D, adaptive_timeout=AdaptiveTimeout())
        begun = []
        for sender, start in ((C, first), (A if second is of_three else C, second)):
            begun += [effect for effect in outer.received(sender, start, 12.0, ()) if isinstance(effect, Average)]
        assert [peer for peer, _ in begun[-1].weights] == [A, B, C]
        assert len(begun) == (2 if first is of_two else 1)


def test_failed_attempts_do_not_lengthen_the_adaptive_timeout() -> None:
    adaptive_timeout = AdaptiveTimeout()
    outer = averaging(B, A, C, adaptive_timeout=adaptive_timeout)
    outer.average_failed(failure(attempt=0, suspects=(C,)), 70.0, ())
    outer.received(A, AttemptStart(instance=INSTANCE, round=0, attempt=1, members=(A, B)), 71.0, ())
    outer.average_finished(replace(finished(outer, A, B), attempt=1), 73.0, ())
    assert list(adaptive_timeout.waits) == [2.0]


def test_a_host_does_not_wait_for_an_attempt_of_a_few_without_it() -> None:
    outer = averaging(B, A, C, D, adaptive_timeout=AdaptiveTimeout())
    outer.average_failed(failure(attempt=0, suspects=(D,)), 14.0, ())
    due = outer.next_deadline
    for attempt in range(1, 9):
        outer.received(A, AttemptStart(instance=INSTANCE, round=0, attempt=attempt, members=(A,)), 14.5, ())
    assert outer.next_deadline == due
    outer.received(A, AttemptStart(instance=INSTANCE, round=0, attempt=9, members=(A, C)), 14.5, ())
    assert outer.next_deadline is not None and due is not None and outer.next_deadline > due, "most of those that remain"


def test_an_average_of_few_is_no_reason_not_to_average_again() -> None:
    outer = averaging(B, A, C, D, adaptive_timeout=AdaptiveTimeout())
    outer.average_failed(failure(attempt=0, suspects=(A,)), 14.0, ())
    alone = outer.received(A, vote(A), 14.5, ())
    assert not any(isinstance(effect, RepairAverage) for effect in alone), "one of four"
    of_half = outer.received(A, vote(A, B), 14.5, ())
    assert [effect.from_peers for effect in of_half if isinstance(effect, RepairAverage)] == [(A,)]


def test_members_of_a_slow_attempt_are_queried_ever_less_often() -> None:
    outer = averaging(A, B, C, adaptive_timeout=AdaptiveTimeout())
    asked_at: list[float] = []
    while outer.next_deadline is not None and outer.next_deadline < 100.0:
        asked_at.append(outer.next_deadline)
        effects = outer.tick(outer.next_deadline, ())
        start = AttemptStart(instance=INSTANCE, round=0, attempt=0, members=(A, B, C))
        assert effects == [Send(peer=B, message=start), Send(peer=C, message=start)]
    assert asked_at == [12.0, 16.0, 24.0, 40.0, 72.0]


def test_a_queried_member_answers_once_it_has_voted_and_not_before() -> None:
    outer = averaging(A, B, adaptive_timeout=AdaptiveTimeout())
    ask = AttemptStart(instance=INSTANCE, round=0, attempt=0, members=(A, B))
    assert outer.received(B, ask, 11.0, ()) == []
    outer.average_finished(finished(outer, A, B), 12.0, ())
    [answer] = outer.received(B, ask, 13.0, ())
    assert isinstance(answer, Send) and isinstance(answer.message, AverageDigest) and answer.message.is_answer


def test_an_attempt_with_a_member_that_has_voted_for_another_one_is_given_up() -> None:
    """Such as that of a host that was restarted within the round: the other one has gone on without it."""
    outer = averaging(B, A, adaptive_timeout=AdaptiveTimeout())
    effects = outer.received(A, replace(vote(A), attempt=1), 12.1, ())
    assert CancelAverage(instance=INSTANCE, round=0, attempt=0) in effects
    assert [effect.from_peers for effect in effects if isinstance(effect, RepairAverage)] == [(A,)], "half of two"
    assert outer.phase is Phase.REPAIRING


def test_the_others_average_again_without_a_host_that_voted_for_its_own_average() -> None:
    outer = averaging(B, A, C, D, adaptive_timeout=AdaptiveTimeout())
    effects = outer.received(A, replace(vote(A), attempt=3), 12.1, ())
    assert CancelAverage(instance=INSTANCE, round=0, attempt=0) in effects
    assert not any(isinstance(effect, RepairAverage) for effect in effects)
    assert outer.next_deadline is not None
    again = outer.tick(outer.next_deadline, ())
    starts = [effect.message for effect in again if isinstance(effect, Send) and isinstance(effect.message, AttemptStart)]
    assert [start.members for start in starts] == [(B, C, D)] * 3


def test_a_failed_donor_does_not_delay_the_next_attempt() -> None:
    outer = averaging(B, A, C, D, adaptive_timeout=AdaptiveTimeout())
    outer.average_failed(failure(attempt=0, suspects=(A,)), 14.0, ())
    asked = outer.received(A, vote(A, B), 14.5, ())
    assert [effect.from_peers for effect in asked if isinstance(effect, RepairAverage)] == [(A,)]
    outer.average_failed(replace(failure(attempt=0, suspects=(A,)), is_repair=True), 15.0, ())
    assert outer.phase is Phase.RETRYING and outer.next_deadline is not None
    again = [*outer.received(A, vote(A, B), 15.5, ()), *outer.tick(outer.next_deadline, ())]
    assert not any(isinstance(effect, RepairAverage) for effect in again)
    assert [effect.message.members for effect in again if isinstance(effect, Send) and isinstance(effect.message, AttemptStart)]


def test_where_nothing_has_a_majority_the_average_of_most_hosts_wins() -> None:
    outer = averaging(A, B, C, D, adaptive_timeout=AdaptiveTimeout())
    outer.average_finished(finished(outer, A), 14.0, ())
    outer.received(B, replace(vote(B, C), attempt=5, digest=Digest("9" * 64)), 15.0, ())
    outer.received(C, replace(vote(B, C), attempt=5, digest=Digest("9" * 64)), 15.0, ())
    effects = outer.received(D, replace(vote(D), attempt=1, digest=Digest("1" * 64)), 15.0, ())
    assert [effect.from_peers for effect in effects if isinstance(effect, RepairAverage)] == [(B, C)]


def test_the_end_of_what_was_given_up_is_not_taken_for_that_of_the_repair() -> None:
    outer = averaging(B, A, adaptive_timeout=AdaptiveTimeout())
    outer.received(A, vote(A), 12.1, ())  # another average of the same attempt
    assert outer.phase is Phase.REPAIRING
    assert outer.average_failed(failure(attempt=0, suspects=(A,)), 12.2, ()) == []
    assert outer.average_finished(finished(outer, A, B), 12.2, ()) == []
    assert outer.phase is Phase.REPAIRING
    outer.average_finished(replace(finished(outer, A), is_repair=True), 12.3, ())
    assert outer.phase is Phase.APPLYING


def test_a_repair_is_stopped_with_its_round() -> None:
    outer = averaging(B, A, adaptive_timeout=AdaptiveTimeout())
    outer.received(A, replace(vote(A), attempt=3), 12.1, ())
    assert outer.phase is Phase.REPAIRING
    assert outer.abandon() == [CancelAverage(instance=INSTANCE, round=0, attempt=3)]


def test_a_host_that_holds_an_average_fetches_the_one_that_will_win() -> None:
    """B's average of three could not be fetched, then C's of two; C dies, and B's is the one to have."""
    other = Digest("9" * 64)
    outer = averaging(A, B, C, adaptive_timeout=AdaptiveTimeout())
    outer.average_failed(failure(attempt=0, suspects=(C,)), 14.0, ())
    outer.received(B, vote(A, B, C), 14.1, ())
    outer.average_failed(replace(failure(attempt=0, suspects=(B,)), is_repair=True), 14.2, ())
    outer.received(C, replace(vote(B, C), attempt=1, digest=other), 14.3, ())
    assert outer.phase is Phase.REPAIRING
    outer.average_finished(replace(finished(outer, B, C), attempt=1, digest=other, is_repair=True), 14.4, (C,))
    assert outer.phase is Phase.COMMITTING
    assert outer.next_deadline is not None
    effects = outer.tick(outer.next_deadline, (C,))
    assert [effect.from_peers for effect in effects if isinstance(effect, RepairAverage)] == [(B,)]


def test_messages_that_no_honest_host_sends_change_nothing() -> None:
    outer = averaging(A, B, C, adaptive_timeout=AdaptiveTimeout())
    for message in (
        AttemptFailed(instance=INSTANCE, round=0, attempt=1 << 62, suspects=()),
        AttemptStart(instance=INSTANCE, round=0, attempt=1 << 62, members=(A, B)),
        vote(),
        vote(B, B, B, B),
        vote(A, D),
    ):
        assert outer.received(B, message, 12.0, ()) == []
    assert outer.phase is Phase.AVERAGING
    outer.average_failed(failure(attempt=0, suspects=()), 13.0, ())
    assert outer.next_deadline is not None
    starts = [e.message.attempt for e in outer.tick(outer.next_deadline, ()) if isinstance(e, Send)]
    assert starts == [1, 1]


def round_of(me: PeerId, *, clients: tuple[PeerId, ...]) -> OuterRound:
    """The round of one of four peers, while it averages; some of them are in client mode."""
    plan = genesis(Digest("5" * 64), [(p, replace(CAPACITY, is_reachable=p not in clients)) for p in (A, B, C, D)], RULES)
    outer = OuterRound(
        me=me, plan=plan, plan_digest=canonical.digest(plan), instance=INSTANCE, adaptive_timeout=AdaptiveTimeout()
    )
    outer.start(0.0, progress_end=0.1)
    effects = outer.inner_finished(inner_result(outer), 10.0, ())
    (average,) = [effect for effect in effects if isinstance(effect, Average)]
    assert [share > 0 for share in average.shares or [1.0] * 4] == [p not in clients for p in (A, B, C, D)]
    return outer


def test_a_reachable_host_relays_the_votes_of_hosts_in_client_mode() -> None:
    rounds = {peer: round_of(peer, clients=(A, B, C)) for peer in (A, B, C, D)}
    applied: set[PeerId] = set()

    def perform(sender: PeerId, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, ApplyOuter):
                applied.add(sender)
            elif isinstance(effect, Send) and D in (sender, effect.peer):  # clients cannot reach each other
                perform(effect.peer, rounds[effect.peer].received(sender, effect.message, 12.0, ()))

    for peer in (A, D, B):
        perform(peer, rounds[peer].average_finished(finished(rounds[peer], A, B, C, D), 12.0, ()))
    assert applied == {A, B, D}, "three of four hold it"
    perform(C, rounds[C].average_finished(finished(rounds[C], A, B, C, D), 12.0, ()))
    assert applied == {A, B, C, D}


def test_a_relayed_vote_counts_for_hosts_in_client_mode_only_and_never_as_ones_own() -> None:
    claimed = replace(vote(A, B, C, D), relayed_for=(A, B, C))
    for me, clients in ((A, ()), (A, (A,)), (A, (B, C))):
        outer = round_of(me, clients=clients)
        outer.average_finished(finished(outer, A, B, C, D), 12.0, ())
        assert not any(isinstance(effect, ApplyOuter) for effect in outer.received(D, claimed, 12.0, ()))
    outer = round_of(A, clients=(A, B, C))
    effects = outer.received(D, claimed, 12.0, ())
    assert not any(isinstance(effect, ApplyOuter) for effect in effects), "it holds nothing yet"


def test_a_reachable_host_leads_a_retry_before_hosts_in_client_mode() -> None:
    outer = round_of(D, clients=(A, B))
    outer.average_failed(failure(attempt=0, suspects=(C,)), 12.0, ())
    effects = outer.tick(outer.next_deadline or 0.0, ())
    starts = [effect.message for effect in effects if isinstance(effect, Send) and isinstance(effect.message, AttemptStart)]
    assert {start.members for start in starts} == {(A, B, D)}
