"""Adapters over the network: two peers fine-tune a tiny chat model on conversations; another base is refused."""

import re
from pathlib import Path

import pytest
import torch
import transformers

from adloco_p2p.config.run_config import ModelConfig
from adloco_p2p.training.model import build_model
from tests.e2e.processes import TINY_MODEL, run
from tests.e2e.swarm_processes import PeerProcess, digests_by_round, founded
from tests.e2e.tiny_chat import write_adapter_config

ROUNDS = 6


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A run over a model and a file of this folder."""
    return write_adapter_config(
        tmp_path,
        "It is {n}.",
        name="tiny-finetune",
        admission={"kind": "open", "probation_rounds": 0},
        inner={"learning_rate": 1e-2, "warmup_steps": 2},
        work={"inner_steps": 40, "rounds": ROUNDS},
        evaluation={"rows": 8},
    )


def test_a_swarm_averages_adapters_and_refuses_another_base(config: Path, peers: list[PeerProcess], tmp_path: Path) -> None:
    # Its rounds are shorter than the start of a process.
    peers.append(PeerProcess(tmp_path / "first", ("start", config, *founded(tmp_path, "first", "second"))).start())
    first = peers[0]
    joining = ("join", "--initial-peers", *first.addresses(), "--peer-set", "allow_local_files=true")
    peers.append(PeerProcess(tmp_path / "second", joining).start())
    second = peers[1]
    assert [first.end(), second.end()] == [0, 0]
    digests = digests_by_round([first, second])
    assert digests and all(len(found) == 1 for found in digests.values())
    (final,) = (event["heldout_loss"] for event in first.events if event["event"] == "finished")
    # Which hosts trained the first round, and which one evaluated it, follows from their names and from who was slow.
    trained = [event for peer in peers for event in peer.events if event["event"] == "round" and event["loss"] is not None]
    assert final < min(trained, key=lambda event: event["round"])["loss"] - 0.05

    model = tmp_path / "model"
    assert run(["export", "--workdir", second.workdir, "--output", model], folder=tmp_path).code == 0
    card = (model / "README.md").read_text()
    assert set(re.findall(r"\| `(\w+)` \| \d+ \| \d+ \|", card)) & {first.me, second.me}
    assert str(tmp_path) not in card and transformers.AutoModelForCausalLM.from_pretrained(model).dtype == torch.bfloat16

    asking = ["generate", "--workdir", second.workdir, "--prompt", "3 + 1?", "--temperature", "0", "--max-new-tokens", "20"]
    asked = run(asking, folder=tmp_path)
    assert asked.code == 0 and asked.output.startswith("3 + 1?\n"), asked  # an answer, not a continuation


def test_a_joiner_with_another_base_is_refused(config: Path, peers: list[PeerProcess], tmp_path: Path) -> None:
    settings = ("--set", "work.rounds=10000")
    peers.append(PeerProcess(tmp_path / "first", ("start", config, *settings)).start())
    first = peers[0]
    first.wait_for("round", round=0)  # has read its base
    other = build_model(ModelConfig(**TINY_MODEL), vocab_size=259, sequence_length=64, seed=2)  # type: ignore[arg-type]
    other.save_pretrained(tmp_path / "base")
    joining = ("join", "--initial-peers", *first.addresses(), "--peer-set", "allow_local_files=true")
    peers.append(PeerProcess(tmp_path / "second", joining).start())
    assert peers[1].end() == 2
    assert re.search(r"E218.* digest [0-9a-f]{64} here, .* started with [0-9a-f]{64}", peers[1].words, re.DOTALL)
