"""`evaluate` of a model whose loss is larger than any whose perplexity is a number."""

import json
import math
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tqdm

from adloco_p2p.cli import main
from adloco_p2p.commands import evaluation
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model.scalars import LARGEST_SCALAR
from adloco_p2p.core.planning import merge_policy
from adloco_p2p.data import feed
from adloco_p2p.training import hosting
from adloco_p2p.training.task_scores import _silent


class Engine:
    """Measures losses that a diverged model, and the merge of two, may have."""

    def __init__(self, *_: object) -> None: ...

    def restore(self, *_: object) -> None: ...

    def evaluate(self, instance: int) -> float:
        return (3.0, 1.5e7)[instance]

    def heldout_losses(self, instance: int) -> tuple[float, ...]:
        return ()

    def probe_merge(self, merge: object) -> Any:
        return SimpleNamespace(merged_loss=LARGEST_SCALAR)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (["--data", "none.txt"], "--data none.txt: no such file"),
        (["--tasks", "none.yaml"], "--tasks none.yaml: no such file"),
        (["--tasks", "mine", "--tasks-path", "none"], "--tasks-path none: no such directory"),
    ],
)
def test_a_wrong_path_is_reported_before_anything_is_read(
    option: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluation, "read_saved", lambda workdir, read: pytest.fail("it takes a minute to read"))
    assert main(["evaluate", "--workdir", "work", *option]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("empty.txt", b"", "cannot be read as text: its files are empty; give such files"),
        ("latin.txt", b"\xe9t\xe9", "not UTF-8: {}, line 1; convert such files"),
        ("other[1].jsonl", b'{"a": "x"}', "data.text_column: no column 'text' in "),
    ],
)
def test_data_that_cannot_be_used_are_named_by_the_option_that_names_them(
    name: str,
    content: bytes,
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = RunConfig()
    monkeypatch.setattr(evaluation, "read_saved", lambda workdir, read: (SimpleNamespace(run=run, sources=run), {}))
    file = tmp_path / name
    file.write_bytes(content)
    assert main(["evaluate", "--workdir", str(tmp_path), "--data", str(file)]) == 2
    shown = capsys.readouterr().err
    assert f"E207: --data {file}: {problem.format(file)}" in shown
    assert not {"data.path", "data.source"} & set(shown.split("cause:")[0].replace(":", " ").split())


def test_bars_of_others_draw_nothing_and_say_where_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    bar = _silent(tqdm.tqdm, "answers scored", said.append)
    assert list(bar(range(3), disable=False, desc="Running requests")) == [0, 1, 2]
    assert said[0] == "0 of 3 answers scored" and said[-1] == "3 of 3 answers scored"
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("as_json", [True, False])
def test_a_loss_without_a_perplexity_is_shown(
    as_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunConfig()
    store = SimpleNamespace(load_instance=lambda round, instance: ({}, {}))
    saved = SimpleNamespace(run=run, sources=run, round=1, instances=(0, 1), store=store)
    monkeypatch.setattr(evaluation, "read_saved", lambda workdir, read: (saved, read(saved)))
    monkeypatch.setattr(evaluation, "_plans_of", lambda saved: [None, None])
    monkeypatch.setattr(merge_policy, "final_merge", lambda plans, rules: None)
    monkeypatch.setattr(feed, "open_feed", lambda run, cache_dir: None)
    monkeypatch.setattr(hosting, "Hosting", Engine)
    asked = Namespace(
        workdir=tmp_path, data=None, tasks=None, limit=None, chat=False, tasks_path=None, json=as_json, lifeline=None
    )
    assert evaluation.evaluate(asked) == 0
    shown = capsys.readouterr().out
    if as_json:
        result = json.loads(shown)
        assert [one["heldout_loss"] for one in result["instances"]] == [3.0, 1.5e7]
        assert result["instances"][0]["perplexity"] == math.exp(3.0)
        assert result["instances"][1]["perplexity"] is result["merged"]["perplexity"] is None
    else:
        assert "held-out loss 15000000.0000 nats per token  perplexity inf" in shown
