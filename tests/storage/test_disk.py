"""Directories that a verb fills, on a disk that does not take it all."""

from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from adloco_p2p.errors import StorageError
from adloco_p2p.storage.disk import filling, read_text, reported
from tests.storage.test_checkpoint import files_at_most


def write(output: Path, *, num_values: int) -> None:
    with filling(output):
        (output / "config.json").write_text("{}")
        (output / "adapter").mkdir()
        save_file({"weight": torch.zeros(num_values)}, output / "model.safetensors")


def test_a_damaged_text_is_named_and_a_missing_one_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "address.txt"
    assert read_text(path) == ""
    path.write_text("adloco://\n")
    assert read_text(path) == "adloco://\n"
    path.write_bytes(b"adloco\xff")
    with pytest.raises(StorageError, match=r"address\.txt: damaged") as raised:
        read_text(path)
    assert raised.value.code == "E405"


def test_a_model_that_could_not_be_written_whole_leaves_its_directory_empty(tmp_path: Path) -> None:
    output = tmp_path / "model"
    with files_at_most(4096), pytest.raises(StorageError, match="model: larger than a file may be here"):
        write(output, num_values=10_000)
    assert not any(output.iterdir())
    write(output, num_values=10)
    assert len([*output.iterdir()]) == 3


def test_an_error_that_is_not_of_the_system_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(SafetensorError, match="invalid header"), reported(tmp_path):
        raise SafetensorError("invalid header")


def test_a_directory_that_was_moved_is_named_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "attempts.txt"
    with pytest.raises(StorageError, match="or name the new place of one that was moved"), reported(path):
        path.read_text()
