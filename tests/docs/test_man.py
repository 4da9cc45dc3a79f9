"""Man pages hold the help of every verb, in a form that roff prints as it is."""

import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

from adloco_p2p.cli import make_parser

MAN = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "man.py"))


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("COLUMNS", "80")
    return dict(MAN["pages"](make_parser()))


def test_every_verb_has_a_page_that_begins_as_apropos_reads_it(written: dict[str, str]) -> None:
    verbs = make_parser().verbs
    assert {f"adloco-peer-{verb}.1" for verb in verbs} | {"adloco-peer.1", "adloco-peer-command-stop.1"} <= set(written)
    for verb, parser in verbs.items():
        lines = written[f"adloco-peer-{verb}.1"].splitlines()
        assert lines[1] == ".SH NAME" and " \\- " in lines[2]
        assert set(map(MAN["escaped"], parser.format_help().rstrip().splitlines())) <= set(lines)


def test_a_line_of_help_is_no_command_of_roff() -> None:
    assert MAN["escaped"](".5 a\\b") == "\\&.5 a\\eb"
    assert MAN["escaped"]("'def '").startswith("\\&'")


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_roff_prints_the_help_as_it_is(written: dict[str, str]) -> None:
    help_text = make_parser().verbs["join"].format_help()
    shown = subprocess.run(
        ["groff", "-man", "-ww", "-Tascii", "-P-cbou", "-rLL=100n"],
        input=written["adloco-peer-join.1"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stderr == ""
    printed = {line.strip() for line in shown.stdout.splitlines()}
    assert all(line.strip() in printed for line in help_text.splitlines())
