"""A real process is killed, the others end the run, and it comes back to nobody."""

from pathlib import Path

import pytest
import transformers

from tests.e2e.processes import run
from tests.e2e.swarm_processes import PeerProcess, founded, write_swarm_config

NAMES = ("first", "second", "third", "victim")
PACED = ("paced", "0.25")
ROUNDS, KILLED_IN = 8, 3
NO_MODEL_OF_THE_RUN = 3


@pytest.mark.heavy
def test_one_that_comes_back_when_the_run_has_ended_keeps_its_model_and_does_not_call_it_that_of_the_run(
    peers: list[PeerProcess], tmp_path: Path
) -> None:
    config = write_swarm_config(tmp_path, rounds=ROUNDS, inner_steps=8)
    peers.append(PeerProcess(tmp_path / "first", ("start", config, *founded(tmp_path, *NAMES))).start(fault=PACED))
    for name in NAMES[1:]:
        join = ("join", "--initial-peers", *peers[0].addresses())
        peers.append(PeerProcess(tmp_path / name, join).start(fault=PACED))
    *others, victim = peers
    victim.wait_for("checkpoint", round=lambda at: at >= KILLED_IN)
    victim.kill()
    assert [peer.end() for peer in others] == [0] * len(others)
    models = {peer.wait_for("finished")["heldout_loss"] for peer in others}
    assert len(models) == 1
    victim.start(fault=PACED)
    assert victim.end() == NO_MODEL_OF_THE_RUN
    assert "E314" in victim.words
    assert not [event["is_finished"] for event in victim.events if event["event"] == "stopped"][-1]
    page = run(["report", "--workdir", victim.workdir, "--output", tmp_path / "report"], folder=tmp_path)
    assert page.code == 0 and "not finished" in (tmp_path / "report" / "report.md").read_text()
    exported = run(["export", "--workdir", victim.workdir, "--output", tmp_path / "model"], folder=tmp_path)
    assert exported.code == 0
    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").num_parameters() > 0
