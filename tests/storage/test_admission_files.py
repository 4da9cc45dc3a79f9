"""The invitations and the serial numbers of a working directory."""

import itertools
import multiprocessing
from pathlib import Path

import pytest

from adloco_p2p.storage.admission_files import keep_invitations, read_invitations, take_serial


@pytest.mark.parametrize("torn", ["", "AbC", "x" * 200])
def test_a_torn_last_line_is_no_invitation_and_gives_way_to_the_next(tmp_path: Path, torn: str) -> None:
    keep_invitations(tmp_path, ["first", "second"])
    path = tmp_path / "invitations.txt"
    path.write_text(path.read_text() + torn)
    assert read_invitations(tmp_path) == ["first", "second"]
    keep_invitations(tmp_path, ["third"])
    assert read_invitations(tmp_path) == ["first", "second", "third"]
    assert path.stat().st_mode & 0o777 == 0o600, "everybody who reads one may join"


def test_a_directory_without_a_whole_line_holds_no_invitation(tmp_path: Path) -> None:
    assert read_invitations(tmp_path) == []
    (tmp_path / "invitations.txt").write_text("AbC")
    assert read_invitations(tmp_path) == []


COMMANDS, TIMES = 2, 40


def _command(workdir: Path, name: int) -> list[int]:
    """Do what two commands at once may do, many times."""
    taken = []
    for number in range(TIMES):
        taken.append(take_serial(workdir, least=1))
        keep_invitations(workdir, [f"{name}.{number}"])
    return taken


def test_commands_at_once_get_serial_numbers_of_their_own_and_lose_no_invitation(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(COMMANDS) as pool:
        by_command = pool.starmap(_command, [(tmp_path, name) for name in range(COMMANDS)], chunksize=1)
    assert sorted(itertools.chain(*by_command)) == list(range(1, COMMANDS * TIMES + 1))
    assert sorted(read_invitations(tmp_path)) == sorted(
        f"{name}.{number}" for name in range(COMMANDS) for number in range(TIMES)
    )


@pytest.mark.parametrize("torn", ["", "x", "41"])
def test_a_serial_number_is_never_below_those_that_are_known(tmp_path: Path, torn: str) -> None:
    (tmp_path / "serial.txt").write_text(torn)
    assert take_serial(tmp_path, least=7) == (42 if torn == "41" else 7)
    assert take_serial(tmp_path, least=7) == (43 if torn == "41" else 8)
