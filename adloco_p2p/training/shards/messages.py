"""The messages between a peer and the processes that hold its model in parts: a word, and plain values and tensors by name."""

import json
from typing import Any

import safetensors.numpy
import safetensors.torch
import torch

from adloco_p2p.numerics.batch import Batch

DONE, FAILED = "done", "failed"
"""The words of answers; the words of commands are methods of `Shard`."""
_LENGTH_BYTES = 4

Values = dict[str, Any]
"""Numbers, texts, lists of them, and tensors on the CPU, by name."""


def encode(word: str, values: Values) -> bytes:
    tensors = {name: value.contiguous().numpy() for name, value in values.items() if isinstance(value, torch.Tensor)}
    plain = {name: value for name, value in values.items() if name not in tensors}
    head = json.dumps([word, plain]).encode("ascii")  # NaN is allowed: the loss of a model that diverged
    body: bytes = safetensors.numpy.save(tensors)  # torch's form refuses tensors that share memory, as ids and labels may
    return len(head).to_bytes(_LENGTH_BYTES, "big") + head + body


def decode(message: bytes) -> tuple[str, Values]:
    end = _LENGTH_BYTES + int.from_bytes(message[:_LENGTH_BYTES], "big")
    word, plain = json.loads(message[_LENGTH_BYTES:end])
    return word, {**plain, **safetensors.torch.load(message[end:])}


def values_of(rows: Batch) -> Values:
    """Return the values from which a Batch is made."""
    values = {"input_ids": rows.input_ids, "labels": rows.labels}
    return values if rows.positions is None else {**values, "positions": rows.positions}
