"""The invitations in a working directory."""

from pathlib import Path

import pytest

from adloco_p2p.storage.admission_files import keep_invitations, read_invitations


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
