"""A child process that scores tasks and fails: the node hears a reason, and goes on."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import EvaluationConfig, RunConfig, TasksConfig
from adloco_p2p.errors import TaskScoringFailed
from adloco_p2p.runtime.adapters.task_child import TaskChild, claim_of

RUN = RunConfig(evaluation=EvaluationConfig(tasks=TasksConfig(names=("endings",))))
TASK = {"name": "endings", "digest": "a" * 64, "num_documents": 2, "metrics": {"acc": 0.5}}
FOUND = {"round": 3, "model": "b" * 64, "tasks": [TASK]}


def score(folder: Path) -> None:
    asyncio.run(TaskChild(folder, RUN, PeerConfig()).score())


def test_a_child_that_cannot_be_started_is_a_failed_scoring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the system has no process, memory or descriptor left."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    with pytest.raises(TaskScoringFailed, match=r"cannot be started: .*No such file"):
        score(tmp_path)


def test_a_child_that_prints_something_else_is_a_failed_scoring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "child"
    script.write_text("#!/bin/sh\necho '{}'\n")
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))
    with pytest.raises(TaskScoringFailed, match="printed no scores: KeyError"):
        score(tmp_path)


@pytest.mark.parametrize(
    "found",
    [
        [],
        {**FOUND, "tasks": None},
        {**FOUND, "tasks": ["endings"]},
        {**FOUND, "round": None},
        {**FOUND, "tasks": [{**TASK, "metrics": None}]},
        {**FOUND, "tasks": [{**TASK, "metrics": {"acc": "much"}}]},
        {**FOUND, "tasks": [{**TASK, "num_documents": "many"}]},
        {**FOUND, "tasks": [{"name": "endings"}]},
    ],
)
def test_any_other_document_holds_no_scores(found: object) -> None:
    assert claim_of(json.dumps(FOUND).encode(), ("endings",)).scores[0].metrics[0].value == 0.5
    with pytest.raises(TaskScoringFailed, match="printed no scores"):
        claim_of(json.dumps(found).encode(), ("endings",))


@pytest.mark.parametrize("output", [b"", b"\xff", b"done"])
def test_an_output_without_a_document_holds_no_scores(output: bytes) -> None:
    with pytest.raises(TaskScoringFailed, match="printed no scores"):
        claim_of(output, ("endings",))
