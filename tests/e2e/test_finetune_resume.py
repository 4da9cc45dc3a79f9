"""Adapters on a mixture of conversations, stopped and killed: the same command goes on, to the same bytes and losses."""

import json
import signal
from pathlib import Path

from tests.e2e.processes import MACHINE, run
from tests.e2e.tiny_chat import write_adapter_config


def exported(workdir: Path, output: Path) -> dict[str, bytes]:
    """The tensors of the merged model and of the adapter, by file."""
    ended = run(["export", "--workdir", workdir, "--output", output], folder=workdir.parent)
    assert ended.code == 0, ended
    return {str(path.relative_to(output)): path.read_bytes() for path in output.rglob("*.safetensors")}


def evaluated(workdir: Path, *more: object) -> tuple[int, list[float]]:
    """The round, and the held-out loss of every instance."""
    ended = run(["evaluate", "--workdir", workdir, "--json", *more], folder=workdir.parent)
    assert ended.code == 0, ended
    document = json.loads(ended.output)
    return document["round"], [instance["heldout_loss"] for instance in document["instances"]]


def test_a_mixture_that_was_stopped_and_killed_ends_bit_for_bit_with_the_model_of_one_that_was_not(tmp_path: Path) -> None:
    sections = {"work": {"inner_steps": 4, "rounds": 4}, "evaluation": {"rows": 8}, "inner": {"learning_rate": 1e-2}}
    config = write_adapter_config(tmp_path, "It is {n}.", **sections)
    talks, others, whole, work = (tmp_path / name for name in ("talks.jsonl", "others.jsonl", "whole", "work"))
    others.write_text(talks.read_text().replace("It is", "That makes"))
    settings = ("--set", "data.path=null", f"data.mixture={{{talks}: 2.0, {others}: 1.0}}")
    command = ["start", config, *settings, *MACHINE, "--workdir"]
    assert run([*command, whole], folder=tmp_path).code == 0
    during = ("signal_at", "adloco_p2p.training.hosting:Hosting.run_inner", "2", "before")
    stopped = run([*command, work], folder=tmp_path, fault=(*during, "SIGINT"))
    assert "saved; continue with" in stopped.output, stopped
    assert evaluated(work)[0] < 3 and exported(work, tmp_path / "early").keys() == {
        "model.safetensors",
        "adapter/adapter_model.safetensors",
    }
    assert run([*command, work], folder=tmp_path, fault=(*during, "SIGKILL")).code == -signal.SIGKILL
    ended = run([*command, work], folder=tmp_path)
    assert ended.code == 0 and "resumed at round" in ended.output, ended
    assert exported(work, tmp_path / "resumed") == exported(whole, tmp_path / "undisturbed")
    assert evaluated(work) == evaluated(whole)
    assert evaluated(work, "--data", others) == evaluated(whole, "--data", others)
