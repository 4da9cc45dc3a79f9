"""How the values of a vector travel: one tiny interface, so that coarser codecs can come later.

Decoding is a plain cast, so equal bytes become equal values on every machine. Bytes are little-endian, as every machine
that torch runs on stores them.
"""

from typing import Protocol

import torch

Buffer = bytes | bytearray | memoryview


class TensorCodec(Protocol):
    """Values become bytes and back. `code` names the codec on the wire and is never used again for another one."""

    @property
    def name(self) -> str: ...
    @property
    def code(self) -> int: ...
    @property
    def bytes_per_value(self) -> int: ...
    @property
    def largest(self) -> float:
        """Largest magnitude that `encode` keeps finite."""
        ...

    def encode(self, values: torch.Tensor) -> memoryview:
        """Bytes of a contiguous [n] float32 tensor within `largest`. May share the tensor's memory."""
        ...

    def decode(self, data: Buffer) -> torch.Tensor:
        """[n] float32 values of the bytes. May share the memory of `data`."""
        ...


class CastCodec:
    """Every value cast to a narrower floating-point type, nearest even."""

    def __init__(self, name: str, code: int, dtype: torch.dtype) -> None:
        self.name = name
        self.code = code
        self.bytes_per_value = dtype.itemsize
        self.largest = torch.finfo(dtype).max
        self._dtype = dtype

    def encode(self, values: torch.Tensor) -> memoryview:
        assert values.dtype == torch.float32 and values.ndim == 1 and values.is_contiguous()
        return values.to(self._dtype).view(torch.uint8).numpy().data

    def decode(self, data: Buffer) -> torch.Tensor:
        # torch refuses to promise anything about memory that must not be written to, so such bytes are copied.
        writable = data if not memoryview(data).readonly else bytearray(data)
        return torch.frombuffer(writable, dtype=self._dtype).to(torch.float32)


_CODECS: tuple[TensorCodec, ...] = (
    CastCodec("float32", 1, torch.float32),
    CastCodec("float16", 2, torch.float16),
    CastCodec("bfloat16", 3, torch.bfloat16),
)


def codec_named(name: str) -> TensorCodec:
    """The codec of that name. Raises ValueError."""
    for codec in _CODECS:
        if codec.name == name:
            return codec
    raise ValueError(f"codec {name!r} is unknown; known: {', '.join(codec.name for codec in _CODECS)}")


def fits(codec: TensorCodec, values: torch.Tensor) -> bool:
    """Whether every value is finite and within what the codec can hold; one pass, no copy."""
    low, high = torch.aminmax(values)  # a NaN anywhere becomes both, and fails both comparisons
    return bool(low >= -codec.largest) and bool(high <= codec.largest)
