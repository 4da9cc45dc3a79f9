"""Attempts that were begun are not begun again after a restart."""

from pathlib import Path

import pytest

from adloco_p2p.core.model.scalars import Digest
from adloco_p2p.errors import StorageError
from adloco_p2p.storage.attempt_keys import AttemptKeys


def key(number: int) -> Digest:
    return Digest(f"{number:064x}")


def test_a_key_is_begun_once_in_the_whole_life_of_a_peer(tmp_path: Path) -> None:
    path = tmp_path / "attempts.txt"
    keys = AttemptKeys(path)
    assert keys.begin(key(1)) and keys.begin(key(2))
    assert not keys.begin(key(1))
    restarted = AttemptKeys(path)
    assert not restarted.begin(key(1)) and not restarted.begin(key(2))
    assert restarted.begin(key(3))


def test_the_newest_keys_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "attempts.txt"
    keys = AttemptKeys(path)
    for number in range(300):
        assert keys.begin(key(number))
    assert len(path.read_text().split()) == 256
    assert not AttemptKeys(path).begin(key(299))


def test_an_attempt_that_cannot_be_written_down_does_not_begin(tmp_path: Path) -> None:
    keys = AttemptKeys(tmp_path / "gone" / "attempts.txt")
    with pytest.raises(StorageError, match=r"attempts\.txt"):
        keys.begin(key(1))
