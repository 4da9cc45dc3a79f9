"""The codec for the mean of sparse vectors (`sparse_codecs.py`): all non-zero values of each chunk.

Places are Rice-coded (`rice.py`). The bytes depend on the values: 0.07, 0.13 and 0.21 per value for n = 4, 8 and 16 hosts that
name their places at random, and never more than 0.63. Chunks differ in their number of values, so many of them are coded at a
time, as one list of values and the chunk of each.
"""

import struct
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
import torch

from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.numerics.rice import most_bytes, remainder_bits_for, remainder_bytes
from adloco_p2p.numerics.tensor_codec import (
    MAX_PART_VALUES,
    VARIABLE_HEAD,
    Buffer,
    TensorCodec,
    encoded_length,
    num_blocks,
    padded,
)

GROUP = 4096
_LEVELS = 8
_HEAD = np.dtype([("scale", "<f4"), ("count", "<u2"), ("unary_bytes", "<u2")])
_HEAD_FIELDS = struct.Struct("<fHH")
_MOST_CHUNK_BYTES = _HEAD.itemsize + most_bytes(GROUP) + GROUP // 2
_CHUNKS_AT_ONCE = 64
"""Chunks that are coded at a time; bounds the scratch memory."""


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
        data = b"".join(_encoded(integers[some], scales[some]) for some in _some_chunks(len(chunks)))
        return memoryview(VARIABLE_HEAD.pack(values.numel(), VARIABLE_HEAD.size + len(data)) + data)

    def decode(self, data: Buffer) -> torch.Tensor:
        size, view = _checked_size(data), memoryview(data)
        count = num_blocks(size, GROUP)
        ends = _chunk_ends(view, count)
        if ends[-1] != len(view):
            raise RemoteProtocolError("bytes behind the last chunk")
        values = np.zeros(count * GROUP, dtype=np.float32)
        limits = np.minimum(size - GROUP * np.arange(count), GROUP)
        for some in _some_chunks(count):
            starts = np.array(ends[some], dtype=np.int64)
            piece = np.frombuffer(view[ends[some.start] : ends[some.stop]], dtype=np.uint8)
            places, decoded = _decoded(piece, starts - starts[0], limits[some])
            values[some.start * GROUP + places] = decoded
        return torch.from_numpy(values[:size])

    def cuts(self, data: Buffer, size: int, length: int) -> Iterator[Buffer]:
        _checked_size(data)
        view = memoryview(data)
        ends = _chunk_ends(view, num_blocks(size, GROUP))
        for first in range(0, size, length):
            num_values = min(length, size - first)
            begin, end = ends[first // GROUP], ends[num_blocks(first + num_values, GROUP)]
            yield VARIABLE_HEAD.pack(num_values, VARIABLE_HEAD.size + end - begin) + view[begin:end]

    @property
    def mean_codec(self) -> TensorCodec:
        return self


SPARSE_MEAN: TensorCodec = SparseMeanCodec()


def expected_bytes(size: int, part: float) -> float:
    """Return the expected bytes of a mean in which `part` of all places are named, independently of each other."""
    remainder_bits = remainder_bits_for(round(part * GROUP), GROUP)
    longer = (1 - part) ** (1 << remainder_bits)  # the chance that a gap has one more zero in unary
    bits_each = 4 + 1 + remainder_bits + longer / (1 - longer)
    return VARIABLE_HEAD.size + num_blocks(size, GROUP) * (_HEAD.itemsize + part * GROUP * bits_each / 8)


def _some_chunks(count: int) -> list[slice]:
    return [slice(first, min(first + _CHUNKS_AT_ONCE, count)) for first in range(0, count, _CHUNKS_AT_ONCE)]


def _checked_size(data: Buffer) -> int:
    """Return the number of values in an encoded mean. Raises RemoteProtocolError."""
    size = VARIABLE_HEAD.unpack_from(data)[0] if len(data) >= VARIABLE_HEAD.size else -1
    if not 0 <= size <= MAX_PART_VALUES or len(data) != encoded_length(SPARSE_MEAN, data, size):
        raise RemoteProtocolError(f"{len(data)} bytes are no {SPARSE_MEAN.name} values")
    return int(size)


def _chunk_ends(view: memoryview, count: int) -> list[int]:
    """Return where the first chunk begins, and the ends of the first `count` chunks. Raises RemoteProtocolError."""
    at, ends, remainder_bits = VARIABLE_HEAD.size, [VARIABLE_HEAD.size], _remainder_bits().tolist()
    for _ in range(count):
        if at + _HEAD.itemsize > len(view):
            raise RemoteProtocolError("less than a chunk")
        _, num_places, unary_bytes = _HEAD_FIELDS.unpack_from(view, at)
        if num_places > GROUP:
            raise RemoteProtocolError(f"{num_places} places of a chunk of {GROUP}")
        at += _HEAD.itemsize + unary_bytes + remainder_bytes(num_places, remainder_bits[num_places]) + (num_places + 1) // 2
        if at > len(view):
            raise RemoteProtocolError("less than a chunk")
        ends.append(at)
    return ends


@cache
def _remainder_bits() -> np.ndarray:
    """Return the bits of each rest of a chunk, int64, by the chunk's number of places."""
    return np.array([remainder_bits_for(count, GROUP) for count in range(GROUP + 1)])


class _Starts(NamedTuple):
    """Where the parts of each chunk begin in the bytes of some chunks, int64 [chunks] each, and the end of the last one."""

    heads: np.ndarray
    unary: np.ndarray
    rests: np.ndarray
    values: np.ndarray
    end: int


def _starts(counts: np.ndarray, unary_bytes: np.ndarray) -> _Starts:
    head_bytes = np.full(len(counts), _HEAD.itemsize)
    lengths = np.stack([head_bytes, unary_bytes, (counts * _remainder_bits()[counts] + 7) // 8, (counts + 1) // 2], axis=1)
    ends = np.cumsum(lengths).reshape(lengths.shape)
    heads, unary, rests, values = (ends - lengths).T
    return _Starts(heads, unary, rests, values, end=int(ends[-1, -1]))


class _Lists:
    """One list per chunk of what its values have, one list behind the other; `of` is the chunk of each value, `within` its
    index in the list. All arrays are int64."""

    def __init__(self, counts: np.ndarray) -> None:
        self._counts = counts
        self._firsts = np.cumsum(counts) - counts
        self.of = np.repeat(np.arange(len(counts)), counts)
        self.within = np.arange(len(self.of)) - self._firsts[self.of]

    def gaps(self, places: np.ndarray) -> np.ndarray:
        """Return the number of places that are passed over before each of the places, which ascend in each list."""
        before = np.roll(places, 1)
        before[self.within == 0] = -1
        gaps: np.ndarray = places - before - 1
        return gaps

    def places(self, gaps: np.ndarray) -> np.ndarray:
        """Return the places that have these gaps before them."""
        ends = np.concatenate([[0], np.cumsum(gaps + 1)])
        places: np.ndarray = ends[1:] - ends[self._firsts][self.of] - 1
        return places

    def last(self, places: np.ndarray) -> np.ndarray:
        """Return the last place of each list, -1 for an empty one."""
        ends = np.where(self._counts > 0, self._firsts + self._counts - 1, len(places))
        last: np.ndarray = np.concatenate([places, [-1]])[ends]
        return last


def _encoded(integers: np.ndarray, scales: np.ndarray) -> bytes:
    """Encode chunks from `integers`, int8 [chunks, GROUP], each the value in eighths of its chunk's scale, -8 to 8."""
    at = np.flatnonzero(integers != 0)
    values, (rows, places) = integers.reshape(-1)[at], np.divmod(at, GROUP)
    counts = np.bincount(rows, minlength=len(integers))
    lists, widths = _Lists(counts), _remainder_bits()[counts][rows]
    gaps = lists.gaps(places)
    ones = lists.places(gaps >> widths)
    unary_bytes = (lists.last(ones) + 8) // 8
    starts = _starts(counts, unary_bytes)
    bits = np.zeros(8 * starts.end, dtype=np.uint8)
    bits[8 * starts.unary[rows] + ones] = 1
    rest_at = 8 * starts.rests[rows] + widths * lists.within
    for place in range(widths.max(initial=0)):
        longer = np.flatnonzero(widths > place)
        bits[rest_at[longer] + place] = gaps[longer] >> place & 1
    data = np.packbits(bits, bitorder="little")
    codes = (np.abs(values) - 1 | (values < 0) << 3).astype(np.uint8)
    halves = np.zeros(2 * starts.end, dtype=np.uint8)
    halves[2 * starts.values[rows] + lists.within] = codes
    data |= halves[0::2] | halves[1::2] << 4
    heads = np.zeros(len(counts), dtype=_HEAD)
    heads["scale"], heads["count"], heads["unary_bytes"] = np.where(counts > 0, scales, 0), counts, unary_bytes
    data[starts.heads[:, None] + np.arange(_HEAD.itemsize)] = heads.view(np.uint8).reshape(-1, _HEAD.itemsize)
    return data.tobytes()


def _decoded(piece: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Decode the chunks that begin at `starts` in the bytes `piece`, and have `sizes` places.

    Returns the place of each value, counted from the first place of the first chunk, and the values, float32. Raises
    RemoteProtocolError.
    """
    heads = piece[starts[:, None] + np.arange(_HEAD.itemsize)].view(_HEAD)[:, 0]
    scales, counts, unary_bytes = heads["scale"], heads["count"].astype(np.int64), heads["unary_bytes"].astype(np.int64)
    if not np.isfinite(scales).all() or (scales < 0).any() or ((scales > 0) != (counts > 0)).any():
        raise RemoteProtocolError("a scale that is not finite, or negative, or of nothing")
    at, lists, widths = _starts(counts, unary_bytes), _Lists(counts), _remainder_bits()[counts]
    edges = np.stack([at.heads, at.unary, at.rests], axis=1).reshape(-1)
    is_unary = np.repeat(np.arange(len(edges)) % 3 == 1, np.diff(edges, append=at.end))
    bits, rows, widths = np.unpackbits(piece * is_unary, bitorder="little").view(bool), lists.of, widths[lists.of]
    wrong = RemoteProtocolError("places that are not as many as the chunk states")
    if np.count_nonzero(bits) != len(rows) or unary_bytes[counts == 0].any():  # the places of far more would fill the memory
        raise wrong
    ones = np.flatnonzero(bits)
    if not np.array_equal(np.searchsorted(8 * at.rests, ones, side="right"), rows):
        raise wrong
    quotients = lists.gaps(ones - 8 * at.unary[rows])
    rests = _read(piece, 8 * at.rests[rows] + widths * lists.within, widths)
    places = lists.places((quotients << widths) + rests)
    if (lists.last(places) >= sizes).any():
        raise RemoteProtocolError("places outside the chunk")
    codes = piece[at.values[rows] + lists.within // 2] >> (lists.within & 1) * 4
    integers = np.where(codes & 8, -1, 1) * ((codes & 7) + 1)
    return GROUP * rows + places, integers.astype(np.float32) / np.float32(_LEVELS) * scales[rows]


def _read(data: np.ndarray, at: np.ndarray, widths: np.ndarray) -> np.ndarray:
    """Return the numbers of `widths` bits, at most 17, that begin at these bits of the bytes, the lowest bit first."""
    window, byte = np.concatenate([data, np.zeros(2, np.uint8)]), at >> 3
    three = window[byte].astype(np.int64) | window[byte + 1].astype(np.int64) << 8 | window[byte + 2].astype(np.int64) << 16
    numbers: np.ndarray = three >> (at & 7) & (1 << widths) - 1
    return numbers
