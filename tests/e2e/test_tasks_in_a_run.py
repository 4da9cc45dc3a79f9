"""`evaluation.tasks`: a drawn peer scores the model during the run, by real processes; and what it cannot do ends nothing."""

from pathlib import Path

import pytest

from tests.e2e.processes import run
from tests.e2e.swarm_processes import PeerProcess, write_swarm_config
from tests.e2e.test_task_scores import write_task

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1800)]
PATIENCE = 800.0
"""The child has the lowest priority: on a machine that does other things, it waits for minutes."""
TASKS = ("evaluation.tasks.names=[endings]", "evaluation.tasks.every_rounds=2", "work.rounds=10000")


def test_scores_come_into_the_ledger_and_into_every_view(peers: list[PeerProcess], tmp_path: Path) -> None:
    write_task(tmp_path / "tasks", answers=[1, 0])
    own = ("--peer-set", f"tasks_path={tmp_path / 'tasks'}")
    config = write_swarm_config(tmp_path, rounds=10000)
    peers.append(PeerProcess(tmp_path / "first", ("start", config, "--set", *TASKS, *own)).start())
    joining = ("join", "--initial-peers", *peers[0].addresses(), *own)
    peers.append(PeerProcess(tmp_path / "second", joining).start())
    claims = [peer.wait_for("task_scores", seconds=PATIENCE) for peer in peers]
    for claim in claims:
        assert claim["peer"] in {peer.me for peer in peers}
        (score,) = claim["scores"]
        assert score["name"] == "endings" and score["num_documents"] == 2
        assert {metric["name"] for metric in score["metrics"]} == {"acc", "acc_stderr"}
        digests = {
            event["digest"] for event in peers[0].events if event["event"] == "round" and event["round"] == claim["round"] - 1
        }
        assert digests == {claim["model"]}, "it is the model of that boundary"
    status = run(["status", "--workdir", peers[0].workdir], folder=tmp_path)
    assert "task" in status.output and "endings" in status.output and "claimed by" in status.output
    for peer in peers:
        peer.kill()
    report = run(["report", "--workdir", peers[1].workdir, "--output", tmp_path / "report"], folder=tmp_path)
    assert report.code == 0 and "endings acc" in (tmp_path / "report" / "report.md").read_text()


def test_a_peer_without_the_tasks_warns_and_trains_on(peers: list[PeerProcess], tmp_path: Path) -> None:
    config = write_swarm_config(tmp_path, rounds=10000)
    first = PeerProcess(tmp_path / "first", ("start", config, "--set", *TASKS)).start()
    peers.append(first)
    warning = first.wait_for("warning", seconds=PATIENCE, key="tasks")
    assert "cannot score the run's tasks" in warning["message"] and "E223" in warning["message"], warning
    after = max(event["round"] for event in first.events if event["event"] == "round")
    first.wait_for("round", round=after + 2)
