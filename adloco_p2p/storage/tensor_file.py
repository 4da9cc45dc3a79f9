"""A writer of tensors in the safetensors format, which hashes them on their way to the disk, in one pass and without a copy.

The library's own writer serialises first, and the hash takes a second reading; with a checkpoint after every round that was the
largest cost of the node (benchmarks/node_overhead.py). The library does the reading, because it checks the format.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch

from adloco_p2p.core.model.scalars import Digest

_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.int64: "I64", torch.uint8: "U8"}
"""The names that the format gives the types of checkpoints."""
_ALIGNMENT = 8
"""The number of bytes to a multiple of which the header is padded with spaces."""


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> tuple[int, Digest]:
    """Write contiguous CPU tensors, sync the file, and return its size and SHA-256. Raises OSError."""
    header: dict[str, object] = {}
    end = 0
    views: list[memoryview] = []
    for name, tensor in sorted(tensors.items()):
        assert tensor.device.type == "cpu" and tensor.is_contiguous(), name
        view = tensor.detach().reshape(-1).view(torch.uint8).numpy().data
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [end, end + len(view)]}
        end += len(view)
        views.append(view)
    encoded = json.dumps(header, separators=(",", ":")).encode("ascii")
    encoded += b" " * (-len(encoded) % _ALIGNMENT)
    sha256 = hashlib.sha256()
    size = 0
    with path.open("wb", buffering=0) as file:
        for rest in (memoryview(len(encoded).to_bytes(8, "little") + encoded), *views):
            sha256.update(rest)
            size += len(rest)
            written = 0
            while written < len(rest):
                written += file.write(rest[written:])  # a full disk may take only a part
        os.fsync(file.fileno())
    return size, Digest(sha256.hexdigest())
