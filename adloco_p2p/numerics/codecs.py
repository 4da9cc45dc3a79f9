"""The codecs of vectors on the wire. Pure; equal bytes decode to equal values on every machine.

There are casts (2 or 4 bytes per value); blocks of integers with one scale per block; signs with one scale per block, the form
of signSGD with error feedback (arXiv 1901.09847); and the largest values of each chunk alone (`sparse_codecs.py`). Decoding is
a cast or one product rounded to float32. Bytes are little-endian, as on every machine that torch supports.

A codec encodes every group of `group` values on its own, so encoding parts that begin at multiples of `group` is the same as
encoding the vector. Where `needs_feedback`, the loss is large enough to carry the residual to the next round.
"""

from collections.abc import Iterator

import numpy as np
import torch

from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.numerics.sparse_codecs import TopKCodec, typical_mean_bytes
from adloco_p2p.numerics.sparse_mean import SPARSE_MEAN
from adloco_p2p.numerics.tensor_codec import SIZE, Buffer, TensorCodec, check_scales, claimed_size, num_blocks, padded


class CastCodec:
    """Every value cast to a narrower floating-point type, nearest even."""

    group = 1
    needs_feedback = False
    returns_mean = True
    is_variable = False

    def __init__(self, name: str, code: int, dtype: torch.dtype) -> None:
        self.name = name
        self.code = code
        self.largest = torch.finfo(dtype).max
        self.is_verbatim = dtype == torch.float32
        self._dtype = dtype

    def num_bytes(self, size: int) -> int:
        return size * self._dtype.itemsize

    def encode(self, values: torch.Tensor) -> memoryview:
        assert values.dtype == torch.float32 and values.ndim == 1 and values.is_contiguous()
        return values.to(self._dtype).view(torch.uint8).numpy().data

    def decode(self, data: Buffer) -> torch.Tensor:
        if len(data) % self._dtype.itemsize:
            raise RemoteProtocolError(f"{len(data)} bytes are no {self.name} values")
        if not len(data):
            return torch.empty(0)
        # torch does not support read-only memory, so such bytes are copied.
        writable = data if not memoryview(data).readonly else bytearray(data)
        return torch.frombuffer(writable, dtype=self._dtype).to(torch.float32)

    def cuts(self, data: Buffer, size: int, length: int) -> Iterator[Buffer]:
        view = memoryview(data)
        for first in range(0, size, length):
            yield view[self.num_bytes(first) : self.num_bytes(min(first + length, size))]

    @property
    def mean_codec(self) -> TensorCodec:
        return self


class _ScaledCodec:
    """Values of a few bits each, in blocks of `group` with one float32 scale. Bytes: size, scales [blocks], values [n]."""

    needs_feedback, is_verbatim, is_variable = True, False, False
    largest = float(np.finfo(np.float32).max)

    def __init__(self, name: str, code: int, *, bits: int, group: int) -> None:
        assert group * bits % 8 == 0
        self.name, self.code, self.group = name, code, group
        self._bits = bits

    def num_bytes(self, size: int) -> int:
        return SIZE.size + 4 * num_blocks(size, self.group) + self._packed_bytes(size)

    def cuts(self, data: Buffer, size: int, length: int) -> Iterator[Buffer]:
        view = memoryview(data)
        begin_values = SIZE.size + 4 * num_blocks(claimed_size(data, self.name, self.num_bytes), self.group)
        for first in range(0, size, length):
            num_values = min(length, size - first)
            scales, values = SIZE.size + 4 * (first // self.group), begin_values + first * self._bits // 8
            cut_scales = view[scales : scales + 4 * num_blocks(num_values, self.group)]
            yield b"".join((SIZE.pack(num_values), cut_scales, view[values : values + self._packed_bytes(num_values)]))

    def _packed_bytes(self, size: int) -> int:
        return (size * self._bits + 7) // 8

    def _parts(self, data: Buffer) -> tuple[int, np.ndarray, np.ndarray]:
        """Split encoded data into size, scales and packed values. Raises RemoteProtocolError."""
        size = claimed_size(data, self.name, self.num_bytes)
        count = num_blocks(size, self.group)
        scales = np.frombuffer(data, dtype="<f4", count=count, offset=SIZE.size)
        check_scales(scales)
        return size, scales, np.frombuffer(data, dtype=np.uint8, offset=SIZE.size + 4 * count)


class IntegerCodec(_ScaledCodec):
    """Integers of 8 or 4 bits, rounded half to even. Two 4-bit integers share a byte, the one of even index in the low half.
    The scale is the largest magnitude of the block."""

    returns_mean = True

    def __init__(self, name: str, code: int, *, bits: int, group: int) -> None:
        assert bits in (4, 8)
        super().__init__(name, code, bits=bits, group=group)
        self._top = 2 ** (bits - 1) - 1

    def encode(self, values: torch.Tensor) -> memoryview:
        assert values.dtype == torch.float32 and values.ndim == 1
        size = values.numel()
        blocks = padded(values.numpy(), self.group)
        scales = np.abs(blocks).max(axis=1, initial=0.0)
        # A block whose scale is too small to divide by becomes zero. Dividing first keeps the largest values from overflowing.
        usable = np.where(scales < np.float32(1e-30), np.float32(np.inf), scales)
        integers = np.rint(blocks / usable[:, None] * np.float32(self._top)).astype(np.int8).reshape(-1)[:size]
        if self._bits == 4:
            nibbles = (np.append(integers, np.int8(0)) if size % 2 else integers).view(np.uint8) & 0x0F
            integers = (nibbles[0::2] | nibbles[1::2] << 4).view(np.int8)
        return memoryview(SIZE.pack(size) + scales.astype("<f4").tobytes() + integers.tobytes())

    def decode(self, data: Buffer) -> torch.Tensor:
        size, scales, packed = self._parts(data)
        if self._bits == 4:
            integers = np.empty(2 * len(packed), dtype=np.int8)
            integers[0::2], integers[1::2] = (packed << 4).view(np.int8) >> 4, packed.view(np.int8) >> 4
            integers = integers[:size]
        else:
            integers = packed.view(np.int8)
        if (integers < -self._top).any():
            raise RemoteProtocolError("an integer that no encoder makes")
        blocks = padded(integers, self.group).astype(np.float32) / np.float32(self._top)
        blocks *= scales[:, None]
        return torch.from_numpy(blocks.reshape(-1)[:size])

    @property
    def mean_codec(self) -> TensorCodec:
        return _INT8


class SignCodec(_ScaledCodec):
    """One bit per value, set where it is negative; the first value takes the lowest bit. The scale is the mean magnitude of the
    block.

    Of all vectors with one magnitude per block and these signs, the decoded one is the nearest. The mean travels back in the
    codec `back`, by default in this one, so its size does not depend on the number of hosts.
    """

    returns_mean = False  # the mean has few, equally spaced values: rounding it to 4 bits biases its norm visibly

    def __init__(self, name: str, code: int, *, group: int = 4096, back: TensorCodec | None = None) -> None:
        super().__init__(name, code, bits=1, group=group)
        self._back = back

    def encode(self, values: torch.Tensor) -> memoryview:
        assert values.dtype == torch.float32 and values.ndim == 1
        size = values.numel()
        lengths = np.full(num_blocks(size, self.group), self.group)
        lengths[-1:] -= -size % self.group
        scales = np.abs(padded(values.numpy(), self.group)).sum(axis=1, dtype=np.float64) / lengths
        bits = np.packbits(values.numpy() < 0, bitorder="little")
        return memoryview(SIZE.pack(size) + scales.astype("<f4").tobytes() + bits.tobytes())

    def decode(self, data: Buffer) -> torch.Tensor:
        size, scales, packed = self._parts(data)
        signs = 1 - 2 * np.unpackbits(packed, count=size, bitorder="little").view(np.int8)
        chunks = padded(signs, self.group).astype(np.float32)
        chunks *= scales[:, None]
        return torch.from_numpy(chunks.reshape(-1)[:size])

    @property
    def mean_codec(self) -> TensorCodec:
        return self._back or self


_INT8 = IntegerCodec("int8", 4, bits=8, group=256)
_INT4 = IntegerCodec("int4", 5, bits=4, group=64)
CODECS: tuple[TensorCodec, ...] = (
    CastCodec("float32", 1, torch.float32),
    CastCodec("float16", 2, torch.float16),
    CastCodec("bfloat16", 3, torch.bfloat16),
    _INT8,
    _INT4,
    TopKCodec("topk2", 9),
    SignCodec("sign", 7),
    SignCodec("sign_int4", 8, back=_INT4),
)
"""The codecs that a run may choose. Codes 6 and from 17 on belonged to sparse codecs with longer places."""


def bytes_each_way(codec: TensorCodec, num_contributors: int) -> tuple[float, float]:
    """Return the bytes per value of a long vector on the way to the reducers and, typically, on the way back."""
    size, mean = 1 << 20, codec.mean_codec
    back = typical_mean_bytes(size, num_contributors) if mean is SPARSE_MEAN else mean.num_bytes(size)
    return codec.num_bytes(size) / size, back / size


def wire_bytes(codec: TensorCodec, num_contributors: int) -> float:
    """Return the bytes per value of a long vector, as the mean of both ways."""
    return sum(bytes_each_way(codec, num_contributors)) / 2


def codec_named(name: str) -> TensorCodec:
    """Return the codec of that name. Raises ValueError for an unknown one."""
    for codec in CODECS:
        if codec.name == name:
            return codec
    raise ValueError(f"codec {name!r} is unknown; known: {', '.join(codec.name for codec in CODECS)}")


def values_in(codec: TensorCodec, encoded: np.ndarray, size: int) -> torch.Tensor:
    """Return a float32 tensor [size] for the values of an encoded vector: a view of `encoded` where the codec is verbatim,
    otherwise uninitialised memory to decode into."""
    return torch.from_numpy(encoded).view(torch.float32) if codec.is_verbatim else torch.empty(size)


def fits(codec: TensorCodec, values: torch.Tensor) -> bool:
    """Return whether every value is finite and in the range of the codec; one pass, no copy."""
    if not values.numel():
        return True
    low, high = torch.aminmax(values)  # one NaN makes both NaN, and both comparisons fail
    return bool(low >= -codec.largest) and bool(high <= codec.largest)
