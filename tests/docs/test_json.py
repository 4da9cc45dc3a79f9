"""docs/json.md against the verbs: which of them print for programs, and with which fields."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from adloco_p2p.cli import main, make_parser
from adloco_p2p.cli.parser import Parser
from adloco_p2p.commands import observe
from adloco_p2p.commands.console import OUTPUT_VERSION
from adloco_p2p.commands.signing import _leave
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model.ledger_entry import Statement
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.storage.admission_files import read_statements
from tests.test_process import author_of_a_run

PAGE = Path(__file__).parents[2] / "docs" / "json.md"


def rows() -> dict[str, str]:
    """Verb -> what the page says of its fields."""
    found = re.findall(r"^\| (`.+`) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    return {verb: fields for verbs, fields in found for verb in re.findall(r"`([^`]+)`", verbs)}


def verbs_with_json(parser: Parser, words: str = "") -> Iterator[str]:
    for name, verb in parser.verbs.items():
        yield from verbs_with_json(verb, f"{words}{name} ")
        if "--json" in verb.format_help() and not verb.verbs:
            yield f"{words}{name}"


def test_the_page_lists_every_verb_that_prints_for_programs() -> None:
    listed = {verb.removesuffix(" ROUND") for verb in rows()} - {"ledger verify"}
    assert listed == set(verbs_with_json(make_parser()))


@pytest.mark.parametrize("words", [["version"], ["explain-error", "E302"], ["bundle"]])
def test_the_fields_are_those_of_the_page(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.json").touch()
    more = ["--workdir", str(tmp_path)] if words == ["bundle"] else []
    assert main([*words, "--json", *more]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document.pop("output_version") == OUTPUT_VERSION
    fields = re.findall(r"`([a-z_]+)`", rows()[words[0]])
    assert list(document) == fields[:1] if words == ["explain-error", "E302"] else list(document) == fields
    if words[0] == "explain-error":
        assert list(document["errors"][0]) == fields[1:]


@pytest.mark.parametrize("words", ["invite", "members"])
def test_what_signers_and_members_read_has_the_fields_of_the_page(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    author_of_a_run(tmp_path, monkeypatch)
    assert main([words, "--json", "--workdir", str(tmp_path)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document.pop("output_version") == OUTPUT_VERSION
    assert list(document) == [name for name in re.findall(r"`([a-z_]+)`", rows()[words]) if name != "link"]


def test_a_ledger_that_is_not_sound_is_a_document_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = SimpleNamespace(run=RunConfig(), problems=lambda: ["round 3: the plan is not the one that was voted on"])
    monkeypatch.setattr(observe, "read_journal", lambda workdir: broken)
    assert main(["leaderboard", "--json", "--workdir", str(tmp_path)]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document.pop("output_version") == OUTPUT_VERSION
    assert list(document) == re.findall(r"`([a-z_]+)`", rows()["leaderboard"].partition("not sound")[2])
    assert document["is_sound"] is False and document["problems"]


def test_an_error_is_a_document_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--json", "--workdir", str(tmp_path), "--output", str(tmp_path / "out")]) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["output_version"] == OUTPUT_VERSION
    assert list(document["error"]) == ["code", "problems", "cause", "remedy"]
    words = PAGE.read_text().split("`error`:")[1].split("docs/errors.md")[0]
    assert re.findall(r"`([a-z_]+)`", words)[:4] == list(document["error"])


def test_a_statement_of_a_signer_shows_what_was_left_to_the_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = Statement(run=Digest("a" * 64), signer=PeerId("me"), serial=3, action="ban", subject=PeerId("other"), signature="00")
    signer = SimpleNamespace(workdir=tmp_path)
    assert _leave(signer, made, what="the ban of other", is_json=True) == 0  # type: ignore[arg-type]
    document = json.loads(capsys.readouterr().out)
    assert document.pop("output_version") == OUTPUT_VERSION
    assert list(document) == re.findall(r"`([a-z_]+)`", rows()["ban"])
    assert document["action"] == "ban" and document["subject"] == "other" and document["is_running"] is False
    assert list(read_statements(tmp_path).values()) == [made]
