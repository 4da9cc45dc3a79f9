"""`python -m benchmarks.finetune` on a model of seconds: its cells, its records and the figure that it is about."""

import argparse
import json
from pathlib import Path

import pytest
import torch
import yaml

from adloco_p2p.config.run_config import InnerConfig, ModelConfig, RunConfig
from adloco_p2p.core.model.rules import BatchRules, WorkRules
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.training.learning_rate import learning_rate_schedule
from adloco_p2p.training.model import build_model
from benchmarks import finetune
from benchmarks.finetune import best, gains, train_cells
from benchmarks.method.store import read_records
from tests.data.test_chat_template import save_tokenizer
from tests.e2e.processes import TINY_MODEL


def record(row: str, seed: int, rate: float, before: float, after: float, *settings: str) -> dict[str, object]:
    return {"row": row, "seed": seed, "rate": rate, "before": before, "after": after, "set": list(settings)}


def test_the_gain_compares_both_at_their_best_rate_of_the_same_seed() -> None:
    records = [
        record("one", 1, 1e-3, 3.0, 2.0),
        record("one", 1, 2e-3, 3.0, 2.2),
        record("all", 1, 1e-3, 3.0, 2.5),
        record("all", 1, 2e-3, 3.0, 2.1),
        record("all", 2, 2e-3, 9.0, 1.0),
        record("all", 1, 1e-3, 3.0, 1.0, "work.rounds=24"),
    ]
    assert best(records, "one")[1]["rate"] == 1e-3
    gain = gains(records, "all")
    assert gain is not None and gain.mean == pytest.approx(0.9) and gain.half_width is None
    assert gains(records, "small") is None


@pytest.fixture
def config(tmp_path: Path) -> Path:
    model = build_model(ModelConfig(**TINY_MODEL), vocab_size=259, sequence_length=64, seed=1)  # type: ignore[arg-type]
    model.to(torch.bfloat16).save_pretrained(tmp_path / "base")
    save_tokenizer(tmp_path / "base")
    talks = [[{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": "yes yes yes"}] for n in range(200)]
    (tmp_path / "talks.jsonl").write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
    document = {
        "mode": "diloco",
        "model": {"pretrained": str(tmp_path / "base"), "lora": {"rank": 2}},
        "data": {
            "source": "json",
            "path": str(tmp_path / "talks.jsonl"),
            "messages_column": "messages",
            "sequence_length": 64,
            "heldout_fraction": 0.2,
        },
        "inner": {"warmup_steps": 2},
        "work": {"inner_steps": 4, "rounds": 2},
        "batch": {"initial_batch": 4, "max_batch": 4},
        "averaging": {"codec": "int8"},
        "evaluation": {"rows": 4},
    }
    path = tmp_path / "finetune.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.mark.parametrize("num_hosts", [1, 4])
def test_the_warm_up_by_samples_is_over_once_however_many_hosts_there_are(num_hosts: int) -> None:
    run = RunConfig(
        inner=InnerConfig(learning_rate=1.0, warmup_samples=48, schedule="constant"),
        work=WorkRules(inner_steps=8, rounds=2),
        batch=BatchRules(initial_batch=8, max_batch=8),
    )
    for host in map(InstanceId, range(num_hosts)):
        rates = [
            learning_rate_schedule(work, inner=run.inner, initial_batch=8).learning_rate(step, None)
            for work in (finetune.work_of(run, host, number, num_hosts) for number in range(2))
            for step in range(8)
        ]
        assert rates == pytest.approx([1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, *[1.0] * 11])


def test_hosts_train_on_samples_of_their_own() -> None:
    run = RunConfig(work=WorkRules(inner_steps=8, rounds=2), batch=BatchRules(initial_batch=8, max_batch=8))
    shares = [finetune.work_of(run, InstanceId(host), number, 4).share for number in range(2) for host in range(4)]
    assert [(share.first_sample, share.samples) for share in shares] == [(16 * place, 16) for place in range(8)]


def test_cells_are_trained_once_and_repeat_themselves(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(finetune, "KEPT", tmp_path / "none.jsonl.gz")
    arguments = argparse.Namespace(
        config=config, rows=["one", "all"], rates=["1e-2"], seeds=[1], hosts=2, set=[], output=tmp_path / "a.jsonl"
    )
    train_cells(arguments)
    train_cells(arguments)  # nothing is left to do
    arguments.output = tmp_path / "b.jsonl"
    train_cells(arguments)
    first, again = read_records(tmp_path / "a.jsonl"), read_records(tmp_path / "b.jsonl")
    assert [found["row"] for found in first] == ["one", "all"] and first[0]["hosts"] == 1
    assert [found["after"] for found in first] == [found["after"] for found in again]
    assert first[0]["before"] == first[1]["before"] > first[0]["after"] and first[1]["before"] > first[1]["after"]
    assert first[0]["after"] != first[1]["after"] and first[0]["num_bytes"] > 3 * first[1]["num_bytes"]
