"""Agreement without a network: a plan as soon as all have reported, and no proof of anything."""

from collections.abc import Sequence

from adloco_p2p.core.agreement.fixed_roster import FixedRosterAgreement
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.effects import Broadcast
from adloco_p2p.core.model.events import ReportHeard
from adloco_p2p.core.model.outcomes import Decided, Outcome
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.rules import InstanceRules, Rules, WorkRules
from adloco_p2p.core.planning.round_plan import genesis, next_plan
from tests.core.core_values import RUN, capacity, instance_report, peer

PEERS = (peer(0), peer(1))
RULES = Rules(work=WorkRules(rounds=4), instances=InstanceRules(count=1))
FIRST = genesis(RUN, [(name, capacity()) for name in PEERS], RULES)


def decide(parent: RoundPlan, reports: Sequence[Report]) -> RoundPlan:
    return next_plan(parent, reports, RULES)


def begun() -> tuple[FixedRosterAgreement, RoundPlan]:
    """An agreement at the second plan, which needs no reports."""
    agreement = FixedRosterAgreement(decide=decide)
    (decided,) = agreement.start([FIRST], [], now=0.0)
    assert isinstance(decided, Decided)
    assert (decided.plan.round, decided.reports) == (1, ())
    return agreement, decided.plan


def report(index: int, on: RoundPlan) -> Report:
    work = instance_report(batch=8, inner_steps=on.inner_steps, contributors=PEERS)
    return Report(peer=PEERS[index], round=on.round, plan=canonical.digest(on), capacity=capacity(), instances=(work,))


def plans_of(outcomes: Sequence[Outcome]) -> list[int]:
    return [outcome.plan.round for outcome in outcomes if isinstance(outcome, Decided)]


def test_the_next_plan_follows_from_the_last_report_of_the_round_before() -> None:
    agreement, second = begun()
    own, other = report(0, FIRST), report(1, FIRST)
    assert agreement.submit(own, now=1.0) == [Broadcast(message=own)]
    outcomes = agreement.receive(PEERS[1], other, now=2.0)
    assert outcomes == [ReportHeard(report=other), Decided(plan=decide(second, [own, other]), reports=(own, other))]
    assert agreement.tick(now=99.0) == [] and agreement.next_deadline is None


def test_reports_of_a_checkpoint_count_when_it_starts() -> None:
    agreement = FixedRosterAgreement(decide=decide)
    assert plans_of(agreement.start([FIRST], [report(0, FIRST), report(1, FIRST)], now=0.0)) == [1, 2]


def test_only_a_peer_itself_gives_its_report() -> None:
    agreement, _ = begun()
    assert agreement.receive(PEERS[0], report(1, FIRST), now=1.0) == []
    assert agreement.receive(PEERS[1], "anything else", now=1.0) == []
    assert plans_of(agreement.submit(report(0, FIRST), now=1.0)) == []  # the other's report is still missing


def test_nothing_is_decided_after_the_last_plan() -> None:
    agreement, plan = begun()
    before = FIRST
    while not plan.is_last:
        agreement.submit(report(0, before), now=0.0)
        *_, decided = agreement.receive(PEERS[1], report(1, before), now=0.0)
        assert isinstance(decided, Decided)
        before, plan = plan, decided.plan
    assert plans_of([*agreement.submit(report(0, before), now=0.0), *agreement.receive(PEERS[1], report(1, before), 0.0)]) == []


def test_nobody_leaves_nothing_is_kept_and_a_signature_is_a_placeholder() -> None:
    agreement, _ = begun()
    agreement.note_work([0, 1])
    assert agreement.leave(now=0.0) == agreement.rejoin(capacity(), now=0.0) == []
    assert agreement.verify(PEERS[1], b"payload", agreement.sign(b"payload"))
    assert not agreement.verify(PEERS[1], b"payload", "forged")
