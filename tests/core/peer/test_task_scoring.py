"""Who is drawn to score the model on tasks, and what its reports say of it."""

from dataclasses import replace

import pytest

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.measurers import task_scorer
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.report_form import MAX_REPORT_BYTES, fitted
from adloco_p2p.core.model.roster_entry import Capacity, RosterEntry
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.core.model.task_scores import (
    MAX_METRICS,
    MAX_TASKS,
    Metric,
    ScoreTasks,
    TaskClaim,
    TaskScore,
    TasksScored,
    is_task,
)
from adloco_p2p.core.model.telemetry import Warning as Warned
from adloco_p2p.core.peer.task_scoring import TaskScoring
from adloco_p2p.core.planning.round_plan import genesis
from adloco_p2p.decode import decode
from adloco_p2p.errors import RemoteProtocolError
from tests.core.core_values import RUN, peer
from tests.core.peer.story import rules

ABLE = Capacity(samples_per_second=1.0, micro_batch_limit=4, max_instances=1, scores_tasks=True)
ALL = tuple(peer(index) for index in range(6))
DIGEST = Digest("c" * 64)


def plan_of(number: int, *entries: RosterEntry) -> RoundPlan:
    first = genesis(RUN, [(ALL[0], ABLE)], rules(rounds=100))
    return replace(first, round=number, roster=entries or tuple(seat(name) for name in ALL))


def seat(name: PeerId, *, probation: int = 0, **changes: bool) -> RosterEntry:
    return RosterEntry(peer=name, joined_round=0, capacity=replace(ABLE, **changes), probation=probation)


def claim(*, metrics: int = 1, tasks: int = 1, letters: int = 8) -> TaskClaim:
    def word(index: int) -> str:
        return f"{index:x}".rjust(letters, "w")

    figures = tuple(Metric(name=word(index), value=-1.2345678901234567e-300) for index in range(metrics))
    scores = (TaskScore(name=word(index), digest=DIGEST, num_documents=1 << 61, metrics=figures) for index in range(tasks))
    return TaskClaim(round=4, model=DIGEST, scores=tuple(scores))


def test_one_is_drawn_in_every_due_round_and_each_in_its_turn() -> None:
    drawn = {number: task_scorer(plan_of(number), period_rounds=3) for number in range(120)}
    assert all((name is not None) == (number % 3 == 2) for number, name in drawn.items())
    assert {name for name in drawn.values() if name} == {*ALL}
    assert not any(task_scorer(plan_of(number), period_rounds=0) for number in range(6))
    changed = replace(plan_of(2), parent=DIGEST, reason="another")  # what a proposer could try until the lot is its own
    assert task_scorer(changed, period_rounds=3) == drawn[2]


def test_only_full_members_that_can_are_drawn() -> None:
    others = (
        seat(ALL[1], scores_tasks=False),
        seat(ALL[2], probation=3),
        seat(ALL[3], is_leaving=True),
        seat(ALL[4], is_keeper=True),
    )
    assert {task_scorer(plan_of(number, seat(ALL[0]), *others), period_rounds=1) for number in range(40)} == {ALL[0]}
    assert task_scorer(plan_of(0, *others), period_rounds=1) is None


def test_one_scoring_at_a_time_and_its_claim_is_reported_once() -> None:
    scoring = TaskScoring(ALL[0], period_rounds=1)
    alone = [plan_of(number, seat(ALL[0])) for number in range(4)]
    assert scoring.ended(alone[0]) == [ScoreTasks()]
    assert scoring.ended(alone[1]) == [] and scoring.take() is None
    assert scoring.scored(TasksScored(claim=claim())) == []
    assert scoring.take() == claim() and scoring.take() is None
    assert scoring.ended(alone[2]) == [ScoreTasks()]
    assert TaskScoring(ALL[1], period_rounds=1).ended(alone[0]) == [], "another is drawn"


def test_after_a_failure_a_peer_no_longer_offers_the_tasks() -> None:
    scoring = TaskScoring(ALL[0], period_rounds=1)
    assert scoring.capacity(ABLE) == ABLE
    scoring.ended(plan_of(0, seat(ALL[0])))
    (warning,) = scoring.scored(TasksScored(claim=None, reason="no data"))
    assert isinstance(warning, Warned) and warning.active and "no data" in warning.message
    assert scoring.capacity(ABLE) == replace(ABLE, scores_tasks=False)
    assert scoring.ended(plan_of(1, seat(ALL[0]))) == [], "plans that were made before still name it"


def test_the_largest_claim_fits_into_a_report_or_is_left_out() -> None:
    report = Report(
        peer=ALL[0], round=3, plan=DIGEST, capacity=ABLE, tasks=claim(metrics=MAX_METRICS, tasks=MAX_TASKS, letters=80)
    )
    assert canonical.size(report) <= MAX_REPORT_BYTES and fitted(report, num_members=4) == report
    assert decode(Report, canonical.encode(report), max_bytes=1 << 20) == report
    long = replace(report, peer=PeerId("x" * 3000))
    assert fitted(long, num_members=4) == replace(long, tasks=None)


@pytest.mark.parametrize(
    "scores",
    [
        claim(tasks=MAX_TASKS + 1).scores,
        claim(metrics=MAX_METRICS + 1).scores,
        claim(letters=81).scores,
        (),
        tuple(replace(score, name="<b>") for score in claim().scores),
        tuple(replace(score, num_documents=0) for score in claim().scores),
    ],
)
def test_claims_beyond_their_bounds_are_refused(scores: tuple[TaskScore, ...]) -> None:
    report = Report(peer=ALL[0], round=3, plan=DIGEST, capacity=ABLE, tasks=replace(claim(), scores=scores))
    with pytest.raises(RemoteProtocolError):
        decode(Report, canonical.encode(report), max_bytes=1 << 20)


def test_a_task_is_a_name_and_no_file() -> None:
    assert is_task("arc_easy") and is_task("mmlu_high-school.v2")
    bad = ("../x", "/etc/passwd", "a.yaml", "b.yml", "c.py", "--limit", "-x", ".hidden", "", "a b", "a,b", "a\n")
    assert not any(is_task(name) for name in bad)
