"""The sparse codecs: one that keeps the largest values of each chunk, as SparseLoCo does (arXiv 2508.15706), and one for the
mean of such vectors.

Places are Rice-coded (`rice.py`). A chunk of a contribution always takes 84 bytes. A mean has every place that some host named,
so its bytes depend on the values: 0.07, 0.13 and 0.21 per value for n = 4, 8 and 16 hosts that name their places at random, and
never more than 0.63.
"""

import struct

import numpy as np
import torch

from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.numerics.rice import (
    most_bytes,
    most_unary_bits,
    pack_places,
    rest_bits_for,
    rest_bytes,
    unpack_places,
)
from adloco_p2p.numerics.tensor_codec import (
    MAX_PART_VALUES,
    SIZE,
    VARIABLE_HEAD,
    Buffer,
    TensorCodec,
    check_scales,
    claimed_size,
    encoded_length,
    num_blocks,
    padded,
)

GROUP = 4096
KEPT = 64
"""Values that are kept of a chunk of `GROUP` values."""
_SCALE_BYTES = 4


class TopKCodec:
    """The `kept` largest values of each chunk, each as its place and 2 bits; the other values become zero.

    Bytes: size; for each chunk, the last padded to a whole one, two bfloat16 scales `low` and `high`, places, values. A value
    is +-low or +-high, the mean magnitudes of the kept values up to half of the largest one and above it.
    """

    group = GROUP
    needs_feedback, is_verbatim, is_variable = True, False, False
    returns_mean = False  # the mean has 4 bits per value, whose rounding shows in its norm
    largest = float(torch.finfo(torch.bfloat16).max)

    def __init__(self, name: str, code: int, kept: int = KEPT) -> None:
        self.name, self.code, self._kept = name, code, kept
        self._rest_bits = rest_bits_for(kept, GROUP)
        self._unary_bytes = (most_unary_bits(kept, GROUP, self._rest_bits) + 7) // 8
        self._place_bytes = self._unary_bytes + rest_bytes(kept, self._rest_bits)
        self._chunk_bytes = _SCALE_BYTES + self._place_bytes + kept // 4

    def num_bytes(self, size: int) -> int:
        return SIZE.size + num_blocks(size, GROUP) * self._chunk_bytes

    def encode(self, values: torch.Tensor) -> memoryview:
        assert values.dtype == torch.float32 and values.ndim == 1
        chunks = padded(values.numpy(), GROUP)
        magnitudes = np.abs(chunks)
        places = np.sort(np.argpartition(magnitudes, GROUP - self._kept, axis=1)[:, GROUP - self._kept :], axis=1)
        scales, codes = _two_bits(np.take_along_axis(chunks, places, axis=1))
        pieces = np.concatenate([scales, pack_places(places, self._rest_bits, unary_bytes=self._unary_bytes), codes], axis=1)
        return memoryview(SIZE.pack(values.numel()) + pieces.tobytes())

    def decode(self, data: Buffer) -> torch.Tensor:
        size = claimed_size(data, self.name, self.num_bytes)
        pieces = np.frombuffer(data, dtype=np.uint8, offset=SIZE.size).reshape(-1, self._chunk_bytes)
        halves = np.ascontiguousarray(pieces[:, :_SCALE_BYTES]).view("<u2").astype("<u4") << 16
        scales = halves.view("<f4")
        check_scales(scales)
        packed, codes = np.split(pieces[:, _SCALE_BYTES:], [self._place_bytes], axis=1)
        places = unpack_places(packed, self._kept, self._rest_bits, unary_bytes=self._unary_bytes)
        if (places >= GROUP).any():
            raise RemoteProtocolError("places outside the chunk")
        two_bits = (codes[:, :, None] >> np.array([0, 2, 4, 6], dtype=np.uint8) & 3).reshape(len(codes), self._kept)
        values = np.where(two_bits >= 2, scales[:, 1:], scales[:, :1])
        chunks = np.zeros((len(pieces), GROUP), dtype=np.float32)
        np.put_along_axis(chunks, places, np.where(two_bits & 1, -values, values), axis=1)
        return torch.from_numpy(chunks.reshape(-1)[:size])

    def cut(self, data: Buffer, first: int, size: int) -> Buffer:
        begin = self.num_bytes(first)
        return SIZE.pack(size) + memoryview(data)[begin : begin + num_blocks(size, GROUP) * self._chunk_bytes]

    @property
    def mean_codec(self) -> TensorCodec:
        return SPARSE_MEAN


def _two_bits(taken: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the scales and the 2-bit codes of the kept values [chunks, kept], both as uint8 [chunks, bytes]."""
    magnitudes = np.abs(taken)
    is_high = magnitudes > magnitudes.max(axis=1, initial=0.0, keepdims=True) / 2
    scales = np.zeros((len(taken), 2), dtype=np.float32)
    for column, members in ((0, ~is_high), (1, is_high)):
        total = np.where(members, magnitudes, 0.0).sum(axis=1, dtype=np.float64)
        scales[:, column] = total / np.maximum(members.sum(axis=1), 1)
    halves = torch.from_numpy(scales).to(torch.bfloat16).view(torch.int16).numpy().astype("<i2").view(np.uint8)
    two_bits = (is_high.astype(np.uint8) << 1 | (taken < 0)).reshape(len(taken), taken.shape[1] // 4, 4)
    return halves, (two_bits << np.array([0, 2, 4, 6], dtype=np.uint8)).sum(axis=2, dtype=np.uint8)


_LEVELS = 8
_CHUNK_HEAD = struct.Struct("<fHH")
_MOST_CHUNK_BYTES = _CHUNK_HEAD.size + most_bytes(GROUP) + GROUP // 2


class SparseMeanCodec:
    """All non-zero values of each chunk, each as its place and 4 bits, however few hosts named the place.

    Bytes: size and number of all bytes; for each chunk a float32 scale (the largest magnitude), the number of places, the bytes
    of their unary codes, places, values (two in a byte, the one of even index in the low half). A value is 1 to 8 eighths of
    the scale: the lower three bits hold that number minus one, the fourth the sign. Values that round to no eighth, below a
    sixteenth of the scale, become zero.
    """

    name, code, group = "sparse_mean", 10, GROUP
    needs_feedback, is_verbatim, is_variable = False, False, True
    returns_mean = False
    largest = float(np.finfo(np.float32).max)

    def num_bytes(self, size: int) -> int:
        return VARIABLE_HEAD.size + num_blocks(size, GROUP) * _MOST_CHUNK_BYTES

    def encode(self, values: torch.Tensor) -> memoryview:
        assert values.dtype == torch.float32 and values.ndim == 1
        chunks = padded(values.numpy(), GROUP)
        scales = np.abs(chunks).max(axis=1, initial=0.0)
        # A chunk whose scale is too small to divide by becomes zero.
        usable = np.where(scales < np.float32(1e-30), np.float32(np.inf), scales)
        integers = np.rint(chunks / usable[:, None] * np.float32(_LEVELS)).astype(np.int8)
        data = b"".join(_encoded_chunk(row, float(scale)) for row, scale in zip(integers, scales, strict=True))
        return memoryview(VARIABLE_HEAD.pack(values.numel(), VARIABLE_HEAD.size + len(data)) + data)

    def decode(self, data: Buffer) -> torch.Tensor:
        size, view = _checked_size(data), memoryview(data)
        chunks = np.zeros((num_blocks(size, GROUP), GROUP), dtype=np.float32)
        at = VARIABLE_HEAD.size
        for index, row in enumerate(chunks):
            end = _chunk_end(view, at)
            _decode_chunk(view[at:end], row, min(GROUP, size - index * GROUP))
            at = end
        if at != len(view):
            raise RemoteProtocolError("bytes behind the last chunk")
        return torch.from_numpy(chunks.reshape(-1)[:size])

    def cut(self, data: Buffer, first: int, size: int) -> Buffer:
        view, at = memoryview(data), VARIABLE_HEAD.size
        _checked_size(data)
        for _ in range(first // GROUP):
            at = _chunk_end(view, at)
        end = at
        for _ in range(num_blocks(size, GROUP)):
            end = _chunk_end(view, end)
        return VARIABLE_HEAD.pack(size, VARIABLE_HEAD.size + end - at) + view[at:end]

    @property
    def mean_codec(self) -> TensorCodec:
        return self


SPARSE_MEAN: TensorCodec = SparseMeanCodec()


def _checked_size(data: Buffer) -> int:
    """Return the number of values in an encoded mean. Raises RemoteProtocolError."""
    size = VARIABLE_HEAD.unpack_from(data)[0] if len(data) >= VARIABLE_HEAD.size else -1
    if not 0 <= size <= MAX_PART_VALUES or len(data) != encoded_length(SPARSE_MEAN, data, size):
        raise RemoteProtocolError(f"{len(data)} bytes are no {SPARSE_MEAN.name} values")
    return int(size)


def _chunk_end(view: memoryview, at: int) -> int:
    """Return the end of the chunk that begins at `at`. Raises RemoteProtocolError."""
    if at + _CHUNK_HEAD.size > len(view):
        raise RemoteProtocolError("less than a chunk")
    _, count, unary_bytes = _CHUNK_HEAD.unpack_from(view, at)
    if count > GROUP:
        raise RemoteProtocolError(f"{count} places of a chunk of {GROUP}")
    end = at + _CHUNK_HEAD.size + unary_bytes + rest_bytes(count, rest_bits_for(count, GROUP)) + (count + 1) // 2
    if end > len(view):
        raise RemoteProtocolError("less than a chunk")
    return int(end)


def _encoded_chunk(integers: np.ndarray, scale: float) -> bytes:
    """Encode one chunk from `integers` [GROUP], each the value in eighths of the scale, -8 to 8."""
    places = np.nonzero(integers)[0]
    if not len(places):
        return _CHUNK_HEAD.pack(0.0, 0, 0)
    rest_bits, values = rest_bits_for(len(places), GROUP), integers[places]
    packed = pack_places(places[None], rest_bits).tobytes()
    nibbles = np.zeros(len(places) + len(places) % 2, dtype=np.uint8)
    nibbles[: len(places)] = np.abs(values) - 1 | (values < 0) << 3
    unary_bytes = len(packed) - rest_bytes(len(places), rest_bits)
    return _CHUNK_HEAD.pack(scale, len(places), unary_bytes) + packed + (nibbles[0::2] | nibbles[1::2] << 4).tobytes()


def _decode_chunk(chunk: memoryview, row: np.ndarray, size: int) -> None:
    """Decode one chunk into `row` [GROUP], which holds zeros and has `size` places. Raises RemoteProtocolError."""
    scale, count, unary_bytes = _CHUNK_HEAD.unpack_from(chunk)
    if not (np.isfinite(scale) and scale >= 0) or (scale > 0) != (count > 0):
        raise RemoteProtocolError("a scale that is not finite, or negative, or of nothing")
    if not count:
        if unary_bytes:
            raise RemoteProtocolError("places of no values")
        return
    rest_bits = rest_bits_for(count, GROUP)
    packed, nibbles = np.split(np.frombuffer(chunk, dtype=np.uint8, offset=_CHUNK_HEAD.size), [-((count + 1) // 2)])
    (places,) = unpack_places(packed[None], count, rest_bits, unary_bytes=unary_bytes)
    if places[-1] >= size:
        raise RemoteProtocolError("places outside the chunk")
    codes = np.stack([nibbles & 15, nibbles >> 4], axis=1).reshape(-1)[:count]
    integers = np.where(codes & 8, -1, 1) * ((codes & 7) + 1).astype(np.int8)
    row[places] = integers.astype(np.float32) / np.float32(_LEVELS) * np.float32(scale)


def typical_mean_bytes(size: int, num_contributors: int) -> float:
    """Return the expected bytes of the mean of so many `TopKCodec` vectors whose places are independent of each other. Hosts
    that train on one distribution have some places in common, so their mean takes a little less."""
    part = 1 - (1 - KEPT / GROUP) ** num_contributors
    rest_bits = rest_bits_for(round(part * GROUP), GROUP)
    longer = (1 - part) ** (1 << rest_bits)  # the chance that a gap has one more zero in unary
    bits_each = 4 + 1 + rest_bits + longer / (1 - longer)
    return VARIABLE_HEAD.size + num_blocks(size, GROUP) * (_CHUNK_HEAD.size + part * GROUP * bits_each / 8)
