"""Lines on a terminal end at spaces, and what is copied stays whole."""

import contextlib
import io
import logging

import pytest

from adloco_p2p.cli import WithFields, main
from adloco_p2p.views.wrapping import fitted, wrapped

LINK = "adloco://" + "a" * 90
COMMAND = "adloco-peer export --workdir '/srv/my runs/first of all' --output '/srv/my runs/a model'"


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("short", ["short"]),
        ("  a held-out loss of some instance", ["  a held-out loss of", "    some instance"]),
        (f"join link: {LINK}", ["join link:", f"  {LINK}"]),
        (f"done. Write the model: {COMMAND}", ["done. Write the", "  model:", f"  {COMMAND}"]),
        (f"`{COMMAND}` makes one more", [f"`{COMMAND}`", "  makes one more"]),
        (
            f"  '/my env/bin/{COMMAND.replace(' ', chr(39) + ' ', 1)}",
            [f"  '/my env/bin/{COMMAND.replace(' ', chr(39) + ' ', 1)}"],
        ),
        ("adloco-peer 0.1.0, torch 2.13.0", ["adloco-peer 0.1.0,", "  torch 2.13.0"]),
        ("one\n\nand another one of these", ["one", "", "and another one of", "  these"]),
    ],
)
def test_lines_end_at_spaces_and_what_is_copied_stays_whole(text: str, lines: list[str]) -> None:
    assert wrapped(text, 20).split("\n") == lines


def test_lines_of_the_log_end_at_spaces_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    record = logging.makeLogRecord({"msg": "a warning of several words", "path": "a/b"})
    monkeypatch.setenv("COLUMNS", "20")
    assert WithFields("%(message)s").format(record) == "a warning of several words, path a/b"
    monkeypatch.setattr("sys.stderr", Screen())
    assert WithFields("%(message)s").format(record) == "a warning of several\n  words, path a/b"


def test_words_beside_a_label_stay_to_its_right() -> None:
    assert wrapped("none can be used:\n  /ip4/1 refused it", 20, hanging=6) == (
        "none can be\n      used:\n        /ip4/1\n          refused it"
    )


def test_only_a_terminal_gets_other_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    text = "words that a program may look for in a pipe"
    assert fitted(text, io.StringIO()) == text
    assert max(map(len, fitted(text, Screen()).split("\n"))) <= 20


@pytest.mark.parametrize(
    "words",
    [["status", "--quiet", "--workdir", "/nowhere"], ["start", "--wrokdir", "x"], ["explain-error"], ["evaluate", "--help"]],
)
def test_no_line_of_a_verb_breaks_a_word(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def said() -> str:
        with contextlib.suppress(SystemExit):
            main(words)
        return "\n".join(capsys.readouterr())

    monkeypatch.setenv("COLUMNS", "1000")
    whole = said().split()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    narrow = said()
    assert narrow.split() == whole
    assert all(len(line) <= 80 for line in narrow.split("\n") if "`" not in line and "  adloco-peer" not in line)
