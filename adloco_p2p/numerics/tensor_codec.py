"""The interface of a codec, the heads of encoded vectors, and checks of their size."""

import math
import struct
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
import torch

from adloco_p2p.errors import RemoteProtocolError

Buffer = bytes | bytearray | memoryview

SIZE = struct.Struct("<I")  # number of values: the head of codecs whose length does not determine it
VARIABLE_HEAD = struct.Struct("<II")  # number of values and of all bytes: the head of codecs with `is_variable`
MAX_PART_VALUES = 1 << 24
"""The most values that the head of one buffer may claim."""


class TensorCodec(Protocol):
    """Turns float32 values into bytes and back. `code` names the codec on the wire and is never reused for another one; for
    `group` and `needs_feedback` see `codecs.py`."""

    @property
    def name(self) -> str: ...
    @property
    def code(self) -> int: ...
    @property
    def group(self) -> int: ...
    @property
    def needs_feedback(self) -> bool: ...
    @property
    def is_verbatim(self) -> bool:
        """Whether the bytes are the float32 values themselves, so that coding needs no memory of its own."""
        ...

    @property
    def returns_mean(self) -> bool:
        """Whether the average that travels back equals the mean up to negligible rounding. Otherwise only the Gram matrix of
        the contributions gives the statistics of the norm test."""
        ...

    @property
    def largest(self) -> float:
        """The largest magnitude that `encode` keeps finite."""
        ...

    @property
    def is_variable(self) -> bool:
        """Whether the number of bytes depends on the values. The bytes then begin with a `VARIABLE_HEAD`."""
        ...

    def num_bytes(self, size: int) -> int:
        """Return the encoded bytes of so many values: exactly, or at most where `is_variable`."""
        ...

    def encode(self, values: torch.Tensor) -> memoryview:
        """Encode a contiguous float32 tensor [n] of magnitudes up to `largest`. May share the tensor's memory."""
        ...

    def decode(self, data: Buffer) -> torch.Tensor:
        """Decode bytes to a float32 tensor [n]. May share the memory of `data`. Raises RemoteProtocolError."""
        ...

    def cuts(self, data: Buffer, size: int, length: int) -> Iterator[Buffer]:
        """Yield the encodings of `length` values each, the last perhaps of fewer, cut from that of `size` values. `length` is a
        multiple of `group`. Raises RemoteProtocolError where the length of the bytes is not that of the values claimed."""
        ...

    @property
    def mean_codec(self) -> "TensorCodec":
        """The codec in which the average of encoded vectors travels back."""
        ...


def num_blocks(size: int, group: int) -> int:
    return math.ceil(size / group)


def padded(values: np.ndarray, group: int) -> np.ndarray:
    """Return the values as blocks [blocks, group], with zeros at the end."""
    whole = np.zeros(num_blocks(len(values), group) * group, dtype=values.dtype)
    whole[: len(values)] = values
    return whole.reshape(-1, group)


def check_scales(scales: np.ndarray) -> None:
    """Raise RemoteProtocolError for scales that no encoder produces."""
    if not np.isfinite(scales).all() or (scales < 0).any():
        raise RemoteProtocolError("a scale that is not finite, or negative")


def claimed_size(data: Buffer, codec: str, num_bytes: Callable[[int], int]) -> int:
    """Return the number of values that a buffer claims to hold. Raises RemoteProtocolError where its length is not the
    `num_bytes` of that number."""
    size = SIZE.unpack_from(data)[0] if len(data) >= SIZE.size else -1
    if not 0 <= size <= MAX_PART_VALUES or len(data) != num_bytes(size):
        raise RemoteProtocolError(f"{len(data)} bytes are no {codec} values")
    return int(size)


def encoded_length(codec: TensorCodec, data: Buffer, size: int) -> int:
    """Return the length in bytes of the encoding of `size` values at the start of `data`. Raises RemoteProtocolError where the
    claimed length is impossible."""
    most = codec.num_bytes(size)
    if not codec.is_variable:
        return most
    length = int(VARIABLE_HEAD.unpack_from(data)[1]) if len(data) >= VARIABLE_HEAD.size else 0
    if not VARIABLE_HEAD.size <= length <= most:
        raise RemoteProtocolError(f"{length} bytes are no {codec.name} values")
    return length
