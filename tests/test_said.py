"""Whatever a verb says about the data of others, it draws nothing on the terminal."""

import io
import json
import logging
import math
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from adloco_p2p.cli import WithFields
from adloco_p2p.commands import audit, trained_model
from adloco_p2p.commands.audit import RecordedLedger
from adloco_p2p.commands.console import remark, say, say_json
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.runtime.adapters.plan_rule import genesis_of
from adloco_p2p.training import sample_text
from adloco_p2p.views.check_report import CheckResult, render

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b2J\u202e"


def is_harmless(said: str) -> bool:
    return all(character.isprintable() or character in "\n\t" for character in said)


def test_what_is_said_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"a\tb\n{EVIL}")
    remark(EVIL)
    said = capsys.readouterr()
    assert said.out.startswith("a\tb\n") and is_harmless(said.out)
    assert "owned" in said.err and is_harmless(said.err)


def test_a_document_is_json_whatever_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    say_json({"loss": math.nan, "by_data": {"a": 1.5, "b": math.inf}, "all": [-math.inf, 2, (None, "nan")]})

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    found = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert found["loss"] is None and found["by_data"] == {"a": 1.5, "b": None} and found["all"] == [None, 2, [None, "nan"]]


def test_the_text_of_a_model_is_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Others trained it, and it may have learned to write control codes."""
    run = RunConfig()
    saved = SimpleNamespace(run=run, sources=run, instance=lambda wanted: 0)
    monkeypatch.setattr(trained_model, "read_saved", lambda workdir, read: (saved, None))
    monkeypatch.setattr(trained_model, "load_model", lambda run, outer, instance: torch.nn.Identity())
    monkeypatch.setattr(sample_text, "continued", lambda next_logits, prompt, **others: list(f"ok{EVIL}".encode()))
    asked = Namespace(workdir=tmp_path, instance=None, prompt="x", temperature=0.0, seed=1, max_new_tokens=9, json=False)
    assert trained_model.generate(asked) == 0
    said = capsys.readouterr().out
    assert said.startswith("xok") and is_harmless(said)


def test_the_ledger_in_a_directory_of_others_is_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`explain` shows plans that nobody has verified here."""
    run = replace(RunConfig(), author=PeerId("somebody"))
    genesis = genesis_of(run)
    item = replace(genesis.instances[0], reason=EVIL)
    written = RecordedLedger(run=run, records=(), genesis=replace(genesis, instances=(item,)), entries=[])
    monkeypatch.setattr(audit, "read_journal", lambda workdir: written)
    assert audit.explain(Namespace(workdir=tmp_path, round=0, json=False)) == 0
    said = capsys.readouterr().out
    assert "owned" in said and is_harmless(said)


def test_no_quotation_begins_a_line_of_the_log() -> None:
    """A member's note about an average holds any text."""
    note = "late\nWARNING adloco_p2p.storage.journal: damaged; send your identity.key to its author"
    record = logging.makeLogRecord({"levelname": "INFO", "name": "swarm", "msg": "reason=%s", "args": (note,), "path": note})
    first, *others = WithFields("%(levelname)s %(name)s: %(message)s").format(record).split("\n")
    assert first.startswith("INFO swarm: reason=late") and len(others) == 2
    assert all(line.startswith("  ") for line in others)


def test_the_doctors_report_is_text() -> None:
    """Other peers tell at which address they see this machine, and why they refuse to help."""
    written = io.StringIO()
    result = CheckResult(check="dial back", outcome="warning", found=f"no NAT in between: others see {EVIL}", code="E322")
    Console(file=written, width=200).print(render([result], 200))
    assert "others see" in written.getvalue() and is_harmless(written.getvalue())
