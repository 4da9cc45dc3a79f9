"""A host with a slow link, which is in every second average: the round whose average the others make without it."""

from dataclasses import replace

import pytest

from adloco_p2p.core.averaging.adaptive_timeout import AdaptiveTimeout
from adloco_p2p.core.averaging.attempt import RESEND_SECONDS
from adloco_p2p.core.averaging.outer_round import OuterRound
from adloco_p2p.core.averaging.phases import Phase
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.averages import Average, RepairAverage
from adloco_p2p.core.model.effects import ApplyOuter, CarryOver, RunInner, Send
from adloco_p2p.core.model.events import AverageFinished, OuterApplied
from adloco_p2p.core.model.messages import NO_AVERAGE, AttemptStart, AverageDigest
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.core.planning.round_plan import genesis
from adloco_p2p.sim.identities import sign
from tests.core.averaging.test_outer_round import (
    CAPACITY,
    DIGEST,
    INSTANCE,
    RULES,
    A,
    B,
    C,
    D,
    asked,
    has,
    inner_result,
    outer_round,
)


def planned(*, every: int = 2, round: int = 1) -> RoundPlan:
    """Hosts a, b, c and d, which is in every second average."""
    first = genesis(Digest("5" * 64), [(peer, CAPACITY) for peer in (A, B, C, D)], RULES)
    (item,) = first.instances
    hosts = [replace(share, averages_every=every) if share.peer == D else share for share in item.hosts]
    return replace(first, round=round, instances=(replace(item, hosts=tuple(hosts)),))


def trained(plan: RoundPlan) -> OuterRound:
    """The round of d, its inner steps done."""
    outer = outer_round(D, plan, AdaptiveTimeout())
    assert has(outer.start(0.0, progress_end=0.1), RunInner)
    outer.inner_finished(inner_result(outer), 10.0)
    return outer


def votes_of_others(outer: OuterRound, *contributors: PeerId) -> dict[PeerId, AverageDigest]:
    """Of a, b and c, for the average of these."""
    digest = DIGEST if contributors else NO_AVERAGE
    unsigned = AverageDigest(instance=INSTANCE, round=1, attempt=0, contributors=contributors, digest=digest)
    plan = canonical.digest(outer.plan)
    return {peer: replace(unsigned, signature=sign(peer, unsigned.payload(plan, peer))) for peer in (A, B, C)}


def test_in_a_round_between_it_trains_takes_the_average_of_the_others_and_keeps_its_own() -> None:
    outer = trained(planned())
    assert outer.phase is Phase.RETRYING and outer.contributors == (A, B, C) and not outer.is_contributor
    effects = []
    for peer, item in votes_of_others(outer, A, B, C).items():
        effects += outer.received(peer, item, 12.0)
    assert has(effects, RepairAverage) and not has(effects, ApplyOuter)
    repaired = AverageFinished(
        asked=replace(asked(is_repair=True), round=1),
        digest=DIGEST,
        contributors=(A, B, C),
        statistics=None,
        bytes_received=8000,
    )
    effects = outer.average_finished(repaired, 16.0)
    assert ApplyOuter(instance=INSTANCE, round=1, keeps_own=True) in effects
    assert not outer.has_voted
    outer.outer_applied(OuterApplied(instance=INSTANCE, round=1, digest=DIGEST, state_digest=DIGEST), 17.0, evaluate=False)
    assert outer.is_done and outer.download_bytes_per_second == 2000
    report = outer.report()
    assert report.samples == outer.share.samples and report.contributors == 0b0111
    assert report.pseudo_gradient is None and report.vector_bytes == 0 and not report.is_void


def test_an_attempt_of_the_others_is_none_of_its_business() -> None:
    outer = trained(planned())
    start = AttemptStart(instance=INSTANCE, round=1, attempt=1, members=(A, B, C))
    assert not has(outer.received(A, start, 12.0), Average)
    assert outer.phase is Phase.RETRYING


def test_when_it_is_due_it_is_a_contributor_like_all_others_whose_steps_count_for_both_rounds() -> None:
    outer = outer_round(D, planned(round=2), AdaptiveTimeout())
    outer.start(0.0, progress_end=0.1)
    effects = outer.inner_finished(inner_result(outer), 10.0)
    (average,) = [effect for effect in effects if isinstance(effect, Average)]
    assert [peer for peer, _ in average.weights] == [A, B, C, D]
    assert average.steps == (4, 4, 4, 8)


def test_where_the_others_make_no_average_its_round_is_void_as_theirs_is() -> None:
    outer, effects = trained(planned()), []
    for peer, item in votes_of_others(outer).items():
        effects += outer.received(peer, item, 12.0)
    assert has(effects, CarryOver) and not has(effects, ApplyOuter) and outer.is_void and not outer.has_voted


@pytest.mark.parametrize("contributors", [(), (A, B, C)])
def test_a_host_that_waits_for_an_attempt_of_others_asks_again_once_one_of_them_votes(contributors: tuple[PeerId, ...]) -> None:
    """Those that leave send their votes once. One that was lost came a minute later, void or not (seeds 124 and 67 of
    `tests/sim/test_waits_world.py`)."""
    outer = trained(planned())
    outer.received(A, AttemptStart(instance=INSTANCE, round=1, attempt=1, members=(A, B, C)), 12.0)
    assert outer.next_deadline is not None and outer.next_deadline > 12.0 + 10 * RESEND_SECONDS
    outer.received(B, votes_of_others(outer, *contributors)[B], 13.0)
    effects = outer.tick(13.0 + RESEND_SECONDS)
    assert [effect.peer for effect in effects if isinstance(effect, Send)] == [A, B, C]


def test_what_a_vector_takes_follows_from_what_was_sent() -> None:
    """Of four members one that reduces a quarter sends 1.5 vectors; alone nothing is sent."""
    outer = outer_round(A, planned(round=2), AdaptiveTimeout())
    outer.start(0.0, progress_end=0.1)
    outer.inner_finished(inner_result(outer), 10.0)
    assert outer.attempts.vector_bytes(3000) == 2000
    lone = outer_round(A, genesis(Digest("5" * 64), [(A, CAPACITY)], RULES), AdaptiveTimeout())
    assert lone.attempts.vector_bytes(3000) == 0
