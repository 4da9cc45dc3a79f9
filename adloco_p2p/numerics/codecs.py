"""How the values of a vector travel. Pure; equal bytes become equal values on every machine.

Casts (2 or 4 bytes per value); blocks of integers with one scale per block; signs with one scale per chunk, the form of signSGD
with error feedback (arXiv 1901.09847); the largest values of each chunk alone, the form of SparseLoCo (arXiv 2508.15706).
Decoding is a cast or one product rounded to float32. Bytes are little-endian, as every
machine that torch runs on stores them.

A codec cuts a vector in groups of `group` values that it codes by themselves: where parts begin at multiples of it, coding
the parts is coding the vector. The residual is worth carrying to the next round where `needs_feedback`.
"""

import math
import struct
from typing import Protocol

import numpy as np
import torch

from adloco_p2p.errors import RemoteProtocolError

Buffer = bytes | bytearray | memoryview

_SIZE = struct.Struct("<I")  # values, before the data of codecs whose bytes do not contain it
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

    def num_bytes(self, size: int) -> int:
        """Of so many values, always."""
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

    def for_mean(self, num_contributors: int) -> "TensorCodec":
        """How the mean of so many encoded vectors travels back."""
        ...


class CastCodec:
    """Every value cast to a narrower floating-point type, nearest even."""

    group = 1
    needs_feedback = False
    returns_mean = True

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
        # torch refuses to promise anything about memory that must not be written to, so such bytes are copied.
        writable = data if not memoryview(data).readonly else bytearray(data)
        return torch.frombuffer(writable, dtype=self._dtype).to(torch.float32)

    def cut(self, data: Buffer, first: int, size: int) -> Buffer:
        return memoryview(data)[self.num_bytes(first) : self.num_bytes(first + size)]

    def for_mean(self, num_contributors: int) -> TensorCodec:  # noqa: ARG002
        return self


class IntegerCodec:
    """Blocks of `group` values, each a float32 scale (the largest magnitude) and integers of 8 or 4 bits, nearest even.

    size, scales [blocks], integers [n] (two in a byte where they have 4 bits, the even one low).
    """

    needs_feedback, is_verbatim = True, False
    returns_mean = True

    def __init__(self, name: str, code: int, *, bits: int, group: int) -> None:
        assert bits in (4, 8) and group % 2 == 0
        self.name, self.code, self.group = name, code, group
        self.largest = float(np.finfo(np.float32).max)
        self._bits, self._top = bits, 2 ** (bits - 1) - 1

    def num_bytes(self, size: int) -> int:
        return _SIZE.size + 4 * _blocks(size, self.group) + (size * self._bits + 7) // 8

    def encode(self, values: torch.Tensor) -> memoryview:
        assert values.dtype == torch.float32 and values.ndim == 1
        size = values.numel()
        blocks = _padded(values.numpy(), self.group)
        scales = np.abs(blocks).max(axis=1, initial=0.0)
        # A scale too small to divide by makes its block zero. The largest one must not overflow in the product.
        usable = np.where(scales < np.float32(1e-30), np.float32(np.inf), scales)
        integers = np.rint(blocks / usable[:, None] * np.float32(self._top)).astype(np.int8).reshape(-1)[:size]
        if self._bits == 4:
            nibbles = (np.append(integers, np.int8(0)) if size % 2 else integers).view(np.uint8) & 0x0F
            integers = (nibbles[0::2] | nibbles[1::2] << 4).view(np.int8)
        return memoryview(_SIZE.pack(size) + scales.astype("<f4").tobytes() + integers.tobytes())

    def decode(self, data: Buffer) -> torch.Tensor:
        size = _claimed_size(data, self)
        num_blocks = _blocks(size, self.group)
        scales = np.frombuffer(data, dtype="<f4", count=num_blocks, offset=_SIZE.size)
        if not np.isfinite(scales).all() or (scales < 0).any():
            raise RemoteProtocolError("a scale that is not finite, or negative")
        packed = np.frombuffer(data, dtype=np.uint8, offset=_SIZE.size + 4 * num_blocks)
        if self._bits == 4:
            integers = np.empty(2 * len(packed), dtype=np.int8)
            integers[0::2], integers[1::2] = (packed << 4).view(np.int8) >> 4, packed.view(np.int8) >> 4
            integers = integers[:size]
        else:
            integers = packed.view(np.int8)
        if (integers < -self._top).any():
            raise RemoteProtocolError("an integer that no encoder makes")
        blocks = _padded(integers, self.group).astype(np.float32) / np.float32(self._top)
        blocks *= scales[:, None]
        return torch.from_numpy(blocks.reshape(-1)[:size])

    def cut(self, data: Buffer, first: int, size: int) -> Buffer:
        view = memoryview(data)
        scales = _SIZE.size + 4 * (first // self.group)
        integers = _SIZE.size + 4 * _blocks(_claimed_size(data, self), self.group) + first * self._bits // 8
        cut_scales = view[scales : scales + 4 * _blocks(size, self.group)]
        return b"".join((_SIZE.pack(size), cut_scales, view[integers : integers + (size * self._bits + 7) // 8]))

    def for_mean(self, num_contributors: int) -> TensorCodec:  # noqa: ARG002
        return _INT8


class SignCodec:
    """Chunks of `group` values, each a float32 scale (the mean magnitude) and one bit a value: set where the value is negative.

    size, scales [chunks], bits [n], the first value's lowest. Of all vectors with one magnitude per chunk and these signs the
    decoded one is the nearest. The mean travels back in `back`, by default in the same form: as large for any number of hosts.
    """

    needs_feedback, is_verbatim = True, False
    returns_mean = False  # few values, equally spaced, are rounded to 4 bits with a bias that the norm of the mean shows

    def __init__(self, name: str, code: int, *, group: int = 4096, back: TensorCodec | None = None) -> None:
        assert group % 8 == 0
        self.name, self.code, self.group = name, code, group
        self.largest = float(np.finfo(np.float32).max)
        self._back = back

    def num_bytes(self, size: int) -> int:
        return _SIZE.size + 4 * _blocks(size, self.group) + (size + 7) // 8

    def encode(self, values: torch.Tensor) -> memoryview:
        assert values.dtype == torch.float32 and values.ndim == 1
        size = values.numel()
        lengths = np.full(_blocks(size, self.group), self.group)
        lengths[-1:] -= -size % self.group
        scales = np.abs(_padded(values.numpy(), self.group)).sum(axis=1, dtype=np.float64) / lengths
        bits = np.packbits(values.numpy() < 0, bitorder="little")
        return memoryview(_SIZE.pack(size) + scales.astype("<f4").tobytes() + bits.tobytes())

    def decode(self, data: Buffer) -> torch.Tensor:
        size = _claimed_size(data, self)
        num_chunks = _blocks(size, self.group)
        scales = np.frombuffer(data, dtype="<f4", count=num_chunks, offset=_SIZE.size)
        if not np.isfinite(scales).all() or (scales < 0).any():
            raise RemoteProtocolError("a scale that is not finite, or negative")
        packed = np.frombuffer(data, dtype=np.uint8, offset=_SIZE.size + 4 * num_chunks)
        signs = 1 - 2 * np.unpackbits(packed, count=size, bitorder="little").view(np.int8)
        chunks = _padded(signs, self.group).astype(np.float32)
        chunks *= scales[:, None]
        return torch.from_numpy(chunks.reshape(-1)[:size])

    def cut(self, data: Buffer, first: int, size: int) -> Buffer:
        view = memoryview(data)
        scales = _SIZE.size + 4 * (first // self.group)
        bits = _SIZE.size + 4 * _blocks(_claimed_size(data, self), self.group) + first // 8
        cut_scales = view[scales : scales + 4 * _blocks(size, self.group)]
        return b"".join((_SIZE.pack(size), cut_scales, view[bits : bits + (size + 7) // 8]))

    def for_mean(self, num_contributors: int) -> TensorCodec:  # noqa: ARG002
        return self._back or self


class TopKCodec:
    """Of each chunk of `group` values the `kept` largest, each by its place and a value of `bits` bits; the others are zero.

    size; per chunk, padded to a whole one: two float32 scales, places [kept] uint16 ascending or, where that is shorter, a bit
    for each place, the first lowest; values [kept]. With 2 bits a value is one of +-low and +-high, the mean magnitudes of
    those below and above half of the largest; with 8 bits `high` is the largest magnitude and values are its 127ths.
    """

    def __init__(self, name: str, code: int, *, kept: int, bits: int, group: int = 4096) -> None:
        assert bits in (2, 8) and kept % 4 == 0 and kept <= group <= 1 << 16
        self.name, self.code, self.group, self.kept, self.bits = name, code, group, kept, bits
        self.needs_feedback, self.is_verbatim, self.returns_mean = bits == 2, False, True
        self.largest = float(np.finfo(np.float32).max)
        self._has_bitmap = group // 8 < 2 * kept
        self._values_at = 8 + (group // 8 if self._has_bitmap else 2 * kept)
        self._chunk_bytes = self._values_at + kept * bits // 8

    def num_bytes(self, size: int) -> int:
        return _SIZE.size + _blocks(size, self.group) * self._chunk_bytes

    def encode(self, values: torch.Tensor) -> memoryview:
        assert values.dtype == torch.float32 and values.ndim == 1
        chunks = _padded(values.numpy(), self.group)
        magnitudes = np.abs(chunks)
        places = np.sort(np.argpartition(magnitudes, self.group - self.kept, axis=1)[:, self.group - self.kept :], axis=1)
        taken = np.take_along_axis(chunks, places, axis=1)
        scales, codes = self._quantize(taken)
        pieces = np.concatenate([scales.view(np.uint8), self._pack(places), codes], axis=1)
        return memoryview(_SIZE.pack(values.numel()) + pieces.tobytes())

    def _pack(self, places: np.ndarray) -> np.ndarray:
        """Places [chunks, kept], ascending, as uint8 [chunks, bytes]."""
        if not self._has_bitmap:
            return places.astype("<u2").view(np.uint8)
        is_taken = np.zeros((len(places), self.group), dtype=np.uint8)
        np.put_along_axis(is_taken, places, 1, axis=1)
        return np.packbits(is_taken, axis=1, bitorder="little")

    def _unpack(self, packed: np.ndarray) -> np.ndarray:
        """The reverse. Raises RemoteProtocolError for what no encoder makes."""
        if self._has_bitmap:
            is_taken = np.unpackbits(packed, axis=1, bitorder="little")
            if (is_taken.sum(axis=1, dtype=np.int64) != self.kept).any():
                raise RemoteProtocolError(f"places that are not {self.kept} of a chunk")
            return np.nonzero(is_taken)[1].reshape(-1, self.kept)
        places = np.ascontiguousarray(packed).view("<u2").astype(np.int64)
        if (places >= self.group).any() or (np.diff(places, axis=1) <= 0).any():
            raise RemoteProtocolError("places that do not ascend, or lie outside the chunk")
        return places

    def _quantize(self, taken: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Scales [chunks, 2] and codes [chunks, bytes] of the kept values [chunks, kept]."""
        magnitudes = np.abs(taken)
        top = magnitudes.max(axis=1, initial=0.0)
        scales = np.zeros((len(taken), 2), dtype="<f4")
        if self.bits == 8:
            scales[:, 1] = top
            usable = np.where(top < np.float32(1e-30), np.float32(np.inf), top)
            return scales, np.rint(taken / usable[:, None] * np.float32(127)).astype(np.int8).view(np.uint8)
        is_high = magnitudes > top[:, None] / 2
        for column, members in ((0, ~is_high), (1, is_high)):
            total = np.where(members, magnitudes, 0.0).sum(axis=1, dtype=np.float64)
            scales[:, column] = total / np.maximum(members.sum(axis=1), 1)
        two_bits = (is_high.astype(np.uint8) << 1 | (taken < 0)).reshape(len(taken), self.kept // 4, 4)
        return scales, (two_bits << np.array([0, 2, 4, 6], dtype=np.uint8)).sum(axis=2, dtype=np.uint8)

    def decode(self, data: Buffer) -> torch.Tensor:
        size = _claimed_size(data, self)
        pieces = np.frombuffer(data, dtype=np.uint8, offset=_SIZE.size).reshape(-1, self._chunk_bytes)
        scales = np.ascontiguousarray(pieces[:, :8]).view("<f4")
        places, codes = self._unpack(pieces[:, 8 : self._values_at]), pieces[:, self._values_at :]
        if not np.isfinite(scales).all() or (scales < 0).any():
            raise RemoteProtocolError("a scale that is not finite, or negative")
        if self.bits == 8:
            values = codes.view(np.int8).astype(np.float32) / np.float32(127) * scales[:, 1:]
        else:
            two_bits = codes[:, :, None] >> np.array([0, 2, 4, 6], dtype=np.uint8) & 3
            two_bits = two_bits.reshape(len(codes), self.kept)
            values = np.where(two_bits >= 2, scales[:, 1:], scales[:, :1])
            values = np.where(two_bits & 1, -values, values)
        chunks = np.zeros((len(pieces), self.group), dtype=np.float32)
        np.put_along_axis(chunks, places, values.astype(np.float32), axis=1)
        return torch.from_numpy(chunks.reshape(-1)[:size])

    def cut(self, data: Buffer, first: int, size: int) -> Buffer:
        begin = self.num_bytes(first)
        return _SIZE.pack(size) + memoryview(data)[begin : begin + _blocks(size, self.group) * self._chunk_bytes]

    def for_mean(self, num_contributors: int) -> TensorCodec:
        """Room for every place that any contributor named, in 8 bits, so that little is lost on the way back; all places where
        that is shorter."""
        if self.bits != 2:
            return self
        return _SPARSE_MEANS[max(1, num_contributors) - 1] if num_contributors <= len(_SPARSE_MEANS) else _INT8


def _blocks(size: int, group: int) -> int:
    return math.ceil(size / group)


def _padded(values: np.ndarray, group: int) -> np.ndarray:
    """[blocks, group], zeros at the end."""
    whole = np.zeros(_blocks(len(values), group) * group, dtype=values.dtype)
    whole[: len(values)] = values
    return whole.reshape(-1, group)


def _claimed_size(data: Buffer, codec: TensorCodec) -> int:
    """How many values a buffer has. Raises RemoteProtocolError where its length does not fit that."""
    size = _SIZE.unpack_from(data)[0] if len(data) >= _SIZE.size else -1
    if not 0 <= size <= MAX_PART_VALUES or len(data) != codec.num_bytes(size):
        raise RemoteProtocolError(f"{len(data)} bytes are no {codec.name} values")
    return int(size)


_INT8 = IntegerCodec("int8", 4, bits=8, group=256)
_INT4 = IntegerCodec("int4", 5, bits=4, group=64)
_SPARSE_MEANS = tuple(TopKCodec(f"sparse{64 * count}", 16 + count, kept=64 * count, bits=8) for count in range(1, 57))
CODECS: tuple[TensorCodec, ...] = (
    CastCodec("float32", 1, torch.float32),
    CastCodec("float16", 2, torch.float16),
    CastCodec("bfloat16", 3, torch.bfloat16),
    _INT8,
    _INT4,
    TopKCodec("topk2", 6, kept=64, bits=2),
    SignCodec("sign", 7),
    SignCodec("sign_int4", 8, back=_INT4),
)
"""By choice of a run; `topk2` keeps 64 of 4096 values with 2 bits each."""


def mean_codecs(codec: TensorCodec) -> tuple[TensorCodec, ...]:
    """All in which a mean of vectors of this codec may come, whatever the number of contributors."""
    return tuple(dict.fromkeys(codec.for_mean(count) for count in range(1, len(_SPARSE_MEANS) + 2)))


def wire_bytes(codec: TensorCodec, num_contributors: int) -> float:
    """Per value of a long vector: the mean of its way to the reducers and of the mean's way back."""
    size = 1 << 20
    return (codec.num_bytes(size) + codec.for_mean(num_contributors).num_bytes(size)) / (2 * size)


def codec_named(name: str) -> TensorCodec:
    """The codec of that name. Raises ValueError."""
    for codec in CODECS:
        if codec.name == name:
            return codec
    raise ValueError(f"codec {name!r} is unknown; known: {', '.join(codec.name for codec in CODECS)}")


def values_in(codec: TensorCodec, encoded: np.ndarray, size: int) -> torch.Tensor:
    """float32 [size] for the values of an encoded vector: the same memory where the codec changes nothing, otherwise memory
    that they are to be decoded into."""
    return torch.from_numpy(encoded).view(torch.float32) if codec.is_verbatim else torch.empty(size)


def fits(codec: TensorCodec, values: torch.Tensor) -> bool:
    """Whether every value is finite and within what the codec can hold; one pass, no copy."""
    if not values.numel():
        return True
    low, high = torch.aminmax(values)  # a NaN anywhere becomes both, and fails both comparisons
    return bool(low >= -codec.largest) and bool(high <= codec.largest)
