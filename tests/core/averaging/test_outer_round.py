"""One round of one instance on one host, event by event."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from adloco_p2p.core.averaging.adaptive_timeout import AdaptiveTimeout
from adloco_p2p.core.averaging.assignment import Assignment
from adloco_p2p.core.averaging.attempt import GRACE_SECONDS, RESEND_SECONDS, TAKEOVER_SECONDS, Attempt
from adloco_p2p.core.averaging.commit_phase import LATE_TIMEOUTS, MAX_REPAIRS
from adloco_p2p.core.averaging.commit_votes import Voter
from adloco_p2p.core.averaging.outer_round import OuterRound
from adloco_p2p.core.averaging.phases import Phase
from adloco_p2p.core.averaging.round_state import LAST_VOTES_SECONDS
from adloco_p2p.core.model import canonical, telemetry
from adloco_p2p.core.model.averages import Average, CancelAverage, RepairAverage
from adloco_p2p.core.model.effects import ApplyOuter, CarryOver, Effect, Persist, RunInner, Send
from adloco_p2p.core.model.events import AverageFailed, AverageFinished, Evaluated, InnerResult, OuterApplied
from adloco_p2p.core.model.gradient_statistics import PseudoGradientStatistics
from adloco_p2p.core.model.messages import NO_AVERAGE, AttemptFailed, AttemptStart, AverageDigest, CommitVoted
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.protocol import PROBATION_LIMITED
from adloco_p2p.core.model.roster_entry import Capacity
from adloco_p2p.core.model.rules import BatchRules, InstanceRules, MergeRules, Rules, WorkRules
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.core.planning.round_plan import genesis
from adloco_p2p.sim.identities import sign, verify
from tests.core import core_values

RULES = Rules(
    work=WorkRules(inner_steps=4, rounds=6),
    instances=InstanceRules(count=1, start="same"),
    batch=BatchRules(initial_batch=8),
    merge=MergeRules(policy="none"),
)
CAPACITY = Capacity(samples_per_second=0.0, micro_batch_limit=8, max_instances=4)
A, B, C, D, E = (PeerId(name) for name in "abcde")
DIGEST = Digest("7" * 64)
INSTANCE = InstanceId(0)


def outer_round(
    me: PeerId,
    plan: RoundPlan,
    adaptive_timeout: AdaptiveTimeout,
    *,
    is_late: bool = False,
    kept_vote: AverageDigest | None = None,
) -> OuterRound:
    assignment = Assignment(
        me=me,
        plan=plan,
        plan_digest=canonical.digest(plan),
        instance=INSTANCE,
        adaptive_timeout=adaptive_timeout,
        voter=Voter(
            sign=lambda payload: sign(me, payload),
            verify=verify,
            keep=lambda vote: [Persist(record=CommitVoted(plan=canonical.digest(plan), vote=vote))],
            kept=kept_vote,
        ),
        is_late=is_late,
    )
    return OuterRound(assignment)


def averaging(
    *peers: PeerId,
    adaptive_timeout: AdaptiveTimeout,
    received: Sequence[AttemptStart] = (),
    batch: int = 8,
    names: Sequence[PeerId] = (),
    clients: Sequence[PeerId] = (),
) -> OuterRound:
    """The round of the first peer, its inner steps done at 10 s. It has `received` from the second one before. `names` are
    those on probation, `clients` those in client mode."""
    rules = replace(RULES, batch=BatchRules(initial_batch=batch))
    plan = genesis(Digest("5" * 64), [(peer, CAPACITY) for peer in peers], rules, protocol=PROBATION_LIMITED)
    seats = [replace(e, probation=3) if e.peer in names else e for e in plan.roster]
    seats = [replace(e, capacity=replace(e.capacity, is_reachable=e.peer not in clients)) for e in seats]
    plan = replace(plan, roster=tuple(seats))
    outer = outer_round(peers[0], plan, adaptive_timeout)
    outer.start(0.0, progress_end=0.1)
    for message in received:
        outer.received(peers[1], message, 9.0)
    outer.inner_finished(inner_result(outer), 10.0)
    assert outer.phase is Phase.AVERAGING
    return outer


def inner_result(outer: OuterRound) -> InnerResult:
    share = outer.share
    result = core_values.inner_result(
        inner_steps=share.inner_steps, batch=share.effective_batch, tokens=share.samples * 7, loss=3.0
    )
    return replace(result, seconds=10.0)


def asked(*, attempt: int = 0, is_repair: bool = False) -> Average | RepairAverage:
    """What the end of an attempt, or of a repair, answers."""
    fields: dict[str, Any] = {"instance": INSTANCE, "round": 0, "attempt": attempt, "key": DIGEST, "timeout_seconds": 60.0}
    if is_repair:
        return RepairAverage(digest=DIGEST, contributors=(), from_peers=(), **fields)
    return Average(plan=DIGEST, weights=(), steps=(), **fields)


def finished(outer: OuterRound, *peers: PeerId, attempt: int = 0, is_repair: bool = False) -> AverageFinished:
    return AverageFinished(
        asked=replace(asked(attempt=attempt, is_repair=is_repair), round=outer.round),
        digest=DIGEST,
        contributors=peers,
        statistics=PseudoGradientStatistics(own_sqnorm=1.0, inner_product=1.0, averaged_sqnorm=1.0),
    )


def vote(
    outer: OuterRound, voter: PeerId, *peers: PeerId, attempt: int = 0, digest: Digest = DIGEST, backers: Sequence[PeerId] = ()
) -> AverageDigest:
    """The vote of a host for the average of these peers; a void one for that of none."""
    chosen = digest if peers else NO_AVERAGE
    unsigned = AverageDigest(instance=INSTANCE, round=0, attempt=attempt, contributors=peers, digest=chosen)
    plan = canonical.digest(outer.plan)
    signatures = {peer: sign(peer, unsigned.payload(plan, peer)) for peer in (voter, *backers)}
    return replace(unsigned, signature=signatures[voter], backers=tuple((peer, signatures[peer]) for peer in backers))


def has(effects: Sequence[Effect], kind: type) -> bool:
    return any(isinstance(effect, kind) for effect in effects)


def failure(*, attempt: int, suspects: tuple[PeerId, ...], is_repair: bool = False) -> AverageFailed:
    return AverageFailed(asked=asked(attempt=attempt, is_repair=is_repair), reason="nothing came", suspects=suspects)


def test_an_attempt_without_others_does_not_count_for_the_adaptive_timeout() -> None:
    adaptive_timeout = AdaptiveTimeout()
    alone = averaging(A, adaptive_timeout=adaptive_timeout)
    assert any(isinstance(effect, ApplyOuter) for effect in alone.average_finished(finished(alone, A), 10.01))
    assert not adaptive_timeout.waits
    together = averaging(A, B, adaptive_timeout=adaptive_timeout)
    together.average_finished(finished(together, A, B), 12.5)
    assert list(adaptive_timeout.waits) == [2.5]


def test_an_average_that_is_nearly_here_is_waited_for_when_a_majority_has_it() -> None:
    outer = averaging(A, B, C, D, adaptive_timeout=AdaptiveTimeout())
    effects = [effect for peer in (B, C, D) for effect in outer.received(peer, vote(outer, peer, A, B, C, D), 14.0)]
    assert not any(isinstance(effect, (CancelAverage, RepairAverage)) for effect in effects)
    assert outer.next_deadline == 18.0, "as long again as it has taken"
    effects = outer.average_finished(finished(outer, A, B, C, D), 15.0)
    assert any(isinstance(effect, ApplyOuter) for effect in effects)
    assert outer.is_averaged


def test_an_average_that_does_not_come_is_fetched_from_those_that_have_it() -> None:
    outer = averaging(A, B, C, D, adaptive_timeout=AdaptiveTimeout())
    for peer in (B, C, D):
        outer.received(peer, vote(outer, peer, A, B, C, D), 14.0)
    effects = outer.tick(18.0)
    assert any(isinstance(effect, CancelAverage) for effect in effects)
    assert [effect.from_peers for effect in effects if isinstance(effect, RepairAverage)] == [(B, C, D)]


def test_the_average_of_another_attempt_is_not_waited_for() -> None:
    outer = averaging(A, B, C, D, adaptive_timeout=AdaptiveTimeout())
    voters = (B, C, D)
    effects = [effect for peer in voters for effect in outer.received(peer, vote(outer, peer, *voters, attempt=1), 14.0)]
    assert any(isinstance(effect, RepairAverage) for effect in effects)


@pytest.mark.parametrize(("accused", "left"), [((D,), (A, B, C)), ((C, D), (A, B, C, D)), ((B,), (A, C, D)), ((A,), (A, C, D))])
def test_a_host_may_accuse_a_minority_but_not_half_of_the_others(accused: tuple[PeerId, ...], left: tuple[PeerId, ...]) -> None:
    outer = averaging(A, B, C, D, adaptive_timeout=AdaptiveTimeout())
    outer.received(B, AttemptFailed(instance=INSTANCE, round=0, attempt=0, suspects=accused), 14.0)
    assert outer.phase is Phase.RETRYING and outer.next_deadline is not None
    assert members_of_retry(outer, outer.next_deadline) == {left}


@pytest.mark.parametrize("accused", [(B, C), (B,), (D,), (E,), (B, D)])
def test_by_the_word_of_a_name_on_probation_those_that_decide_stay_a_majority(accused: tuple[PeerId, ...]) -> None:
    """A, B and C decide; D and E are on probation. Two of three must stay, or no average gets a majority."""
    outer = averaging(A, B, C, D, E, adaptive_timeout=AdaptiveTimeout(), names=(D, E))
    outer.received(E, AttemptFailed(instance=INSTANCE, round=0, attempt=0, suspects=accused), 14.0)
    assert outer.phase is Phase.RETRYING and outer.next_deadline is not None
    (left,) = members_of_retry(outer, outer.next_deadline)
    assert len({A, B, C}.intersection(left)) >= 2 and A in left


def test_names_on_probation_that_vanish_make_no_round_void() -> None:
    """With two of three full members an average still gets a majority."""
    outer = averaging(A, B, C, D, E, adaptive_timeout=AdaptiveTimeout(), names=(D, E))
    outer.hosts.gone = (C, D, E)
    outer.roster_changed(13.0)
    assert outer.phase is Phase.RETRYING and outer.next_deadline is not None
    assert members_of_retry(outer, outer.next_deadline) == {(A, B)}


def test_the_last_votes_of_hosts_that_have_left_are_awaited() -> None:
    outer = averaging(A, B, adaptive_timeout=AdaptiveTimeout())
    assert not outer.is_given_up(20.0, is_deserted=True)
    assert outer.given_up_at == 20.0 + LAST_VOTES_SECONDS
    assert outer.is_given_up(20.0 + LAST_VOTES_SECONDS, is_deserted=True)
    assert not outer.is_given_up(30.0, is_deserted=False) and outer.given_up_at is None, "one is back"


def members_of_retry(outer: OuterRound, now: float) -> set[tuple[PeerId, ...]]:
    """The members that the host names when it leads the next attempt, at once or after it has given way to others."""
    effects = [*outer.tick(now), *outer.tick(now + TAKEOVER_SECONDS)]
    messages = [effect.message for effect in effects if isinstance(effect, Send)]
    return {message.members for message in messages if isinstance(message, AttemptStart)}


def accusation(*suspects: PeerId) -> AttemptFailed:
    return AttemptFailed(instance=INSTANCE, round=0, attempt=0, suspects=suspects)


def test_a_host_that_a_member_named_gives_way_before_it_leads_a_retry() -> None:
    """The others leave it out and go on under the next leader, and would join its attempt instead if that came first."""
    outer = averaging(A, B, C, D, adaptive_timeout=AdaptiveTimeout())
    outer.received(C, accusation(A), 14.0)
    assert outer.tick(15.0) == [] and outer.next_deadline == 15.0 + TAKEOVER_SECONDS
    start = AttemptStart(instance=INSTANCE, round=0, attempt=1, members=(B, C, D))
    outer.received(B, start, 15.1)
    assert outer.attempts.leader_elsewhere == B, "it waits for their result"


def test_one_of_two_that_the_other_named_leads_at_once() -> None:
    outer = averaging(A, B, adaptive_timeout=AdaptiveTimeout())
    outer.received(B, accusation(A), 14.0)
    start = AttemptStart(instance=INSTANCE, round=0, attempt=1, members=(A, B))
    assert Send(peer=B, message=start) in outer.tick(15.0)


def test_where_no_other_leads_it_does_so_after_that() -> None:
    outer = averaging(A, B, C, D, adaptive_timeout=AdaptiveTimeout())
    outer.received(C, accusation(A), 14.0)
    assert outer.tick(15.0) == []
    started = [effect.message for effect in outer.tick(19.0) if isinstance(effect, Send)]
    assert started == [AttemptStart(instance=INSTANCE, round=0, attempt=1, members=(A, B, D))] * 3


def test_a_host_that_a_late_report_makes_the_leader_does_not_wait_for_the_one_that_it_names() -> None:
    """The report that ended the attempt here came before the one that names the cause."""
    outer = averaging(B, A, C, D, adaptive_timeout=AdaptiveTimeout())
    outer.received(D, AttemptFailed(instance=INSTANCE, round=0, attempt=0, suspects=(), because=C), 14.0)
    assert outer.next_deadline == 14.0 + GRACE_SECONDS + TAKEOVER_SECONDS, "it waits for the first to lead"
    outer.received(C, accusation(A), 14.1)
    assert outer.next_deadline == 14.1 + GRACE_SECONDS
    assert members_of_retry(outer, 15.1) == {(B, C, D)}


def test_one_accuser_has_a_minority_of_the_contributors_left_out_however_often_it_accuses() -> None:
    ten = tuple(PeerId(name) for name in "abcdefghij")
    outer = averaging(*ten, adaptive_timeout=AdaptiveTimeout(), batch=20)
    assert outer.contributors == ten
    for suspects in (ten[2:6], ten[6:8], ten[8:9], ten[9:10]):
        outer.received(B, accusation(*suspects), 14.0)
    assert members_of_retry(outer, 60.0) == {(*ten[:6], *ten[9:])}, "three, and with the accuser a minority"


def test_a_repeated_accusation_is_not_counted_again_and_accusers_are_a_minority_with_those_that_they_accuse() -> None:
    ten = tuple(PeerId(name) for name in "abcdefghij")
    outer = averaging(*ten, adaptive_timeout=AdaptiveTimeout(), batch=20)
    for accuser, suspects in ((B, ten[7:9]), (B, ten[7:9]), (C, ten[6:9]), (D, ten[9:]), (C, ten[4:6]), (D, ten[5:6])):
        outer.received(accuser, accusation(*suspects), 14.0)
    assert members_of_retry(outer, 60.0) == {(*ten[:7], *ten[9:])}, (
        "with a second accuser a third host would be the fifth of ten"
    )


def test_a_member_ends_two_attempts_and_is_not_in_the_third() -> None:
    """By nothing but a report that names nobody, or by the question of a host without a part in the attempt."""
    outer = averaging(A, B, C, D, adaptive_timeout=AdaptiveTimeout())
    question = AttemptFailed(instance=INSTANCE, round=0, attempt=0, suspects=(), is_question=True)
    waiting = AttemptStart(instance=INSTANCE, round=0, attempt=0, members=(A, B, C, D))
    assert outer.received(B, question, 11.0) == [Send(peer=B, message=waiting)] and outer.phase is Phase.AVERAGING
    for attempt, members in enumerate([(A, B, C, D), (A, C, D)], start=1):
        outer.received(B, replace(question, attempt=attempt - 1, is_question=False), 12.0 + 20.0 * attempt)
        outer.received(C, replace(question, attempt=attempt - 1, is_question=False, because=B), 12.0 + 20.0 * attempt)
        assert outer.phase is Phase.RETRYING
        outer.tick(22.0 + 20.0 * attempt)
        assert outer.attempts.current == Attempt(number=attempt, members=members)
    assert outer.received(B, replace(question, attempt=9, is_question=False), 80.0) == []
    start = AttemptStart(instance=INSTANCE, round=0, attempt=10, members=(A, B, C, D))
    [refusal] = {effect.message for effect in outer.received(B, start, 81.0) if isinstance(effect, Send)}
    assert refusal == AttemptFailed(instance=INSTANCE, round=0, attempt=10, suspects=(B,)) and outer.phase is Phase.AVERAGING
    assert outer.received(B, replace(start, attempt=11), 82.0) == []  # refused once per attempt


def test_a_host_that_leaves_a_running_attempt_for_another_names_its_leader_as_the_cause() -> None:
    """Otherwise the other members would count this host among the causes."""
    outer = averaging(A, B, C, D, adaptive_timeout=AdaptiveTimeout())
    start = AttemptStart(instance=INSTANCE, round=0, attempt=1, members=(A, B, C, D))
    effects = outer.received(B, start, 20.0)
    reports = {effect.message for effect in effects if isinstance(effect, Send)}
    assert reports == {AttemptFailed(instance=INSTANCE, round=0, attempt=0, suspects=(), because=B)}
    assert outer.attempts.current.number == 1


def test_reports_about_attempts_that_no_host_began_call_for_no_start() -> None:
    """Otherwise a member could begin attempt after attempt, and bring the next number of a leader out of the others' reach."""
    outer = averaging(A, B, C, D, adaptive_timeout=AdaptiveTimeout())
    claim = AttemptFailed(instance=INSTANCE, round=0, attempt=1000, suspects=())
    assert outer.received(B, claim, 11.0) == [] == outer.received(B, replace(claim, is_question=True), 11.0)
    outer.received(B, replace(claim, attempt=60, is_question=True), 11.0)
    assert outer.phase is Phase.AVERAGING
    starts = [AttemptStart(instance=INSTANCE, round=0, attempt=number, members=(A, B, C, D)) for number in range(1, 30)]
    begun = [start.attempt for start in starts if any(outer.received(B, start, 12.0 + start.attempt / 10))]
    assert begun == [1] and outer.hosts.newest_failure < 1


def test_one_that_names_another_of_three_leaves_the_others_a_majority() -> None:
    outer = averaging(A, B, C, adaptive_timeout=AdaptiveTimeout())
    for attempt in range(3):
        outer.received(B, AttemptFailed(instance=INSTANCE, round=0, attempt=attempt, suspects=(), because=C), 20.0 + attempt)
        outer.received(C, AttemptFailed(instance=INSTANCE, round=0, attempt=attempt, suspects=(), because=B), 20.5 + attempt)
        outer.attempts.begin_next()
        assert len(outer.hosts.unreliable) <= 1
    assert len(outer.hosts.unreliable) == 1


def test_an_accuser_that_names_itself_is_left_out_whatever_it_has_named_before() -> None:
    outer = averaging(A, B, C, D, adaptive_timeout=AdaptiveTimeout())
    outer.received(B, accusation(D), 14.0)
    outer.received(B, accusation(B), 14.0)
    assert outer.hosts.remaining == (A, C)


def test_a_leader_leaves_out_those_that_average_with_it_no_more_but_not_half_of_the_contributors() -> None:
    """They would refuse each of its attempts, and another leader with such a member of its own would take turns with it."""
    six = tuple(PeerId(name) for name in "abcdef")
    outer = averaging(*six, adaptive_timeout=AdaptiveTimeout(), batch=12)
    for accuser in six[1:4]:
        outer.received(accuser, accusation(A), 14.0)
    assert members_of_retry(outer, 60.0) == {(A, *six[3:])}


def test_a_leader_ends_an_attempt_that_no_failure_was_reported_of_at_most_every_32_seconds() -> None:
    def is_begun(leader: PeerId, attempt: int, now: float) -> bool:
        start = AttemptStart(instance=INSTANCE, round=0, attempt=attempt, members=(A, B, C))
        return any(isinstance(effect, Average) for effect in outer.received(leader, start, now))

    outer = averaging(A, B, C, D, adaptive_timeout=AdaptiveTimeout())
    assert [step for step in range(100) if is_begun(B, 1 + step, 20.0 + step)] == [0, 32, 64, 96]
    assert is_begun(C, 200, 120.0), "each leader has its own limit"
    assert not is_begun(C, 201, 120.5)
    outer.received(B, AttemptFailed(instance=INSTANCE, round=0, attempt=200, suspects=()), 121.0)
    assert is_begun(C, 201, 121.5), "a reported failure calls for the next attempt"


@pytest.mark.parametrize(("uplinks", "seconds"), [((0.0, 0.0, 0.0), 54.0), ((0.0, 2e6, 8e6), 52.0)])
def test_no_attempt_waits_longer_than_computing_and_a_slow_transfer_explain(uplinks: tuple[float, ...], seconds: float) -> None:
    """Twice the 10 s of computing, 1 MB at a quarter of the median uplink, and 30 s; earlier attempts took 1000 s. An unknown
    uplink counts as 1 MB/s."""
    adaptive_timeout = AdaptiveTimeout()
    adaptive_timeout.observe(1000.0, num_bytes=1_000_000)
    peers = zip((A, B, C), uplinks, strict=True)
    capacities = [(peer, replace(CAPACITY, upload_bytes_per_second=uplink)) for peer, uplink in peers]
    plan = replace(genesis(Digest("5" * 64), capacities, RULES), expected_seconds=10.0)
    outer = outer_round(A, plan, adaptive_timeout)
    outer.start(0.0, progress_end=0.1)
    effects = outer.inner_finished(inner_result(outer), 10.0)
    assert [effect.timeout_seconds for effect in effects if isinstance(effect, Average)] == [seconds]


def test_a_host_that_failed_an_attempt_here_leads_none() -> None:
    outer = averaging(B, A, C, adaptive_timeout=AdaptiveTimeout())
    outer.average_failed(failure(attempt=0, suspects=(A,)), 14.0)
    answers = outer.received(A, AttemptStart(instance=INSTANCE, round=0, attempt=1, members=(A, B, C)), 15.0)
    accusation = AttemptFailed(instance=INSTANCE, round=0, attempt=1, suspects=(A,))
    assert answers == [Send(peer=A, message=accusation), Send(peer=C, message=accusation)], "so that C does not follow it"
    assert outer.phase is Phase.RETRYING
    outer.received(C, AttemptStart(instance=INSTANCE, round=0, attempt=1, members=(B, C)), 15.0)
    assert outer.phase is Phase.AVERAGING


def test_a_host_joins_no_attempt_with_one_that_failed_another_here() -> None:
    outer = averaging(B, A, C, D, adaptive_timeout=AdaptiveTimeout())
    outer.average_failed(failure(attempt=0, suspects=(A,)), 14.0)
    answers = outer.received(C, AttemptStart(instance=INSTANCE, round=0, attempt=1, members=(A, B, C)), 15.0)
    assert outer.phase is Phase.RETRYING
    sent = {effect.peer: effect.message for effect in answers if isinstance(effect, Send)}
    assert sent == dict.fromkeys((A, C, D), AttemptFailed(instance=INSTANCE, round=0, attempt=1, suspects=(A,)))
    outer.received(C, AttemptStart(instance=INSTANCE, round=0, attempt=2, members=(B, C, D)), 16.0)
    assert outer.phase is Phase.AVERAGING


def test_a_host_joins_no_attempt_with_one_that_voted_in_another() -> None:
    """It joins none any more, so such an attempt fails at once; a liar that has voted began them faster than the others could
    make an average without it."""
    outer = averaging(B, A, C, D, adaptive_timeout=AdaptiveTimeout())
    outer.received(D, vote(outer, D, A, C, D, attempt=1), 14.0)
    outer.tick(14.0 + RESEND_SECONDS)
    assert outer.phase is Phase.RETRYING
    for leader in (D, C):
        answers = outer.received(leader, AttemptStart(instance=INSTANCE, round=0, attempt=2, members=(A, B, C, D)), 16.5)
        assert [effect.peer for effect in answers if isinstance(effect, Send)] == [leader]
        assert not accusations(answers)
    outer.received(A, AttemptStart(instance=INSTANCE, round=0, attempt=2, members=(A, B, C)), 17.0)
    assert outer.phase is Phase.AVERAGING


def test_votes_of_the_attempt_have_a_moment_to_come_and_then_its_rest_has_its_time() -> None:
    """Two of seven that voted for no average as soon as they had one parted the others, of which some had it already: up to
    70 % of the rounds were void (adversary row `two void voters of seven`, seed 40)."""
    for is_made in (True, False):
        outer = averaging(B, A, C, D, E, adaptive_timeout=AdaptiveTimeout())
        outer.received(D, vote(outer, D), 14.0)
        assert outer.phase is Phase.AVERAGING
        if is_made:
            outer.received(C, vote(outer, C, A, B, C, D, E), 14.1)
        outer.tick(14.0 + RESEND_SECONDS)
        assert outer.phase is (Phase.AVERAGING if is_made else Phase.RETRYING)
        outer.tick(outer.attempts.current.overdue_at or 14.0 + RESEND_SECONDS)
        assert outer.phase is Phase.RETRYING


@pytest.mark.parametrize("voted_at", [15.0, 71.0])
def test_a_query_of_the_members_in_between_does_not_lengthen_that_moment(voted_at: float) -> None:
    """They are due at 16 and 72 s, and then 8 and 32 s later."""
    outer = averaging(B, A, C, D, E, adaptive_timeout=AdaptiveTimeout())
    now = 0.0
    while outer.phase is Phase.AVERAGING:
        assert outer.next_deadline is not None
        if outer.votes.vote_of(D) is None and outer.next_deadline > voted_at:
            outer.received(D, vote(outer, D), voted_at)
        now = outer.next_deadline
        outer.tick(now)
    assert now == voted_at + RESEND_SECONDS


def test_a_member_that_has_gone_without_the_average_ends_the_attempt_at_once() -> None:
    outer = averaging(B, A, C, D, adaptive_timeout=AdaptiveTimeout())
    outer.hosts.gone = (D,)
    outer.received(D, vote(outer, D), 14.0)
    assert outer.phase is Phase.RETRYING


def test_the_leader_of_an_attempt_with_a_voter_learns_its_vote_and_leads_the_next_one_without_it() -> None:
    """Not by the word of another host: the vote itself is passed on, void votes too, and counts for nobody else."""
    for choice in ((A, C, D), ()):
        leader, other = (averaging(me, A, B, C, D, adaptive_timeout=AdaptiveTimeout()) for me in (A, B))
        other.received(D, vote(other, D, *choice, attempt=1), 14.0)
        leader.average_failed(failure(attempt=0, suspects=()), 14.0)
        assert leader.next_deadline is not None
        begun = leader.tick(leader.next_deadline)
        (start,) = {e.message for e in begun if isinstance(e, Send) and isinstance(e.message, AttemptStart)}
        assert start.members == (A, B, C, D)
        (answer,) = [effect.message for effect in other.received(A, start, 20.0) if isinstance(effect, Send)]
        assert isinstance(answer, AverageDigest)
        leader.received(B, answer, 20.0)
        leader.tick(20.0 + RESEND_SECONDS)
        assert leader.phase is Phase.RETRYING and leader.hosts.remaining == (A, B, C)
        assert leader.votes.voters == (D,) and not leader.hosts[B].has_declined


def test_naming_hosts_that_have_voted_uses_up_no_accusations() -> None:
    """Three of seven have an average that the others lack; then one of the four others stalls."""
    seven = tuple(PeerId(name) for name in "abcdefg")
    for is_vote_first in (True, False):
        outer = averaging(*seven, adaptive_timeout=AdaptiveTimeout(), batch=14)
        outer.average_failed(failure(attempt=0, suspects=()), 14.0)
        happened: list[tuple[PeerId, AttemptFailed | AverageDigest]] = [(B, accusation(*seven[4:]))]
        happened += [*((voter, vote(outer, voter, *seven[4:])) for voter in seven[4:])]
        for sender, message in happened[::-1] if is_vote_first else happened:
            outer.received(sender, message, 15.0)
        outer.received(C, accusation(seven[3]), 16.0)
        assert outer.hosts.remaining == seven[:3]


def accusations(effects: Sequence[Effect]) -> list[AttemptFailed]:
    return [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, AttemptFailed)]


def test_a_host_joins_the_attempt_of_which_a_vote_came_first() -> None:
    outer = averaging(B, A, C, adaptive_timeout=AdaptiveTimeout())
    outer.average_failed(failure(attempt=0, suspects=()), 14.0)
    outer.received(C, vote(outer, C, A, B, C, attempt=1), 15.0)
    outer.received(A, AttemptStart(instance=INSTANCE, round=0, attempt=1, members=(A, B, C)), 15.1)
    assert outer.phase is Phase.AVERAGING


@pytest.mark.parametrize(("retry", "uplink"), [(8e6, 8e6), (0.0, 1e3)])
def test_what_the_retry_measured_of_the_uplink_stands_above_what_was_cut_off(retry: float, uplink: float) -> None:
    outer = averaging(B, A, C, adaptive_timeout=AdaptiveTimeout())
    cut_off = replace(failure(attempt=0, suspects=(B,)), upload_bytes_per_second=1e3, vector_bytes=400)
    outer.average_failed(cut_off, 14.0)
    outer.received(A, AttemptStart(instance=INSTANCE, round=0, attempt=1, members=(A, B, C)), 15.0)
    done = replace(finished(outer, A, B, C, attempt=1), upload_bytes_per_second=retry)
    outer.average_finished(done, 16.0)
    assert (outer.upload_bytes_per_second, outer.vector_bytes) == (uplink, 400)


def test_pauses_grow_only_while_failures_show_no_new_suspect() -> None:
    def pause(attempt: int, *suspects: PeerId) -> float:
        outer.average_failed(failure(attempt=attempt, suspects=suspects), 14.0)
        assert outer.next_deadline is not None
        before = outer.next_deadline - 14.0
        outer.received(C, AttemptStart(instance=INSTANCE, round=0, attempt=attempt + 1, members=(B, C, E)), 15.0)
        assert outer.phase is Phase.AVERAGING
        return before

    outer = averaging(B, A, C, D, E, adaptive_timeout=AdaptiveTimeout())
    assert [pause(0, A), pause(1, D), pause(2), pause(3)] == [1.0, 1.0, 2.0, 4.0]


def test_an_attempt_that_was_begun_is_not_begun_again() -> None:
    first, second = (AttemptStart(instance=INSTANCE, round=0, attempt=attempt, members=(A, B)) for attempt in (1, 2))
    outer = averaging(B, A, C, adaptive_timeout=AdaptiveTimeout(), received=[first])
    assert outer.received(A, first, 11.0) == []
    assert any(isinstance(effect, Average) for effect in outer.received(A, second, 12.0))
    assert outer.received(A, second, 13.0) == [], "a bad peer repeats its messages"


def test_of_two_attempts_with_one_number_the_same_one_counts_everywhere() -> None:
    of_two, of_three = (AttemptStart(instance=INSTANCE, round=0, attempt=1, members=members) for members in ((B, C), (A, B, C)))
    for first, second in ((of_two, of_three), (of_three, of_two)):
        outer = averaging(B, A, C, adaptive_timeout=AdaptiveTimeout())
        begun = []
        for sender, start in ((C, first), (A if second is of_three else C, second)):
            begun += [effect for effect in outer.received(sender, start, 12.0) if isinstance(effect, Average)]
        assert [peer for peer, _ in begun[-1].weights] == [A, B, C]
        assert len(begun) == (2 if first is of_two else 1)


def test_failed_attempts_do_not_lengthen_the_adaptive_timeout() -> None:
    adaptive_timeout = AdaptiveTimeout()
    outer = averaging(B, A, C, adaptive_timeout=adaptive_timeout)
    outer.average_failed(failure(attempt=0, suspects=(C,)), 70.0)
    outer.received(A, AttemptStart(instance=INSTANCE, round=0, attempt=1, members=(A, B)), 71.0)
    outer.average_finished(finished(outer, A, B, attempt=1), 73.0)
    assert list(adaptive_timeout.waits) == [2.0]


def test_a_host_does_not_wait_for_an_attempt_of_a_few_without_it() -> None:
    outer = averaging(B, A, C, D, adaptive_timeout=AdaptiveTimeout())
    outer.average_failed(failure(attempt=0, suspects=(D,)), 14.0)
    due = outer.next_deadline
    for attempt in range(1, 9):
        outer.received(A, AttemptStart(instance=INSTANCE, round=0, attempt=attempt, members=(A,)), 14.5)
    assert outer.next_deadline == due
    outer.received(A, AttemptStart(instance=INSTANCE, round=0, attempt=9, members=(A, C, D)), 14.5)
    assert outer.next_deadline is not None and due is not None and outer.next_deadline > due, "three of four can commit"


def test_a_host_joins_no_attempt_that_cannot_commit() -> None:
    """A leader that lies could make each host spend its one vote on an average of two."""
    outer = averaging(B, A, C, D, adaptive_timeout=AdaptiveTimeout())
    outer.received(A, AttemptFailed(instance=INSTANCE, round=0, attempt=0, suspects=()), 14.0)
    assert outer.phase is Phase.RETRYING
    assert outer.received(A, AttemptStart(instance=INSTANCE, round=0, attempt=1, members=(A, B)), 14.5) == []
    joined = outer.received(A, AttemptStart(instance=INSTANCE, round=0, attempt=1, members=(A, B, D)), 14.6)
    assert outer.phase is Phase.AVERAGING and has(joined, Average)


def test_members_of_a_slow_attempt_are_queried_ever_less_often() -> None:
    outer = averaging(A, B, C, adaptive_timeout=AdaptiveTimeout())
    asked_at: list[float] = []
    while outer.next_deadline is not None and outer.next_deadline < 100.0:
        asked_at.append(outer.next_deadline)
        effects = outer.tick(outer.next_deadline)
        start = AttemptStart(instance=INSTANCE, round=0, attempt=0, members=(A, B, C))
        assert effects == [Send(peer=B, message=start), Send(peer=C, message=start)]
    assert asked_at == [12.0, 16.0, 24.0, 40.0, 72.0]


def test_a_queried_member_answers_once_it_has_voted_and_not_before() -> None:
    outer = averaging(A, B, adaptive_timeout=AdaptiveTimeout())
    ask = AttemptStart(instance=INSTANCE, round=0, attempt=0, members=(A, B))
    assert outer.received(B, ask, 11.0) == []
    outer.average_finished(finished(outer, A, B), 12.0)
    [answer] = outer.received(B, ask, 13.0)
    assert isinstance(answer, Send) and isinstance(answer.message, AverageDigest) and answer.message.is_answer


# --- rounds without an outer step ---------------------------------------------------------------------------------------


def test_with_two_hosts_a_member_that_voted_for_another_average_makes_the_round_void() -> None:
    """Such as that of a host that was restarted within the round: the other one has gone on without it."""
    outer = averaging(B, A, adaptive_timeout=AdaptiveTimeout())
    outer.received(A, vote(outer, A, A, attempt=1), 12.1)
    outer.tick(12.1 + RESEND_SECONDS)
    assert outer.phase is Phase.RETRYING and outer.next_deadline is not None
    effects = outer.tick(outer.next_deadline)
    assert has(effects, CarryOver) and not has(effects, RepairAverage)
    votes = [effect.message for effect in effects if isinstance(effect, Send) and isinstance(effect.message, AverageDigest)]
    assert [message.is_void for message in votes] == [True]


def test_with_two_hosts_a_death_costs_the_round_and_nothing_is_lost() -> None:
    outer = averaging(A, B, adaptive_timeout=AdaptiveTimeout())
    outer.hosts.gone = (B,)
    effects = outer.roster_changed(13.0)
    assert [effect for effect in effects if isinstance(effect, CarryOver)] == [CarryOver(instance=INSTANCE, round=0)]
    applied = OuterApplied(instance=INSTANCE, round=0, digest=DIGEST, state_digest=DIGEST)
    outer.outer_applied(applied, 13.1, evaluate=False)
    report = outer.report()
    assert report.is_void and report.samples == outer.share.samples and report.pseudo_gradient is None
    assert report.contributors == 0b01, "who was there: the other one missed it"


def test_time_in_the_queue_of_a_device_counts_as_waiting() -> None:
    outer = averaging(A, B, adaptive_timeout=AdaptiveTimeout())
    outer.hosts.gone = (B,)
    outer.roster_changed(13.0)  # the step is asked for at 13 s, and evaluated from 20 s on
    applied = OuterApplied(instance=INSTANCE, round=0, digest=DIGEST, state_digest=DIGEST, seconds=0.5)
    outer.outer_applied(applied, 20.0, evaluate=True)
    outer.evaluated(Evaluated(instance=INSTANCE, round=0, heldout_loss=2.0, seconds=3.0), 24.0)
    assert (outer.seconds["applying"], outer.seconds["evaluating"]) == (0.5, 3.0)
    assert outer.seconds["waiting"] == pytest.approx(6.5 + 1.0)
    assert sum(outer.seconds.values()) == pytest.approx(24.0), "no second is lost, and none counts twice"


def test_a_host_waits_for_votes_that_may_still_come_and_not_for_those_that_cannot_matter() -> None:
    outer = averaging(A, B, C, D, adaptive_timeout=AdaptiveTimeout())
    outer.average_finished(finished(outer, A, B, C, D), 14.0)
    other = vote(outer, B, B, C, attempt=1, digest=Digest("9" * 64))
    assert not has(outer.received(B, other, 15.0), CarryOver), "C and D make three of four"
    assert has(outer.received(C, vote(outer, C), 15.0), CarryOver), "two of four at most"


def test_four_different_averages_and_the_word_of_a_fifth_give_no_step() -> None:
    """Review B5: a lying reducer sends each host other bytes, and votes for an average of its own with the smallest digest."""
    five = (A, B, C, D, PeerId("e"))
    for me in five[:4]:
        outer = averaging(me, *(peer for peer in five if peer != me), adaptive_timeout=AdaptiveTimeout())
        outer.average_finished(replace(finished(outer, *five), digest=digest_of(me)), 14.0)
        effects: list[Effect] = []
        for voter in five:
            digest = Digest("0" * 63 + "3") if voter == five[4] else digest_of(voter)
            effects += outer.received(voter, vote(outer, voter, *five, digest=digest), 15.0) if voter != me else []
        assert has(effects, CarryOver)
        assert not has(effects, RepairAverage) and not has(effects, ApplyOuter)


def digest_of(peer: PeerId) -> Digest:
    return Digest(f"{ord(peer):064x}")


def test_an_average_that_one_host_claims_is_not_fetched_and_a_fetched_one_gives_no_vote() -> None:
    outer = averaging(A, B, C, D, adaptive_timeout=AdaptiveTimeout())
    outer.average_failed(failure(attempt=0, suspects=()), 12.0)
    assert not has(outer.received(B, vote(outer, B, A, B, C, D), 13.0), RepairAverage)
    assert not has(outer.received(C, vote(outer, C, A, B, C, D), 13.0), RepairAverage), "two of four are no majority"
    assert has(outer.received(D, vote(outer, D, A, B, C, D), 13.0), RepairAverage)
    effects = outer.average_finished(finished(outer, A, B, C, D, is_repair=True), 14.0)
    assert has(effects, ApplyOuter) and not outer.has_voted
    [answer] = outer.received(B, AttemptFailed(instance=INSTANCE, round=0, attempt=0, suspects=()), 15.0)
    assert isinstance(answer, Send) and isinstance(answer.message, AverageDigest)
    assert [peer for peer, _ in answer.message.backers] == [B, C, D] and not answer.message.signature


def test_the_votes_of_a_majority_suffice_for_a_host_that_received_only_one_of_them() -> None:
    """A host voted, and two of the others died after their votes: the third passes them on."""
    outer = averaging(A, B, C, D, adaptive_timeout=AdaptiveTimeout())
    outer.average_finished(finished(outer, A, B, C, D), 14.0)
    message = vote(outer, B, A, B, C, D, backers=(C,))
    assert has(outer.received(B, message, 15.0), ApplyOuter)


def test_a_vote_that_its_voter_did_not_sign_for_this_plan_does_not_count() -> None:
    outer = averaging(A, B, C, adaptive_timeout=AdaptiveTimeout())
    outer.average_finished(finished(outer, A, B, C), 14.0)
    good = vote(outer, B, A, B, C)
    other_plan = replace(good, signature=sign(B, good.payload(Digest("1" * 64), B)))
    in_anothers_name = replace(vote(outer, C, A, B, C), backers=((B, sign(C, good.payload(canonical.digest(outer.plan), B))),))
    of_other_contributors = replace(good, contributors=(A, B))
    for message in (other_plan, of_other_contributors, replace(good, attempt=1)):
        assert not has(outer.received(B, message, 15.0), ApplyOuter)
    outer.received(D, in_anothers_name, 15.0)
    assert outer.votes.voters == (A,)
    assert has(outer.received(B, good, 15.0), ApplyOuter)


def test_a_host_that_signs_two_votes_counts_for_neither() -> None:
    outer = averaging(A, B, C, adaptive_timeout=AdaptiveTimeout())
    outer.average_finished(finished(outer, A, B, C), 14.0)
    outer.received(C, vote(outer, C, A, B, C, digest=Digest("9" * 64)), 14.5)
    effects = outer.received(C, vote(outer, C, A, B, C), 15.0)
    assert not has(effects, ApplyOuter)
    assert any(isinstance(effect, telemetry.Warning) and effect.key == f"votes of {C}" for effect in effects)
    assert has(outer.received(B, vote(outer, B, A, B, C), 16.0), ApplyOuter), "two of three without it"


def test_a_vote_is_written_down_before_it_is_sent_and_stands_after_a_restart() -> None:
    outer = averaging(A, B, C, adaptive_timeout=AdaptiveTimeout())
    effects = outer.average_finished(finished(outer, A, B, C), 11.0)
    kinds = [type(effect) for effect in effects]
    assert kinds.index(Persist) < kinds.index(Send)
    (record,) = [effect.record for effect in effects if isinstance(effect, Persist)]
    assert isinstance(record, CommitVoted) and record.vote == outer.votes.own

    again = outer_round(A, outer.plan, AdaptiveTimeout(), kept_vote=record.vote)  # the process is killed and started again
    effects = again.start(20.0, progress_end=0.1)
    assert again.phase is Phase.COMMITTING and not has(effects, RunInner), "no average takes other inner steps from it"
    assert {effect.peer for effect in effects if isinstance(effect, Send)} == {B, C}, "they may not have its vote"
    assert again.votes.own == replace(record.vote, is_held=False)
    assert not has(again.tick(32.0), Persist), "it casts no second one"


def restarted(outer: OuterRound) -> OuterRound:
    """The process was killed after its vote, and begins the round again at 30 s: it has its vote and no average."""
    again = outer_round(A, outer.plan, AdaptiveTimeout(), kept_vote=outer.votes.own)
    again.start(30.0, progress_end=0.1)
    assert again.phase is Phase.COMMITTING
    return again


def until_void(outer: OuterRound, effects: list[Effect], now: float) -> tuple[float, int]:
    """When the round is void, and how often a repair was tried; every repair fails after a second."""
    repairs = 0
    while not has(effects, CarryOver):
        assert now < 200.0, "it waits for good"
        if has(effects, RepairAverage):
            repairs += 1
            now += 1.0
            effects = outer.average_failed(failure(attempt=0, suspects=(B,), is_repair=True), now)
        else:
            assert outer.next_deadline is not None
            now = outer.next_deadline
            effects = outer.tick(now)
    assert outer.is_void
    return now, repairs


def test_an_average_that_no_voter_holds_any_more_makes_the_round_void_at_once() -> None:
    outer = averaging(A, B, adaptive_timeout=AdaptiveTimeout())
    outer.average_finished(finished(outer, A, B), 11.0)
    again = restarted(outer)
    assert not again.votes.own.is_held and outer.votes.own.is_held
    effects = again.received(B, replace(vote(outer, B, A, B), is_held=False), 31.0)
    now, repairs = until_void(again, effects, 31.0)
    assert (now, repairs) == (36.0, 0), "the others were asked once more, at 32 and 34 s"
    assert not again.is_carrying, "its inner steps went with its earlier life"


def test_a_third_host_that_fetched_it_saves_an_average_whose_voters_lost_it() -> None:
    outer = averaging(A, B, C, adaptive_timeout=AdaptiveTimeout())
    outer.average_finished(finished(outer, A, B), 11.0)
    again = restarted(outer)
    assert again.received(B, replace(vote(outer, B, A, B), is_held=False), 31.0) == []
    asked = again.tick(again.next_deadline or 0.0)
    assert C in {effect.peer for effect in asked if isinstance(effect, Send)}
    answer = replace(vote(outer, B, A, B, backers=(A, B)), signature="", is_answer=True)
    repairs = [effect for effect in again.received(C, answer, 32.5) if isinstance(effect, RepairAverage)]
    assert [repair.from_peers for repair in repairs] == [(C,)]


def test_an_average_that_its_holders_do_not_deliver_makes_the_round_void_after_five_tries() -> None:
    outer = averaging(A, B, adaptive_timeout=AdaptiveTimeout())
    outer.average_finished(finished(outer, A, B), 11.0)
    again = restarted(outer)
    _, repairs = until_void(again, again.received(B, vote(outer, B, A, B), 31.0), 31.0)
    assert repairs == MAX_REPAIRS


def test_the_wait_for_a_silent_voter_ends() -> None:
    outer = averaging(A, B, adaptive_timeout=AdaptiveTimeout())
    outer.average_finished(finished(outer, A, B), 14.0)
    effects: list[Effect] = []
    while not has(effects, CarryOver):
        assert outer.next_deadline is not None and outer.next_deadline < 100.0
        effects = outer.tick(outer.next_deadline)
    assert outer.next_deadline is None


def test_a_late_host_has_the_answers_of_all_that_live_before_a_round_is_void() -> None:
    plan = averaging(A, B, C, D, E, adaptive_timeout=AdaptiveTimeout()).plan
    outer = outer_round(A, plan, AdaptiveTimeout(), is_late=True)
    outer.start(20.0, progress_end=0.1)
    outer.hosts.gone = (C, D)
    assert not has(outer.received(B, vote(outer, B), 21.0), CarryOver), "E may know of an average of C, D and E"
    assert has(outer.received(E, vote(outer, E, C, E), 22.0), CarryOver)
    assert not outer.has_voted, "it took part in nothing"


def test_a_late_host_waits_for_no_vote_that_changes_nothing() -> None:
    """Of five, two voted for no average and this one did not vote: the others, who live and are silent, are no majority."""
    plan = averaging(A, B, C, D, E, adaptive_timeout=AdaptiveTimeout()).plan
    outer = outer_round(A, plan, AdaptiveTimeout(), is_late=True)
    outer.start(20.0, progress_end=0.1)
    assert not has(outer.received(B, vote(outer, B), 21.0), CarryOver)
    assert has(outer.received(C, vote(outer, C), 22.0), CarryOver)


def test_a_late_host_waits_a_limited_time_for_members_that_live_and_never_vote() -> None:
    """All others are silent, and could still make an average of a majority."""
    plan = averaging(A, B, C, D, E, adaptive_timeout=AdaptiveTimeout()).plan
    outer = outer_round(A, plan, AdaptiveTimeout(), is_late=True)
    outer.start(20.0, progress_end=0.1)
    patience = LATE_TIMEOUTS * AdaptiveTimeout().timeout_seconds(expected_seconds=plan.expected_seconds)
    assert not has(outer.tick(20.0 + patience - 1.0), CarryOver)
    assert has(outer.tick(20.0 + patience + 2.0), CarryOver) and not outer.has_voted


def test_a_late_host_refuses_and_asks() -> None:
    """In one message, which a host that refuses, too, still answers."""
    plan = averaging(A, B, C, adaptive_timeout=AdaptiveTimeout()).plan
    sent = outer_round(A, plan, AdaptiveTimeout(), is_late=True).start(20.0, progress_end=0.1)
    messages = [effect.message for effect in sent if isinstance(effect, Send) and effect.peer == B]
    assert messages == [AttemptFailed(instance=INSTANCE, round=0, attempt=0, suspects=(A,), is_question=True)]


def test_a_late_host_waits_for_no_average_where_most_have_declined() -> None:
    """Of five, it and two others do not contribute: the other two are no majority, whatever they know."""
    plan = averaging(A, B, C, D, E, adaptive_timeout=AdaptiveTimeout()).plan
    outer = outer_round(A, plan, AdaptiveTimeout(), is_late=True)
    outer.start(20.0, progress_end=0.1)
    outer.received(B, AttemptFailed(instance=INSTANCE, round=0, attempt=0, suspects=(B,)), 21.0)
    assert not has(outer.tick(22.0), CarryOver)
    outer.received(C, AttemptFailed(instance=INSTANCE, round=0, attempt=0, suspects=(C,)), 23.0)
    assert has(outer.tick(24.0), CarryOver)


def test_late_hosts_answer_each_other_that_they_have_no_vote() -> None:
    plan = averaging(A, B, C, D, E, adaptive_timeout=AdaptiveTimeout()).plan
    asking, past = (outer_round(name, plan, AdaptiveTimeout(), is_late=True) for name in (A, C))
    for outer in (asking, past):
        outer.start(20.0, progress_end=0.1)
        outer.hosts.gone = (B, E)
        outer.received(D, vote(outer, D), 21.0)
    question = AttemptFailed(instance=INSTANCE, round=0, attempt=0, suspects=(A,))
    past.received(A, question, 21.0)
    assert has(past.tick(22.0), CarryOver) and not past.has_voted
    assert not has(asking.tick(22.0), CarryOver), "C may still vote"
    (answer,) = past.received(A, question, 22.1)
    assert isinstance(answer, Send) and isinstance(answer.message, AverageDigest)
    assert past.received(A, answer.message, 22.2) == [], "an answer is not answered"
    assert has(asking.received(C, answer.message, 22.2), CarryOver)


def test_the_others_average_again_without_a_host_that_voted_for_its_own_average() -> None:
    outer = averaging(B, A, C, D, adaptive_timeout=AdaptiveTimeout())
    outer.received(A, vote(outer, A, A, attempt=3), 12.1)
    effects = outer.tick(12.1 + RESEND_SECONDS)
    assert CancelAverage(instance=INSTANCE, round=0, attempt=0) in effects
    assert not has(effects, RepairAverage)
    assert outer.next_deadline is not None
    again = outer.tick(outer.next_deadline)
    starts = [effect.message for effect in again if isinstance(effect, Send) and isinstance(effect.message, AttemptStart)]
    assert [start.members for start in starts] == [(B, C, D)] * 3


def test_the_end_of_what_was_given_up_is_not_taken_for_that_of_the_repair() -> None:
    outer = averaging(B, A, C, adaptive_timeout=AdaptiveTimeout())
    for peer in (A, C):
        outer.received(peer, vote(outer, peer, A, C, attempt=1), 12.1)
    assert outer.phase is Phase.REPAIRING
    assert outer.average_failed(failure(attempt=0, suspects=(A,)), 12.2) == []
    assert outer.average_finished(finished(outer, A, B), 12.2) == []
    assert outer.phase is Phase.REPAIRING
    outer.average_finished(finished(outer, A, C, attempt=1, is_repair=True), 12.3)
    assert outer.phase is Phase.APPLYING


def test_a_repair_is_stopped_with_its_round() -> None:
    outer = averaging(B, A, C, adaptive_timeout=AdaptiveTimeout())
    for peer in (A, C):
        outer.received(peer, vote(outer, peer, A, C, attempt=3), 12.1)
    assert outer.phase is Phase.REPAIRING
    assert outer.abandon() == [CancelAverage(instance=INSTANCE, round=0, attempt=3)]


def test_a_failed_donor_is_asked_again_after_a_pause() -> None:
    outer = averaging(B, A, C, adaptive_timeout=AdaptiveTimeout())
    for peer in (A, C):
        outer.received(peer, vote(outer, peer, A, C, attempt=1), 12.1)
    outer.average_failed(failure(attempt=1, suspects=(A, C), is_repair=True), 15.0)
    assert outer.phase is Phase.RETRYING and outer.next_deadline is not None
    effects = outer.tick(outer.next_deadline)
    assert [{*effect.from_peers} for effect in effects if isinstance(effect, RepairAverage)] == [{A, C}]


def test_messages_that_no_honest_host_sends_change_nothing() -> None:
    outer = averaging(A, B, C, adaptive_timeout=AdaptiveTimeout())
    for message in (
        AttemptFailed(instance=INSTANCE, round=0, attempt=1 << 62, suspects=()),
        AttemptStart(instance=INSTANCE, round=0, attempt=1 << 62, members=(A, B)),
        vote(outer, B, B, B, B, B),
        vote(outer, B, A, D),
        vote(outer, B, A, C),
    ):
        assert outer.received(B, message, 12.0) == []
    assert outer.phase is Phase.AVERAGING
    outer.average_failed(failure(attempt=0, suspects=()), 13.0)
    assert outer.next_deadline is not None
    told = [effect.message for effect in outer.tick(outer.next_deadline) if isinstance(effect, Send)]
    assert [message.attempt for message in told if isinstance(message, AttemptStart)] == [1, 1]


def round_of(me: PeerId, *, clients: tuple[PeerId, ...]) -> OuterRound:
    """The round of one of four peers, while it averages; some of them are in client mode."""
    plan = genesis(Digest("5" * 64), [(p, replace(CAPACITY, is_reachable=p not in clients)) for p in (A, B, C, D)], RULES)
    outer = outer_round(me, plan, AdaptiveTimeout())
    outer.start(0.0, progress_end=0.1)
    effects = outer.inner_finished(inner_result(outer), 10.0)
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
                assert isinstance(effect.message, AttemptStart | AttemptFailed | AverageDigest)
                perform(effect.peer, rounds[effect.peer].received(sender, effect.message, 12.0))

    for peer in (A, D, B):
        perform(peer, rounds[peer].average_finished(finished(rounds[peer], A, B, C, D), 12.0))
    assert applied == {A, B, D}, "three of four hold it"
    perform(C, rounds[C].average_finished(finished(rounds[C], A, B, C, D), 12.0))
    assert applied == {A, B, C, D}


def test_a_reachable_host_leads_a_retry_before_hosts_in_client_mode() -> None:
    outer = round_of(D, clients=(A, B))
    outer.average_failed(failure(attempt=0, suspects=(C,)), 12.0)
    effects = outer.tick(outer.next_deadline or 0.0)
    starts = [effect.message for effect in effects if isinstance(effect, Send) and isinstance(effect.message, AttemptStart)]
    assert {start.members for start in starts} == {(A, B, D)}
