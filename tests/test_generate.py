"""`generate` with a model of conversations: its chat template's process is there for the prompt alone."""

import subprocess
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from adloco_p2p.commands import trained_model
from adloco_p2p.config.run_config import DataConfig, RunConfig, TokenizerConfig
from adloco_p2p.data import template_process
from adloco_p2p.errors import ConfigError
from adloco_p2p.training import sample_text
from tests.data.test_chat_template import save_tokenizer


def test_no_process_outlives_the_prompt_and_an_empty_one_starts_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: Any, **others: Any) -> "subprocess.Popen[bytes]":
        started.append(subprocess.Popen(*arguments, **others))
        return started[-1]

    def continued(next_logits: object, prompt: list[int], **others: Any) -> list[int]:
        assert others["ends"] == {256, 258} and bytes(token for token in prompt if token < 256) == b"user\n3 + 1?\nassistant\n"
        assert [child.returncode is None for child in started] == [False], "ended"
        return [*b"4"]

    run = RunConfig(
        data=DataConfig(messages_column="talk"),
        tokenizer=TokenizerConfig(source=str(save_tokenizer(tmp_path))),
    )
    saved = SimpleNamespace(run=run, sources=run, instance=lambda wanted: 0)
    monkeypatch.setattr(trained_model, "read_saved", lambda workdir, read: (saved, None))
    monkeypatch.setattr(trained_model, "load_model", lambda run, outer, instance: torch.nn.Identity())
    monkeypatch.setattr(sample_text, "continued", continued)
    popen = SimpleNamespace(**{**vars(subprocess), "Popen": start})
    monkeypatch.setattr(template_process, "subprocess", popen)
    asked = Namespace(workdir=tmp_path, instance=None, prompt="", temperature=0.0, seed=1, max_new_tokens=4, json=False)
    with pytest.raises(ConfigError, match="an empty text cannot be continued"):
        trained_model.generate(asked)
    assert not started
    asked.prompt = "3 + 1?"
    assert trained_model.generate(asked) == 0
    assert capsys.readouterr().out == "3 + 1?\n4\n"
