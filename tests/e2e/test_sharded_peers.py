"""Peers whose model is divided over two processes each, as real processes."""

from pathlib import Path

import psutil
import pytest

from tests.e2e.processes import LAST_SECONDS, MACHINE, ROUNDS, begin_warm, digests, events, run, write_config
from tests.e2e.swarm_processes import processes_of, wait, write_swarm_config

SHARDED = ("shards=2", "max_instances=1", "device=cpu")
FLOAT = ("--set", "model.precision=float32")


def shards_of(pid: int | None) -> list[psutil.Process]:
    """The processes that hold parts of a node's model."""
    found = psutil.Process(pid).children(recursive=True)
    return [child for child in found if "adloco_p2p.training.shards.worker" in child.cmdline()]


@pytest.mark.heavy  # three lives of a node and its processes
def test_a_node_ends_with_a_part_of_its_model_and_the_same_command_goes_on(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    settings = (*MACHINE, *SHARDED, *FLOAT, "instances.count=1", "merge.policy=none")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    ended = run(["start", config, "--workdir", whole, *settings], folder=tmp_path)
    assert ended.code == 0, ended
    assert "cpu x2" in events(whole, "started")[0]["device"]

    output, errors = tmp_path / "first output", tmp_path / "first errors"
    process = begin_warm(["start", config, "--workdir", killed, *settings], output=output, errors=errors)
    wait(lambda: (killed / "events.jsonl").exists() and events(killed, "round"), "the first round")
    first, second = shards_of(process.pid)
    first.kill()
    process.join(timeout=LAST_SECONDS)
    said = output.read_text() + errors.read_text()
    assert process.exitcode == 1, said
    assert "E103" in said and "was killed" in said and "Traceback" not in said
    psutil.wait_procs([first, second], timeout=LAST_SECONDS)
    assert not first.is_running() and not second.is_running()

    ended = run(["start", config, "--workdir", killed, *settings], folder=tmp_path)
    assert ended.code == 0, ended
    assert digests(killed) == digests(whole)
    assert len(events(killed, "finished")) == 1
    names = [folder / "checkpoints" / f"round-{ROUNDS:06}" / "instance-0.safetensors" for folder in (whole, killed)]
    assert names[0].read_bytes() == names[1].read_bytes()


@pytest.mark.heavy  # six processes that import torch
def test_a_swarm_of_peers_with_two_processes_each_agrees_on_every_digest(tmp_path: Path) -> None:
    config, workdir = write_swarm_config(tmp_path, rounds=3, inner_steps=10), tmp_path / "runs"
    command = ["swarm", config, "--peers", "2", "--plain", "--workdir", workdir, *FLOAT, "--peer-set", *SHARDED]
    ended = run(command, folder=tmp_path)
    assert ended.code == 0, ended
    one, other = digests(workdir / "peer-0"), digests(workdir / "peer-1")
    assert one == other and len(one) == 3
    rounds = events(workdir / "peer-0", "round")
    assert all(event["bytes_sent"] > 0 and len(event["hosts"]) == 2 for event in rounds)
    assert rounds[-1]["loss"] < rounds[0]["loss"]
    assert not processes_of(tmp_path)
