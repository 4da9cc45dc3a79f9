"""The interface of a codec, and the head of its bytes."""

import math
import struct
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch

from adloco_p2p.errors import RemoteProtocolError

Buffer = bytes | bytearray | memoryview

SIZE = struct.Struct("<I")  # number of values, before the data of codecs whose bytes do not contain it
VARIABLE_HEAD = struct.Struct("<II")  # number of values, and of all bytes, where these depend on the values
MAX_PART_VALUES = 1 << 24
"""Values that one buffer of such a codec may claim to have."""


class TensorCodec(Protocol):
    """Values become bytes and back. `code` names the codec on the wire and is never used again for another one."""

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
        """Whether bytes and values are the same memory: coding costs none of its own."""
        ...

    @property
    def returns_mean(self) -> bool:
        """Whether what travels back is the mean, but for rounding. Where it is not, only the Gram matrix of the contributions
        gives the statistics of the batch test."""
        ...

    @property
    def largest(self) -> float:
        """Largest magnitude that `encode` keeps finite."""
        ...

    @property
    def is_variable(self) -> bool:
        """Whether the number of bytes depends on the values. They then begin with a `VARIABLE_HEAD`."""
        ...

    def num_bytes(self, size: int) -> int:
        """Of so many values, always; at most, where `is_variable`."""
        ...

    def encode(self, values: torch.Tensor) -> memoryview:
        """Bytes of a contiguous [n] float32 tensor within `largest`. May share the tensor's memory."""
        ...

    def decode(self, data: Buffer) -> torch.Tensor:
        """[n] float32 values of the bytes. May share the memory of `data`. Raises RemoteProtocolError."""
        ...

    def cut(self, data: Buffer, first: int, size: int) -> Buffer:
        """The encoding of values `first` to `first + size` out of that of more of them; `first` is a multiple of `group`, and
        so is `size` unless it reaches to the end."""
        ...

    @property
    def mean_codec(self) -> "TensorCodec":
        """The codec in which the mean of encoded vectors travels back."""
        ...


def num_blocks(size: int, group: int) -> int:
    return math.ceil(size / group)


def padded(values: np.ndarray, group: int) -> np.ndarray:
    """[blocks, group], zeros at the end."""
    whole = np.zeros(num_blocks(len(values), group) * group, dtype=values.dtype)
    whole[: len(values)] = values
    return whole.reshape(-1, group)


def check_scales(scales: np.ndarray) -> None:
    """Raises RemoteProtocolError for factors that no encoder gives its values."""
    if not np.isfinite(scales).all() or (scales < 0).any():
        raise RemoteProtocolError("a scale that is not finite, or negative")


def claimed_size(data: Buffer, codec: str, num_bytes: Callable[[int], int]) -> int:
    """The number of values in a buffer of that codec, which has `num_bytes` for so many. Raises RemoteProtocolError where its
    length does not fit that."""
    size = SIZE.unpack_from(data)[0] if len(data) >= SIZE.size else -1
    if not 0 <= size <= MAX_PART_VALUES or len(data) != num_bytes(size):
        raise RemoteProtocolError(f"{len(data)} bytes are no {codec} values")
    return int(size)


def encoded_length(codec: TensorCodec, data: Buffer, size: int) -> int:
    """Bytes of the encoding of `size` values with which `data` begins. Raises RemoteProtocolError where these are more than
    such an encoding has."""
    most = codec.num_bytes(size)
    if not codec.is_variable:
        return most
    length = int(VARIABLE_HEAD.unpack_from(data)[1]) if len(data) >= VARIABLE_HEAD.size else 0
    if not VARIABLE_HEAD.size <= length <= most:
        raise RemoteProtocolError(f"{length} bytes are no {codec.name} values")
    return length
