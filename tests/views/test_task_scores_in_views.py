"""Scores on tasks, in all views, each with the peer that claims them."""

from dataclasses import replace
from pathlib import Path

from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.core.model.task_scores import Metric, TaskScore
from adloco_p2p.core.model.telemetry import TaskScores
from adloco_p2p.views import node_status, plain, run_report
from adloco_p2p.views.metrics import measures
from adloco_p2p.views.page import document, plans_of
from adloco_p2p.views.run_losses import task_words
from adloco_p2p.views.status import MAX_SCORERS, Status
from adloco_p2p.views.status_fold import fold
from tests.views.synthetic import events, replay, shown_run, stamped

PEER = PeerId("QmScorer")
CLAIM = TaskScores(
    round=7,
    peer=PEER,
    model=Digest("a" * 64),
    scores=(
        TaskScore(
            name="endings",
            digest=Digest("b" * 64),
            num_documents=200,
            metrics=(Metric(name="acc", value=0.3125), Metric(name="acc_stderr", value=0.03)),
        ),
    ),
)
WORDS = "endings acc 0.3125, 200 documents"


def status() -> Status:
    return fold(CLAIM, replay(events()))


def test_the_newest_claims_of_few_peers_are_kept() -> None:
    found = Status()
    for index in range(MAX_SCORERS + 3):
        found = fold(replace(CLAIM, peer=PeerId(f"peer{index}")), found)
    found = fold(replace(CLAIM, peer=PeerId("peer9"), round=99), found)
    assert len(found.task_scores) == MAX_SCORERS
    assert [*found.task_scores][-1] == "peer9" and found.task_scores["peer9"].round == 99


def test_one_document_is_singular() -> None:
    (score,) = CLAIM.scores
    assert task_words(replace(CLAIM, scores=(replace(score, num_documents=1),))) == ["endings acc 0.3125, 1 document"]


def test_lines_status_and_metrics_show_them() -> None:
    assert WORDS in str(plain.line(CLAIM, status())) and "claimed by QmScorer" in str(plain.line(CLAIM, status()))
    (measure,) = [measure for measure in measures(status()) if measure.name == "adloco_task_score"]
    assert measure.samples[("endings", "acc", PEER)] == 0.3125 and ("endings", "acc_stderr", PEER) in measure.samples
    lines = node_status.lines(node_status.summary(status()))
    (line, *_) = [line.split() for line in lines if line.startswith("task")]
    assert line == [
        "task",
        "endings",
        "acc",
        "0.3125",
        "claimed",
        "by",
        "QmScorer",
    ]


def test_the_page_and_the_report_show_them(tmp_path: Path) -> None:
    found = document(shown_run(status(), plans_of([stamped(event) for event in events(3)])))
    assert found["tasks"] == [{"peer": PEER, "round": 7, "words": [WORDS]}]
    page = run_report.markdown_page(
        "a run", run_report._sections(status(), run_report.summarise(status())), run_report.CAPTIONS
    )
    assert "## Tasks" in page and f"| 7 | QmScorer | {WORDS} |" in page
    without = replay(events())
    assert "## Tasks" not in run_report.markdown_page(
        "a run", run_report._sections(without, run_report.summarise(without)), run_report.CAPTIONS
    )
