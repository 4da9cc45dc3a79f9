"""Contributions looked at, by hand: when scores count, which hosts are idle, and what these are given."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.assessments import Assessment, Look
from adloco_p2p.core.model.instance_plan import InstancePlan
from adloco_p2p.core.model.ledger_entry import SignedReport
from adloco_p2p.core.model.measurers import drawn_look, is_assessed
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.report import InstanceReport, Report
from adloco_p2p.core.model.report_form import usable
from adloco_p2p.core.model.roster_entry import RosterEntry
from adloco_p2p.core.model.rules import AdmissionRules, BatchRules, InstanceRules, Rules, WorkRules
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.core.planning.apportionment import share_batch
from adloco_p2p.core.planning.assessment import agreed_score, idle_hosts, with_scores
from adloco_p2p.core.planning.round_plan import genesis, next_plan
from tests.core.core_values import RUN, capacity, instance_plan, instance_report, peer

PEERS = tuple(peer(index) for index in range(8))
PLACES = {peer: place for place, peer in enumerate(PEERS)}
ROSTER = tuple(RosterEntry(peer=peer, joined_round=0, capacity=capacity()) for peer in PEERS)
BEFORE, AFTER = Digest("b" * 64), Digest("a" * 64)
ROUND = 9
PLAN = replace(instance_plan(hosts=dict.fromkeys(PEERS, 1), inner_steps=32, requested=8), state_digest=BEFORE, is_assessed=True)
MOVED = replace(PLAN, state_digest=AFTER)
ASSESSORS = PEERS[1:4]


def look(*scores: int | None, round: int = ROUND - 1) -> Look:
    return Look(round=round, subject=PEERS[0], assessors=ASSESSORS, scores=(*scores, None, None, None)[:3])


def claim(item: Assessment | None = None) -> InstanceReport:
    return replace(instance_report(batch=1, inner_steps=32, contributors=PEERS, state=AFTER), assessment=item)


def said(score: int, *, round: int = ROUND - 1, subject: int = 0) -> Assessment:
    return Assessment(round=round, subject=subject, score=score)


def next_of(plan: InstancePlan, given: dict[PeerId, Assessment], *, round: int = ROUND) -> InstancePlan:
    claims = {peer: claim(given.get(peer)) for peer in PEERS}
    moved = replace(plan, state_digest=AFTER)
    return with_scores(plan, moved, claims, ROSTER, PLACES, round=round, every=1)


# --- scores ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scores", "agreed"),
    [
        ((40, 42, 41), 41),
        ((40, 45, None), 40),
        ((40, 46, None), None),
        ((40, None, None), None),
        ((0, 40, 42), 40),  # one that lies, low or high: the median is one of the two others
        ((500, 40, 42), 42),
        ((0, 3, 40), 3),  # two of one mind decide
        ((0, 20, 40), None),
    ],
)
def test_the_median_counts_where_two_of_three_agree(scores: tuple[int | None, ...], agreed: int | None) -> None:
    assert agreed_score(look(*scores)) == agreed


def test_scores_come_with_the_reports_of_several_rounds() -> None:
    plan = replace(PLAN, looks=(look(),), is_assessed=False)
    plan = next_of(plan, {ASSESSORS[0]: said(40)})
    assert [item.scores for item in plan.looks] == [(40, None, None)]
    plan = next_of(replace(plan, is_assessed=False), {ASSESSORS[2]: said(41)}, round=ROUND + 1)
    assert plan.looks == () and plan.hosts[0].scores == (40,)


def test_only_its_assessors_score_a_contribution_once_each_and_only_that_one() -> None:
    plan = replace(PLAN, looks=(look(40),), is_assessed=False)
    others = {
        PEERS[5]: said(40),  # none of the three
        ASSESSORS[0]: said(0),  # its first score counts
        ASSESSORS[1]: said(40, subject=5),  # another contribution
        ASSESSORS[2]: said(40, round=ROUND - 2),  # another round
    }
    plan = next_of(plan, others)
    assert [item.scores for item in plan.looks] == [(40, None, None)]
    assert all(share.scores == () for share in plan.hosts)


def test_a_look_without_two_scores_that_agree_ends() -> None:
    plan = replace(PLAN, looks=(look(0, 20),), is_assessed=False)
    assert next_of(plan, {ASSESSORS[2]: said(40)}).looks == (), "all have scored"
    assert [len(next_of(plan, {}, round=ROUND - 1 + ahead).looks) for ahead in (1, 3, 4)] == [1, 1, 0]


def test_the_last_four_scores_are_remembered_and_two_may_come_at_once() -> None:
    known = tuple(replace(share, scores=(1, 2, 3, 4)) for share in PLAN.hosts)
    two = (look(50, 50, round=ROUND - 2), look(60, round=ROUND - 1))
    plan = next_of(replace(PLAN, hosts=known, looks=two, is_assessed=False), {ASSESSORS[1]: said(60)})
    assert plan.hosts[0].scores == (3, 4, 50, 60)


# --- the lot ---------------------------------------------------------------------------------------------------------


def test_the_state_after_the_step_draws_a_subject_and_three_others() -> None:
    plan = next_of(PLAN, {})
    (drawn,) = plan.looks
    assert drawn == drawn_look(AFTER, PLAN, ROSTER, round=ROUND) and drawn.round == ROUND
    assert len({drawn.subject, *drawn.assessors}) == 4 and drawn.scores == (None, None, None)
    looks = [drawn_look(Digest(f"{index:064x}"), PLAN, ROSTER, round=ROUND) for index in range(800)]
    subjects = [item.subject for item in looks if item is not None]
    assert all(80 <= subjects.count(peer) <= 120 for peer in PEERS), "each about as often as the others"


def test_no_look_without_an_outer_step_or_in_other_rounds() -> None:
    assert next_of(replace(PLAN, state_digest=AFTER), {}).looks == (), "the state is the one before"
    assert next_of(replace(PLAN, is_assessed=False), {}).looks == ()
    unknown = with_scores(PLAN, replace(MOVED, state_digest=None), {}, ROSTER, PLACES, round=ROUND, every=1)
    assert unknown.looks == (), "most reports name no state"
    assert [round for round in range(9) if is_assessed(round, every=3)] == [3, 6]
    assert not any(is_assessed(round, every=0) for round in range(9))


def test_five_full_members_with_work_are_needed_and_only_those_assess() -> None:
    def drawn(num_full: int) -> list[Look | None]:
        seats = [replace(entry, probation=int(place >= num_full)) for place, entry in enumerate(ROSTER)]
        return [drawn_look(Digest(f"{index:064x}"), PLAN, seats, round=ROUND) for index in range(60)]

    assert set(drawn(4)) == {None}
    looks = [item for item in drawn(5) if item is not None]
    assert len(looks) == 60 and {peer for item in looks for peer in item.assessors} == {*PEERS[:5]}
    assert {item.subject for item in looks} == {*PEERS}, "newcomers are looked at, too"
    without_work = replace(PLAN, hosts=tuple(replace(share, works_from=ROUND + 1) for share in PLAN.hosts[:4]) + PLAN.hosts[4:])
    assert drawn_look(AFTER, without_work, ROSTER, round=ROUND) is None


def test_a_contribution_of_several_rounds_is_no_subject() -> None:
    """Its host is in every second average: of its rows the plan of the round names the last ones only."""
    slow = replace(PLAN, hosts=tuple(replace(share, every_before=1 + (share.peer in PEERS[:2])) for share in PLAN.hosts))
    for round in (8, 9):
        drawn = [drawn_look(Digest(f"{index:064x}"), slow, ROSTER, round=round) for index in range(100)]
        assert {look.subject for look in drawn if look is not None} == {*PEERS[2:]}
    all_slow = replace(PLAN, hosts=tuple(replace(share, every_before=2) for share in PLAN.hosts))
    assert drawn_look(AFTER, all_slow, ROSTER, round=8) is None


def test_no_look_at_the_average_after_a_void_round() -> None:
    """Contributions to it hold the inner steps of both."""
    assert next_of(PLAN, {}).is_assessed
    assert not next_of(replace(PLAN, state_digest=AFTER), {}).is_assessed, "the state is the one before"
    unknown = with_scores(PLAN, replace(MOVED, state_digest=None), {}, ROSTER, PLACES, round=ROUND, every=1)
    assert not unknown.is_assessed, "most reports name no state"


def test_no_peer_in_client_mode_looks_at_another_one() -> None:
    clients = PEERS[:4]
    seats = [replace(entry, capacity=replace(entry.capacity, is_reachable=entry.peer not in clients)) for entry in ROSTER]
    for index in range(100):
        drawn = drawn_look(Digest(f"{index:064x}"), PLAN, seats, round=ROUND)
        assert drawn is not None and not (drawn.subject in clients and {*drawn.assessors} & {*clients})


# --- idle hosts ------------------------------------------------------------------------------------------------------


def idle(*scores: Sequence[int]) -> set[int]:
    """Of hosts with these scores, in tenths: the places of the idle ones."""
    return {PEERS.index(peer) for peer in idle_hosts(dict(zip(PEERS, scores, strict=False)))}


HONEST = (40, 35, 44, 38)
IDLE = (0, 0, 0, 0)


def test_a_host_far_below_the_median_one_is_idle_until_its_scores_are_better() -> None:
    assert idle((0, 5, -10, 3), *[HONEST] * 7) == {0}
    assert idle((0, 5, -10), *[HONEST] * 7) == set(), "four scores are needed"
    assert idle((5, -10, 3, 44), *[HONEST] * 7) == {0}
    assert idle((-10, 3, 44, 41), *[HONEST] * 7) == set()
    assert idle((20, 22, 18, 19), *[HONEST] * 7) == set(), "half of the work"


def test_one_false_score_decides_nothing_however_high_or_low() -> None:
    assert idle((0, 5, -10, 500), *[HONEST] * 7) == {0}
    assert idle((-500, 40, 41, 39), *[HONEST] * 7) == set()
    assert idle((-500, 40), *[HONEST] * 7) == set()
    assert idle((-500, -500, 40, 41), *[HONEST] * 7) == set()
    assert idle((-500, -500, -500, 40), *[HONEST] * 7) == {0}, "three of four do"
    assert idle((0, 5, 500, 500), *[HONEST] * 7) == set()


def wrongly_judged(num_false: int, *, mean: float, false: int, own_mean: float) -> float:
    """In which part of the draws the first of eight hosts gets a verdict that it does not deserve, where so many of its four
    scores are `false`. Honest scores have the mean, in standard errors, and a deviation of 1."""
    random = Random(f"{num_false} false of four, {mean}")

    def drawn(mean: float, count: int = 4) -> list[int]:
        return [round(10 * random.gauss(mean, 1.0)) for _ in range(count)]

    found = [idle([false] * num_false + drawn(own_mean, 4 - num_false), *[drawn(mean) for _ in range(7)]) for _ in range(1500)]
    return sum((0 in each) != (own_mean == 0.0) for each in found) / len(found)


@pytest.mark.parametrize("mean", [2.0, 3.0, 4.0, 6.0, 10.0])
def test_false_scores_take_rows_from_an_honest_host_in_few_draws(mean: float) -> None:
    parts = [wrongly_judged(num_false, mean=mean, false=0, own_mean=mean) for num_false in range(3)]
    assert parts[0] <= 0.002 and parts[1] <= 0.01 and parts[2] <= 0.11


@pytest.mark.parametrize(("mean", "most"), [(4.0, 0.45), (6.0, 0.25), (10.0, 0.06)])
def test_a_false_score_of_four_leaves_an_idle_host_its_rows_in_some_draws(mean: float, most: float) -> None:
    assert wrongly_judged(0, mean=mean, false=500, own_mean=0.0) <= 0.12
    assert 0.0 < wrongly_judged(1, mean=mean, false=500, own_mean=0.0) <= most
    assert wrongly_judged(2, mean=mean, false=500, own_mean=0.0) >= 0.99


def test_nothing_follows_before_most_hosts_have_scores() -> None:
    assert idle(IDLE, HONEST, HONEST, HONEST, (), (), (), (30, 40, 35)) == set()
    assert idle(IDLE, HONEST, HONEST, HONEST, HONEST, (), (), (30, 40, 35)) == {0}


def test_nobody_is_idle_where_a_third_would_be() -> None:
    assert idle(IDLE, IDLE, *[HONEST] * 6) == {0, 1}
    assert idle(IDLE, IDLE, *[HONEST] * 4) == set()
    assert idle(*[IDLE] * 5, *[HONEST] * 3) == set()


def test_nothing_follows_from_scores_that_say_little() -> None:
    """As with large batches: honest scores of 1.4 with a deviation of one are below a third of it now and then."""
    assert idle((2, 3, 1, 2), *[(14,) * 4] * 7) == set()
    assert idle((-10, -8, -9, -7), *[(14,) * 4] * 7) == set()
    assert idle((-10, -8, -9, -7), *[(16,) * 4] * 7) == {0}, "three standard errors below"
    assert idle((-10,) * 4, *[IDLE] * 7) == set()


@pytest.mark.parametrize("share", ["speed", "capped", "equal"])
def test_an_idle_host_gets_a_quarter_of_the_rows_whatever_it_claims(share: str) -> None:
    work = WorkRules(share=share, inner_steps=32)  # type: ignore[arg-type]
    speeds = [160.0 if share == "capped" else 10.0, *[10.0] * 7]

    def part(batch: int, fractions: Sequence[float]) -> float:
        rows = [samples * steps for samples, steps in share_batch(batch, speeds, work, fractions=fractions)]
        return rows[0] / (sum(rows[1:]) / 7)

    for batch in (8, 64, 512):
        before = part(batch, ())
        assert part(batch, [0.25, *[1.0] * 7]) == pytest.approx(before / 4, rel=0.25), batch
    assert share_batch(64, [0.0] * 8, work, fractions=[0.25, *[1.0] * 7])[0][0] <= 3, "speeds are not known yet"


def test_the_rows_that_an_idle_host_lacks_raise_nobody_above_the_cap() -> None:
    work = WorkRules(share="capped", inner_steps=32)

    def largest(speeds: Sequence[float]) -> float:
        rows = [
            samples * steps for samples, steps in share_batch(512, speeds, work, fractions=[0.25, *[1.0] * (len(speeds) - 1)])
        ]
        return max(rows) / sum(rows)

    assert largest([10.0, 10.0, 10.0, 10.0]) == pytest.approx(0.25), "of four each has the cap already, the idle one, too"
    assert largest([10.0, 10.0, 10.0, 10.0, 160.0]) == pytest.approx(0.25, rel=0.01)
    assert largest([160.0, 10.0, 10.0, 10.0, 10.0, 10.0, 10.0, 10.0]) <= 0.15, "it claims to be fast"


# --- in whole plans --------------------------------------------------------------------------------------------------

RULES = Rules(
    work=WorkRules(rounds=60, inner_steps=32, link_tolerance=None),
    instances=InstanceRules(count=1),
    batch=BatchRules(initial_batch=16, test="constant"),
    admission=AdmissionRules(kind="open", probation_rounds=0),
    assess_every=1,
)


class Swarm:
    """Plans of eight hosts that report all rounds. The world outside: who trains, and what assessors that lie report."""

    def __init__(
        self, idlers: Sequence[PeerId], lies: dict[PeerId, dict[PeerId, int]] | None = None, *, rules: Rules = RULES
    ) -> None:
        self.rules = rules
        self.plan = genesis(RUN, [(peer, capacity()) for peer in PEERS], rules)
        self.plans = [self.plan]
        self.idlers, self.lies = idlers, lies or {}
        self.owed: dict[PeerId, Look] = {}

    def reports(self) -> list[Report]:
        """On the last round but one."""
        plan, after = self.plans[-2], self.plans[-1]
        item = plan.instances[0]
        hosts = [share.peer for share in item.hosts]
        state = canonical.digest(["state", plan.round])
        made = []
        for share in item.hosts:
            due = self.owed.get(share.peer)
            assessment = None
            if due is not None and due.round < plan.round:
                del self.owed[share.peer]
                score = self.lies.get(share.peer, {}).get(due.subject, 0 if due.subject in self.idlers else 40)
                assessment = Assessment(round=due.round, subject=hosts.index(due.subject), score=score)
            base = instance_report(batch=share.effective_batch, inner_steps=share.inner_steps, contributors=PEERS, state=state)
            one = replace(base, assessment=assessment)
            digest = canonical.digest_once(plan)
            made.append(Report(peer=share.peer, round=plan.round, plan=digest, capacity=capacity(), instances=(one,)))
        drawn = drawn_look(state, after.instances[0], after.roster, round=plan.round) if plan.round else None
        self.owed |= dict.fromkeys(drawn.assessors, drawn) if drawn is not None else {}
        return made

    def play(self, rounds: int) -> RoundPlan:
        for _ in range(rounds):
            reports = self.reports() if len(self.plans) > 1 else []
            self.plans.append(next_plan(self.plans[-1], reports, self.rules))
        return self.plans[-1]

    def rows(self, name: PeerId) -> list[int]:
        return [next(share.samples for share in plan.instances[0].hosts if share.peer == name) for plan in self.plans]


def test_an_idler_is_given_a_quarter_and_the_others_what_it_lacks() -> None:
    swarm = Swarm(idlers=PEERS[2:3])
    last = swarm.play(50).instances[0]
    rows = {share.peer: share.samples for share in last.hosts}
    assert rows[PEERS[2]] <= 0.3 * min(rows[peer] for peer in PEERS if peer != PEERS[2])
    assert "a quarter of the rows for p002 (mean score 0.0): what it sent does not show training" in last.reason
    assert all(swarm.rows(peer)[-1] >= swarm.rows(peer)[0] for peer in PEERS if peer != PEERS[2])
    assert sum(rows.values()) >= 0.9 * 16 * 32, "the batch is done by the others"
    assert all(not entry.probation for entry in swarm.plans[-1].roster) and len(swarm.plans[-1].roster) == 8


def test_it_gets_its_rows_back_once_it_trains() -> None:
    swarm = Swarm(idlers=PEERS[2:3])
    swarm.play(40)
    assert swarm.rows(PEERS[2])[-1] < 20
    swarm.idlers = ()
    swarm.play(19)
    assert swarm.rows(PEERS[2])[-1] == 64
    assert {*swarm.plans[-1].instances[0].hosts[2].scores} == {0, 40}, "two good scores of four are enough"


def test_one_assessor_that_lies_moves_nothing() -> None:
    lies = {PEERS[5]: dict.fromkeys(PEERS, 0) | {PEERS[5]: 500}}
    swarm, honest = Swarm((), lies), Swarm(())
    swarm.play(50)
    honest.play(50)
    assert swarm.rows(PEERS[0]) == honest.rows(PEERS[0])
    assert [[share.scores for share in plan.instances[0].hosts] for plan in swarm.plans] == [
        [share.scores for share in plan.instances[0].hosts] for plan in honest.plans
    ]
    assert {score for share in swarm.plans[-1].instances[0].hosts for score in share.scores} == {40}


def test_two_assessors_of_one_mind_move_a_score_where_the_lot_draws_both() -> None:
    """Two of eight: a ninth of all looks."""
    pair = {peer: dict.fromkeys(PEERS, 0) for peer in PEERS[4:6]}
    swarm = Swarm((), pair)
    swarm.play(58)
    looks = {look for plan in swarm.plans for look in plan.instances[0].looks if look.scores == (None, None, None)}
    together = {look.round for look in looks if {*PEERS[4:6]} <= {*look.assessors}}
    assert len(looks) > 50 and 2 <= len(together) <= 12
    false = [plan.round for plan in swarm.plans for share in plan.instances[0].hosts if 0 in share.scores]
    assert min(false) == min(together) + 3, "the report on the next round has it, and that decides the plan two later"
    given = [share for plan in swarm.plans for share in plan.instances[0].hosts if share.samples < 32]
    assert all(share.scores.count(0) >= 3 for share in given), "two false scores take nothing from anybody"


def test_a_copy_of_an_instance_has_no_part_in_its_looks() -> None:
    rules = replace(RULES, instances=InstanceRules(count=2, start="fork", fork_round=6))
    swarm = Swarm((), rules=rules)
    source, copy = swarm.play(6).instances
    assert source.is_assessed and source.looks
    assert not copy.is_assessed and not copy.looks


def test_without_the_setting_nothing_is_drawn() -> None:
    plan = genesis(RUN, [(peer, capacity()) for peer in PEERS], RULES)
    for _ in range(4):
        plan = next_plan(plan, [], replace(RULES, assess_every=0))
        assert not plan.instances[0].is_assessed and not plan.instances[0].looks


def test_a_report_that_names_no_host_of_the_plan_is_in_no_plan() -> None:
    plan = Swarm(()).play(2)
    report = Report(peer=PEERS[0], round=plan.round, plan=canonical.digest_once(plan), capacity=capacity())
    for place, num_usable in ((7, 1), (8, 0)):
        named = replace(report, instances=(claim(said(40, subject=place)),))
        assert len(usable([SignedReport(report=named, signature="")], plan)) == num_usable
