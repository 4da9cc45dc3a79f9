"""`tests/run.sh` with interpreters that only note what they are asked for."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
FOLDERS = {f"tests/{path.name}" for path in TESTS.iterdir() if any(path.glob("**/test_*.py"))}
NOTES = """#!/bin/sh
echo "${0#"$PWD"/} $*" >> asked
case "$*" in *"$FAILING"*) exit "$CODE" ;; esac
"""
TOOLS = (".venv-core/bin/python", *(f".venv/bin/{name}" for name in ("python", "ruff", "mypy", "lint-imports")))


def asked(folder: Path, *arguments: str, failing: str = "nothing", code: int = 1) -> tuple[int, list[str]]:
    """The exit code, and the commands in the order in which they began."""
    for name in TOOLS:
        program = folder / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(NOTES)
        program.chmod(0o755)
    (folder / "tests").mkdir()
    shutil.copy(TESTS / "run.sh", folder / "tests")
    own = {**os.environ, "FAILING": failing, "CODE": str(code)}
    ended = subprocess.run(["bash", "tests/run.sh", *arguments], cwd=folder, env=own, capture_output=True, check=False)
    return ended.returncode, (folder / "asked").read_text().splitlines()


def folders_of(commands: list[str], python: str) -> list[str]:
    """The folders of tests that this interpreter runs, in order of their names."""
    words = [word for line in commands if line.startswith(python) and "pytest tests" in line for word in line.split()]
    left_out = {word.removeprefix("--ignore=") for word in words if word.startswith("--ignore=")}
    named = [word for word in words if word.startswith("tests/")]
    return sorted([*named, *(name for name in FOLDERS if "tests" in words and name not in left_out)])


def test_every_folder_is_tested_once_and_those_without_torch_do_not_wait_for_it(tmp_path: Path) -> None:
    code, commands = asked(tmp_path)
    assert code == 0
    installed = next(number for number, line in enumerate(commands) if "torch==" in line)
    assert all(line.startswith((".venv-core/", ".venv/bin/python -m pip")) for line in commands[: installed + 1])
    shares = [line.partition("tests/sim --share ")[2] for line in commands if "tests/sim" in line and "ignore" not in line]
    assert sorted(shares) == ["1/3", "2/3", "3/3"] and any("--fail-under" in line for line in commands)
    assert folders_of(commands, ".venv/bin/python") == sorted(FOLDERS - {"tests/core", "tests/sim"})
    assert {line.split()[0] for line in commands} == {*TOOLS}


@pytest.mark.parametrize("failing", ["pytest tests/docs", "tests/sim --share 2/3", "torch==", "--fail-under", "format"])
def test_what_fails_fails_the_whole(failing: str, tmp_path: Path) -> None:
    code, commands = asked(tmp_path, failing=failing)
    assert code != 0
    assert any("pytest tests/swarm" in line for line in commands) == (failing != "torch=="), "the others run"


def test_a_choice_of_tests_reaches_all_of_them(tmp_path: Path) -> None:
    code, commands = asked(tmp_path, "-k", "this or that")
    assert code == 0 and [line.endswith("-k this or that") for line in commands] == [False, False, True, True, True]


def test_a_choice_need_not_be_in_all_folders_but_in_one(tmp_path: Path) -> None:
    """Where it chooses none of its tests pytest ends with 5."""
    for failing, fails in (("tests/core tests/sim", False), ("-k word", True)):
        (folder := tmp_path / failing.replace("/", "-")).mkdir()
        code, commands = asked(folder, "-k", "word", failing=failing, code=5)
        assert (code != 0) == fails and sum("-k word" in line for line in commands) == 3
