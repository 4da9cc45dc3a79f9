"""Our writer of the safetensors format against the library's reader."""

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from adloco_p2p.storage.tensor_file import write_tensors


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"one": torch.arange(7.0)},
        {"b": torch.randn(3, 5), "a": torch.zeros(0), "steps": torch.tensor([4, -2])},
        {"scalar": torch.tensor(1.5)},
    ],
)
def test_the_library_reads_what_was_written(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    path = tmp_path / "state.safetensors"
    size, sha256 = write_tensors(path, tensors)
    read = load_file(path)
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[name], tensor) and read[name].dtype == tensor.dtype for name, tensor in tensors.items())
    assert (size, sha256) == (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())


def test_a_view_that_is_not_contiguous_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="transposed"):
        write_tensors(tmp_path / "x", {"transposed": torch.randn(2, 3).T})
