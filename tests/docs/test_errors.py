"""The table of errors: complete, used, printed, and the page generated from it."""

import ast
import errno
import json
import re
from pathlib import Path

import pytest

from adloco_p2p import error_codes, errors
from adloco_p2p.cli import main
from adloco_p2p.core.model.protocol import PROTOCOLS
from adloco_p2p.error_codes import ERROR_CODES, EXIT_CODES, as_markdown
from adloco_p2p.errors import AdlocoError, ConfigError, ShardLost, StorageError

REPOSITORY = Path(__file__).parents[2]
TABLE = REPOSITORY / "adloco_p2p" / "error_codes.py"
CODE = re.compile(r"(?<![\w#])E\d{3}\b")


def codes_in_sources() -> dict[str, str]:
    """Every string of the package outside the table that is a code, or an error message that begins with one, and where."""
    found: dict[str, str] = {}
    for path in sorted((REPOSITORY / "adloco_p2p").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if path != TABLE and isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= dict.fromkeys(CODE.findall(node.value), f"{path}:{node.lineno}")
    return found


def test_the_page_is_generated_from_the_table() -> None:
    assert (REPOSITORY / "docs" / "errors.md").read_text() == as_markdown()


def test_every_code_is_in_the_table_and_every_entry_is_used() -> None:
    used = codes_in_sources()
    assert not {code: where for code, where in used.items() if code not in ERROR_CODES}
    assert not set(ERROR_CODES) - set(used)


def test_entries_are_complete() -> None:
    for code, entry in ERROR_CODES.items():
        assert CODE.fullmatch(code) and int(code[1]) in EXIT_CODES
        assert entry.title and entry.cause.endswith(".") and entry.remedy.endswith("."), code
        assert entry.remedy.count("`") % 2 == 0, code


def test_every_class_has_a_code_of_its_exit_code() -> None:
    classes = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, AdlocoError)]
    for kind in classes:
        assert kind.code[1] == str(kind.exit_code) and kind.code in ERROR_CODES, kind


def test_a_code_of_another_exit_code_is_our_mistake() -> None:
    with pytest.raises(AssertionError):
        StorageError("disk", code="E201")
    with pytest.raises(AssertionError):
        ConfigError("setting", code="E299")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["export", "--workdir", "nowhere", "--output", "model"], "E204"),
        (["config", "show", "nowhere.yaml"], "E202"),
        (["config", "show", "--set", "work.inner_steps=-1"], "E201"),
        (["explain-error", "E999"], "E200"),
    ],
)
def test_messages_carry_their_code(
    words: list[str], code: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == int(code[1])
    said = capsys.readouterr().err
    assert said.startswith(f"adloco-peer: {code}: ")
    entry = ERROR_CODES[code]
    assert said.endswith(f"\n  cause:  {entry.cause}\n  remedy: {entry.remedy}\n")


def test_a_lost_process_of_a_divided_model_is_no_crash(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(arguments: object) -> None:
        raise ShardLost("shards: process 1 was killed")

    monkeypatch.setattr("adloco_p2p.commands.train.start", fail)
    assert main(["start", "--workdir", "w"]) == 1
    assert capsys.readouterr().err.startswith("adloco-peer: E103: shards: process 1 was killed\n  cause:")


def test_argparse_carries_a_code_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["export", "--workdir"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "adloco-peer: E200: " in said and said.endswith(f"  remedy: {ERROR_CODES['E200'].remedy}\n")


def test_with_json_an_error_is_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["status", "--json", "--workdir", str(tmp_path)]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error.keys() == {"code", "problems", "cause", "remedy"} and error["code"] == "E225"
    assert error["problems"] == [f"{tmp_path}: no node runs in this directory"]


def test_a_remedy_names_the_working_directory_of_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(arguments: object) -> None:
        raise StorageError("the disk is full", code="E402")

    monkeypatch.setattr("adloco_p2p.commands.train.start", fail)
    monkeypatch.setattr("adloco_p2p.commands.trained_model.export", fail)
    assert main(["start", "--workdir", "my run"]) == 4
    assert "`df -h 'my run'` shows the free space" in capsys.readouterr().err
    assert main(["export", "--workdir", "my run", "--output", "model"]) == 4
    assert "`df -h DIR` shows the free space" in capsys.readouterr().err, "the disk of the model may be another one"


def test_a_new_directory_of_a_remedy_is_no_working_directory_at_hand() -> None:
    remedy = ERROR_CODES["E230"].remedy_in(Path("w"))
    assert "`adloco-peer status --workdir w`, `adloco-peer report --workdir w --output DIR-2`" in remedy


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["strat"], "strat: no such verb; did you mean start?"),
        (["config", "shwo"], "shwo: no such verb; did you mean show?"),
        (["start", "--work-dir", "x"], "--work-dir: no such option of adloco-peer start; did you mean --workdir?"),
        (["start", "--workdir", "x", "--ofline=1"], "--ofline: no such option of adloco-peer start; did you mean --offline?"),
        (["--frobnicate"], "--frobnicate: no such option of adloco-peer"),
        (["export", "--workdir", "x"], "the following arguments are required: --output"),
    ],
)
def test_a_misspelt_word_comes_with_the_likely_one(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert f"adloco-peer: E200: {told}\n" in capsys.readouterr().err


def test_the_version_is_an_option_and_a_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    said = capsys.readouterr().out
    assert re.fullmatch(rf"adloco-peer \S.*, {PROTOCOLS}, Python 3\.\S+\n", said)
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, said)


@pytest.mark.parametrize(
    ("code", "told"),
    [("E354x", "one looks like E302"), ("E317", "the nearest are E314, E315, E316"), ("9", "nearest are E101")],
)
def test_an_unknown_code_comes_with_near_ones(code: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain-error", code]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(("number", "code"), [(errno.EROFS, "E403"), (errno.EACCES, "E403"), (errno.ENOSPC, "E402")])
def test_a_report_that_cannot_be_written_is_an_error_of_the_disk(
    number: int, code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(events: object, output: Path, **options: object) -> None:
        raise OSError(number, "no", str(output))

    (tmp_path / "events.jsonl").write_text("")
    monkeypatch.setattr("adloco_p2p.storage.event_log.recorded_events", lambda path: [])
    monkeypatch.setattr("adloco_p2p.views.run_report.draw_report", refuse)
    assert main(["report", "--workdir", str(tmp_path), "--output", str(tmp_path / "out")]) == 4
    assert f"adloco-peer: {code}: {tmp_path / 'out'}: " in capsys.readouterr().err


def test_explain_error_prints_cause_and_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    for code in ("e302", "302"):
        assert main(["explain-error", code]) == 0
        said = capsys.readouterr().out
        assert said == error_codes.explained("E302") + "\n"
    assert "cause:" in said and "remedy:" in said
    assert main(["explain-error"]) == 0
    listed = capsys.readouterr().out
    assert all(error_codes.explained(code) in listed for code in ERROR_CODES)
