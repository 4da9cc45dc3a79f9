"""A host that began its inner steps late, as after a restart, and has done too few of them declines the round; so does one that
missed the average.

The plan: six hosts with 1 of 6 samples a step, 8 steps, at 0.1 samples/s: 80 s each. Its part is worth a fifth of 80 s to the
five others: 16 s.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from adloco_p2p.core.averaging.adaptive_timeout import AdaptiveTimeout
from adloco_p2p.core.averaging.assignment import Assignment
from adloco_p2p.core.averaging.attempt import GRACE_SECONDS, STATED_SECONDS
from adloco_p2p.core.averaging.outer_round import OuterRound
from adloco_p2p.core.averaging.phases import Phase
from adloco_p2p.core.model import canonical, telemetry
from adloco_p2p.core.model.averages import CancelAverage
from adloco_p2p.core.model.effects import DiscardRound, Effect, EndInner, Send
from adloco_p2p.core.model.events import AverageFailed
from adloco_p2p.core.model.messages import AttemptFailed, AttemptStart
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.protocol import PROBATION_LIMITED
from adloco_p2p.core.model.rules import BatchRules, Rules, WorkRules
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.core.planning.round_plan import genesis
from tests.core.averaging.assignments import voter_of
from tests.core.averaging.test_outer_round import averaging, finished, inner_result, vote
from tests.core.core_values import RUN, capacity

HOSTS = tuple(PeerId(name) for name in "abcdef")
ME, OTHERS = HOSTS[0], HOSTS[1:]
INSTANCE = InstanceId(0)


def plan_of(hosts: Sequence[PeerId] = HOSTS, *, speed: float = 0.1) -> RoundPlan:
    rules = Rules(work=WorkRules(inner_steps=8, share="equal"), batch=BatchRules(initial_batch=len(hosts)))
    plan = genesis(RUN, [(peer, capacity(speed=speed)) for peer in hosts], rules)
    return replace(plan, expected_seconds=80.0, roster=tuple(replace(entry, speeds=(speed,)) for entry in plan.roster))


def begun(
    plan: RoundPlan,
    work: WorkRules | None = None,
    *,
    me: PeerId = ME,
    is_carried: bool = False,
    may_be_late: bool = False,
    was_passed_over: bool = False,
    average_bytes: int = 0,
) -> tuple[OuterRound, list[Effect]]:
    """The round of a host, since 100 s, and what it began with. It sent and received `average_bytes` in its last average."""
    adaptive_timeout = AdaptiveTimeout()
    if average_bytes:
        adaptive_timeout.observe(1000.0, num_bytes=average_bytes)
    outer = OuterRound(
        Assignment(
            me=me,
            plan=plan,
            plan_digest=canonical.digest(plan),
            instance=INSTANCE,
            adaptive_timeout=adaptive_timeout,
            voter=voter_of(me),
            work=work or WorkRules(),
            is_carried=is_carried,
            may_be_late=may_be_late,
            was_passed_over=was_passed_over,
        )
    )
    return outer, outer.start(100.0, progress_end=0.1)


def training(plan: RoundPlan, work: WorkRules | None = None, *, is_carried: bool = False) -> OuterRound:
    return begun(plan, work, is_carried=is_carried)[0]


def queried(outer: OuterRound, peers: Sequence[PeerId], now: float, gone: Sequence[PeerId] = ()) -> list[Effect]:
    start = AttemptStart(instance=INSTANCE, round=0, attempt=0, members=outer.contributors)
    outer.hosts.gone = gone
    return [effect for peer in peers for effect in outer.received(peer, start, now)]


def test_a_host_that_began_late_declines_once_a_majority_waits_for_it() -> None:
    outer = training(plan_of())
    assert queried(outer, OTHERS[:3], 108.0) == [], "three of six"
    effects = queried(outer, OTHERS[3:4], 108.0)
    assert outer.phase is Phase.RETRYING and not outer.is_contributor
    assert DiscardRound(instance=INSTANCE) in effects
    refusal = AttemptFailed(instance=INSTANCE, round=0, attempt=0, suspects=(ME,), is_question=True)
    assert [effect for effect in effects if isinstance(effect, Send)] == [Send(peer=peer, message=refusal) for peer in OTHERS]
    reasons = [effect.reason for effect in effects if isinstance(effect, telemetry.AverageFailed)]
    assert reasons == ["declined round 0: the others are done and would wait 72 s; its part is worth 20 s"]


@pytest.mark.parametrize(("elapsed", "declines"), [(63.9, True), (64.1, False)])
def test_it_goes_on_where_the_others_wait_for_no_longer_than_its_part_is_worth(elapsed: float, declines: bool) -> None:
    """A host that is in every second average only: its pseudo-gradient is of two rounds, and never of a part of one."""
    plan = plan_of()
    slow = replace(plan.instance(INSTANCE).hosts[0], averages_every=2)
    item = replace(plan.instance(INSTANCE), hosts=(slow, *plan.instance(INSTANCE).hosts[1:]))
    outer = training(replace(plan, instances=(item,)))
    queried(outer, OTHERS, 100.0 + elapsed)
    assert (outer.phase is Phase.RETRYING) == declines


@pytest.mark.parametrize(("elapsed", "declines"), [(71.9, True), (72.1, False)])
def test_a_host_that_the_last_average_went_on_without_declines_for_half_of_that(elapsed: float, declines: bool) -> None:
    """It is worth 16 s, and the others would as likely as not wait in vain, also for a part of its inner steps."""
    outer = begun(plan_of(), was_passed_over=True)[0]
    assert queried(outer, OTHERS[:3], 100.0 + elapsed) == [], "three of six"
    effects = queried(outer, OTHERS, 100.0 + elapsed)
    assert (outer.phase is Phase.RETRYING) == declines
    assert not any(isinstance(effect, EndInner) for effect in effects)


@pytest.mark.parametrize(("elapsed", "declines"), [(67.9, True), (68.1, False)])
def test_what_its_part_is_worth_counts_the_time_of_the_average(elapsed: float, declines: bool) -> None:
    """The round takes 80 s, and its average 40 s over the median link, however long it took with this host: half of a fifth of
    120 s is 12 s. Without that a host that was left out once would stay out wherever an average takes much longer than the
    inner steps."""
    uplinks = dict(zip(HOSTS, (1e3, 1e6, 1e6, 1e6, 1e6, 9e6), strict=True))
    plan = plan_of()
    hosts = [replace(entry, uplinks=(uplinks[entry.peer],)) for entry in plan.roster]
    bench = [replace(hosts[0], peer=PeerId(name)) for name in "ghijklm"]
    measured = replace(plan, roster=(*hosts, *bench))
    outer = begun(measured, was_passed_over=True, average_bytes=80_000_000)[0]
    queried(outer, OTHERS, 100.0 + elapsed)
    assert (outer.phase is Phase.RETRYING) == declines


def test_a_wait_that_the_plan_foresaw_is_no_reason() -> None:
    """The others compute for 20 s, this host for 80 s as planned."""
    plan = plan_of(speed=0.4)
    slow = replace(plan.roster[0], speeds=(0.1,))
    outer = training(replace(plan, roster=(slow, *plan.roster[1:])))
    assert queried(outer, OTHERS, 122.0) == [] and outer.phase is Phase.TRAINING


def with_speeds(plan: RoundPlan, **speeds: float) -> RoundPlan:
    return replace(plan, roster=tuple(replace(e, speeds=(speeds.get(e.peer, e.speed),)) for e in plan.roster))


@pytest.mark.parametrize("liars", ["b", "f", "bf"])
def test_waiting_hosts_that_claim_to_be_slow_make_no_slow_host_decline(liars: str) -> None:
    """The others compute for 80 s, this host for 400 s as planned, and so do the liars by their claims."""
    outer = training(with_speeds(plan_of(), a=0.02, **dict.fromkeys(liars, 0.02)))
    assert queried(outer, OTHERS, 182.0) == [] and outer.phase is Phase.TRAINING


@pytest.mark.parametrize("liars", ["b", "f", "bf"])
def test_waiting_hosts_that_claim_to_be_fast_make_no_late_host_wait(liars: str) -> None:
    outer = training(with_speeds(plan_of(), **dict.fromkeys(liars, 8.0)))
    assert queried(outer, OTHERS, 108.0) != [] and outer.phase is Phase.RETRYING


@pytest.mark.parametrize(
    "outer",
    [
        training(plan_of(HOSTS[:2])),
        training(plan_of(speed=0.0)),  # nothing was measured yet
        training(plan_of(), WorkRules(quorum=None)),  # everybody is waited for
        training(plan_of(), is_carried=True),  # it would lose the work of a void round, too
    ],
)
def test_others_never_decline(outer: OuterRound) -> None:
    assert queried(outer, [peer for peer in outer.contributors if peer != ME], 101.0) == []
    assert outer.phase is Phase.TRAINING


def test_less_than_half_of_the_planned_hosts_make_none_decline() -> None:
    """Though all others are gone: three of six. Members that are late as well do not count either."""
    outer = training(plan_of(), WorkRules(quorum=0.1))
    assert queried(outer, OTHERS[:3] * 5, 130.0, gone=OTHERS[3:]) == []
    assert queried(outer, OTHERS[3:4], 130.0, gone=OTHERS[4:]) != []


def on_probation(plan: RoundPlan, names: str) -> RoundPlan:
    """The plan of a run that limits what names on probation do."""
    seats = [replace(entry, probation=3) if entry.peer in names else entry for entry in plan.roster]
    return replace(plan, protocol=PROBATION_LIMITED, roster=tuple(seats))


def test_names_on_probation_make_no_full_member_decline() -> None:
    """Of a, b, c and the names d and e: the names and b, three of five, are one of three that decide."""
    outer = training(on_probation(plan_of(HOSTS[:5]), "de"))
    assert queried(outer, [PeerId("d"), PeerId("e"), PeerId("b")], 108.0) == [] and outer.phase is Phase.TRAINING
    assert queried(outer, [PeerId("c")], 108.0) != [] and outer.phase is Phase.RETRYING


def test_a_host_that_missed_the_average_stops_training() -> None:
    outer = training(plan_of())
    digest = Digest("7" * 64)
    for peer in OTHERS[:3]:
        outer.received(peer, vote(outer, peer, *OTHERS, digest=digest), 130.0)
    assert outer.phase is Phase.TRAINING
    effects = outer.received(OTHERS[3], vote(outer, OTHERS[3], *OTHERS, digest=digest), 130.0)
    assert DiscardRound(instance=INSTANCE) in effects
    assert outer.phase is Phase.REPAIRING, "it fetches the average at once"
    included = training(plan_of())
    for peer in OTHERS:
        included.received(peer, vote(included, peer, *HOSTS, digest=digest), 130.0)
    assert included.phase is Phase.TRAINING, "it voted before it was restarted, or will fetch it after its steps"


def test_a_restarted_host_asks_for_votes_when_it_begins() -> None:
    question = AttemptFailed(instance=INSTANCE, round=0, attempt=0, suspects=(), is_question=True)
    sent = [effect for effect in begun(plan_of(), may_be_late=True)[1] if isinstance(effect, Send)]
    assert sent == [Send(peer=peer, message=question) for peer in OTHERS]
    assert not any(isinstance(effect, Send) for effect in begun(plan_of())[1])


def test_the_question_of_a_restarted_host_is_answered_and_its_refusal_ends_any_attempt() -> None:
    outer = averaging(*HOSTS, adaptive_timeout=AdaptiveTimeout(), batch=6)
    question = AttemptFailed(instance=INSTANCE, round=0, attempt=0, suspects=(), is_question=True)
    waiting = AttemptStart(instance=INSTANCE, round=0, attempt=0, members=HOSTS)
    assert outer.received(HOSTS[5], question, 11.0) == [Send(peer=HOSTS[5], message=waiting)]
    outer.attempts.follow(AttemptStart(instance=INSTANCE, round=0, attempt=1, members=HOSTS), OTHERS[0])
    effects = outer.received(HOSTS[5], replace(question, suspects=(HOSTS[5],)), 12.0)
    assert CancelAverage(instance=INSTANCE, round=0, attempt=1) in effects
    assert HOSTS[5] not in outer.hosts.remaining
    reports = {effect.message for effect in effects if isinstance(effect, Send)}
    failed = AttemptFailed(instance=INSTANCE, round=0, attempt=1, suspects=(HOSTS[5],))
    assert reports == {failed} and outer.assignment.failed_attempts.repeated(0, INSTANCE) == (), (
        "to decline is no fault of any member"
    )


def test_a_host_that_asked_too_early_is_answered_once_this_one_waits_for_it() -> None:
    """Otherwise it learns that others wait for it 2 s later, when they query the members."""
    outer = training(plan_of())
    question = AttemptFailed(instance=INSTANCE, round=0, attempt=0, suspects=(), is_question=True)
    assert outer.received(HOSTS[5], question, 101.0) == []
    effects = outer.inner_finished(inner_result(outer), 180.0)
    waiting = AttemptStart(instance=INSTANCE, round=0, attempt=0, members=HOSTS)
    assert [effect for effect in effects if isinstance(effect, Send)] == [Send(peer=HOSTS[5], message=waiting)]


@pytest.mark.parametrize(("decision", "seconds"), [(None, STATED_SECONDS), (Digest("1" * 64), GRACE_SECONDS)])
def test_the_retry_without_a_host_that_declines_waits_for_no_reports(decision: Digest | None, seconds: float) -> None:
    """Reports tell who can complete an attempt that has decided, so they are awaited then."""
    outer = averaging(*HOSTS, adaptive_timeout=AdaptiveTimeout(), batch=6)
    outer.attempts.decision = decision
    refusal = AttemptFailed(instance=INSTANCE, round=0, attempt=0, suspects=(HOSTS[5],), is_question=True)
    outer.received(HOSTS[5], refusal, 20.0)
    assert outer.next_deadline == 20.0 + seconds
    starts = [effect.message for effect in outer.tick(20.0 + seconds) if isinstance(effect, Send)]
    assert starts == [AttemptStart(instance=INSTANCE, round=0, attempt=1, members=HOSTS[:5])] * 5


@pytest.mark.parametrize("is_named", [False, True])
@pytest.mark.parametrize("is_inside", [False, True])
def test_a_host_is_passed_over_where_an_attempt_failed_at_it_and_the_others_made_the_average(
    is_named: bool, is_inside: bool
) -> None:
    outer = averaging(*HOSTS, adaptive_timeout=AdaptiveTimeout(), batch=6)
    suspects = (ME,) if is_named else (HOSTS[4],)
    outer.received(HOSTS[5], AttemptFailed(instance=INSTANCE, round=0, attempt=0, suspects=suspects), 20.0)
    outer.average = finished(outer, *(HOSTS if is_inside else HOSTS[1:]))
    assert outer.is_passed_over is (is_named and not is_inside)
    outer.is_void = True
    assert not outer.is_passed_over


def test_a_host_that_others_name_while_it_trains_is_late_and_not_slow() -> None:
    outer = training(plan_of())
    outer.received(HOSTS[5], AttemptFailed(instance=INSTANCE, round=0, attempt=0, suspects=(ME,)), 120.0)
    assert not outer.is_named


def test_a_host_that_an_attempt_failed_at_here_is_judged_with_a_new_seat_of_which_plans_know_no_link() -> None:
    outer = averaging(*HOSTS, adaptive_timeout=AdaptiveTimeout(), batch=6)
    first = outer.attempts.average().quorum
    outer.average_failed(AverageFailed(asked=outer.attempts.average(), reason="left out", suspects=(HOSTS[5],)), 12.0)
    again = outer.attempts.average().quorum
    assert first is not None and first.unmeasured == frozenset(HOSTS)
    assert again is not None and again.unmeasured == frozenset(HOSTS[:5])


def test_restarts_that_decline_make_no_live_member_a_cause_of_failures() -> None:
    """Otherwise a few of them in a row leave less than a majority for the retries, and the round is void."""
    outer = averaging(*HOSTS, adaptive_timeout=AdaptiveTimeout(), batch=6)
    for attempt, gone in enumerate((HOSTS[5], HOSTS[4])):
        refusal = AttemptFailed(instance=INSTANCE, round=0, attempt=0, suspects=(gone,), is_question=True)
        outer.received(gone, refusal, 11.0 + attempt)
        for peer in HOSTS[1:4]:
            report = AttemptFailed(instance=INSTANCE, round=0, attempt=attempt, suspects=(gone,))
            outer.received(peer, report, 11.0 + attempt)
        outer.attempts.begin_next()
        outer.enter(Phase.AVERAGING, 11.5 + attempt)
    assert outer.attempts.current.members == HOSTS[:4] and outer.hosts.unreliable == ()


@pytest.mark.parametrize("elapsed", [1.0, 12.0])
@pytest.mark.parametrize("is_unreliable", [False, True])
def test_false_starts_of_one_member_make_nobody_count_the_others_as_waiting(elapsed: float, is_unreliable: bool) -> None:
    """All train, and object to what it sent. Otherwise each takes the objections for those of hosts that are done."""
    liar, plan = OTHERS[0], plan_of()
    hosts = {peer: begun(plan, me=peer)[0] for peer in HOSTS if peer != liar}
    false = AttemptStart(instance=INSTANCE, round=0, attempt=1, members=HOSTS, completes=Digest("0" * 64))
    for outer in hosts.values():
        outer.hosts.unreliable = (liar,) if is_unreliable else ()
    sent = [
        (peer, effect)
        for peer, outer in hosts.items()
        for effect in outer.received(liar, false, 100.0 + elapsed)
        if isinstance(effect, Send)
    ]
    assert {peer for peer, _ in sent} == set(hosts), "all object"
    for peer, effect in sent:
        if effect.peer != liar and isinstance(effect.message, AttemptFailed):
            hosts[effect.peer].received(peer, effect.message, 100.0 + elapsed)
    for outer in hosts.values():
        assert outer.phase is Phase.TRAINING and outer.is_contributor
        assert not any(outer.hosts[peer].is_waiting for peer in hosts)
