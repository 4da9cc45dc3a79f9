"""`evaluate --tasks`: lm-eval on local tasks, without a hub, against log-probabilities that are added up by hand."""

import json
from pathlib import Path

import pytest
import torch
import transformers

from adloco_p2p.commands.evaluation import merged_outer
from adloco_p2p.commands.trained_model import open_saved
from tests.e2e.processes import MACHINE, Ended, run, write_config

QUESTIONS = [("the batch", ("of a merge", "round and round", "peer")), ("step by", ("step", "plan merge batch", "outer"))]
ANSWERS = [1, 0]


def write_task(folder: Path, *, answers: list[int]) -> Path:
    """A task of lm-eval with its data beside it: which ending is the likeliest?"""
    folder.mkdir()
    rows = [
        {"question": question, "choices": choices, "answer": answer}
        for (question, choices), answer in zip(QUESTIONS, answers, strict=True)
    ]
    (folder / "endings.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {
        "task": "endings",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / "endings.jsonl")}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "answer",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }
    path = folder / "endings.yaml"
    path.write_text(json.dumps(task))  # which is YAML
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with `work`, after a round of one instance, its export in `model`, a task in `asked`, and a text."""
    folder = tmp_path_factory.mktemp("trained")
    settings = ("--set", "instances.count=1", "work.rounds=1", "merge.policy=none")
    for arguments in (
        ["start", write_config(folder), *settings, "--workdir", folder / "work", *MACHINE],
        ["export", "--workdir", folder / "work", "--output", folder / "model"],
    ):
        ended = run(arguments, folder=folder)
        assert ended.code == 0, ended
    write_task(folder / "asked", answers=[0, 0])
    (folder / "text.txt").write_text("text")
    return folder


def evaluate(trained: Path, *options: object) -> Ended:
    return run(["evaluate", "--workdir", trained / "work", "--tasks", *options], folder=trained)


def likeliest(model: Path) -> list[int]:
    """Of each question the choice with the largest log-probability: its bytes after the question's and a space."""
    module = transformers.AutoModelForCausalLM.from_pretrained(model).eval()
    found = []
    for question, choices in QUESTIONS:
        sums = []
        for choice in choices:
            ids = torch.tensor([list(f"{question} {choice}".encode())])
            with torch.no_grad():
                logs = module(input_ids=ids).logits[0].log_softmax(-1)
            sums.append(sum(float(logs[place - 1, ids[0, place]]) for place in range(len(question), ids.shape[1])))
        found.append(max(range(len(sums)), key=lambda choice: sums[choice]))
    return found


def test_scores_are_those_of_log_probabilities_by_hand(trained: Path, tmp_path: Path) -> None:
    right = likeliest(trained / "model")
    wrong = [right[0], (right[1] + 1) % 3]
    results = []
    for name, answers in (("right", right), ("half", wrong), ("again", right)):
        ended = evaluate(trained, write_task(tmp_path / name, answers=answers), "--json")
        assert ended.code == 0 and not any(words in ended.errors for words in ("git", "it/s")), ended
        results.append(json.loads(ended.output))
    assert [result["tasks"][0]["metrics"]["acc"] for result in results] == [1.0, 0.5, 1.0]
    assert [result["tasks"][0]["num_documents"] for result in results] == [2, 2, 2]
    digests = [result["tasks_digest"] for result in results]
    assert digests[0] == digests[2] != digests[1], "the digest is of what was asked, wherever it lies"
    ended = evaluate(trained, tmp_path / "half" / "endings.yaml", "--limit", "1")
    assert ended.code == 0 and "1 document  acc 1.0000" in ended.output and "; tasks " in ended.output, ended


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["missing.yaml"], "E223: --tasks missing.yaml: "),
        (["{}/asked/endings.yaml", "--chat"], "E208: --chat: the tokenizer of this run has no chat template"),
        (["{}/asked/endings.yaml", "--data", "{}/text.txt"], "E200: --data: gives a held-out loss"),
    ],
)
def test_what_cannot_be_scored_is_refused(options: list[str], problem: str, trained: Path) -> None:
    ended = evaluate(trained, *(option.format(trained) for option in options))
    assert ended.code == 2 and problem in ended.errors, ended


def test_options_of_tasks_need_tasks(trained: Path) -> None:
    ended = run(["evaluate", "--workdir", trained / "work", "--limit", "3"], folder=trained)
    assert ended.code == 2 and "--limit: only tasks take it" in ended.errors, ended


def test_several_instances_are_merged_first(tmp_path: Path) -> None:
    """Of a run that was stopped between its fork and its end."""
    fault = ("signal_at", "adloco_p2p.training.hosting:Hosting.run_inner", "6", "before", "SIGINT")
    run(["start", write_config(tmp_path), "--workdir", tmp_path / "work", *MACHINE], folder=tmp_path, fault=fault)
    saved = open_saved(tmp_path / "work")
    parts = [saved.outer(instance) for instance in saved.instances]
    assert len(parts) == 3
    threes = [plan.instances for plan in saved.durable.plans if len(plan.instances) == 3]
    plans = {item.instance: item.requested_batch for item in threes[-1]}
    target, outer = merged_outer(saved)
    assert target in saved.instances
    weights = torch.tensor([float(plans[instance]) for instance in saved.instances])
    by_hand = (torch.stack(parts) * weights[:, None]).sum(0) / weights.sum()
    assert torch.allclose(outer, by_hand, atol=1e-6) and not torch.allclose(outer, parts[0], atol=1e-6)
